"""Break everything at every event of a campaign; the host must put the service back alone, within the stated time.

Nobody helps: after the fault leadline is dead, cut off, or gives up without restoring (``driver.py``).  Each test breaks a few
campaigns at once, each at another event of its journal, and then watches the host until every unit runs what it should and nothing of
leadline's is left.  ``LEADLINE_TALLY=FILE`` keeps the times seen; ``tally.py FILE`` makes a table of them.
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
from typing import get_args

import msgspec
import pytest

from leadline import deploy
from leadline.config import Deploy
from leadline.errors import HostTimeout, HostUnreachable
from leadline.records import AnyEvent
from leadline.systemd import SystemdSupervisor

from .host import HERE, Lab, Look

GROUPS = (
    ("began", "intended", "deployed"),
    ("inspected", "failed", "ready"),
    ("watched", "measured", "observed"),
    ("planned", "restored", "decided"),
    ("concluded", "applying"),
    ("applied", "abandoned"),
)
"""Broken together: at most two of them have a trial on the host, whose one slow CPU has to put all of them back at the same moment."""
UNTOUCHED = ("began", "inspected", "watched", "planned")
"""At these nothing of leadline's is on the host yet: the service must not even be disturbed."""
LASTING = ("applied",)
"""At these the service keeps what was applied."""
NAMES = [f"ll-{slot}.service" for slot in range(max(map(len, GROUPS)))]
PORT = 8100
SETTINGS = Deploy(deadman_s=12.0, stop_grace_s=2.0)
BOUND_S = deploy.restore_bound_s(SETTINGS)
RELOAD_S = 5.0
"""How long after the dead-man's period daemon-reload still fails: once at least for everybody."""

every_group = pytest.mark.parametrize("events", GROUPS, ids="-".join)


def test_every_event_is_broken_at() -> None:
    """Each event that the journal knows, and the time while a setting is applied."""
    assert sorted(event for group in GROUPS for event in group) == sorted(
        [*(kind.__name__.lower() for kind in get_args(AnyEvent)), "applying"]
    )


class Driver:
    """One leadline process with all units in its hands."""

    def __init__(self, lab: Lab, units: dict[str, str], account: str, depth: int) -> None:
        self.events = list(units.values())
        places = [f"{event}:{unit}:{PORT + NAMES.index(unit)}" for unit, event in units.items()]
        argv = [sys.executable, HERE / "driver.py", lab.config, f"{account}@lab", str(SETTINGS.deadman_s), str(depth), *places]
        self.folder = tempfile.TemporaryDirectory(prefix="ll-", dir="/tmp")  # what a killed leadline leaves here: journals, a socket
        home = self.folder.name
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**os.environ, "TMPDIR": home, "XDG_RUNTIME_DIR": home, "LEADLINE_HOME": home},
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


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A way to break a campaign, and what is to be expected of the host."""

    kind: str
    inflict: Callable[[Driver], float]
    """Returns the moment (``time.monotonic``) of leadline's last sign of life at the latest."""
    mend: Callable[[], object] = lambda: None
    """Makes a look at the host, or a change, possible again."""
    account: str = "root"
    depth: int = 6
    bound_s: float = BOUND_S
    final: bool = True
    """The host runs on and leadline can change nothing more from the fault on."""


