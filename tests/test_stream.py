"""The load client against the ground-truth server: times, tokens and classes as its log says."""

from __future__ import annotations

import errno
import socket
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import loadmock
from leadline import measure, stream, workload
from leadline.config import Measure
from leadline.errors import DiskFull
from leadline.records import BlockResult, Level, Outcome
from leadline.stream import loop
from leadline.stream import plan as planning
from leadline.stream import reduce as reducing
from leadline.stream import trace as tracing

SETTINGS = Measure(idle_timeout_s=0.5, level_limit_s=20)

pytestmark = pytest.mark.skipif(loadmock.COMPILER is None, reason="the ground-truth server needs a C compiler")


def play(
    mock: loadmock.Mock, concurrency: int, count: int, *, max_tokens: int = 20, settings: Measure = SETTINGS, **options: object
) -> BlockResult:
    prompts = workload.blocks("chat", seed=1, block=0, count=count, max_tokens=max_tokens)
    level = Level(workload="chat", concurrency=concurrency)
    return measure.play(mock.url, level, prompts, block=0, model="mock", settings=settings, options=measure.Options(**options))  # type: ignore[arg-type]


@pytest.mark.parametrize("k", ["1", "2", "3", "4", "5", "6", "7", "8", "1,5,2,8,1,3"])
def test_tokens_are_the_servers_whatever_a_chunk_holds(mock: loadmock.Mock, tmp_path: Path, k: str) -> None:
    mock.set(k=k)
    result = play(mock, 4, 8)
    truth = mock.truth(tmp_path)
    assert [r.outcome for r in result.requests] == [Outcome.OK] * 8
    assert [r.tokens_out for r in result.requests] == [t.tokens for t in truth] == [20] * 8
    assert [r.events for r in result.requests] == [len(t.chunk_ns) for t in truth]
    assert {r.token_source for r in result.requests} == {"usage"}
    assert result.output_tok_s == pytest.approx(160 / result.duration_s)


def test_times_follow_the_servers_own(mock: loadmock.Mock, tmp_path: Path) -> None:
    mock.set(ttft=20000, itl=4000)
    result = play(mock, 1, 2)
    truth = mock.truth(tmp_path)
    assert result.client.clock == "kernel"
    for request, true in zip(result.requests, truth, strict=True):
        assert request.ttft_ms is not None
        assert request.e2e_ms is not None
        assert request.ttft_ms >= 20.0
        # the kernel's stamp is taken when the packet comes, the log's just before it is sent: what lies between is the server's send
        gaps = [(b - a) / 1e6 for a, b in zip(true.chunk_ns, true.chunk_ns[1:], strict=False)]
        assert request.e2e_ms - request.ttft_ms == pytest.approx(sum(gaps), abs=5.0)
        assert len(request.step_gap_ms) == len(gaps)


FAULTS = {  # the mock's faults in the order of its log, and what each must be called
    "none": Outcome.OK,
    "reset": Outcome.RESET,
    "stall": Outcome.STALL,
    "malformed": Outcome.MALFORMED_SSE,
    "split": Outcome.OK,
    "merge": Outcome.OK,
    "comment": Outcome.OK,
    "crlf": Outcome.OK,
    "empty": Outcome.OK,
    "http500": Outcome.HTTP_ERROR,
    "http429": Outcome.HTTP_429,
    "nodone": Outcome.OK,
    "eofearly": Outcome.EARLY_EOF,
    "errevent": Outcome.ERROR_EVENT,
    "utf8split": Outcome.OK,
    "nospace": Outcome.OK,
    "multiline": Outcome.OK,
    "earlystop": Outcome.EARLY_STOP,
    "http503": Outcome.HTTP_503,
}


def expected(truth: loadmock.Truth) -> tuple[str, int, int]:
    """Class, tokens and events of a request by the server's log."""
    outcome = list(FAULTS.values())[truth.fault]
    counted = truth.tokens if outcome in (Outcome.OK, Outcome.EARLY_STOP, Outcome.MALFORMED_SSE) else len(truth.chunk_ns)
    return outcome.value, counted, len(truth.chunk_ns)


