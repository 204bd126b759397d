"""leadline's hold on a unit: taken before the first change, renewed while leadline lives, asked for by every change.

The holder is written on the host (account, machine, process, time).  A hold of somebody else is explained, never taken: only a
process that provably is no more, on this very machine, is cleaned up after.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import socket
import threading
import time
from datetime import UTC, datetime

from . import deploy
from .config import Deploy
from .deploy import Owner
from .errors import (
    DiskFull,
    HostCommandFailed,
    HostInUse,
    HostKeyRefused,
    HostTimeout,
    HostUnreachable,
    NeedsRights,
    NotRestored,
    ServiceLost,
)
from .target import Completed
from .unithost import UnitHost

_GONE = (2, 76, 127)  # the hand answers "not your token", or it is not there any more


class Hold:
    """One campaign's hold on one unit. :meth:`renew` may run in another thread."""

    def __init__(self, host: UnitHost, settings: Deploy, target_name: str) -> None:
        self.taken = False
        self._host, self._settings, self._target_name = host, settings, target_name
        self._token = secrets.token_hex(8)
        self._last_beat = -1e9
        self._done = threading.Event()

    @property
    def limit_s(self) -> float:
        """How long a stop may take on the host before a command gives up on it."""
        return deploy.grace_s(self._settings) + 120.0

    def take(self) -> None:
        """Write the owner, note the unit as found, arm the dead-man. Raises HostInUse, NeedsRights, DiskFull."""
        where = self._host.where()
        owner = Owner(
            account=getpass.getuser(),
            machine=socket.gethostname(),
            pid=os.getpid(),
            since=datetime.now(UTC).isoformat(timespec="seconds"),
            token=self._token,
        )
        hand = deploy.hand_text(where, self._settings).encode()
        argv = ("sh", "-c", deploy.BOOTSTRAP, "sh", where.dir, str(len(hand)), self._token, deploy.owner_text(owner))
        done = self._host.run(*argv, stdin=hand, root=True, timeout_s=60.0)
        if done.status == 77:
            self.refuse_living(self.owner() or deploy.parse_owner(""), by_hand=False)
            self.give_back("its leadline is gone")  # what its dead-man is about to do
            done = self._host.run(*argv, stdin=hand, root=True, timeout_s=60.0)
        if done.status == 77:
            raise self._in_use()
        self.refuse(done, where.dir)
        self.taken = True
        self._last_beat = time.monotonic()
        self._done = threading.Event()
        threading.Thread(target=self._keep_renewing, name="leadline-renew", daemon=True).start()

    def give_back(self, why: str) -> None:
        """Let the hand put everything back as found, whoever holds the unit. Raises NotRestored."""
        self.drop()
        where = self._host.where()
        done = self._host.run("sh", where.hand, "restore", why, root=True, timeout_s=self.limit_s + 60.0)
        if done.status not in (0, *_GONE):
            raise NotRestored(
                why=done.error_text.replace("<5>", "")[-300:] or f"the hand on {self._host.name} ended with {done.status}",
                fix=f"the dead-man on {self._host.name} keeps trying; `journalctl -u {where.timer}` tells how far it came",
            )

    def is_mine(self, owner: Owner) -> bool:
        return owner.token == self._token

    def renew(self) -> None:
        """Tell the dead-man that leadline lives; does nothing when that was said lately."""
        if self.taken and time.monotonic() - self._last_beat > self._settings.deadman_s / 4:
            self._beat()

    def drop(self) -> None:
        """Renew no more."""
        self.taken = False
        self._done.set()

    def change(self, verb: str, *arguments: str, stdin: bytes = b"", timeout_s: float = 150.0) -> Completed:
        """One verb of the hand, with the token. Raises ServiceLost when the hold is gone: the unit is as found then."""
        done = self._host.run("sh", self._host.where().hand, verb, self._token, *arguments, stdin=stdin, root=True, timeout_s=timeout_s)
        if done.status in _GONE:
            self.drop()
            raise ServiceLost(
                how="leadline's hold on it is gone",
                line=f"the dead-man on {self._host.name}, a reboot or `leadline restore` put {self._host.unit} back as found",
                hint=f"leadline had not renewed for {self._settings.deadman_s:g} s, or somebody restored the service",
            )
        self._last_beat = time.monotonic()
        return done

    def refuse(self, done: Completed, path: str) -> None:
        """Raise what a failed change of the hand means."""
        if done.status == 0:
            return
        said = done.error_text.replace("<5>", "")
        if done.status == 74 and ("No space left" in said or "quota exceeded" in said):
            raise DiskFull(path=f"{self._host.name}:{path}")
        raise HostCommandFailed(
            host=self._host.name,
            command=f"change {path}",
            status=done.status,
            stderr=said[-400:] or "(nothing on stderr)",
            hint="the change was taken back",
        )

    def _beat(self) -> None:
        self._last_beat = time.monotonic()
        done = self._host.run("sh", self._host.where().hand, "beat", self._token, root=True)
        if done.status in _GONE:
            self.taken = False

    def _keep_renewing(self) -> None:
        """In a thread: a process that lives renews, whatever its main thread waits for (each of those waits has a limit)."""
        done = self._done
        while not done.wait(max(0.5, self._settings.deadman_s / 10)):
            # tried again until the dead-man acts
            with contextlib.suppress(HostUnreachable, HostKeyRefused, HostTimeout, NeedsRights, HostCommandFailed):
                self.renew()

    def _in_use(self) -> HostInUse:
        owner = self.owner() or deploy.parse_owner("")
        age, period = self._silence()
        if age is None:
            state = "its dead-man was never armed, so it changed nothing"
        elif age < period:
            state = f"it renewed {age} s ago; its dead-man restores the service {period} s after the last renewal"
        else:
            state = f"it has been silent for {age} s; its dead-man (period {period} s) is restoring or could not"
        return HostInUse(
            what=f"{self._host.unit} on {self._host.name}",
            owner=f"{owner.text} ({state})",
            since=owner.since,
            fix=f"`leadline restore {self._target_name} --force` puts the service back as that campaign found it",
        )

    def refuse_living(self, owner: Owner, *, by_hand: bool) -> None:
        """Raise HostInUse unless the holder is certainly gone: it ran here and its process is no more; or, for a restore by
        hand, it has missed several renewals in a row."""
        if owner.machine == socket.gethostname() and owner.account == getpass.getuser() and not _process_lives(owner.pid):
            return
        age, period = self._silence()
        if by_hand and (age is None or age > period / 2):
            return
        raise self._in_use()

    def _silence(self) -> tuple[int | None, int]:
        """Seconds since the holder last renewed, and its period."""
        text = self._host.run(
            "sh",
            "-c",
            'cut -d. -f1 /proc/uptime; cat "$1/alive"; echo; sed -n \'s/^period_s=//p\' "$1/hand"',
            "sh",
            self._host.where().dir,
            root=True,
        ).text.split()
        if len(text) < 3 or not all(part.isdigit() for part in text[:3]):
            return None, round(self._settings.deadman_s)
        return int(text[0]) - int(text[1]), int(text[2])

    def owner(self) -> Owner | None:
        """Who holds the unit; ``None`` when nobody does."""
        done = self._host.run("sh", "-c", 'cat "$1/owner" 2>/dev/null || { [ -d "$1" ] && echo "?"; }', "sh", self._host.where().dir)
        return deploy.parse_owner(done.text) if done.status == 0 else None


def _process_lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid > 0
