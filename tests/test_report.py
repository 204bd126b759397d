"""The report in text, Markdown and JSON: what it says, and that every renderer says the same."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import docs_console
import planted
from leadline import report, words
from leadline.config import Tune
from leadline.recommend import recommend
from leadline.records import AnyEvent, Began, Command, Concluded, Deployed, Failed, Interval, Level, Outcome, RequestResult, Stop
from leadline.report import cells
from leadline.report.document import builtins, changes
from leadline.state import Knowledge, fold

DATA = Path(__file__).parent / "data" / "report"
CAMPAIGNS = {"crash": planted.crash_campaign, "demo": planted.demo_campaign, "real": lambda: docs_console.real_events("h200-crash")}


@pytest.fixture(params=sorted(CAMPAIGNS))
def known(request: pytest.FixtureRequest) -> Knowledge:
    return fold(CAMPAIGNS[request.param]())


@pytest.fixture
def crash() -> Knowledge:
    return fold(planted.crash_campaign())


def test_the_terminal_text_answers_what_a_reader_asks(crash: Knowledge) -> None:
    said = " ".join(report.text(crash).split())
    assert said.startswith("4 → 10 steps with max_running_requests 20")
    assert "--speculative-num-steps 4 → 10" in said
    assert "add --max-running-requests 20" in said
    assert "1.77× (1.68–1.87)" in said
    assert "1.97× (1.87–2.07)" in said
    assert re.search(r"chat c=64 .* no difference shown", said)
    assert "trial 1: EAGLE 10 failed after 42 s (signal 9)" in said
    assert "no OOM killer was involved" in said
    assert "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static." in said
    assert "leadline apply sglang-h200-7f3a" in said


def test_the_text_is_plain_and_narrow(known: Knowledge) -> None:
    for width in (80, 100, 140):
        told = report.text(known, width)
        assert "\x1b" not in told
        assert "…" not in told, "a truncated cell hides a figure"
        assert max(len(line) for line in told.splitlines()) <= max(width, 100)


def test_colours_only_repeat_the_words(known: Knowledge) -> None:
    coloured = report.text(known, colour=True)
    assert "\x1b[" in coloured
    plain = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in plain.splitlines()] == report.text(known).splitlines()


def test_the_command_can_be_pasted(crash: Knowledge) -> None:
    told = report.text(crash)
    pasted = told[told.index("\nRun\n") + 5 : told.index("  or let leadline")].replace("\\\n", " ")
    assert crash.verdict is not None
    assert tuple(shlex.split(pasted)) == crash.verdict.command


def test_json_is_json_and_names_its_format(known: Knowledge) -> None:
    built = report.as_json(known)
    assert built["format"] == "leadline-report/1"
    assert json.loads(json.dumps(built)) == built
    assert builtins(msgspec.convert(built, report.Document)) == built


def test_every_renderer_carries_the_headline(known: Knowledge) -> None:
    assert known.verdict is not None
    built = report.as_json(known)
    for told in (report.text(known), report.markdown(known)):
        flat = " ".join(told.replace("\\", "").split())
        assert known.verdict.sentence in flat
        for point in built["points"]:
            figure = msgspec.convert(point["output_tok_s"], Interval)
            assert words.interval(figure) in flat
            for line in known.verdict.not_shown:
                assert line in flat


def test_the_same_journal_gives_the_same_report() -> None:
    first, second = (fold(planted.crash_campaign()) for _ in range(2))
    assert report.text(first) == report.text(second)
    assert report.markdown(first) == report.markdown(second)


@pytest.mark.parametrize("make", sorted(CAMPAIGNS))
def test_a_journal_cut_anywhere_still_reports(make: str) -> None:
    events = CAMPAIGNS[make]()
    for cut in range(len(events)):
        known = fold(events[:cut])
        told = report.text(known)
        assert told.strip()
        assert report.markdown(known).strip()
        if cut < len(events) - 1:
            assert report.as_json(known)["status"] in {"running", "empty"}


def test_a_block_with_a_failed_request_is_shown_and_not_counted() -> None:
    events = planted.demo_campaign()
    spoilt: list[AnyEvent] = []
    for event in events:
        if getattr(event, "result", None) is not None and event.trial == 4 and event.result.block == 0:  # type: ignore[union-attr]
            request = RequestResult(prompt_id="p", outcome=Outcome.RESET)
            event = msgspec.structs.replace(event, result=msgspec.structs.replace(event.result, requests=(request,), output_tok_s=9e9))  # type: ignore[union-attr]
        spoilt.append(event)
    known = fold(spoilt)
    undecided = fold([event for event in spoilt if not isinstance(event, Concluded)])
    shown = [cell for cell in cells.cells(undecided) if cell.candidate == planted.DRAFT_8]
    assert {row.used for cell in shown for row in cell.blocks if row.block == 0} == {False}
    assert all(cell.output_tok_s is not None and cell.output_tok_s.n == 3 for cell in shown)
    assert "4 blocks were played but not counted: 1 of 1 requests failed: reset" in " ".join(report.text(known).split())


def test_text_from_a_log_cannot_become_markup(crash: Knowledge) -> None:
    events = [
        msgspec.structs.replace(e, findings=(msgspec.structs.replace(e.findings[0], summary="[bold]x[/] | <b>y</b>"),))
        if type(e).__name__ == "Failed"
        else e
        for e in planted.crash_campaign()
    ]
    known = fold(events)
    assert "[bold]x[/] | <b>y</b>" in report.text(known)
    assert "\\[bold\\]x\\[/\\] \\| \\<b\\>y\\</b\\>" in report.markdown(known)


@pytest.mark.parametrize(
    ("found", "best", "expected"),
    [
        ("s --a 1", "s --a 2", [("--a", "1", "2")]),
        ("s --a=1", "s --a 1", []),
        ("s", "s --b", [("--b", None, "")]),
        ("s --c x y", "s", [("--c", "x y", None)]),
        ("s -n -1", "s -n -2", [("-n", "-1", "-2")]),
    ],
)
def test_changed_flags(found: str, best: str, expected: list[tuple[str, str | None, str | None]]) -> None:
    seen = changes(tuple(found.split()), tuple(best.split()))
    assert [(change.flag, change.found, change.best) for change in seen] == expected


def test_the_page_and_the_verdict_count_alike(known: Knowledge) -> None:
    """A point of the verdict and its cell are the same figures: the report cannot contradict the verdict."""
    assert known.verdict is not None
    by_key = {(cell.candidate, cell.level): cell for cell in cells.cells(known)}
    for point in known.verdict.points:
        cell = by_key[point.candidate, point.level]
        assert (cell.output_tok_s, cell.gain_vs_found, cell.gain_vs_off) == (point.output_tok_s, point.gain_vs_found, point.gain_vs_off)


@pytest.mark.parametrize("make", [planted.crash_campaign, planted.demo_campaign])
def test_counting_anew_gives_the_verdict_s_figures(make: Callable[[], list[AnyEvent]]) -> None:
    """Also without being told: the board of the report is the board of the verdict."""
    known = fold(make())
    assert known.verdict is not None
    anew = {(c.candidate, c.level): c for c in cells.cells(fold([event for event in make() if not isinstance(event, Concluded)]))}
    for point in known.verdict.points:
        cell = anew[point.candidate, point.level]
        assert (cell.output_tok_s, cell.gain_vs_found, cell.gain_vs_off) == (point.output_tok_s, point.gain_vs_found, point.gain_vs_off)


@pytest.mark.parametrize("tune", [Tune(), Tune(objective="goodput", tpot_ms=40.0)])
def test_the_real_verdict_and_the_page_count_alike(tune: Tune) -> None:
    """The same with a verdict of the real mind, also where only what keeps a latency limit counts."""
    events = [event for event in planted.demo_campaign() if not isinstance(event, Concluded)]
    asked = (("tune.objective", tune.objective), ("tune.tpot_ms", str(tune.tpot_ms)))
    known = fold([msgspec.structs.replace(event, settings=asked) if isinstance(event, Began) else event for event in events])
    stop = Stop(rule="resolved", why="")
    verdict = recommend(known, (), tune, planted.DEMO_LEVELS, planted.DEMO_OFF, planted.demo_argv, stop)
    by_key = {(cell.candidate, cell.level): cell for cell in cells.cells(known)}
    assert len(verdict.points) == 4
    for point in verdict.points:
        cell = by_key[point.candidate, point.level]
        assert (cell.output_tok_s, cell.gain_vs_found, cell.gain_vs_off) == (point.output_tok_s, point.gain_vs_found, point.gain_vs_off)
    assert verdict.sentence in " ".join(report.text(fold([Concluded(at_s=2e9, verdict=verdict)], known)).split())


def test_a_prediction_counts_only_if_it_came_first(crash: Knowledge) -> None:
    by_key = {(cell.candidate.label, cell.level.label): cell for cell in cells.cells(crash)}
    assert by_key["EAGLE 1", "chat c=1"].predicted_tok_s is None, "measured before anything was predicted"
    assert by_key["EAGLE 1", "chat c=1"].model_tok_s is not None
    assert by_key["EAGLE 3", "chat c=1"].predicted_tok_s is not None
    assert by_key["EAGLE 2", "chat c=1"].predicted_tok_s is not None
    check = report.document(crash).model_check
    assert check is not None
    assert check.cells == 6


def test_words() -> None:
    assert words.number(1875.8) == "1,876"
    assert words.number(99.96) == "100"
    assert words.number(9.999) == "10.0"
    assert words.number(73.0, "tok/s") == "73.0"
    assert [words.duration(s) for s in (0.4, 41.2, 125, 4320, 3600, 120)] == ["0.4 s", "41 s", "2 min 5 s", "1 h 12 min", "1 h", "2 min"]
    assert words.one_of(["a", "b", "c"]) == "a, b and c"
    assert words.level(Level(workload="chat", concurrency=0, rate_rps=2.5)) == "chat, 2.5 a second"
    wide = Interval(value=1.01, low=0.97, high=1.06, n=6, unit="ratio")
    assert words.reading(wide) == "no difference shown"
    assert words.interval(wide) == "1.01× (0.97–1.06)"


@pytest.mark.parametrize(("folder", "depth"), [("k0", 0), ("k1", 1), ("k3", 3), ("k5", 5), ("k10-M20", 10)])
def test_the_planted_campaign_follows_the_recorded_servers(folder: str, depth: int) -> None:
    recorded = {row["conc"]: row["tok_s"] for row in json.loads((DATA / folder / "result.json").read_text())["bench"]}
    planted_rates = next(rates for candidate, rates in planted.H200_TOK_S.items() if candidate.depth == depth)
    for level, tok_s in zip(planted.CHAT, planted_rates, strict=True):
        assert tok_s == pytest.approx(recorded[level.concurrency], abs=0.06)


def test_the_planted_evidence_is_quoted_from_the_recorded_log() -> None:
    lines = (DATA / "k10-crash" / "server.log").read_text().splitlines()
    for quote in planted.POOL_FINDING.quotes:
        assert quote.text in lines[quote.line - 1]


def test_no_secret_is_forwarded() -> None:
    """Keys in the command, in a launch's arguments, in a log or in a finding never reach a report in any form."""
    events: list[AnyEvent] = []
    for event in planted.crash_campaign():
        changed: dict[str, object] = {}
        if isinstance(event, Began):
            argv = (*event.command.argv, "--api-key", "Pa55-word")
            target = "https://me:Pa55-word@gpu-7/"
            changed = {
                "command": Command(argv=argv),
                "target": target,
                "conditions": msgspec.structs.replace(event.conditions, target=target),
            }
        elif isinstance(event, Deployed):
            changed = {"argv": (*event.argv, "--api-key=Pa55-word")}
        elif isinstance(event, Failed):
            finding = msgspec.structs.replace(event.findings[0], summary="HF_TOKEN=Pa55-word was refused")
            changed = {"log_tail": "Authorization: Bearer Pa55-word", "findings": (finding,)}
        elif isinstance(event, Concluded):
            verdict = msgspec.structs.replace(event.verdict, command=(*event.verdict.command, "--api-key", "Pa55-word"))
            changed = {"verdict": verdict}
        events.append(msgspec.structs.replace(event, **changed))
    known = fold(events)
    for told in (report.text(known), report.markdown(known), report.html(known), json.dumps(report.as_json(known))):
        assert "Pa55" not in told
        assert "***" in told.replace("\\", "")