@pytest.mark.parametrize("k", ["1", "3", "1,5,2,8,1,3"])
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_called_what_it_is(mock: loadmock.Mock, tmp_path: Path, fault: str, k: str) -> None:
    mock.set(fault=fault, fevery=2, k=k, fat=3)
    result = play(mock, 4, 8, ignore_eos=True)
    truth = mock.truth(tmp_path)
    assert sorted((r.outcome.value, r.tokens_out, r.events) for r in result.requests) == sorted(map(expected, truth))
    assert result.output_tok_s * result.duration_s == pytest.approx(sum(r.tokens_out for r in result.requests if r.outcome is Outcome.OK))
    assert all(r.detail for r in result.requests if r.outcome is not Outcome.OK)


def test_the_text_survives_a_character_split_between_chunks(mock: loadmock.Mock) -> None:
    mock.set(fault="utf8split", fat=1)
    result = play(mock, 1, 1, max_tokens=4)
    assert "\N{EURO SIGN}" in result.requests[0].text


def test_an_early_stop_is_no_failure_where_the_end_of_sequence_counts(mock: loadmock.Mock) -> None:
    mock.set(fault="earlystop", fat=3)
    assert {(r.outcome, r.tokens_out) for r in play(mock, 2, 2).requests} == {(Outcome.OK, 3)}


def test_tokens_of_a_chunk_where_the_server_counts_them(mock: loadmock.Mock, tmp_path: Path) -> None:
    mock.set(k="1,5,2,8")
    request = play(mock, 1, 1, count_chunks=True).requests[0]
    assert request.step_tokens == (1, 5, 2, 8, 1, 3)
    assert request.tokens_first == 1
    assert request.e2e_ms is not None
    assert request.ttft_ms is not None
    assert request.tpot_ms == pytest.approx((request.e2e_ms - request.ttft_ms) / 19)


def test_without_usage_chunks_are_counted_and_said_to_be(mock: loadmock.Mock) -> None:
    mock.set(usage=2, k=4)
    request = play(mock, 1, 1).requests[0]
    assert (request.tokens_out, request.token_source) == (5, "chunks")


def test_a_thousand_faulty_streams_all_end_and_all_are_classified(mock: loadmock.Mock, tmp_path: Path) -> None:
    seen: list[str] = []
    for number, fault in enumerate(FAULTS):
        mock.set(fault=fault, k="1,3", fat=2, ttft=1000, itl=200)
        result = play(mock, 54, 54, ignore_eos=True, max_tokens=12)
        truth = mock.truth(tmp_path)
        assert sorted((r.outcome.value, r.tokens_out, r.events) for r in result.requests) == sorted(map(expected, truth)), fault
        seen += [r.outcome.value for r in result.requests]
        assert number < len(FAULTS)
    assert len(seen) == 54 * 19 >= 1000


def test_reasoning_and_role_chunks(mock: loadmock.Mock) -> None:
    mock.set(reasoning=1, role=1, ttft=20000)
    request = play(mock, 1, 1).requests[0]
    assert (request.outcome, request.tokens_out, request.events) == (Outcome.OK, 20, 20)
    assert request.ttft_ms is not None
    assert request.ttft_ms > 19  # the role chunk carries no token


def test_the_levels_limit_cuts_and_says_so(mock: loadmock.Mock) -> None:
    mock.set(ttft=1000, itl=100_000)
    result = play(mock, 2, 4, settings=Measure(level_limit_s=0.5, idle_timeout_s=5))
    assert result.stop == "time"
    assert {r.outcome for r in result.requests} == {Outcome.DEADLINE}
    assert sorted(r.events > 0 for r in result.requests) == [False, False, True, True]
    assert [r.detail for r in result.requests][2:] == ["not sent", "not sent"]


def test_nobody_listens() -> None:
    result = measure.ask("http://127.0.0.1:9", "mock")
    assert result.outcome is Outcome.REFUSED
    assert "refused" in result.detail


def test_a_name_whose_first_address_is_not_served(mock: loadmock.Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    mock.set()
    kind = (socket.SOCK_STREAM, 6, "")
    found = [(socket.AF_INET6, *kind, ("::1", mock.port, 0, 0)), (socket.AF_INET, *kind, ("127.0.0.1", mock.port))]
    there = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *more, **named: found if host == "llm" else there(host, *more, **named))
    prompts = workload.blocks("chat", seed=1, block=0, count=2, max_tokens=5)
    level = Level(workload="chat", concurrency=1)
    result = measure.play(f"http://llm:{mock.port}", level, prompts, block=0, model="mock", settings=SETTINGS)
    assert {r.outcome for r in result.requests} == {Outcome.OK}
    assert stream.resolve(planning.endpoint("http://llm:9")) == ("::1", 9)  # nobody accepts: the load says how it was refused