@pytest.fixture(scope="module", autouse=True)
def _units(lab: Lab) -> Iterator[None]:
    lab.install(NAMES, first_port=PORT)
    yield
    lab.remove(NAMES)


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one unit; a line of the tally."""

    event: str
    at: str
    """``trial`` (leadline held the unit), ``lasting`` or ``nothing``."""
    back: bool
    seconds: float | None = None
    """From the fault until the unit was as found; for a trial."""
    silent_s: int | None = None
    """The host's own count, from leadline's very last renewal until then."""

    def late(self, fault: Fault) -> bool:
        counted = [self.seconds, self.silent_s if fault.final else None]
        return not self.back or any(seconds > fault.bound_s for seconds in counted if seconds is not None)


def break_all(lab: Lab, events: Sequence[str], fault: Fault) -> None:
    """Bring every unit to its event, break, watch, compare."""
    units = dict(zip(NAMES, events, strict=False))
    trials = {unit for unit, event in units.items() if event not in UNTOUCHED + LASTING}
    before_files, before, began = lab.files(), lab.looks(NAMES), time.monotonic()
    assert all(look.original for look in before.values())
    driver = Driver(lab, units, fault.account, fault.depth)
    try:
        driver.wait()
        assert lab.held() == trials, "leadline is where it should be"
        there_s = time.monotonic() - began
        broken = fault.inflict(driver)
        broken_at_s = time.time() - (time.monotonic() - broken)
        seen = watch(lab, units, fault, broken)
    finally:
        said = driver.end()
    outcomes = settle(lab, units, trials, seen, broken_at_s)
    row = {"kind": fault.kind, "bound_s": fault.bound_s, "there_s": round(there_s, 1), "faults": msgspec.to_builtins(outcomes)}
    with Path(os.environ.get("LEADLINE_TALLY", "/dev/null")).open("a") as tally:
        tally.write(json.dumps(row) + "\n")
    late = [outcome for outcome in outcomes if outcome.late(fault)]
    assert not late, f"not as it should be {fault.bound_s} s after the fault: {late}\n{lab.looks(list(units))}\n{said}"
    fault.mend()
    take_back(lab, [unit for unit, event in units.items() if event in LASTING])
    assert lab.files() == before_files
    assert {shown.get("UnitFileState") for shown in lab.show(NAMES).values()} == {"enabled"}
    after = lab.looks(NAMES)
    assert all(look.original for look in after.values())
    if fault.final:
        still = {unit for unit, event in units.items() if event in UNTOUCHED} | set(NAMES) - set(units)
        restarted = {unit for unit in still if after[unit].invocation != before[unit].invocation}
        assert not restarted, "leadline had not yet taken it"


def watch(lab: Lab, units: dict[str, str], fault: Fault, broken: float) -> dict[str, tuple[float, Look]]:
    """Each unit at the first look that finds its original command running, or what was applied, with nothing else of leadline's on it,
    and when that look was (seconds from the fault)."""
    seen: dict[str, tuple[float, Look]] = {}
    while len(seen) < len(units) and time.monotonic() < broken + fault.bound_s + 60.0:
        with contextlib.suppress(HostUnreachable, HostTimeout):
            held = lab.held()
            for unit, look in lab.looks([unit for unit in units if unit not in seen and unit not in held]).items():
                if is_applied(unit, look) if units[unit] in LASTING else look.original:
                    seen[unit] = time.monotonic() - broken, look
        time.sleep(1.0)
    return seen


def settle(
    lab: Lab, units: dict[str, str], trials: set[str], seen: dict[str, tuple[float, Look]], broken_at_s: float
) -> tuple[Outcome, ...]:
    """When each unit was as found: the dead-man's word in the host's journal is more exact than a look now and then, and counts if the
    process that the look found had started by then. Without its word (a reboot) the look counts."""
    told, outcomes = lab.restored(broken_at_s), []
    for unit, event in units.items():
        at = "trial" if unit in trials or unit in told else "lasting" if event in LASTING else "nothing"
        if unit not in seen:
            outcomes.append(Outcome(event=event, at=at, back=False))
            continue
        seconds, look = seen[unit]
        if unit in told:
            seconds = max(0.0, told[unit][0] - broken_at_s, look.started_s - broken_at_s)
        silent_s = told[unit][1] if unit in told else None
        outcomes.append(Outcome(event=event, at=at, back=True, seconds=round(seconds, 1) if at == "trial" else None, silent_s=silent_s))
    return tuple(outcomes)


def take_back(lab: Lab, applied: list[str]) -> None:
    """``leadline restore`` of what was applied; nothing else of leadline's may be on the host, before and after that."""
    for unit in applied:
        assert lab.traces().split() == [f"/etc/systemd/system/{unit}.d/zz-leadline.conf"]
        SystemdSupervisor(lab.root, unit, target_name=unit, settings=SETTINGS).take_back()
    until = time.monotonic() + 10.0
    while lab.traces() and time.monotonic() < until:
        time.sleep(0.5)
    assert lab.traces() == ""


def is_applied(unit: str, look: Look) -> bool:
    lasting = f"/etc/systemd/system/{unit}.d/zz-leadline.conf"
    return look.clean and look.dropins == (lasting,) and not look.command.endswith("--spec-draft-n-max 4")


