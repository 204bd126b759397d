"""``leadline bench``: figures, comparison, export, and the verb itself."""

from __future__ import annotations

import http.server
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

import loadmock
from leadline import bench, cli, measure
from leadline.config import Measure, levels
from leadline.errors import BadLevels, BadTarget, BadWorkload, ConfigError, Interrupted, LeadlineError, NotServing, OtherConditions
from leadline.records import BlockResult, ClientHealth, Level, Outcome, RequestResult

SETTINGS = Measure(concurrency=(2,), max_tokens=8, max_blocks=2, idle_timeout_s=5)


def request(number: int, outcome: Outcome = Outcome.OK, **more: object) -> RequestResult:
    plain: dict[str, object] = {
        "prompt_id": f"p{number}", "outcome": outcome, "sent_s": 0.1, "ttft_ms": 50.0 + number, "e2e_ms": 150.0, "tpot_ms": 10.0, "tokens_in": 5,
        "tokens_out": 11, "token_source": "usage", "events": 6, "step_gap_ms": (20.0,) * 5, "drafted": 10, "accepted": 5,
    }  # fmt: skip
    return RequestResult(**{**plain, **more})  # type: ignore[arg-type]


def block(number: int, rate: float = 100.0, *, valid: bool = True, requests: tuple[RequestResult, ...] = ()) -> BlockResult:
    return BlockResult(
        level=Level(workload="chat", concurrency=2),
        block=number,
        duration_s=2.0,
        output_tok_s=rate,
        requests=requests or (request(0), request(1)),
        client=ClientHealth(clock="kernel", valid=valid, why="" if valid else "it was slow"),
    )


def result(*blocks: BlockResult, workloads: str = "w") -> bench.BenchResult:
    done = bench.LevelResult(level=blocks[0].level, blocks=blocks, stop="blocks")
    return bench.BenchResult(
        format=bench.FORMAT, url="http://x", model="m", at_s=0.0, writer="w", workloads=workloads, settings=SETTINGS, levels=(done,)
    )


def test_figures_count_what_was_served_and_name_what_was_not() -> None:
    mixed = (request(0), request(1), request(2, Outcome.STALL, tokens_out=3), request(3, Outcome.HTTP_429, ttft_ms=None))
    said = bench.figures(bench.LevelResult(level=Level(workload="chat", concurrency=2), blocks=(block(0, requests=mixed),)))
    assert said.failed == (("http_429", 1), ("stall", 1))
    assert (said.requests, said.requests_s, said.tokens_out) == (4, 1.0, 22)
    assert said.ttft_ms == pytest.approx((50.5, 50.9, 50.99))
    assert said.ttft_intended_ms is not None
    assert said.ttft_intended_ms[0] == pytest.approx(150.5)
    assert said.tokens_per_step == pytest.approx(22 / 12)
    assert said.acceptance_rate == 0.5
    assert said.late_ms_p99 == pytest.approx(100.0)
    assert said.invalid == ""


def test_a_level_in_which_the_client_was_the_bottleneck_is_marked() -> None:
    found = result(block(0), block(1, valid=False))
    assert "INVALID: the client was the bottleneck in 1 of 2 blocks: it was slow" in bench.text(found)


def test_nothing_served_is_a_figure_too() -> None:
    lost = (request(0, Outcome.REFUSED, ttft_ms=None, step_gap_ms=(), tokens_out=0),)
    text = bench.text(result(block(0, 0.0, requests=lost)))
    assert "none" in text
    assert "1 refused" in text


def test_what_was_not_measured_is_no_zero() -> None:
    lost = request(0, Outcome.REFUSED, ttft_ms=None, e2e_ms=None, tpot_ms=None, step_gap_ms=(), tokens_out=0, events=0)
    short = request(1, tpot_ms=None, step_gap_ms=(), tokens_out=1, events=1, drafted=None)
    nothing, one = (bench.figures(bench.LevelResult(level=block(0).level, blocks=(block(0, requests=(r,)),))) for r in (lost, short))
    assert (nothing.ttft_ms, nothing.ttft_intended_ms, nothing.e2e_ms, nothing.tokens_per_step) == (None,) * 4
    assert (one.ttft_ms, one.step_gap_ms, one.time_per_token_ms) == ((51.0, 51.0, 51.0), None, None)
    for requests, row in (
        ((lost,), "100.0 .*none +none +none +none +none +1 +1 refused"),
        ((short,), "51.0/51.0 ms +none +none +1.00 +150 ms +1 +0"),
    ):
        assert re.search(row, bench.text(result(block(0, requests=requests))))