def test_open_loop_keeps_its_schedule(mock: loadmock.Mock, tmp_path: Path) -> None:
    mock.set(ttft=30_000, itl=1000)
    prompts = workload.blocks("chat", seed=1, block=0, count=40, max_tokens=5)
    level = Level(workload="chat", concurrency=0, rate_rps=100)
    result = measure.play(mock.url, level, prompts, block=0, model="mock", settings=SETTINGS)
    assert result.failed == 0
    dues = measure.arrivals(level, 40, seed=1, block=0)
    intended = [r.intended_s - result.requests[0].intended_s for r in result.requests]
    assert intended == pytest.approx([due - dues[0] for due in dues if due is not None and dues[0] is not None], abs=1e-5)
    late_ms = [(r.sent_s - r.intended_s) * 1e3 for r in result.requests]
    assert min(late_ms) >= -0.01
    assert sum(late_ms) / len(late_ms) < 100  # a closed loop that waits for answers would be seconds late


def test_several_processes_share_a_level(mock: loadmock.Mock, tmp_path: Path) -> None:
    mock.set()
    result = play(mock, 8, 24, processes=3)
    assert [r.outcome for r in result.requests] == [Outcome.OK] * 24
    assert [r.prompt_id for r in result.requests] == [f"chat-1-0-{n}" for n in range(24)]
    assert len(mock.truth(tmp_path)) == 24


def test_the_user_clock_is_named(mock: loadmock.Mock) -> None:
    mock.set()
    result = play(mock, 1, 1, kernel_clock=False)
    assert result.client.clock == "user"
    assert result.requests[0].outcome is Outcome.OK


def test_traces_are_on_disk_even_when_the_load_is_killed(mock: loadmock.Mock, tmp_path: Path) -> None:
    mock.set(itl=20_000)
    plan = stream.Plan(planning.endpoint(mock.url), tuple(_shots(200)), connections=4)
    plan_path, trace_path = tmp_path / "plan", tmp_path / "trace"
    plan_path.write_bytes(planning.encode(plan, ("127.0.0.1", mock.port)))
    argv = [sys.executable, "-I", "-S", str(Path(stream.__file__).with_name("loop.py")), str(plan_path), str(trace_path)]
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdin is not None
    child.stdin.write(b"0\n")
    child.stdin.flush()
    assert child.stdout.read(1 + 8) == b"r........"  # ready, and eight requests ended
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()
    trace = tracing.read(trace_path.read_bytes())
    assert sum(request.how == "complete" for request in trace.requests.values()) >= 8
    whole = trace.requests[0]
    (reading,) = reducing.reduce([whole], [reducing.Asked("p", 5)], start_ns=whole.sent_ns)
    assert (reading.result.outcome, reading.result.tokens_out) == (Outcome.OK, 5)


