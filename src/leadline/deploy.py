"""What is put on the host and how it is taken away: the drop-in, the diff, the hand and its dead-man.

Trial settings live in ``/run/systemd/system/NAME.service.d/`` and are gone after a reboot.  Before the first change the
*hand* (``data/hand.sh``) and a timer are put on the host; the timer runs the hand every few seconds, and when leadline has
not renewed for the dead-man's period the hand removes the drop-in, reloads, restarts the service and removes itself.
The age is counted in seconds since boot and the timer is a calendar timer, so neither ``daemon-reload`` nor a step of the
clock moves it.  :func:`restore_bound_s` says how long it takes at most.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.resources
import json
import re
import shlex
from collections.abc import Sequence

from .config import Deploy
from .records import LaunchFile, Record

DROPIN = "zz-leadline.conf"
"""Sorts behind what people call their drop-ins, so that it is read last."""

# Makes $1, fills it from standard input (the first $2 bytes are the hand), arms. Leaves nothing behind when it fails.
BOOTSTRAP = """\
trap '' HUP PIPE; umask 022; export LC_ALL=C
[ -d "$1" ] && exit 77
mkdir -p -- "$(dirname -- "$1")" && mkdir -- "$1" || exit 74
cat >"$1/hand" && [ "$(wc -c <"$1/hand")" -eq "$2" ] || { rm -rf -- "$1"; rmdir -- "$(dirname -- "$1")" 2>/dev/null; exit 74; }
sh "$1/hand" arm "$3" "$4"; status=$?
[ "$status" -eq 0 ] || { rm -rf -- "$1"; rmdir -- "$(dirname -- "$1")" 2>/dev/null; }
exit "$status"
"""


class Place(Record, frozen=True):
    """Where things of one unit stand on its host."""

    unit: str
    user_unit: bool
    folder: str
    """Drop-in folder of trials, under /run."""
    lasting_folder: str
    """Drop-in folder of ``apply``."""
    dir: str
    """leadline's own folder while the unit is not as found: hand, owner, what was found."""
    timer: str

    @property
    def dropin(self) -> str:
        return f"{self.folder}/{DROPIN}"

    @property
    def lasting(self) -> str:
        return f"{self.lasting_folder}/{DROPIN}"

    @property
    def hand(self) -> str:
        return f"{self.dir}/hand"


def place(unit: str, *, user_unit: bool, runtime_dir: str = "", config_dir: str = "") -> Place:
    """``runtime_dir`` and ``config_dir`` are the account's ``/run/user/UID`` and ``~/.config``, for a user unit only."""
    safe = re.sub(r"[^A-Za-z0-9_.-]", "_", unit.removesuffix(".service"))[:60]
    key = safe if safe == unit.removesuffix(".service") else f"{safe}-{hashlib.sha256(unit.encode()).hexdigest()[:8]}"
    run, etc = (
        (f"{runtime_dir}/systemd/user", f"{config_dir}/systemd/user") if user_unit else ("/run/systemd/system", "/etc/systemd/system")
    )
    return Place(
        unit=unit,
        user_unit=user_unit,
        folder=f"{run}/{unit}.d",
        lasting_folder=f"{etc}/{unit}.d",
        dir=f"{runtime_dir if user_unit else '/run'}/leadline/{key}",
        timer=f"leadline-{key}",
    )


class Owner(Record, frozen=True):
    """Who holds a unit, as written on its host."""

    account: str
    machine: str
    pid: int
    since: str
    """ISO 8601, UTC."""
    token: str

    @property
    def text(self) -> str:
        return f"{self.account}@{self.machine}, pid {self.pid}"


def parse_owner(text: str) -> Owner:
    """The owner file; what cannot be read is an owner that nobody knows, never an error."""
    try:
        found = json.loads(text)
        return Owner(
            account=str(found["account"]),
            machine=str(found["machine"]),
            pid=int(found["pid"]),
            since=str(found["since"]),
            token=str(found["token"]),
        )
    except (ValueError, KeyError, TypeError):
        return Owner(account="unknown", machine="unknown", pid=0, since="unknown", token="")


def owner_text(owner: Owner) -> str:
    return json.dumps({name: getattr(owner, name) for name in owner.__struct_fields__})


# -- the dead-man ------------------------------------------------------------------------------------------------------

_TICKS = (1, 2, 3, 5, 10, 15, 20, 30)  # divisors of a minute, as the calendar timer needs


def tick_s(period_s: float) -> int:
    """How often the timer looks: about six times a period."""
    return max((tick for tick in _TICKS if tick <= period_s / 6), default=1)


def grace_s(settings: Deploy) -> int:
    """Seconds between asking a trial to end and ending it."""
    return max(2, round(settings.stop_grace_s))


