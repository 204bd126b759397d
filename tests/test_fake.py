"""The fake engine: its planted truth is what is played, in memory and by the real process, and every planted failure happens."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline import ready
from leadline.config import Deploy, Readiness
from leadline.endpoints import snapshot
from leadline.engines import recognise
from leadline.engines.fake import MODULE, SURFACES, FakeEngine, Method, Surface, play, surface_of, word
from leadline.errors import ConfigError, LaunchFailed, LaunchHung, UnknownKnob, WrongServer
from leadline.process import ProcessSupervisor
from leadline.records import OFF, Candidate, Command, Level, Outcome, RequestResult
from leadline.target import free_port
from leadline.workload import blocks
from test_supervisor_conformance import wait_for

ENGINE = FakeEngine()
START = ("python", "-m", MODULE)
PLAIN = (*START, "--port", "9000", "--speed", "0.1")
CLEAN_OFF = Candidate(algorithm=OFF, depth=0)
CHAT = Level(workload="chat", concurrency=1)


def draft(depth: int, kind: str = "draft") -> Candidate:
    return Candidate(algorithm=kind, depth=depth)


# -- the surface ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("candidate", [CLEAN_OFF, draft(1), draft(4), draft(12), draft(8, "copy")])
def test_what_is_played_is_the_planted_truth(candidate: Candidate, concurrency: int) -> None:
    surface = SURFACES["regimes"]
    level = Level(workload="copy", concurrency=concurrency)
    played = [play(surface, candidate, level, block, 1, max_tokens=256) for block in range(8)]
    decode = [1000 * concurrency / statistics.fmean(r.tpot_ms or 0 for r in one.requests) for one in played]
    assert statistics.fmean(decode) == pytest.approx(surface.output_tok_s(candidate, level), rel=0.08)
    for one in played:
        assert one.output_tok_s == pytest.approx(sum(r.tokens_out for r in one.requests) / one.duration_s)
        assert all(r.tokens_out == 256 for r in one.requests)
        assert len(one.requests) == concurrency


def test_acceptance_is_the_planted_one() -> None:
    surface = Surface(methods={"draft": Method(accept={"": (0.9, 0.8, 0.5)})})
    counts = [play(surface, draft(3), CHAT, block, 7, max_tokens=400).acceptance for block in range(10)]
    rounds = sum(c.rounds or 0 for c in counts if c)
    shares = [sum(c.per_position[j] for c in counts if c) / rounds for j in range(3)]
    assert shares == pytest.approx([0.9, 0.72, 0.36], abs=0.04)
    for one in counts:
        assert one is not None
        assert sum(one.per_position) == one.accepted
        assert one.drafted == 3 * (one.rounds or 0)


def test_the_regimes_have_three_winners() -> None:
    surface = SURFACES["regimes"]
    candidates = [CLEAN_OFF, *(draft(d) for d in (1, 2, 4, 8)), *(draft(d, "copy") for d in (4, 8, 16))]

    def best(workload: str, concurrency: int) -> str:
        level = Level(workload=workload, concurrency=concurrency)
        return max(candidates, key=lambda c: surface.output_tok_s(c, level)).algorithm

    assert (best("chat", 1), best("chat", 4), best("copy", 1), best("copy", 4)) == ("draft", OFF, "copy", "copy")


def test_nothing_is_gained_on_the_null_surface() -> None:
    level = Level(workload="chat", concurrency=4)
    truths = {round(SURFACES["null"].output_tok_s(c, level), 9) for c in (CLEAN_OFF, draft(1), draft(16))}
    assert len(truths) == 1


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 99), block=st.integers(0, 9), depth=st.integers(1, 16), concurrency=st.integers(1, 6))
def test_a_play_repeats_and_blocks_pair(seed: int, block: int, depth: int, concurrency: int) -> None:
    level = Level(workload="chat", concurrency=concurrency)
    surface = Surface(methods={"draft": Method(accept={"": (0.8,)})}, noise=0.0, slots=4)
    first = play(surface, draft(depth), level, block, seed, max_tokens=16)
    assert first == play(surface, draft(depth), level, block, seed, max_tokens=16)
    other = play(surface, CLEAN_OFF, level, block, seed, max_tokens=16)
    assert {(r.prompt_id, r.text_sha256) for r in first.requests} == {(r.prompt_id, r.text_sha256) for r in other.requests}
    assert other.acceptance is None


def test_a_bad_surface_is_named() -> None:
    assert surface_of('{"methods": {"x": {"accept": {"": [0.5]}}}}').length(draft(1, "x"), "chat") == 1.5
    for text in ("nosuch", '{"methods": 1}', '{"method": {}}'):
        with pytest.raises(ConfigError, match="--plant"):
            surface_of(text)


# -- the adapter ------------------------------------------------------------------------------------------------------


def test_the_adapter_reads_and_writes_its_flags() -> None:
    engine, found = recognise((*PLAIN, "--spec-method", "draft", "--spec-depth=4", "--slots", "2"))
    assert (engine.name, found.candidate, found.port, found.start) == ("fake", draft(4), 9000, 3)
    assert ENGINE.render(found, draft(8)) == (*PLAIN, "--spec-method", "draft", "--spec-depth=8", "--slots", "2")
    assert ENGINE.render(found, CLEAN_OFF) == (*PLAIN, "--slots", "2")
    pinned = Candidate(algorithm="copy", depth=4, settings=(("slots", "3"),))
    assert ENGINE.render(found, pinned)[-5:] == ("--spec-method", "copy", "--spec-depth=4", "--slots", "3")
    assert [axis.algorithm for axis in ENGINE.axes(found)] == ["draft", "copy"]
    plain = ENGINE.parse(PLAIN)
    assert plain is not None
    assert ENGINE.render(plain, draft(2)) == (*PLAIN, "--spec-method", "draft", "--spec-depth", "2")
    assert ENGINE.parse(("python", "-m", "http.server")) is None


def test_the_adapter_refuses_what_it_does_not_know() -> None:
    with pytest.raises(UnknownKnob, match="eagle"):
        ENGINE.parse((*PLAIN, "--spec-method", "eagle"))
    with pytest.raises(ConfigError, match="--port"):
        ENGINE.parse((*START, "--port", "x"))
    found = ENGINE.parse(PLAIN)
    assert found is not None
    with pytest.raises(UnknownKnob, match="speed"):
        ENGINE.render(found, Candidate(algorithm="draft", depth=1, settings=(("speed", "1"),)))
    with pytest.raises(UnknownKnob):
        ENGINE.axes(found, ("eagle",))


# -- the real process -------------------------------------------------------------------------------------------------


class Bench:
    def __init__(self, folder: Path, *extra: str) -> None:
        self.port = free_port()
        self.argv = (sys.executable, "-m", MODULE, "--port", str(self.port), "--speed", "0.1", *extra)
        self.engine, self.parsed = recognise(self.argv)
        self.supervisor = ProcessSupervisor(Command(argv=self.argv), folder, Deploy(), port=self.port)
        self.url = f"http://127.0.0.1:{self.port}"

    def launch(self, candidate: Candidate, still_s: float = 60.0) -> ready.Answer:
        self.current = self.supervisor.start(self.engine.render(self.parsed, candidate))
        limits = Readiness(still_s=still_s, limit_s=120)
        return ready.wait(self.supervisor, self.current, self.engine, self.parsed, candidate, self.url, limits, ask=self.ask)

    def ask(self, url: str, text: str = "hello", tokens: int = 8) -> RequestResult:
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": tokens}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60, trust_env=False).json()
        assert answer["choices"][0]["message"]["content"] == "".join(word(text, n) for n in range(tokens))
        return RequestResult(prompt_id="ask", outcome=Outcome.OK, tokens_out=answer["usage"]["completion_tokens"])


@pytest.fixture
def benches(tmp_path: Path) -> Iterator[list[Bench]]:
    made: list[Bench] = []
    yield made
    for one in made:
        one.supervisor.close()


def bench(benches: list[Bench], tmp_path: Path, *extra: str) -> Bench:
    benches.append(Bench(tmp_path / str(len(benches)), *extra))
    return benches[-1]


def test_a_launch_is_what_it_was_asked_to_be(benches: list[Bench], tmp_path: Path) -> None:
    one = bench(benches, tmp_path, "--plant-load-s", "0.3")
    answer = one.launch(draft(4))
    assert (answer.reported.algorithm, answer.reported.depth, answer.reported.max_running_requests) == ("draft", 4, 8)
    before = snapshot(one.url, (), "/metrics").metrics
    prompts = blocks("copy", seed=1, block=0, count=3, max_tokens=64)
    for prompt in prompts:
        text = "\n".join(content for _, content in prompt.messages)
        one.ask(one.url, text, 64)
    found = one.engine.acceptance(draft(4), before, snapshot(one.url, (), "/metrics").metrics, (), "")
    assert found is not None
    assert sum(found.per_position) == found.accepted
    assert (found.accepted or 0) + (found.rounds or 0) == 3 * 64
    log = one.supervisor.log(one.current).decode()
    assert one.engine.loading(log).phase == "serving"
    assert one.engine.loading(log.partition("loading 75 %")[0]).fraction == 0.5
    assert one.engine.capacity(answer.reported, log).max_running_requests == 8


def test_a_stream_gives_a_chunk_a_round_and_the_server_s_own_count(benches: list[Bench], tmp_path: Path) -> None:
    one = bench(benches, tmp_path)
    one.launch(draft(8))
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 40, "stream": True}
    with httpx.stream("POST", f"{one.url}/v1/chat/completions", json=body, timeout=60, trust_env=False) as stream:
        lines = [line.removeprefix("data: ") for line in stream.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    events = [json.loads(line) for line in lines[:-1]]
    assert events[-1]["usage"]["completion_tokens"] == 40
    tokens = [event for event in events if event["choices"] and event["choices"][0]["delta"].get("content")]
    assert events[-1]["timings"]["draft_n_accepted"] == 40 - len(tokens)


def test_requests_beyond_the_slots_wait(benches: list[Bench], tmp_path: Path) -> None:
    one = bench(benches, tmp_path, "--slots", "1", "--speed", "1")
    one.launch(CLEAN_OFF)
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 400, "stream": True}
    with httpx.Client(trust_env=False, timeout=60) as client, client.stream("POST", f"{one.url}/v1/chat/completions", json=body) as first:
        lines = first.iter_lines()  # held: an iterator that is let go closes the connection
        next(lines)
        with client.stream("POST", f"{one.url}/v1/chat/completions", json=body):
            seen: set[str] = set()
            for _ in range(100):  # the second request reaches the server a moment after it was sent
                seen.add(snapshot(one.url, (), "/metrics").metrics)
                if any("fake:active 1\nfake:waiting 1\n" in metrics for metrics in seen):
                    break
    assert any("fake:active 1\nfake:waiting 1\n" in metrics for metrics in seen), seen


@pytest.mark.parametrize(
    ("extra", "candidate", "error", "words"),
    [
        (("--plant-exit", "3"), draft(1), LaunchFailed, "planted exit"),
        (("--plant-crash-depth", "4"), draft(4), LaunchFailed, "no memory left for depth 4"),
        (("--plant-hang-depth", "4"), draft(6), LaunchHung, "loading 50 %"),
        (("--plant-silent",), draft(2), WrongServer, "reports off"),
        (("--plant-never-ready",), CLEAN_OFF, LaunchHung, "serving on"),
    ],
)
def test_planted_failures_happen(
    benches: list[Bench], tmp_path: Path, extra: tuple[str, ...], candidate: Candidate, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        bench(benches, tmp_path, *extra).launch(candidate, still_s=1.5)


def test_shallow_depths_survive_a_planted_crash_depth(benches: list[Bench], tmp_path: Path) -> None:
    assert bench(benches, tmp_path, "--plant-crash-depth", "4").launch(draft(3)).reported.depth == 3


def test_a_crash_under_load_ends_the_launch(benches: list[Bench], tmp_path: Path) -> None:
    one = bench(benches, tmp_path, "--plant-crash-after", "2")
    one.launch(CLEAN_OFF)
    with pytest.raises(httpx.HTTPError):
        one.ask(one.url)
    wait_for(lambda: not one.supervisor.status(one.current).running)
    ended = one.supervisor.status(one.current).exit
    assert ended is not None
    assert (ended.signal, ended.by) == (9, "itself")
    assert "planted crash under load" in one.supervisor.evidence(one.current).get("log")
