"""Following a campaign: the live view, watch, serve, and the diff of two campaigns."""

from __future__ import annotations

import http.client
import io
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

import docs_console
import planted
from leadline import journal, live, report, words
from leadline.errors import NoCampaign
from leadline.journal import Journal
from leadline.records import AnyEvent, Began, Concluded, Progress
from leadline.report import compared
from leadline.serve import Follower, watch
from leadline.state import Knowledge, fold


def shown(known: Knowledge, progress: Progress, width: int = 110) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(live.view(known, progress))
    return out.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "demo-1c9d"


def write(folder: Path, events: list[AnyEvent]) -> None:
    with Journal(folder, write=True) as book:
        for event in events:
            book.append(event)


# -- the view ------------------------------------------------------------------------------------------------------------


def test_the_view_says_what_happens_and_what_is_best() -> None:
    known = fold(planted.demo_campaign(upto=60))
    assert known.began is not None
    told = shown(known, live.progress_of(known, known.began.at_s + 130))
    assert "draft-simple 3: measure copy, 1 at once, block 2" in told
    assert "2 of about 4" in told
    assert "★ 47.7 (4)" in told
    assert "2 min 10 s, about 1 min 30 s left" in told


def test_the_view_shows_a_campaign_s_own_progress() -> None:
    known = fold(planted.demo_campaign(upto=4))
    loading = Progress(phase="load", message="tensors", fraction=0.4, candidate=planted.DEMO_OFF, launches_planned=4, elapsed_s=3)
    assert "40 %" in shown(known, loading)
    playing = Progress(phase="measure", candidate=planted.DEMO_OFF, level=planted.DEMO_LEVELS[0], block=2, blocks=6, launches_planned=4)
    assert "2 of 6" in shown(known, playing)
    assert "off: measure chat, 1 at once, block 2 of 6" in live.line(known, playing)


def test_a_failed_launch_is_told_with_its_class() -> None:
    known = fold(planted.crash_campaign())
    told = shown(known, live.progress_of(known, 0.0))
    assert "✕ failed: memory.kv_pool_too_small" in told
    assert "4 → 10 steps" in told
    assert live.line(known, live.progress_of(known, 0.0)).startswith("done: 4 → 10 steps")


def test_an_interrupted_campaign_says_so() -> None:
    known = fold(planted.demo_campaign(upto=60))
    progress = live.progress_of(known, planted.demo_campaign()[0].at_s + 500, alive=False)  # type: ignore[union-attr]
    assert progress.phase == "interrupted"
    assert progress.remaining_s is None
    assert "the same tune command goes on from here" in shown(known, progress)


def test_every_moment_of_a_campaign_can_be_shown() -> None:
    for make in (planted.demo_campaign, planted.crash_campaign):
        events = make()
        for cut in range(len(events) + 1):
            known = fold(events[:cut])
            for width in (40, 120):
                assert shown(known, live.progress_of(known, 1.8e9), width).strip()
            assert live.line(known, live.progress_of(known, 1.8e9))


# -- watch ---------------------------------------------------------------------------------------------------------------


def test_watch_follows_a_journal_to_its_verdict(folder: Path) -> None:
    events = planted.demo_campaign()
    book = Journal(folder, write=True)

    def campaign() -> None:
        for event in events[3:]:
            book.append(event)

    for event in events[:3]:
        book.append(event)
    book.close()
    written = threading.Event()

    def writer() -> None:
        nonlocal book
        book = Journal(folder, write=True)
        written.set()
        time.sleep(0.2)
        campaign()
        book.close()

    thread = threading.Thread(target=writer)
    thread.start()
    assert written.wait(10)
    out = io.StringIO()
    known = watch(folder, Console(file=out, width=200, force_terminal=False), every_s=0.02)
    thread.join(10)
    assert known.verdict is not None
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("launch 1 of about 4: ")
    assert lines[-1].startswith("done: it depends on the traffic")
    assert "\x1b" not in out.getvalue()


def test_watch_ends_when_the_writer_is_gone(folder: Path) -> None:
    write(folder, planted.demo_campaign(upto=60))
    out = io.StringIO()
    known = watch(folder, Console(file=out, width=200, force_terminal=True), every_s=0.02)
    assert known.verdict is None
    assert not journal.writer_alive(folder)


def test_watch_and_serve_refuse_what_is_no_campaign(tmp_path: Path) -> None:
    with pytest.raises(NoCampaign):
        watch(tmp_path / "none", Console(file=io.StringIO()))
    with pytest.raises(NoCampaign):
        Follower(tmp_path / "none")


