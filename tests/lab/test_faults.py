"""Break everything at every event of a campaign; the host must put the service back alone, within the stated time.

Nobody helps: after the fault leadline is dead, cut off, or gives up without restoring (``driver.py``).  Each test breaks eleven
campaigns at once, each at another event of its journal, and then watches the host until every unit runs its original command again and
nothing of leadline's is left.  ``LEADLINE_TALLY=FILE`` keeps the times seen; ``tally.py FILE`` makes a table of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from leadline import deploy
from leadline.config import Deploy
from leadline.errors import HostTimeout, HostUnreachable

from .host import HERE, Lab

EVENTS = ("planned", "intended", "deployed", "failed", "ready", "measured", "observed", "restored", "decided", "concluded", "applying")
SOME = ("intended", "deployed", "ready", "measured", "restored", "applying")
NAMES = [f"ll-{event}.service" for event in EVENTS]
DEADMAN_S = 24.0
BOUND_S = deploy.restore_bound_s(Deploy(deadman_s=DEADMAN_S, stop_grace_s=2.0))
CROWD_S = 3.0 * len(EVENTS)
"""The guest has one slow CPU and puts all of them back at the same moment: about this much more for the last of them."""

every_event = pytest.mark.parametrize("events", [pytest.param(EVENTS, id="every")])
some_or_every_event = pytest.mark.parametrize(
    "events", [pytest.param(SOME, id="some"), pytest.param(EVENTS, id="every", marks=pytest.mark.faults)]
)


class Driver:
    """One leadline process with all units in its hands."""

    def __init__(self, lab: Lab, events: Sequence[str], account: str, depth: str) -> None:
        self.events = events
        places = [f"{event}:ll-{event}.service:{8100 + EVENTS.index(event)}" for event in events]
        argv = [sys.executable, HERE / "driver.py", lab.config, f"{account}@lab", str(DEADMAN_S), depth, *places]
        self.folder = tempfile.TemporaryDirectory(prefix="ll-", dir="/tmp")  # what a killed leadline leaves here: journals, a socket
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, "TMPDIR": self.folder.name, "XDG_RUNTIME_DIR": self.folder.name},
        )

    def wait(self) -> None:
        """Until every unit stands at its event."""
        assert self.process.stdout is not None
        missing, said = set(self.events), []
        while missing:
            line = self.process.stdout.readline()
            said.append(line)
            assert line.startswith("at "), "".join(said) + self.process.stdout.read()[-3000:]
            missing.discard(line.split()[1])

    def go(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write("\n")
            self.process.stdin.flush()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)

    def cut(self) -> None:
        """End its ssh connection process, and let it make no other."""
        masters = subprocess.run(
            ["pgrep", "-P", str(self.process.pid), "ssh"], stdout=subprocess.PIPE, text=True, check=False
        ).stdout.split()
        self.process.send_signal(signal.SIGSTOP)
        for pid in masters:
            os.kill(int(pid), signal.SIGKILL)

    def end(self) -> str:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        said = self.process.communicate()[0]
        self.folder.cleanup()
        return said


@pytest.fixture(scope="module", autouse=True)
def _units(lab: Lab) -> Iterator[None]:
    lab.install(NAMES)
    yield
    lab.remove(NAMES)


def break_all(
    lab: Lab,
    events: Sequence[str],
    kind: str,
    fault: Callable[[Driver], float],
    *,
    account: str = "root",
    depth: str = "6",
    bound_s: float = BOUND_S,
    unseen: bool = False,
) -> None:
    """Bring every unit to its event, break, watch, compare. ``fault`` returns the moment (``time.monotonic``) of leadline's last renewal
    at the latest. The host's journal says more exactly than a look every few seconds when a unit was back; ``unseen``: and nobody could look."""
    units = [f"ll-{event}.service" for event in events]
    before_files, began = lab.files(), time.monotonic()
    driver = Driver(lab, events, account, depth)
    try:
        driver.wait()
        assert set(lab.original(units)) < set(units), "trials stand on the host before the fault"
        there_s = time.monotonic() - began
        broken = fault(driver)
        broken_at_s = time.time() - (time.monotonic() - broken)
        back_s = watch(lab, units, broken, bound_s + CROWD_S + 60.0)
    finally:
        said = driver.end()
    told = {unit: max(0.0, at_s - broken_at_s) for unit, at_s in lab.restored_at(broken_at_s).items()}
    back_s = {unit: told.get(unit, 0.0 if unseen and "planned" in unit else seconds) for unit, seconds in back_s.items()}
    row = {
        "kind": kind,
        "events": len(units),
        "bound_s": bound_s,
        "there_s": round(there_s, 1),
        "back_s": {unit: round(s, 1) for unit, s in back_s.items()},
    }
    with Path(os.environ.get("LEADLINE_TALLY", "/dev/null")).open("a") as tally:
        tally.write(json.dumps(row) + "\n")
    assert set(back_s) == set(units), f"never back: {set(units) - set(back_s)}\n{said}"
    late = {unit: round(s, 1) for unit, s in back_s.items() if s > bound_s + CROWD_S}
    assert not late, f"later than {bound_s} s: {late}\n{said}"
    until = time.monotonic() + 10.0
    while lab.traces() and time.monotonic() < until:
        time.sleep(0.5)
    assert lab.traces() == ""
    assert lab.files() == before_files
    assert {unit: shown.get("UnitFileState") for unit, shown in lab.show(units).items()} == dict.fromkeys(units, "enabled")