def test_results_compare_by_block() -> None:
    rates = (100.0, 120.0, 90.0, 110.0)
    slow = result(*(block(n, rate) for n, rate in enumerate(rates)))
    fast = result(*(block(n, 1.5 * rate) for n, rate in enumerate(rates)))
    (row,) = bench.compare(slow, fast)
    assert row.ratio is not None
    assert row.ratio.value == pytest.approx(1.5)
    assert row.ratio.excludes_one
    assert "faster" in bench.comparison_text((row,))
    (same,) = bench.compare(slow, slow)
    assert "no difference shown" in bench.comparison_text((same,))


def test_levels_of_one_file_under_two_names_are_compared() -> None:
    def of(*workloads: str) -> bench.BenchResult:
        found = []
        for name in workloads:
            level = Level(workload=name, concurrency=2)
            played = tuple(msgspec.structs.replace(block(number, 100.0 + number), level=level) for number in range(3))
            found.append(bench.LevelResult(level=level, blocks=played))
        settings = msgspec.structs.replace(SETTINGS, workloads=workloads)
        return msgspec.structs.replace(result(block(0)), settings=settings, levels=tuple(found))

    rows = bench.compare(of("chat", "/old/mine.jsonl"), of("chat", "!./mine.jsonl"))
    assert [row.level.workload for row in rows] == ["chat", "/old/mine.jsonl"]
    assert all(row.ratio is not None and row.ratio.value == pytest.approx(1.0) for row in rows)


def test_unlike_conditions_are_never_compared() -> None:
    with pytest.raises(OtherConditions):
        bench.compare(result(block(0)), result(block(0), workloads="other"))
    (row,) = bench.compare(result(block(0)), result(block(0, valid=False)))
    assert row.ratio is None
    assert "counts in both" in bench.comparison_text((row,))


def test_only_blocks_of_the_same_prompts_are_compared() -> None:
    """A release may deal other prompts to a block of the same settings."""
    first = result(*(block(number, 100.0 + number) for number in range(3)))
    others = block(1, 300.0, requests=(request(0), request(7)))
    (row,) = bench.compare(first, result(block(0, 200.0), others, block(2, 204.0)))
    assert row.ratio is not None
    assert (row.ratio.n, row.ratio.value) == (2, pytest.approx(2.0))
    (none,) = bench.compare(result(block(1)), result(others))
    assert none.ratio is None
    assert "with the same prompts" in bench.comparison_text((none,))


@pytest.mark.parametrize("style", ["vllm", "sglang"])
def test_exports_have_the_fields_that_plots_read(style: str, tmp_path: Path) -> None:
    (path,) = bench.export(result(block(0), block(1)), style, tmp_path / "out.json")
    said = json.loads(path.read_text())
    assert said["completed"] == 4
    assert said["output_throughput"] == pytest.approx(44 / 4)
    assert said["ttfts"] == [0.05, 0.051, 0.05, 0.051]
    assert said["itls"][0] == [0.02] * 5
    assert said["mean_tpot_ms"] == 10.0
    assert said["median_itl_ms"] == 20.0
    assert ("mean_e2el_ms" if style == "vllm" else "mean_e2e_latency_ms") in said


@pytest.mark.parametrize("style", ["vllm", "sglang"])
def test_the_lists_of_an_export_add_up(style: str, tmp_path: Path) -> None:
    """The plots of those tools lay requests on one time line by ``start_times`` and sum the lengths."""
    mixed = (request(0), request(1, Outcome.RESET, tokens_out=7))
    (path,) = bench.export(result(block(0, requests=mixed), block(1), block(2)), style, tmp_path / "out.json")
    said = json.loads(path.read_text())
    assert said["start_times"] == pytest.approx([0.1, 0.1, 2.1, 2.1, 4.1, 4.1])
    assert said["output_lens"] == [11, 0, 11, 11, 11, 11]
    assert (sum(said["output_lens"]), said["duration"]) == (said["total_output_tokens"], 6.0)
    assert max(start + took for start, took in zip(said["start_times"], said["latencies"], strict=True)) <= said["duration"]
    assert said["p95_ttft_ms"] == pytest.approx(51.0)
    assert said.get("max_itl_ms") == (20.0 if style == "sglang" else None)


