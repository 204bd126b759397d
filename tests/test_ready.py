"""Ready means: this launch answers, as this candidate. A foreign server is named, never measured."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from leadline import ready, sockets
from leadline.config import Deploy, Readiness
from leadline.engines import recognise
from leadline.engines.fake import MODULE
from leadline.errors import LaunchFailed, PortTaken, WrongServer
from leadline.process import ProcessSupervisor
from leadline.records import Candidate, Command, Launch, Outcome, RequestResult
from leadline.target import free_port
from test_supervisor_conformance import wait_for

OFF = Candidate(algorithm="off", depth=0)
IDLE = (sys.executable, "-c", "import time; print('loading', flush=True); time.sleep(300)")


class Stage:
    """A service that should listen on a port, and room for a foreign one."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.argv = (sys.executable, "-m", MODULE, "--port", str(self.port), "--speed", "0.05")
        self.engine, self.parsed = recognise(self.argv)
        self.supervisor = ProcessSupervisor(Command(argv=self.argv), folder, Deploy(stop_grace_s=1), port=self.port)
        self.foreign: list[subprocess.Popen[bytes]] = []
        self.asked = 0

    def occupy(self) -> int:
        self.foreign.append(subprocess.Popen(self.argv, stdout=subprocess.DEVNULL))
        wait_for(lambda: bool(sockets.listeners(self.port)))
        return self.foreign[-1].pid

    def ask(self, url: str) -> RequestResult:
        self.asked += 1
        return RequestResult(prompt_id="ask", outcome=Outcome.OK, tokens_out=1)

    def wait(self, launch: Launch, candidate: Candidate = OFF) -> ready.Answer:
        url = f"http://127.0.0.1:{self.port}"
        limits = Readiness(still_s=30, limit_s=60)
        return ready.wait(self.supervisor, launch, self.engine, self.parsed, candidate, url, limits, ask=self.ask)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    yield made
    made.supervisor.close()
    for process in made.foreign:
        process.kill()
        process.wait()


def test_a_foreign_server_that_answers_health_is_refused_before_the_start(stage: Stage) -> None:
    pid = stage.occupy()
    with pytest.raises(PortTaken) as caught:
        stage.supervisor.start(stage.argv)
    assert caught.value.fields["pid"] == str(pid)
    assert MODULE in caught.value.fields["command"]
    assert stage.foreign[0].poll() is None


def test_a_foreign_server_that_comes_while_ours_loads_is_named_and_never_asked(stage: Stage) -> None:
    launch = stage.supervisor.start(IDLE)
    pid = stage.occupy()
    with pytest.raises(PortTaken) as caught:
        stage.wait(launch)
    assert caught.value.fields["pid"] == str(pid)
    assert stage.asked == 0


def test_our_launch_that_lost_the_port_is_told_from_the_server_that_took_it(stage: Stage) -> None:
    """The old server answers /health with 200 while the new one could not bind: its end is seen, or the holder named."""
    launch = stage.supervisor.start((sys.executable, "-c", "import time; time.sleep(0.5); raise SystemExit(1)"))
    stage.occupy()
    with pytest.raises((PortTaken, LaunchFailed)):
        stage.wait(launch)
    assert stage.asked == 0


def test_the_right_process_with_the_wrong_candidate_is_refused(stage: Stage) -> None:
    launch = stage.supervisor.start(stage.argv)
    with pytest.raises(WrongServer, match="reports off at depth 0, not draft 4"):
        stage.wait(launch, Candidate(algorithm="draft", depth=4))
    assert stage.asked == 0


def test_a_launch_that_serves_is_ready_once_it_generated_a_token(stage: Stage) -> None:
    answer = stage.wait(stage.supervisor.start(stage.argv))
    assert answer.reported.algorithm == "off"
    assert stage.asked == 1