def limited(mock: loadmock.Mock, folder: Path, soft: int, hard: int, *, open_loop: bool) -> list[tracing.RequestTrace]:
    """40 requests on 40 connections of a load process that starts with so few file descriptors."""
    mock.set(itl=20_000)
    shots = tuple(shot._replace(due_s=0.0 if open_loop else None) for shot in _shots(40))
    plan = stream.Plan(planning.endpoint(mock.url), shots, connections=40, open_loop=open_loop)
    plan_path, trace_path = folder / "plan", folder / "trace"
    plan_path.write_bytes(planning.encode(plan, ("127.0.0.1", mock.port)))
    limits = (
        f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard})); os.execv(sys.executable, sys.argv[1:])"
    )
    argv = [sys.executable, "-c", limits, sys.executable, "-I", "-S", loop.__file__, str(plan_path), str(trace_path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdin.write(b"0\n")
        child.stdin.flush()
        child.stdout.read()  # its standard input stays open meanwhile
        complaint = child.stderr.read()
    assert child.returncode == 0, complaint
    return list(tracing.read(trace_path.read_bytes()).requests.values())


@pytest.mark.parametrize("open_loop", [False, True])
def test_a_request_without_a_file_descriptor_is_refused(mock: loadmock.Mock, tmp_path: Path, open_loop: bool) -> None:
    ends = Counter((request.how, request.detail) for request in limited(mock, tmp_path, 24, 24, open_loop=open_loop))
    assert set(ends) == {("complete", ""), ("refused", "Too many open files")}
    assert ends.total() == 40


def test_the_load_may_open_as_many_files_as_the_system_lets_it(mock: loadmock.Mock, tmp_path: Path) -> None:
    assert {request.how for request in limited(mock, tmp_path, 24, 256, open_loop=False)} == {"complete"}


@pytest.mark.parametrize("code", [errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.EPIPE])
def test_a_send_that_fails_leaves_the_end_to_the_reads(mock: loadmock.Mock, tmp_path: Path, code: int) -> None:
    class Lost(socket.socket):
        def send(self, *_: object) -> int:
            raise OSError(code, "lost")

    plan = stream.Plan(planning.endpoint(mock.url), tuple(_shots(1)), connections=1)
    (tmp_path / "plan").write_bytes(planning.encode(plan, ("127.0.0.1", mock.port)))
    playing = loop.Loop(str(tmp_path / "plan"), str(tmp_path / "trace"))
    with Lost() as lost:
        flow = loop.Flow()
        flow.sock, flow.fd, flow.out = lost, lost.fileno(), b"POST"
        playing.epoll.register(flow.fd)
        playing.send(flow)
    assert flow.out == b""


def test_a_disk_without_room_for_the_trace_is_told_as_that(mock: loadmock.Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    write = stream._write_private

    def onto_a_full_disk(path: Path, data: bytes) -> None:
        path.symlink_to("/dev/full") if path.suffix == ".trace" else write(path, data)

    mock.set()
    monkeypatch.setattr(stream, "_write_private", onto_a_full_disk)
    with pytest.raises(DiskFull, match=r"load-0\.trace"):
        stream.play(stream.Plan(planning.endpoint(mock.url), tuple(_shots(1)), connections=1))


def test_a_warm_pass_has_as_many_load_processes(mock: loadmock.Mock, monkeypatch: pytest.MonkeyPatch) -> None:
    mock.set()
    asked: list[object] = []
    real = stream.play

    def counted(plan: stream.Plan, *, processes: int = 1, **more: object) -> tracing.Trace:
        asked.append(processes)
        return real(plan, processes=processes, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(stream, "play", counted)
    play(mock, 4, 8, settings=msgspec.structs.replace(SETTINGS, cache="warm"), processes=2)
    assert asked == [2, 2]


def test_keys_and_answers_are_for_their_owner_only(mock: loadmock.Mock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mock.set()
    block = tmp_path / "traces" / "block0"
    during: list[dict[str, int]] = []

    def look() -> None:
        during.append({path.name: stat.S_IMODE(path.stat().st_mode) for path in (block.parent, block, *block.iterdir())})

    def started(*argv: object, **more: object) -> object:
        look()
        return popen(*argv, **more)  # type: ignore[call-overload]

    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", started)
    plan = stream.Plan(planning.endpoint(mock.url), tuple(_shots(2)), connections=1, headers=(("Authorization", "Bearer k"),))
    stream.play(plan, keep=block, begin=look)
    trace = {"traces": 0o700, "block0": 0o700, "load-0.trace": 0o600}
    assert during == [{**trace, "load-0.plan": 0o600}, trace]  # before the clock starts, the plan is gone


def test_a_load_whose_parent_is_gone_stops(mock: loadmock.Mock, tmp_path: Path) -> None:
    mock.set(itl=20_000)
    plan = stream.Plan(planning.endpoint(mock.url), tuple(_shots(500)), connections=2)
    plan_path, trace_path = tmp_path / "plan", tmp_path / "trace"
    plan_path.write_bytes(planning.encode(plan, ("127.0.0.1", mock.port)))
    argv = [sys.executable, "-I", "-S", str(Path(stream.__file__).with_name("loop.py")), str(plan_path), str(trace_path)]
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdin is not None
    child.stdin.write(b"0\n")
    child.stdin.flush()
    child.stdout.read(1 + 2)
    child.stdin.close()
    assert child.wait(10) == 0
    child.stdout.close()
    trace = tracing.read(trace_path.read_bytes())
    assert {request.how for request in trace.requests.values()} == {"complete", "aborted"}
    assert len(trace.requests) == 500


def _shots(count: int) -> Iterator[stream.Shot]:
    for prompt in workload.blocks("chat", seed=1, block=0, count=count, max_tokens=5):
        yield stream.Shot(measure.body(prompt, model="mock", settings=SETTINGS))
