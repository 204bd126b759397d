"""The suite that every supervisor passes, with a systemd unit on a real host behind SSH.

What becomes of a launch's files is shown in ``test_unit.py``: a unit names their paths in its arguments, not in what ``apply`` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from leadline.config import Deploy
from leadline.ssh import SshTarget
from leadline.systemd import SystemdSupervisor
from leadline.unitfile import quote
from test_supervisor_conformance import (  # noqa: F401  # collected here again, with this module's rig
    SERVER,
    WORDS,
    Rig,
    test_a_launch_nobody_knows_does_not_run,
    test_a_launch_runs_listens_and_is_known_as_ours,
    test_a_program_that_does_not_exist_is_refused,
    test_a_second_start_ends_the_first,
    test_a_taken_port_is_refused_before_the_start_and_its_holder_left_alone,
    test_an_end_of_its_own_is_told_as_such,
    test_applying_says_what_to_run,
    test_evidence_holds_the_output_and_the_end,
    test_output_is_kept_by_byte,
    test_restoring_leaves_nothing_and_can_be_repeated,
    test_stopping_ends_everything_and_can_be_repeated,
    test_taking_the_service_changes_nothing_and_can_be_repeated,
    test_the_service_is_read_without_touching_it,
    wait_for,
)

from .host import Lab

UNIT, PORT = "conform.service", 8300


class UnitRig:
    """A unit that is not running when it is found."""

    port = PORT
    serving = ("/usr/bin/python3", "-c", SERVER, str(PORT), WORDS)
    failing = ("/usr/bin/python3", "-c", "raise SystemExit(3)")
    a_launch_is_the_service, remembers, log_source, applied = False, True, "journal", "holds the new setting"

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.unit = SystemdSupervisor(
            SshTarget("lab", ssh=lab.ssh),
            UNIT,
            target_name=f"ssh://lab/{UNIT}",
            settings=Deploy(deadman_s=120, stop_grace_s=2, free_timeout_s=3),
            engine=lambda argv: True,
            port_of=lambda argv: PORT,
        )
        self.supervisor = self.unit

    def content(self, path: str) -> str:
        return self.lab.root.read(path).decode()

    def occupy(self) -> Callable[[], None]:
        self.lab.root.run(["systemd-run", "-q", "--unit=holder", "/usr/bin/python3", "-c", SERVER, str(PORT)]).check("lab")
        wait_for(lambda: bool(self.supervisor.listeners(PORT)))
        return lambda: self.lab.sh("systemctl stop holder") and None


@pytest.fixture(scope="module")
def installed(lab: Lab) -> Iterator[Lab]:
    command = " ".join(quote(word) for word in UnitRig.serving)
    lab.root.write(f"/etc/systemd/system/{UNIT}", f"[Service]\nExecStart={command}\nTimeoutStopSec=10\n".encode())
    lab.sh("systemctl daemon-reload")
    yield lab
    lab.remove([UNIT])


@pytest.fixture
def rig(installed: Lab) -> Iterator[Rig]:
    before = installed.files()
    made = UnitRig(installed)
    yield made
    made.unit.restore(force=True)
    made.unit.undo()
    made.unit.close()
    assert installed.traces() == ""
    assert installed.files() == before