def restore_bound_s(settings: Deploy) -> float:
    """From the last renewal to the original configuration running again, at most: the period, one look of the timer, the
    trial's stop with its grace, and 5 s for systemd itself."""
    return round(settings.deadman_s) + tick_s(settings.deadman_s) + grace_s(settings) + 5.0


def hand_text(where: Place, settings: Deploy) -> str:
    """The hand of one unit: its settings, then ``data/hand.sh``."""
    values = {
        "unit": where.unit,
        "scope": "user" if where.user_unit else "system",
        "dir": where.dir,
        "folder": where.folder,
        "dropin": where.dropin,
        "lasting": where.lasting,
        "timer": where.timer,
        "period_s": str(round(settings.deadman_s)),
        "tick_s": str(tick_s(settings.deadman_s)),
        "grace_s": str(grace_s(settings)),
    }
    head = "".join(f"{name}={shlex.quote(value)}\n" for name, value in values.items())
    return "#!/bin/sh\n" + head + importlib.resources.files("leadline").joinpath("data/hand.sh").read_text()


# -- the drop-in -------------------------------------------------------------------------------------------------------


class Found(Record, frozen=True):
    """The unit's settings that a trial has to respect."""

    exec_start: str
    """ExecStart as written."""
    stop_timeout_s: float | None = None
    """``None`` = infinity."""
    to_journal: bool = True


CREDENTIALS_SINCE = 247
"""First release of systemd with ``SetCredential``."""


def credential_path(unit: str, name: str) -> str:
    """Where systemd puts a credential of a system unit: a folder of its own in memory, readable by the service's account only.

    (systemd.exec(5), "Credentials".)
    """
    return f"/run/credentials/{unit}/{name}"


def _credentials(files: Sequence[LaunchFile]) -> list[str]:
    """Files as credentials, so that they stand in the drop-in, come and go with the service and leave nothing behind.

    >>> _credentials([LaunchFile(name="a.json", text='{"1": [2]}')])
    ['SetCredential=a.json:{"1": [2]}']
    """
    return ["SetCredential=" + file.name + ":" + file.text.replace("\\", "\\\\").replace("\n", "\\n") for file in files]


def trial_dropin(found: Found, exec_start: str, settings: Deploy, *, start_limit_s: float, files: Sequence[LaunchFile] = ()) -> str:
    """The drop-in of one launch: the new ExecStart, and what a trial needs so that a failure stays visible.

    ``Restart=no``: a crash loop would hide the cause. No start limit: trials are restarts. The start may last as long as
    leadline waits; a stop gets at least the unit's own time.
    """
    stop_s = max(found.stop_timeout_s or 0.0, settings.stop_grace_s + 30.0, 90.0) if found.stop_timeout_s is not None else 0.0
    lines = [
        "# leadline: settings of a trial. Not part of the unit: `leadline restore`, a reboot or the dead-man removes this file.",
        "[Unit]",
        "StartLimitIntervalSec=0",
        "[Service]",
        "ExecStart=",
        f"ExecStart={exec_start}",
        *_credentials(files),
        "Restart=no",
        f"TimeoutStartSec={round(start_limit_s)}",
        f"TimeoutStopSec={round(stop_s) if stop_s else 'infinity'}",
    ]
    if not found.to_journal:
        lines += ["StandardOutput=journal", "StandardError=journal"]
    return "\n".join(lines) + "\n"


NOT_RUNNING = "# The service was not running before."
"""What the hand looks for when it takes a lasting setting back."""


def lasting_dropin(exec_start: str, *, when: str, files: Sequence[LaunchFile] = (), ran: bool = True) -> str:
    """The drop-in that ``apply`` leaves: the new ExecStart, the files that it names, and nothing else. ``ran``: whether the service ran before."""
    return (
        f"# leadline: applied {when}. `leadline restore` takes it back; to do that by hand, remove this file,\n"
        "# then `systemctl daemon-reload` and restart the service.\n"
        + ("" if ran else NOT_RUNNING + "\n")
        + f"[Service]\nExecStart=\nExecStart={exec_start}\n"
        + "".join(f"{line}\n" for line in _credentials(files))
    )


def diff(unit: str, before: str, after: str, dropin: str, text: str) -> str:
    """What a launch would change: the command as a unified diff, then the whole drop-in."""
    lines = difflib.unified_diff(
        _wrapped(before),
        _wrapped(after),
        fromfile=f"{unit}: ExecStart as found",
        tofile=f"{unit}: ExecStart of this launch",
        lineterm="",
        n=2,
    )
    body = "\n".join(lines) or "ExecStart stays as found"
    shown = "".join(f"+ {line}\n" for line in text.splitlines())
    return f"{body}\n\nnew file {dropin}\n{shown}"


def _wrapped(exec_start: str) -> list[str]:
    """One option a line, so that a diff shows the option that changed."""
    return re.sub(r"\s+(?=--?[A-Za-z])", "\n", exec_start.replace("\\\n", " ")).split("\n")
