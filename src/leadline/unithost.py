"""One unit's host as every part of the systemd supervisor sees it: run, show, where things stand."""

from __future__ import annotations

from . import deploy, probes
from .deploy import Place
from .errors import NeedsRights
from .probes import Shown
from .records import Launch
from .target import Completed, Target


class UnitHost:
    """A unit and the host it is on; reads only, except through :meth:`run`."""

    def __init__(self, target: Target, unit: str, *, user_unit: bool) -> None:
        self.target, self.unit, self.user_unit = target, unit, user_unit
        self.scope: tuple[str, ...] = ("--user",) if user_unit else ()
        self._place: Place | None = None
        self._boot: tuple[float, int] | None = None
        self._env: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.target.name

    def run(self, *argv: str, stdin: bytes = b"", root: bool = False, timeout_s: float = 30.0) -> Completed:
        prefix = ("env", "LC_ALL=C", *self.user_env())
        return self.target.run((*prefix, *argv), stdin=stdin, root=root and not self.user_unit, timeout_s=timeout_s)

    def user_env(self) -> tuple[str, ...]:
        """Variables that ``systemctl --user`` needs outside of a login session."""
        if not self.user_unit:
            return ()
        if not self._env:
            uid = self.target.run(("id", "-u")).check(self.target.name).text.strip()
            self._env = (f"XDG_RUNTIME_DIR=/run/user/{uid}", f"DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/{uid}/bus")
        return self._env

    def where(self) -> Place:
        """Where leadline's things of this unit stand."""
        if self._place is None:
            runtime = config = ""
            if self.user_unit:
                runtime = self.user_env()[0].partition("=")[2]
                home = self.target.run(("sh", "-c", 'printf %s "${XDG_CONFIG_HOME:-$HOME/.config}"'))
                config = home.check(self.target.name).text
            self._place = deploy.place(self.unit, user_unit=self.user_unit, runtime_dir=runtime, config_dir=config)
        return self._place

    def show(self) -> Shown:
        """``systemctl show`` of the unit, now."""
        done = self.run("systemctl", *self.scope, "show", "--no-pager", "-p", ",".join(probes.SHOW), "--", self.unit)
        return probes.parse_show(done.check(self.target.name, hint="`systemctl show` must work for this account").text)

    def read_quietly(self, path: str, limit_bytes: int = 1 << 20) -> str | None:
        """A file's text, with root rights where this account's do not suffice; ``None`` when it cannot be read."""
        for root in (False, True):
            try:
                return self.target.read(path, limit_bytes=limit_bytes, root=root and not self.user_unit).decode("utf-8", "replace")
            except FileNotFoundError:
                return None
            except NeedsRights:
                continue
        return None

    def clock(self) -> tuple[float, int]:
        """Time of boot in seconds since the epoch, and clock ticks a second."""
        if self._boot is None:
            self._boot = probes.parse_clock(self.target.run(probes.CLOCK).check(self.target.name).text)
        return self._boot

    def launch(self, shown: Shown) -> Launch:
        """The launch that ``shown`` shows."""
        started = shown.number("ExecMainStartTimestampMonotonic") or 0
        ident = shown.get("InvocationID")
        return Launch(
            launch_id=ident,
            pid=shown.number("MainPID") or shown.number("ExecMainPID") or 0,
            started_s=self.clock()[0] + started / 1e6,
            log=f"journalctl {' '.join((*self.scope, f'_SYSTEMD_INVOCATION_ID={ident}'))} on {self.target.name}",
        )
