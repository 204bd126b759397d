"""The command line on real processes and real sockets: the fake engine's server, a foreign server, SIGKILL."""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import kills
from leadline import journal, ready
from leadline.config import Readiness
from leadline.engines.fake import FakeEngine
from leadline.errors import LaunchHung, PortTaken
from leadline.journal import Journal
from leadline.process import ProcessSupervisor
from leadline.records import Command, Outcome, RequestResult
from leadline.target import free_port

OK = RequestResult(prompt_id="ask", outcome=Outcome.OK, tokens_out=1)


def tune(port: int, *server: str, flags: tuple[str, ...] = ()) -> list[str]:
    """A short campaign: two levels, few launches, time scaled to a third."""
    return [
        *(sys.executable, "-m", "leadline", "tune", "--yes"),
        *("--workload", "chat", "--concurrency", "1,4", "--max-tokens", "24", "--max-launches", "5", *flags),
        *(f"process:{sys.executable}", "-m", "leadline.fakeserver", "--port", str(port), "--speed", "0.3", *server),
    ]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEADLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    return tmp_path / "home"


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


def test_a_campaign_ends_in_a_verdict_and_leaves_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kills.MARK, "whole")
    port = free_port()
    done = run(tune(port, flags=("--json",)))
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["points"]
    assert "plan" in done.stderr
    assert done.stderr.index("plan") < done.stderr.index("start off"), "the plan is shown before anything starts"
    monkeypatch.delenv(kills.MARK)
    assert kills.clean_after("whole", port) == ""
    with Journal(journal.campaigns()[0], write=False) as book:
        served = [trial for trial in book.knowledge.trials if trial.served]
    assert served
    assert all(block.requests[0].token_source != "chunks" for trial in served for block in trial.blocks)


def test_killed_at_random_moments_it_leaves_nothing_and_resumes(home: Path) -> None:
    port = free_port()
    wrong = kills.play(tune(port), home, port=port, kills=5, longest_s=8.0, seed=7, limit_s=240.0)
    assert wrong == []


def test_interrupted_by_hand_it_restores_and_resumes(home: Path) -> None:
    port = free_port()
    running = kills.start(tune(port), home, "hand")
    wait_for_trial(home)
    running.send_signal(signal.SIGTERM)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 130
    assert b"resumes" in errors
    assert kills.clean_after("hand", port) == ""
    assert run(tune(port)).returncode == 0


def wait_for_trial(home: Path) -> None:
    for _ in range(600):
        folders = journal.campaigns()
        if folders:
            with Journal(folders[0], write=False) as book:
                if any(trial.blocks for trial in book.knowledge.trials):
                    return
        time.sleep(0.1)
    raise AssertionError("no block was measured within a minute")


class Foreign(http.server.BaseHTTPRequestHandler):
    """Answers /health as a healthy server would; counts everything else."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"status":"ok"}')

    do_POST = do_GET  # noqa: N815  # the handler's own naming

    def log_message(self, *_: object) -> None:
        return None


@pytest.fixture
def foreign() -> Iterator[tuple[int, list[str]]]:
    asked: list[str] = []
    handler = type("Handler", (Foreign,), {"asked": asked})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_address[1], asked
    server.shutdown()
    server.server_close()


def test_a_foreign_server_on_the_port_is_named_and_never_measured(home: Path, foreign: tuple[int, list[str]]) -> None:
    port, asked = foreign
    done = run(tune(port))
    assert done.returncode == 30, done.stderr
    assert f"pid {os.getpid()}" in done.stderr
    assert "pytest" in done.stderr or "python" in done.stderr
    assert asked == [], "the foreign server was spoken to"
    with Journal(journal.campaigns()[0], write=False) as book:
        assert not any(trial.blocks for trial in book.knowledge.trials)


def test_a_foreign_server_that_comes_while_ours_loads_is_refused(tmp_path: Path, foreign: tuple[int, list[str]]) -> None:
    """The race of the recordings: ours loads (or has died), and another server answers /health on its port."""
    port, asked = foreign
    engine = FakeEngine()
    parsed = engine.parse((sys.executable, "-m", "leadline.fakeserver", "--port", str(port)))
    assert parsed is not None
    supervisor = ProcessSupervisor(Command(argv=("sleep", "60")), tmp_path)  # no port given: it cannot see the stranger before the start
    launch = supervisor.start(("sleep", "60"))

    def ask(url: str) -> RequestResult:
        raise AssertionError("a token was asked of the foreign server")

    try:
        with pytest.raises(PortTaken) as caught:
            ready.wait(supervisor, launch, engine, parsed, parsed.candidate, f"http://127.0.0.1:{port}", Readiness(), ask=ask)
    finally:
        supervisor.restore()
        supervisor.close()
    assert str(os.getpid()) in caught.value.message
    assert not [path for path in asked if "completions" in path]


def test_a_server_that_only_answers_not_yet_is_hung(tmp_path: Path) -> None:
    """Our own polling keeps it busy a little; that is no progress."""
    engine, port = FakeEngine(), free_port()
    argv = (sys.executable, "-m", "leadline.fakeserver", "--port", str(port), "--plant-never-ready")
    parsed = engine.parse(argv)
    assert parsed is not None
    supervisor = ProcessSupervisor(Command(argv=argv), tmp_path, port=port)
    launch = supervisor.start(argv)
    settings = Readiness(still_s=6.0, limit_s=200.0, poll_s=0.02)
    try:
        with pytest.raises(LaunchHung):
            ready.wait(supervisor, launch, engine, parsed, parsed.candidate, f"http://127.0.0.1:{port}", settings, ask=lambda url: OK)
    finally:
        supervisor.restore()
        supervisor.close()


def test_an_engine_that_exits_at_once_is_quoted(home: Path) -> None:
    done = run(tune(free_port(), "--plant-exit", "3"))
    assert done.returncode == 32, done.stderr
    assert "planted exit with status 3" in done.stderr


def test_an_engine_that_silently_does_not_speculate_is_no_candidate(home: Path) -> None:
    done = run(tune(free_port(), "--plant-silent", flags=("--json",)))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["change"] is False
    with Journal(journal.campaigns()[0], write=False) as book:
        speculative = [trial for trial in book.knowledge.trials if not trial.candidate.off]
    assert speculative
    assert all(trial.failed is not None and not trial.blocks for trial in speculative)


def test_status_report_and_restore_read_beside_it(home: Path) -> None:
    port = free_port()
    assert run(tune(port)).returncode == 0
    for verb in (["status"], ["status", "--all"], ["report"]):
        done = run([sys.executable, "-m", "leadline", *verb, "--json"])
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)
    restored = run([sys.executable, "-m", "leadline", "restore", "--json"])
    assert json.loads(restored.stdout)["restored"] is True