# -- serve ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def served(folder: Path) -> Iterator[Follower]:
    write(folder, planted.demo_campaign(upto=60))
    server = Follower(folder)
    server.every_s = 0.02
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(10)


def ask(server: Follower, path: str, method: str = "GET", host: str | None = None) -> tuple[int, str, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.request(method, path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    try:
        return answer.status, answer.read().decode(), answer.headers
    finally:
        connection.close()


def test_serve_answers_the_page_and_its_data(served: Follower) -> None:
    status, body, headers = ask(served, "/")
    assert (status, headers["Cache-Control"]) == (200, "no-store")
    assert "Following the campaign" in body
    assert json.loads(ask(served, "/report.json")[1])["status"] == "running"
    assert ask(served, "/report.md")[1].startswith("# no verdict yet")
    told = json.loads(ask(served, "/progress.json")[1])
    assert told["done"] is False
    assert told["events"] == 60
    assert ask(served, "/", method="HEAD")[1] == ""


def test_serve_is_read_only_and_answers_to_its_own_name(served: Follower) -> None:
    assert served.server_address[0] == "127.0.0.1"
    assert ask(served, "/etc/passwd")[0] == 404
    assert ask(served, "/", host="evil.example")[0] == 403
    assert ask(served, "/", host=f"localhost:{served.server_address[1]}")[0] == 200
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert ask(served, "/", method=method)[0] == 501


def test_serve_follows_the_journal(served: Follower, folder: Path) -> None:
    write(folder, planted.demo_campaign()[60:])
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not (told := json.loads(ask(served, "/progress.json")[1]))["done"]:
        time.sleep(0.05)
    assert told["line"].startswith("done: it depends on the traffic")
    assert "draft-simple 8 for one chatting user" in ask(served, "/")[1]


# -- diff ----------------------------------------------------------------------------------------------------------------


def faster(events: list[AnyEvent], factor: float) -> list[AnyEvent]:
    """The same campaign on a host that is ``factor`` times as fast, with another driver."""
    made: list[AnyEvent] = []
    for event in events:
        if isinstance(event, Began):
            event = msgspec.structs.replace(
                event, campaign_id="second", conditions=msgspec.structs.replace(event.conditions, hardware="1x NVIDIA H200, driver 590.1")
            )
        if (result := getattr(event, "result", None)) is not None:
            event = msgspec.structs.replace(event, result=msgspec.structs.replace(result, output_tok_s=result.output_tok_s * factor))  # type: ignore[call-arg]
        made.append(event)
    return made


def test_the_diff_names_unlike_conditions_and_the_moved_levels() -> None:
    events = [
        event for event in planted.crash_campaign() if not isinstance(event, Concluded)
    ]  # the verdict of the first would name its own figures
    before, after = (report.document(fold(e)) for e in (events, faster(events, 1.25)))
    made = compared.diff(before, after)
    assert not made.like
    assert [row.name for row in made.conditions] == ["hardware"]
    assert "so the ratios are indicative only" in made.sentence
    assert all(row.ratio.value == pytest.approx(1.25) for row in made.levels)
    assert all(row.ratio.low > 1 for row in made.levels)
    assert len(made.same_setting) == 18
    told = compared.render(made)
    assert "| hardware | 1x NVIDIA H200, driver 580.82 | 1x NVIDIA H200, driver 590.1 |" in told
    assert json.loads(json.dumps(compared.as_json(made)))["like"] is False


def test_a_campaign_does_not_differ_from_itself() -> None:
    known = fold(planted.demo_campaign())
    told = report.diff(known, known)
    assert "both recommend ngram-simple 16" in told.replace("\\", "")
    assert "faster" not in told
    assert "slower" not in told
    assert report.diff_json(known, known)["conditions"] == []


def test_two_real_campaigns_of_one_machine_compare() -> None:
    """As found 3 steps and as found 1 step, on twin GPUs of one host: the same settings lie within each other's noise."""
    before, after = (report.document(fold(docs_console.real_events(name))) for name in ("h200-crash", "h200-gain"))
    made = compared.diff(before, after)
    assert "workloads" not in {row.name for row in made.conditions}
    shared = {(row.before.label, row.level.concurrency): row.ratio for row in made.same_setting}
    assert len(shared) == 9
    assert all(words.reading(ratio) == "no difference shown" for ratio in shared.values())


def test_other_workloads_are_never_compared() -> None:
    told = report.diff(fold(planted.demo_campaign()), fold(planted.crash_campaign()))
    assert "the workloads differ, so no figure is compared" in told
    assert "×" not in told
    assert "no level in common" in report.diff(Knowledge(), Knowledge())
