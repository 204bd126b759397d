"""``leadline report``, ``watch`` and ``serve`` as a user calls them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import planted
from leadline.journal import Journal


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name, events in (("crash-1", planted.crash_campaign()), ("demo-2", planted.demo_campaign())):
        with Journal(tmp_path / "campaigns" / name, write=True) as book:
            for event in events:
                book.append(event)
        os.utime(tmp_path / "campaigns" / name / "journal.db", (1e9 + len(events), 1e9 + len(events)))
    return tmp_path


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "leadline", *arguments]


def environment(home: Path) -> dict[str, str]:
    return {"PATH": "/usr/bin:/bin", "LEADLINE_HOME": str(home), "PYTHONPATH": ":".join(sys.path), "HOME": str(home)}


def leadline(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, env=environment(home), cwd=home, check=False, timeout=60)


def test_report_prints_text_json_and_writes_files(home: Path) -> None:
    text = leadline(home, "report", "crash")
    assert (text.returncode, text.stderr) == (0, "")
    assert text.stdout.startswith("4 → 10 steps with max_running_requests 20")
    built = json.loads(leadline(home, "report", "crash", "--json").stdout)
    assert built["best_label"] == "EAGLE 10 max_running_requests=20"
    written = leadline(home, "report", "crash", "--html", "page.html", "--md", "page.md")
    assert written.returncode == 0
    assert written.stdout == ""
    assert "wrote page.html" in written.stderr
    assert (home / "page.html").read_text().startswith("<!DOCTYPE html>")
    assert (home / "page.md").read_text().startswith("# 4 → 10 steps")
    assert leadline(home, "report", "crash", "--md", "-").stdout.startswith("# 4 → 10 steps")


def test_report_compares_two_campaigns(home: Path) -> None:
    told = leadline(home, "report", "crash", "--diff", "demo")
    assert "the workloads differ, so no figure is compared" in told.stdout
    assert json.loads(leadline(home, "report", "crash", "--diff", "demo", "--json").stdout)["before"] == "demo-1c9d"


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("report", "none"), 44, "'none'"),
        (("report", "crash", "--html", "no/such/folder/x.html"), 10, "cannot be written"),
        (("report", "crash", "--diff", "demo", "--html", "x.html"), 10, "a comparison has no page"),
        (("serve", "crash", "--host", "192.0.2.1"), 10, "cannot listen on 192.0.2.1"),
        (("serve", "crash", "--port", "70000"), 10, "cannot listen"),
        (("watch", "none"), 44, "'none'"),
    ],
)
def test_what_cannot_be_done_is_refused(home: Path, arguments: tuple[str, ...], status: int, said: str) -> None:
    ended = leadline(home, *arguments)
    assert ended.returncode == status
    assert said in ended.stderr
    assert " next: " in ended.stderr


def test_watch_of_a_finished_campaign_prints_the_sentence(home: Path) -> None:
    assert "4 → 10 steps" in leadline(home, "watch", "crash").stdout
    told = [json.loads(line) for line in leadline(home, "watch", "crash", "--json").stdout.splitlines()]
    assert told[-1]["done"] is True


def test_serve_says_where_and_ends_when_interrupted(home: Path) -> None:
    with subprocess.Popen(
        command("serve", "demo", "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(home), cwd=home
    ) as server:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        assert url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(url, timeout=20) as answer:
            assert "it depends on the traffic: draft-simple 8" in answer.read().decode()
        server.send_signal(signal.SIGINT)
        try:
            assert server.wait(20) == 0
        finally:
            server.kill()