@every_group
def test_kill_9(lab: Lab, events: Sequence[str]) -> None:
    break_all(lab, events, Fault(kind="kill -9 of leadline", inflict=kill))


def kill(driver: Driver) -> float:
    driver.kill()
    return time.monotonic()


@every_group
def test_ssh_killed(lab: Lab, events: Sequence[str]) -> None:
    def cut(driver: Driver) -> float:
        driver.cut()
        return time.monotonic()

    break_all(lab, events, Fault(kind="ssh killed", inflict=cut))


@every_group
def test_host_reboot(lab: Lab, events: Sequence[str]) -> None:
    def reboot(driver: Driver) -> float:
        begin = time.monotonic()
        lab.reboot()
        driver.kill()
        return begin

    break_all(lab, events, Fault(kind="host reboot", inflict=reboot, final=False))


@every_group
def test_sudo_refused_midway(lab: Lab, events: Sequence[str]) -> None:
    line = lab.root.read("/etc/sudoers.d/ops")

    def refuse(driver: Driver) -> float:
        lab.sh("rm -f /etc/sudoers.d/ops")
        driver.go()
        return time.monotonic()

    try:
        break_all(lab, events, Fault(kind="sudo refused midway", inflict=refuse, account="ops"))
    finally:
        lab.root.write("/etc/sudoers.d/ops", line, mode=0o440)


@every_group
def test_never_ready(lab: Lab, events: Sequence[str]) -> None:
    """The trial becomes ready never, or never again, and does not end on SIGTERM; leadline is gone."""
    break_all(lab, events, Fault(kind="service never ready", inflict=kill, depth=20))


@every_group
def test_cable_cut(lab: Lab, events: Sequence[str]) -> None:
    """leadline lives on, cut off; the cable comes back after the host has helped itself."""

    def cut(driver: Driver) -> float:
        lab.link("down")
        broken = time.monotonic()
        driver.go()
        time.sleep(BOUND_S + 3.0)  # by then leadline has given the connection up, and what it had in hand
        lab.link("up")
        return broken

    break_all(lab, events, Fault(kind="cable cut", inflict=cut))


FILL = """\
set -- $(stat -f -c '%f %S' /)
fallocate -l $((($1 - 4000) * $2)) /var/fill
for size in 64k 4k; do for place in /var /run; do dd if=/dev/zero of="$place/fill-$size" bs=$size 2>/dev/null; done; done
for place in /var /run; do echo x 2>/dev/null >"$place/fill-probe" || echo "$place is full"; done
"""


@every_group
def test_disk_full(lab: Lab, events: Sequence[str]) -> None:
    """Both the root disk and /run are full from the event on, until everything is back."""

    def fill(driver: Driver) -> float:
        assert lab.sh(FILL, timeout_s=300.0).splitlines() == ["/var is full", "/run is full"]
        driver.go()
        driver.process.wait(180)  # it renews as long as it lives: a sign of life needs no space
        return time.monotonic()

    def empty() -> None:
        lab.sh("rm -f /var/fill* /run/fill*")

    try:
        break_all(lab, events, Fault(kind="disk full", inflict=fill, mend=empty))
    finally:
        empty()


@every_group
def test_daemon_reload_fails(lab: Lab, events: Sequence[str]) -> None:
    """daemon-reload fails from the event on; leadline is killed; reload works again after the dead-man has met that at least once."""
    broken = b'#!/bin/sh\n[ "$1" = daemon-reload ] && [ -e /tmp/no-reload ] && { echo "Failed to reload daemon: Connection timed out" >&2; exit 1; }\nexec /usr/bin/systemctl "$@"\n'

    def fail(driver: Driver) -> float:
        lab.sh("touch /tmp/no-reload")
        driver.go()
        time.sleep(2.0)
        driver.kill()
        threading.Timer(SETTINGS.deadman_s + RELOAD_S, mend).start()
        return time.monotonic()

    def mend() -> None:
        lab.sh("rm -f /tmp/no-reload")

    lab.root.write("/usr/local/bin/systemctl", broken, mode=0o755)
    fault = Fault(kind="daemon-reload fails", inflict=fail, mend=mend, bound_s=BOUND_S + RELOAD_S, final=False)
    try:
        break_all(lab, events, fault)
    finally:
        lab.sh("rm -f /usr/local/bin/systemctl /tmp/no-reload")