def test_every_level_is_exported_to_a_file_of_its_own(tmp_path: Path) -> None:
    names = ("chat", "/old/mine.jsonl", "/new/mine.jsonl")
    done = tuple(bench.LevelResult(level=Level(workload=name, concurrency=2), blocks=(block(0),)) for name in names)
    written = bench.export(msgspec.structs.replace(result(block(0)), levels=done), "vllm", tmp_path / "out.json")
    assert [path.name for path in written] == ["out-chat-c=2.json", "out-mine.jsonl-c=2.json", "out-mine.jsonl-c=2-3.json"]
    assert [json.loads(path.read_text())["dataset_name"] for path in written] == list(names)


def test_exports_are_read_and_an_unknown_one_is_refused() -> None:
    assert bench.exports(["vllm=a.json", "sglang"]) == (("vllm", Path("a.json")), ("sglang", Path("leadline-sglang.json")))
    with pytest.raises(ConfigError, match="unknown format"):
        bench.exports(["vllm=a.json", "csv=x"])


def test_files_are_read_back_and_others_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    bench.save(result(block(0)), path)
    assert bench.load(path) == result(block(0))
    path.write_text("{}")
    with pytest.raises(ConfigError, match="not a result"):
        bench.load(path)
    with pytest.raises(ConfigError, match="no such file"):
        bench.load(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        bench.load(tmp_path)


def test_rates_and_headers() -> None:
    assert bench.rates("2,8.5") == (2.0, 8.5)
    assert bench.rates(None) == ()
    assert bench.headers(["A: b:c"]) == (("A", "b:c"),)
    for wrong in ("0", "x", "-1"):
        with pytest.raises(BadLevels) as caught:
            bench.rates(wrong)
        assert "--rate 2,8" in caught.value.next


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("A", "without name or value"),
        ("X Name: a", "'X Name' is no name"),
        ("X-\N{LATIN SMALL LETTER E WITH ACUTE}: a", "is no name"),
        ("X\r\nY: a", "is no name"),
        (
            "X: \N{LATIN SMALL LETTER L WITH STROKE}\N{LATIN SMALL LETTER O WITH ACUTE}d\N{LATIN SMALL LETTER Z WITH ACUTE}",
            "the value of X",
        ),
        ("X: a\r\nY: b", "the value of X"),
        ("X: a\0b", "the value of X"),
    ],
)
def test_a_header_that_cannot_be_sent_is_refused(line: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        bench.headers([line])
    assert bench.headers(["X-a!: caf\N{LATIN SMALL LETTER E WITH ACUTE} \t:1\n"]) == (
        ("X-a!", "caf\N{LATIN SMALL LETTER E WITH ACUTE} \t:1"),
    )


def played(monkeypatch: pytest.MonkeyPatch, *requests: RequestResult, seconds: float = 0.0) -> None:
    """Every block takes so long and has these requests."""

    def play(*_: object, block: int, **__: object) -> BlockResult:
        time.sleep(seconds)
        return msgspec.structs.replace(done, block=block)

    done = msgspec.structs.replace(block(0, requests=requests), duration_s=0.001)
    monkeypatch.setattr(measure, "play", play)


def test_a_level_ends_by_the_time_on_the_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    played(monkeypatch, request(0), request(1, Outcome.STALL), seconds=0.1)
    settings = msgspec.structs.replace(SETTINGS, max_blocks=12)
    assert bench.run("http://x", settings, model="m").levels[0].stop == "precision"
    (level,) = bench.run("http://x", msgspec.structs.replace(settings, level_limit_s=0.15), model="m").levels
    assert level.stop == "time"
    assert len(level.blocks) <= 2


def test_the_next_block_of_a_level_gets_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    def play(*_: object, block: int, settings: Measure, **__: object) -> BlockResult:
        given.append(settings.level_limit_s)
        time.sleep(0.1)
        return msgspec.structs.replace(done, block=block)

    done = block(0)
    monkeypatch.setattr(measure, "play", play)
    settings = msgspec.structs.replace(SETTINGS, concurrency=(1, 2), max_blocks=2, level_limit_s=5)
    found = bench.run("http://x", settings, model="m")
    assert [level.stop for level in found.levels] == ["blocks", "blocks"]
    assert given == pytest.approx([5, 4.9, 5, 4.9], abs=0.09)  # the next level has its own
    assert found.settings == settings


def test_a_block_that_the_limit_cut_is_no_throughput_where_there_are_others() -> None:
    cut = msgspec.structs.replace(block(2, 20.0, requests=(request(0), request(1, Outcome.DEADLINE, tokens_out=3))), stop="time")
    said = bench.figures(bench.LevelResult(level=cut.level, blocks=(block(0), block(1), cut), stop="time"))
    assert said.output_tok_s is not None
    assert (said.output_tok_s.value, said.output_tok_s.n, said.requests_s) == (pytest.approx(100.0), 2, 1.0)
    assert (said.requests, said.failed) == (6, (("deadline", 1),))
    alone = bench.figures(bench.LevelResult(level=cut.level, blocks=(cut,), stop="time"))
    assert alone.output_tok_s is not None
    assert (alone.output_tok_s.value, alone.requests_s) == (pytest.approx(20.0), 0.5)


def test_a_block_in_which_nothing_was_served_ends_the_level(monkeypatch: pytest.MonkeyPatch) -> None:
    played(monkeypatch, request(0, Outcome.STALL), request(1, Outcome.STALL), request(2, Outcome.HTTP_503))
    found = bench.run("http://x", msgspec.structs.replace(SETTINGS, concurrency=(1, 2)), model="m")
    assert [(level.stop, len(level.blocks)) for level in found.levels] == [("nothing served", 1)] * 2
    with pytest.raises(NotServing, match="not one of 6 requests was served: 4 stall, 2 http_503"):
        bench.check_served(found)
    bench.check_served(result(block(0), block(1, requests=(request(0, Outcome.STALL),))))


def test_nobody_there() -> None:
    with pytest.raises(BadTarget, match="ops@h") as caught:
        bench.run("http://ops@h.invalid", SETTINGS)
    assert "--header" in caught.value.next
    with pytest.raises(NotServing, match=r"did not answer: .*refused"):
        bench.run("http://127.0.0.1:9", SETTINGS)
    with pytest.raises(NotServing, match="warm-up requests failed: refused"):
        bench.run("http://127.0.0.1:9", SETTINGS, model="m")


def test_a_run_stops_by_rule_and_writes_after_every_block(mock: loadmock.Mock, tmp_path: Path) -> None:
    mock.set()
    seen: list[int] = []
    out = tmp_path / "out.json"

    def show(done: bench.LevelResult, ended: int) -> None:
        if not ended:
            seen.append(len(bench.load(out).levels[-1].blocks) if out.exists() else 0)

    found = bench.run(mock.url, SETTINGS, out=out, show=show)
    assert (found.model, found.complete) == ("mock", True)
    assert found.levels[0].stop in ("blocks", "time")
    assert len(found.levels[0].blocks) == 2
    assert seen == [0, 1]  # a block is shown, then written; the next one finds it there
    assert bench.load(out) == found
    assert [r.prompt_id for r in found.levels[0].blocks[1].requests] == ["chat-1-1-0", "chat-1-1-1"]


@pytest.mark.parametrize("cache", ["cold", "warm"])
def test_a_level_lasts_no_longer_than_its_limit(mock: loadmock.Mock, cache: str) -> None:
    """A block and what is played before it take 0.7 s each."""
    mock.set(itl=100_000)
    settings = msgspec.structs.replace(SETTINGS, cache=cache, prompts=1, level_limit_s=1.2, max_blocks=12)
    (level,) = bench.run(mock.url, settings, model="m").levels
    assert level.stop == "time"
    assert level.blocks[-1].stop == "time"
    assert Outcome.DEADLINE in {request.outcome for request in level.blocks[-1].requests}


def test_open_loop_levels(mock: loadmock.Mock) -> None:
    mock.set()
    settings = msgspec.structs.replace(SETTINGS, prompts=4, max_blocks=1)
    found = bench.run(mock.url, settings, rates=(2.0,))
    assert found.levels[0].level == Level(workload="chat", concurrency=0, rate_rps=2.0)
    assert len(found.levels[0].blocks[0].requests) == 10


def test_a_file_that_is_used_up_ends_the_level(mock: loadmock.Mock, tmp_path: Path) -> None:
    mock.set()
    path = tmp_path / "five.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"Question {number}?", "output_tokens": 4}) + "\n" for number in range(5)))
    settings = msgspec.structs.replace(SETTINGS, workloads=(str(path),), cache="production", prompts=2, max_blocks=12)
    level = bench.run(mock.url, settings).levels[0]
    assert (level.stop, len(level.blocks)) == ("prompts", 2)
    assert all(block.failed == 0 for block in level.blocks)
    with pytest.raises(BadWorkload, match="5 prompts are too few for block 0 of 6"):
        bench.run(mock.url, msgspec.structs.replace(settings, prompts=6))
    with pytest.raises(BadWorkload, match="too few for block 11 of 2"):
        measure.check_prompts(levels(settings), settings, blocks=settings.max_blocks)


def test_sessions_keep_as_many_requests_open_as_the_level_says(mock: loadmock.Mock, tmp_path: Path) -> None:
    mock.set(itl=20_000)
    path = tmp_path / "talks.jsonl"
    talks = [[("human", f"{talk}.0"), ("gpt", "a"), ("human", f"{talk}.1"), ("gpt", "b"), ("human", f"{talk}.2")] for talk in range(8)]
    path.write_text("".join(json.dumps({"conversations": [{"from": who, "value": said} for who, said in talk]}) + "\n" for talk in talks))
    settings = msgspec.structs.replace(SETTINGS, workloads=(str(path),), concurrency=(4,), max_blocks=1)
    (played,) = bench.run(mock.url, settings).levels[0].blocks
    open_s = sum(request.e2e_ms or 0.0 for request in played.requests) / 1e3
    assert (len(played.requests), played.failed) == (12, 0)
    assert open_s / played.duration_s == pytest.approx(4, rel=0.2)


def test_a_timed_file_is_replayed_once_at_its_own_times(mock: loadmock.Mock, tmp_path: Path) -> None:
    mock.set()
    path = tmp_path / "timed.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"Question {number}?", "at_s": 7 + 0.1 * number}) + "\n" for number in range(6)))
    settings = msgspec.structs.replace(SETTINGS, workloads=(str(path),), cache="production", max_blocks=12)
    found = bench.run(mock.url, msgspec.structs.replace(settings, concurrency=(1, 2)))
    (level,) = found.levels
    assert level.level.label == f"{path} at its own times", "however many are open at once follows from the file"
    assert (level.stop, len(level.blocks)) == ("prompts", 1)
    assert bench.exported(found, level, "sglang")["request_rate"] == "trace"
    intended = [request.intended_s - level.blocks[0].requests[0].intended_s for request in level.blocks[0].requests]
    assert intended == pytest.approx([0.1 * number for number in range(6)], abs=1e-3)
    assert len(bench.run(mock.url, msgspec.structs.replace(settings, cache="cold", max_blocks=2)).levels[0].blocks) == 2


def test_a_timed_file_is_not_played_at_a_rate(tmp_path: Path) -> None:
    path = tmp_path / "timed.jsonl"
    path.write_text('{"prompt": "a", "at_s": 0}\n{"prompt": "b", "at_s": 1}\n')
    settings = msgspec.structs.replace(SETTINGS, workloads=("chat", str(path)))
    assert [level.label for level in bench.planned_levels(settings)] == ["chat c=2", f"{path} at its own times"]
    with pytest.raises(BadWorkload, match="times of its own, and --rate asks for others"):
        bench.run("http://127.0.0.1:9", settings, model="m", rates=(2.0,))


def test_a_file_that_lasts_longer_than_a_level_is_refused(tmp_path: Path) -> None:
    """What was not sent by then would count as failed."""
    path = tmp_path / "timed.jsonl"
    lines = [{"prompt": "a", "at_s": 7000, "session": 1}, {"prompt": "b", "at_s": 7061, "session": 1}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    settings = msgspec.structs.replace(SETTINGS, workloads=(str(path),), level_limit_s=60)
    with pytest.raises(BadWorkload, match="last time is 61 s after its first, and a level ends after 60 s") as caught:
        bench.run("http://127.0.0.1:9", settings, model="m")
    assert "measure.level_limit_s" in caught.value.next
    assert len(bench.planned_levels(msgspec.structs.replace(settings, level_limit_s=61))) == 1


def test_a_run_without_a_workload_is_refused() -> None:
    for rates in ((), (2.0,)):
        with pytest.raises(BadWorkload, match="no workload is named"):
            bench.run("http://127.0.0.1:9", msgspec.structs.replace(SETTINGS, workloads=()), model="m", rates=rates)


def test_no_level_is_measured_twice() -> None:
    """Its second time would ask what the first has left in the server's cache."""
    with pytest.raises(BadLevels, match="chat 2/s stands there twice"):
        bench.run("http://127.0.0.1:9", SETTINGS, model="m", rates=(2.0, 8.0, 2.0))
    with pytest.raises(BadLevels, match="chat c=2 stands there twice"):
        bench.run("http://127.0.0.1:9", msgspec.structs.replace(SETTINGS, workloads=("chat", "chat")), model="m")


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (401, b"", "answered 401"),
        (307, b"", "answered 307 to /elsewhere, which is not followed"),
        (200, b"{}", "names no model"),
        (200, b"<p>", "names no model"),
    ],
)
def test_a_server_that_names_no_model(status: int, body: bytes, why: str) -> None:
    asked: list[str | None] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers["authorization"])
            self.send_response(status)
            if status == 307:
                self.send_header("location", "/elsewhere")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Nobody asked."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        with pytest.raises(NotServing, match=why):
            bench.discover(f"http://127.0.0.1:{server.server_port}/v1", measure.Options(headers=(("Authorization", "Bearer k"),)))
    assert asked == ["Bearer k"]


