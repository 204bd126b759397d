"""What every supervisor must do, fake or real. A new one is a rig below (`docs/architecture.md`, ports).

``lab/test_conformance.py`` runs the same suite with a systemd unit on a real host.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from leadline.config import Deploy
from leadline.errors import LaunchFailed, PortTaken
from leadline.fakes import FakeSupervisor
from leadline.process import ProcessSupervisor
from leadline.records import Command, Exit, Launch, LaunchFile, Listener
from leadline.supervisor import Supervisor
from leadline.target import free_port

SERVER = "import http.server, sys; print('started', *sys.argv[2:], flush=True); http.server.HTTPServer(('127.0.0.1', int(sys.argv[1])), http.server.BaseHTTPRequestHandler).serve_forever()"
WORDS = "one two"


class Rig(Protocol):
    """A supervisor and what the suite needs around it."""

    supervisor: Supervisor
    port: int
    serving: tuple[str, ...]
    failing: tuple[str, ...]
    """Ends at once with exit status 3."""

    a_launch_is_the_service: bool
    """Whether a launch makes ``service()`` run; a unit "as found" does not run while a trial stands in its place."""
    remembers: bool
    """Whether the host knows how the service last ended, whoever started it."""
    log_source: str
    applied: str
    """What ``apply`` says among other things."""

    def content(self, path: str) -> str:
        """A file as the service reads it."""
        ...

    def occupy(self) -> Callable[[], None]:
        """Let a foreign process hold the port; returns how to end it."""
        ...


class ProcessRig:
    a_launch_is_the_service, remembers, log_source, applied = True, False, "log", WORDS

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.serving = (sys.executable, "-c", SERVER, str(self.port), WORDS)
        self.failing = (sys.executable, "-c", "raise SystemExit(3)")
        self.supervisor: Supervisor = ProcessSupervisor(Command(argv=self.serving), folder, Deploy(stop_grace_s=2), port=self.port)

    def content(self, path: str) -> str:
        return Path(path).read_text()

    def occupy(self) -> Callable[[], None]:
        holder = subprocess.Popen([sys.executable, "-c", SERVER, str(self.port)], stdout=subprocess.PIPE)
        assert holder.stdout is not None
        holder.stdout.readline()
        wait_for(lambda: bool(self.supervisor.listeners(self.port)))

        def end() -> None:
            holder.kill()
            holder.communicate()

        return end


class FakeRig:
    port = 8000
    serving = ("serve", WORDS)
    failing = ("fail",)
    a_launch_is_the_service, remembers, log_source, applied = True, False, "log", WORDS

    def __init__(self, folder: Path) -> None:
        self.fake = FakeSupervisor(
            Command(argv=self.serving), port=self.port, fate=lambda argv: Exit(code=3) if argv == self.failing else None
        )
        self.supervisor: Supervisor = self.fake

    def content(self, path: str) -> str:
        return self.fake.files[path]

    def occupy(self) -> Callable[[], None]:
        self.fake.foreign.append(Listener(port=self.port, pid=4242, command="http.server"))
        return self.fake.foreign.clear


@pytest.fixture(params=[ProcessRig, FakeRig])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    made = request.param(tmp_path / "state")
    yield made
    made.supervisor.close()


def wait_for(true: Callable[[], bool], seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "did not happen in time"
        time.sleep(0.02)


def serve(rig: Rig) -> Launch:
    launch = rig.supervisor.start(rig.serving)
    wait_for(lambda: bool(rig.supervisor.listeners(rig.port)))
    return launch


def test_the_service_is_read_without_touching_it(rig: Rig) -> None:
    service = rig.supervisor.service()
    assert service.command.argv == rig.serving
    assert not service.running
    assert WORDS in rig.supervisor.plan(rig.serving)
    assert rig.supervisor.listeners(rig.port) == ()


def test_taking_the_service_changes_nothing_and_can_be_repeated(rig: Rig) -> None:
    before = rig.supervisor.service()
    rig.supervisor.arm()
    rig.supervisor.arm()
    assert rig.supervisor.service() == before
    assert rig.supervisor.restore()
    assert rig.supervisor.service() == before


def test_a_launch_runs_listens_and_is_known_as_ours(rig: Rig) -> None:
    launch = serve(rig)
    status = rig.supervisor.status(launch)
    assert status.running
    assert status.exit is None
    (listener,) = rig.supervisor.listeners(rig.port)
    assert rig.supervisor.owns(launch, listener.pid)
    assert not rig.supervisor.owns(launch, os.getpid())
    assert not rig.supervisor.owns(launch, 0)
    assert rig.supervisor.service().running == rig.a_launch_is_the_service
    rig.supervisor.renew()


def test_stopping_ends_everything_and_can_be_repeated(rig: Rig) -> None:
    launch = serve(rig)
    ended = rig.supervisor.stop(launch, grace_s=5)
    assert ended.by == "leadline"
    assert rig.supervisor.listeners(rig.port) == ()
    status = rig.supervisor.status(launch)
    assert not status.running
    assert status.exit == ended
    assert rig.supervisor.stop(launch) == ended


def test_a_second_start_ends_the_first(rig: Rig) -> None:
    first = serve(rig)
    second = serve(rig)
    assert first.launch_id != second.launch_id
    assert not rig.supervisor.status(first).running
    (listener,) = rig.supervisor.listeners(rig.port)
    assert rig.supervisor.owns(second, listener.pid)
    assert not rig.supervisor.owns(first, listener.pid)


def test_an_end_of_its_own_is_told_as_such(rig: Rig) -> None:
    launch = rig.supervisor.start(rig.failing)
    wait_for(lambda: not rig.supervisor.status(launch).running)
    ended = rig.supervisor.status(launch).exit
    assert ended is not None
    assert (ended.code, ended.signal, ended.by) == (3, None, "itself")
    assert rig.supervisor.stop(launch).code == 3


def test_a_program_that_does_not_exist_is_refused(rig: Rig) -> None:
    with pytest.raises(LaunchFailed, match="/nonexistent"):
        rig.supervisor.start(("/nonexistent", "-m", "x"))
    assert not rig.supervisor.service().running


def test_a_taken_port_is_refused_before_the_start_and_its_holder_left_alone(rig: Rig) -> None:
    end = rig.occupy()
    try:
        with pytest.raises(PortTaken, match=r"http\.server"):
            rig.supervisor.start(rig.serving)
        assert rig.supervisor.listeners(rig.port) != ()
    finally:
        end()
    assert rig.supervisor.status(serve(rig)).running


def test_output_is_kept_by_byte(rig: Rig) -> None:
    launch = serve(rig)
    wait_for(lambda: rig.supervisor.log(launch).endswith(b"\n"))
    whole = rig.supervisor.log(launch)
    assert WORDS.encode() in whole
    assert rig.supervisor.status(launch).log_bytes == len(whole)
    assert rig.supervisor.log(launch, start=3) == whole[3:]
    assert rig.supervisor.log(launch, start=-4) == whole[-4:]
    assert rig.supervisor.log(launch, start=2, limit_bytes=5) == whole[2:7]
    rig.supervisor.stop(launch)
    assert rig.supervisor.log(launch).startswith(whole)


def test_evidence_holds_the_output_and_the_end(rig: Rig) -> None:
    launch = rig.supervisor.start(rig.failing)
    wait_for(lambda: not rig.supervisor.status(launch).running)
    evidence = rig.supervisor.evidence(launch)
    assert evidence.exit is not None
    assert evidence.exit.code == 3
    assert rig.log_source in {source.name for source in evidence.sources}
    assert (rig.supervisor.evidence(None).exit is not None) == rig.remembers


def test_restoring_leaves_nothing_and_can_be_repeated(rig: Rig) -> None:
    launch = serve(rig)
    assert rig.supervisor.restore()
    assert rig.supervisor.listeners(rig.port) == ()
    assert not rig.supervisor.status(launch).running
    assert rig.supervisor.restore()


def test_applying_says_what_to_run(rig: Rig) -> None:
    assert rig.applied in rig.supervisor.apply(rig.serving)


def test_a_launch_gets_its_files_and_their_paths(rig: Rig) -> None:
    note = LaunchFile(name="note-1.json", text='{"1": [2]}')
    launch = rig.supervisor.start((*rig.serving, "note-1.json", "--flag=note-1.json", "other-note-1.json"), files=[note])
    wait_for(lambda: rig.supervisor.log(launch).split()[-1:] == [b"other-note-1.json"])  # the whole line: it may come in pieces
    *_, path, flag, other = rig.supervisor.log(launch).decode().split()
    assert path.endswith("/note-1.json")
    assert (flag, other) == (f"--flag={path}", "other-note-1.json")
    assert rig.content(path) == note.text
    assert rig.content(rig.supervisor.apply(("serve", "note-1.json"), files=[note]).split()[-1]) == note.text


def test_a_launch_nobody_knows_does_not_run(rig: Rig) -> None:
    status = rig.supervisor.status(Launch(launch_id="feedfacecafe", pid=1, started_s=0.0, log=""))
    assert not status.running
    assert status.exit is not None
