"""Break everything at every event of a campaign; the host must put the service back alone, within the stated time.

Nobody helps: after the fault leadline is dead, cut off, or gives up without restoring.  Each test breaks eleven units at once, each
at another event, and then watches the host until every unit runs its original command again and nothing of leadline's is left.
``LEADLINE_TALLY=FILE`` keeps the times seen.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leadline import deploy
from leadline.config import Deploy
from leadline.errors import HostUnreachable

from .host import HERE, Lab

EVENTS = ("planned", "intended", "deployed", "failed", "ready", "measured", "observed", "restored", "decided", "concluded", "applying")
NAMES = [f"ll-{event}.service" for event in EVENTS]
DEADMAN_S = 24.0
BOUND_S = deploy.restore_bound_s(Deploy(deadman_s=DEADMAN_S, stop_grace_s=2.0))
CROWD_S = 3.0 * len(EVENTS)
"""The guest has one slow CPU and puts all of them back at the same moment: about this much more for the last of them."""


class Driver:
    """One leadline process with all units in its hands."""

    def __init__(self, lab: Lab, account: str, depth: str) -> None:
        places = [f"{event}:ll-{event}.service:{8100 + number}" for number, event in enumerate(EVENTS)]
        argv = [sys.executable, HERE / "driver.py", lab.config, f"{account}@lab", str(DEADMAN_S), depth, *places]
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )

    def wait(self) -> None:
        """Until every unit stands at its event."""
        assert self.process.stdout is not None
        missing, said = set(EVENTS), []
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
        return self.process.communicate()[0]


@pytest.fixture(scope="module")
def units(lab: Lab) -> Iterator[list[str]]:
    lab.install(NAMES)
    yield NAMES
    lab.remove(NAMES)


def break_all(
    lab: Lab,
    units: list[str],
    kind: str,
    fault: Callable[[Driver], None],
    *,
    account: str = "root",
    depth: str = "6",
    bound_s: float = BOUND_S,
) -> None:
    """Bring every unit to its event, break, watch, compare."""
    before_files = lab.files()
    driver = Driver(lab, account, depth)
    try:
        driver.wait()
        assert set(lab.original(units)) < set(units), "trials stand on the host before the fault"
        broken = time.monotonic()
        fault(driver)
        back_s = watch(lab, units, broken, bound_s + CROWD_S + 60.0)
    finally:
        said = driver.end()
    with Path(os.environ.get("LEADLINE_TALLY", "/dev/null")).open("a") as tally:
        tally.write(json.dumps({"kind": kind, "bound_s": bound_s, "back_s": {unit: round(s, 1) for unit, s in back_s.items()}}) + "\n")
    assert set(back_s) == set(units), f"never back: {set(units) - set(back_s)}\n{said}"
    late = {unit: round(s, 1) for unit, s in back_s.items() if s > bound_s + CROWD_S}
    assert not late, f"later than {bound_s} s: {late}"
    until = time.monotonic() + 10.0
    while lab.traces() and time.monotonic() < until:
        time.sleep(0.5)
    assert lab.traces() == ""
    assert lab.files() == before_files
    assert {unit: shown.get("UnitFileState") for unit, shown in lab.show(units).items()} == dict.fromkeys(units, "enabled")


def watch(lab: Lab, units: list[str], broken: float, limit_s: float) -> dict[str, float]:
    """Seconds from the fault until each unit runs its original command, with nothing of leadline's on it."""
    back: dict[str, float] = {}
    while len(back) < len(units) and time.monotonic() < broken + limit_s:
        try:
            running = lab.original(units)
        except HostUnreachable:
            continue
        for unit in running:
            back.setdefault(unit, time.monotonic() - broken)
        time.sleep(1.0)
    return back


def test_kill_9(lab: Lab, units: list[str]) -> None:
    break_all(lab, units, "kill -9 of leadline", Driver.kill)


def test_ssh_killed(lab: Lab, units: list[str]) -> None:
    break_all(lab, units, "ssh killed", Driver.cut)


def test_host_reboot(lab: Lab, units: list[str]) -> None:
    def reboot(driver: Driver) -> None:
        lab.reboot()
        driver.kill()

    break_all(lab, units, "host reboot", reboot)


@pytest.mark.faults
def test_sudo_refused_midway(lab: Lab, units: list[str]) -> None:
    line = lab.root.read("/etc/sudoers.d/ops")

    def refuse(driver: Driver) -> None:
        lab.sh("rm -f /etc/sudoers.d/ops")
        driver.go()

    try:
        break_all(lab, units, "sudo refused midway", refuse, account="ops")
    finally:
        lab.root.write("/etc/sudoers.d/ops", line, mode=0o440)


@pytest.mark.faults
def test_never_ready(lab: Lab, units: list[str]) -> None:
    """The trial neither becomes ready nor ends on SIGTERM; leadline gives up on it and is gone."""
    break_all(lab, units, "service never ready", Driver.kill, depth="20")


@pytest.mark.faults
def test_cable_cut(lab: Lab, units: list[str]) -> None:
    """leadline lives on, cut off; the cable comes back after the host has helped itself."""

    def cut(driver: Driver) -> None:
        lab.link("down")
        driver.go()
        time.sleep(BOUND_S)
        lab.link("up")

    break_all(lab, units, "cable cut", cut)


@pytest.mark.faults
def test_disk_full(lab: Lab, units: list[str]) -> None:
    """Both the root disk and /run are full from the event on, until everything is back."""

    def fill(driver: Driver) -> None:
        lab.sh(
            "fallocate -l 6G /var/fill; dd if=/dev/zero of=/var/fill2 bs=1M; dd if=/dev/zero of=/run/fill bs=1M; dd if=/dev/zero of=/run/fill2 bs=4k; "
            "df -P / /run >&2; true",
            timeout_s=300.0,
        )
        driver.go()

    try:
        break_all(lab, units, "disk full", fill, bound_s=BOUND_S + 30.0)  # filling takes its time, and leadline renews meanwhile
    finally:
        lab.sh("rm -f /var/fill /var/fill2 /run/fill /run/fill2")


@pytest.mark.faults
def test_daemon_reload_fails(lab: Lab, units: list[str]) -> None:
    """daemon-reload fails from the event on; leadline is killed; reload works again 10 s after the dead-man's first attempt."""
    broken = b'#!/bin/sh\n[ "$1" = daemon-reload ] && [ -e /tmp/no-reload ] && { echo "Failed to reload daemon: Connection timed out" >&2; exit 1; }\nexec /usr/bin/systemctl "$@"\n'

    def fail(driver: Driver) -> None:
        lab.sh("touch /tmp/no-reload")
        driver.go()
        time.sleep(2.0)
        driver.kill()
        threading.Timer(DEADMAN_S + 10.0, lambda: lab.sh("rm -f /tmp/no-reload")).start()

    lab.root.write("/usr/local/bin/systemctl", broken, mode=0o755)
    try:
        break_all(lab, units, "daemon-reload fails", fail, bound_s=BOUND_S + 12.0)
    finally:
        lab.sh("rm -f /usr/local/bin/systemctl /tmp/no-reload")