def test_no_level_and_no_run_asks_what_was_asked_before(mock: loadmock.Mock) -> None:
    """A server with a prefix cache would answer from it."""
    settings = msgspec.structs.replace(SETTINGS, concurrency=(1, 2), max_blocks=1)
    seen: list[bytes] = []

    def show(done: bench.LevelResult, ended: int) -> None:
        if not ended and done.blocks:
            seen.append(mock.get("/ctl/last").partition(b"[")[2][:400])

    for _ in range(2):
        bench.run(mock.url, settings, show=show)
    nonces = {re.search(rb'"content":"\[([a-z]{8})\] ', one).group(1) for one in seen}  # type: ignore[union-attr]
    assert (len(seen), len(nonces)) == (4, 4)


def test_fields_of_ones_own_go_with_every_request(mock: loadmock.Mock) -> None:
    mock.set()
    options = measure.Options(extra=bench.extra_body('{"top_k": 1, "cache_prompt": false}'), ignore_eos=True)
    found = bench.run(mock.url, SETTINGS, options=options)
    last = mock.get("/ctl/last")
    assert b'"top_k":1' in last
    assert b'"cache_prompt":false' in last
    assert found.asked == '{"cache_prompt":false,"ignore_eos":true,"top_k":1}'
    with pytest.raises(OtherConditions, match="nothing more"):
        bench.compare(msgspec.structs.replace(found, asked=""), found)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not a JSON object"),
        ("[1]", "not a JSON object"),
        ('{"stream": false}', "stream is what"),
        ('{"max_tokens": 3}', "give --max-tokens"),
        ('{"max_completion_tokens": 3}', "give --max-tokens"),
        ('{"model": "m"}', "give --model"),
    ],
)
def test_fields_that_cannot_be_added_are_refused(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bench.extra_body(text)
    assert why in caught.value.message + caught.value.next


def test_the_verb(mock: loadmock.Mock, tmp_path: Path) -> None:
    mock.set(k="1,3")
    first, second = str(tmp_path / "a.json"), str(tmp_path / "b.json")
    argv = [sys.executable, "-m", "leadline", "bench", mock.url, "-n", "2", "--max-tokens", "8", "--blocks", "2"]
    done = subprocess.run([*argv, "--out", first], capture_output=True, text=True, check=True)
    assert "chat c=2" in done.stdout
    assert "block 2" in done.stderr
    again = subprocess.run([*argv, "--out", second, "--compare", first, "--json", "-q"], capture_output=True, text=True, check=True)
    said = json.loads(again.stdout)
    assert said["figures"][0]["tokens_per_step"] == pytest.approx(2.0)
    assert said["compared"][0]["level"]["concurrency"] == 2  # on a busy machine a block may not count
    assert again.stderr == ""
    bad = subprocess.run([*argv[:4], "http://127.0.0.1:9"], capture_output=True, text=True, check=False)
    assert bad.returncode == NotServing.exit_code
    assert measure.ask(mock.url, "mock").outcome is Outcome.OK


ARGV = [sys.executable, "-m", "leadline", "bench", "-n", "2", "--blocks", "1", "-q"]


def test_what_is_asked_for_beside_the_result_is_checked_first(tmp_path: Path) -> None:
    for more, why in (("--compare", "no such file"), ("--export", "unknown format")):
        argv = [*ARGV, "http://127.0.0.1:9", more, str(tmp_path / "none")]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (ConfigError.exit_code, "")
        assert why in done.stderr


@pytest.mark.parametrize(
    ("more", "place", "why"),
    [
        (("--out", "folder"), "folder", "a folder stands there"),
        (("--out", "file/out.json"), "file/out.json", "its folder is a file"),
        (("--out", "file/deeper/out.json"), "file/deeper/out.json", "its folder is a file"),
        (("--out", "/proc/leadline/out.json"), "/proc/leadline/out.json", "No such file"),
        (("--out", "x" * 250), "x" * 250, "File name too long"),
        (("--out", "pipe"), "pipe", "no regular file"),
        (("--export", "vllm=folder"), "folder", "a folder stands there"),
        (("--export", "sglang=file/out.jsonl"), "file/out.jsonl", "its folder is a file"),
        (("-n", "1,2", "--export", "vllm=here.json"), "here-chat-c=2.json", "a folder stands there"),
        (("--traces", "file"), "file", "its folder is a file"),
        (("--traces", "/proc/leadline"), "/proc/leadline", "No such file"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is_measured(tmp_path: Path, more: tuple[str, ...], place: str, why: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "here-chat-c=2.json").mkdir()
    (tmp_path / "file").write_text("kept")
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.rglob("*"))
    with socket.create_server(("127.0.0.1", 0)) as server:  # nobody may as much as connect
        argv = [*ARGV, f"http://127.0.0.1:{server.getsockname()[1]}", "--model", "m", "--out", "new/out.json", *more]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=30)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert (done.returncode, done.stdout) == (ConfigError.exit_code, ""), done.stderr
    assert f"{more[-2]}: {place}" in done.stderr
    assert why in done.stderr
    assert "give a path that you may write to" in done.stderr
    assert (tmp_path / "file").read_text() == "kept"
    assert sorted(tmp_path.rglob("*")) == before


def test_a_service_is_not_started_for_what_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEADLINE_HOME", str(tmp_path / "home"))
    argv = [*ARGV, "--out", str(tmp_path), f"process:{sys.executable}", "-m", "leadline.fakeserver", "--port", "9"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == ConfigError.exit_code
    assert "a folder stands there" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_can_no_longer_be_written_is_an_error_of_leadline(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for write in (bench.save, lambda found, path: bench.export(found, "vllm", path)):
        with pytest.raises(ConfigError, match=r"file/out.json cannot be written: its folder is a file"):
            write(result(block(0)), tmp_path / "file" / "out.json")


@pytest.mark.parametrize(
    ("more", "what", "fix"),
    [
        (("--max-tokens", "4"), "workloads ", "--max-tokens"),
        (("--workload", "copy"), "workloads ", "--workload"),
        (("--ignore-eos",), "its requests asked for nothing more, not {", "--ignore-eos"),
        (("--extra-body", '{"top_k": 1}', "--json"), "its requests asked for nothing more, not {", "--extra-body"),
    ],
)
def test_conditions_that_cannot_match_are_refused_before_anything_is_measured(
    tmp_path: Path, more: tuple[str, ...], what: str, fix: str
) -> None:
    before = tmp_path / "before.json"
    settings = Measure(concurrency=(2,), max_blocks=1)
    bench.save(msgspec.structs.replace(result(block(0), workloads=measure.digest(settings)), label="before.json"), before)
    with socket.create_server(("127.0.0.1", 0)) as server:
        argv = [*ARGV, f"http://127.0.0.1:{server.getsockname()[1]}", "--model", "m", "--compare", str(before), *more]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=30)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert done.returncode == OtherConditions.exit_code, done.stderr
    assert f"before.json was made under other conditions: {what}" in done.stderr
    assert fix in done.stderr.partition("next:")[2]
    if "--json" in more:
        assert json.loads(done.stdout)["error"] == "OtherConditions"
    else:
        assert done.stdout == ""


def test_figures_of_a_file_are_printed_before_they_are_compared(tmp_path: Path) -> None:
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    bench.save(result(block(0), workloads="another"), one)
    bench.save(result(block(0)), other)
    argv = [*ARGV, str(one), "--compare", str(other)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == OtherConditions.exit_code
    assert "chat c=2" in done.stdout
    assert "--fresh" not in done.stderr
    assert "--max-tokens" in done.stderr
    said = json.loads(subprocess.run([*argv, "--json"], capture_output=True, text=True, check=False).stdout)
    assert (said["error"], said["figures"][0]["requests"], said["compared"]) == ("OtherConditions", 2, [])


def test_figures_of_a_run_are_printed_before_they_are_compared(
    mock: loadmock.Mock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file of prompts changes while it is measured: only the last check can see that."""
    mock.set()
    prompts, before = tmp_path / "mine.jsonl", tmp_path / "before.json"
    prompts.write_text('{"prompt": "a"}\n')
    settings = Measure(workloads=(str(prompts),))
    bench.save(result(block(0), workloads=measure.digest(settings)), before)
    run = bench.run

    def changing(*arguments: object, **named: object) -> bench.BenchResult:
        prompts.write_text('{"prompt": "another"}\n')
        return run(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(bench, "run", changing)
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["leadline", *ARGV[3:], mock.url, "--workload", str(prompts), "--compare", str(before)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    said = capsys.readouterr()
    assert left.value.code == OtherConditions.exit_code
    assert "mine.jsonl c=2" in said.out
    assert "--max-tokens" in said.err


def test_a_server_that_serves_nothing_is_an_error_with_figures(tmp_path: Path) -> None:
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            asked.append(self.path)
            status, body = (200, b'data: {"choices": [{"delta": {"content": "w"}}]}\n\ndata: [DONE]\n\n') if len(asked) <= 2 else (503, b"")
            self.send_response(status)
            self.send_header("content-type", "text/event-stream")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Nobody asked."""

    out = tmp_path / "out.json"
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:  # two rehearsals are answered
        threading.Thread(target=server.serve_forever, daemon=True).start()
        argv = [*ARGV, f"http://127.0.0.1:{server.server_port}", "--model", "m", "--out", str(out)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        server.shutdown()
    assert done.returncode == NotServing.exit_code
    assert "not one of 2 requests was served: 2 http_503" in done.stderr
    assert "stopped by nothing served" in done.stdout
    assert bench.load(out).complete


def test_an_interrupted_run_says_what_is_true(mock: loadmock.Mock, tmp_path: Path) -> None:
    mock.set(itl=50_000)
    argv = [*ARGV[:-3], mock.url, "--out", str(tmp_path / "out.json")]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        assert "block 1" in running.stderr.readline()
        time.sleep(0.2)
        running.terminate()
        said = running.stderr.read()
    assert running.returncode == Interrupted.exit_code
    assert "nothing was changed" in said
    assert "--out" in said
    assert "journal" not in said
    assert len(bench.load(tmp_path / "out.json").levels[0].blocks) == 1


@pytest.mark.parametrize(("more", "error"), [(("--workload", "none.jsonl"), BadWorkload), (("--rate", "2,2"), BadLevels)])
def test_nothing_is_started_for_what_cannot_be_measured(more: tuple[str, ...], error: type[LeadlineError], tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "leadline", "bench", *more, f'process:{sys.executable} -c \'open("started", "w")\'']
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, cwd=tmp_path, env={**os.environ, "LEADLINE_HOME": str(tmp_path)}
    )
    assert done.returncode == error.exit_code, done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("word", [signal.SIGHUP, signal.SIGTERM])
def test_whatever_ends_a_run_leaves_no_temporary_files(mock: loadmock.Mock, tmp_path: Path, word: signal.Signals) -> None:
    if signal.getsignal(word) is signal.SIG_IGN:
        pytest.skip("what is ignored here is ignored by what is started here")
    mock.set(itl=50_000)
    with subprocess.Popen([*ARGV, mock.url], stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}) as running:
        limit = time.monotonic() + 20
        while not list(tmp_path.glob("leadline-load-*/*.trace")) and time.monotonic() < limit:
            time.sleep(0.02)
        running.send_signal(word)
        assert running.stderr is not None
        assert "nothing was changed" in running.stderr.read()
    assert running.returncode == Interrupted.exit_code
    assert list(tmp_path.iterdir()) == []


def test_a_command_is_run_for_the_purpose_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEADLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [sys.executable, "-m", "leadline", "bench", "-n", "2", "--max-tokens", "8", "--blocks", "1", "--json", "-q"]
    argv += [f"process:{sys.executable}", "-m", "leadline.fakeserver", "--port", str(port), "--speed", "0.3"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    (said,) = json.loads(done.stdout)["figures"]
    assert (said["requests"], said["failed"]) == (2, [])
    with socket.socket() as probe:  # nobody holds the port any more
        probe.bind(("127.0.0.1", port))