def watch(lab: Lab, units: list[str], broken: float, limit_s: float) -> dict[str, float]:
    """Seconds from the fault until each unit runs its original command, with nothing of leadline's on it, and stays so."""
    back: dict[str, float] = {}
    while len(back) < len(units) and time.monotonic() < broken + limit_s:
        try:
            running = set(lab.original(units))
        except (HostUnreachable, HostTimeout):
            continue
        now_s = time.monotonic() - broken
        back = {unit: back.get(unit, now_s) for unit in units if unit in running}
        time.sleep(0.5)
    return back


@every_event
def test_kill_9(lab: Lab, events: Sequence[str]) -> None:
    def kill(driver: Driver) -> float:
        driver.kill()
        return time.monotonic()

    break_all(lab, events, "kill -9 of leadline", kill)


@every_event
def test_ssh_killed(lab: Lab, events: Sequence[str]) -> None:
    def cut(driver: Driver) -> float:
        driver.cut()
        return time.monotonic()

    break_all(lab, events, "ssh killed", cut)


@every_event
def test_host_reboot(lab: Lab, events: Sequence[str]) -> None:
    def reboot(driver: Driver) -> float:
        begin = time.monotonic()
        lab.reboot()
        driver.kill()
        return begin

    break_all(lab, events, "host reboot", reboot)


@some_or_every_event
def test_sudo_refused_midway(lab: Lab, events: Sequence[str]) -> None:
    line = lab.root.read("/etc/sudoers.d/ops")

    def refuse(driver: Driver) -> float:
        lab.sh("rm -f /etc/sudoers.d/ops")
        driver.go()
        return time.monotonic()

    try:
        break_all(lab, events, "sudo refused midway", refuse, account="ops")
    finally:
        lab.root.write("/etc/sudoers.d/ops", line, mode=0o440)


@some_or_every_event
def test_never_ready(lab: Lab, events: Sequence[str]) -> None:
    """The trial neither becomes ready nor ends on SIGTERM; leadline gives up on it and is gone."""

    def kill(driver: Driver) -> float:
        driver.kill()
        return time.monotonic()

    break_all(lab, events, "service never ready", kill, depth="20")


@some_or_every_event
def test_cable_cut(lab: Lab, events: Sequence[str]) -> None:
    """leadline lives on, cut off; the cable comes back after the host has helped itself."""

    def cut(driver: Driver) -> float:
        lab.link("down")
        broken = time.monotonic()
        driver.go()
        time.sleep(BOUND_S + CROWD_S)
        lab.link("up")
        return broken

    break_all(lab, events, "cable cut", cut, unseen=True)


FILL = """\
set -- $(stat -f -c '%f %S' /)
fallocate -l $((($1 - 4000) * $2)) /var/fill
for size in 64k 4k; do for place in /var /run; do dd if=/dev/zero of="$place/fill-$size" bs=$size 2>/dev/null; done; done
for place in /var /run; do echo x 2>/dev/null >"$place/fill-probe" || echo "$place is full"; done
"""


@some_or_every_event
def test_disk_full(lab: Lab, events: Sequence[str]) -> None:
    """Both the root disk and /run are full from the event on, until everything is back."""

    def fill(driver: Driver) -> float:
        assert lab.sh(FILL, timeout_s=300.0).splitlines() == ["/var is full", "/run is full"]
        driver.go()
        driver.process.wait(180)  # it renews as long as it lives: a sign of life needs no space
        return time.monotonic()

    try:
        break_all(lab, events, "disk full", fill)
    finally:
        lab.sh("rm -f /var/fill* /run/fill*")


@some_or_every_event
def test_daemon_reload_fails(lab: Lab, events: Sequence[str]) -> None:
    """daemon-reload fails from the event on; leadline is killed; reload works again 10 s after the dead-man's first attempt."""
    broken = b'#!/bin/sh\n[ "$1" = daemon-reload ] && [ -e /tmp/no-reload ] && { echo "Failed to reload daemon: Connection timed out" >&2; exit 1; }\nexec /usr/bin/systemctl "$@"\n'

    def fail(driver: Driver) -> float:
        lab.sh("touch /tmp/no-reload")
        driver.go()
        time.sleep(2.0)
        driver.kill()
        threading.Timer(DEADMAN_S + 10.0, lambda: lab.sh("rm -f /tmp/no-reload")).start()
        return time.monotonic()

    lab.root.write("/usr/local/bin/systemctl", broken, mode=0o755)
    try:
        break_all(lab, events, "daemon-reload fails", fail, bound_s=BOUND_S + 12.0)
    finally:
        lab.sh("rm -f /usr/local/bin/systemctl /tmp/no-reload")
