"""What keeps the service running: leadline's own child process, or systemd.

:class:`Supervisor` is the port; :class:`ProcessSupervisor` runs a command under the keeper (``keeper.py``, a process of
its own that outlives leadline and ends what it started), ``systemd.py`` drives a unit.  A supervisor knows nothing
of engines: it starts an argument vector and tells what became of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from .records import Command, Evidence, Exit, Launch, LaunchFile, Listener, Record, Status
from .target import Target


class Service(Record, frozen=True):
    """The service as found, before anything was touched."""

    name: str
    command: Command
    """The argument vector that the supervisor executes (what may be wrapped: ``bash -c``, ``docker run``)."""
    running: bool
    launch: Launch | None = None
    active_state: str = ""
    digest: str = ""
    """Fingerprint of everything that must be equal again after a campaign (unit text, drop-ins, enablement)."""
    notes: tuple[str, ...] = ()


class Supervisor(Protocol):
    """Starts, watches and ends launches of one service. Idempotent: repeating a call does no harm."""

    target_name: str
    """The TARGET as the user wrote it."""
    target: Target
    """The host it runs on; ``target.forward(port)`` reaches the service's port."""

    def service(self) -> Service:
        """Read the service as it stands; touches nothing."""
        ...

    def plan(self, argv: Sequence[str], *, files: Sequence[LaunchFile] = ()) -> str:
        """What :meth:`start` would change, as a diff or a sentence; touches nothing."""
        ...

    def arm(self) -> None:
        """Take the service for this campaign and make sure that it is put back if leadline goes away; changes nothing of it.

        Raises HostInUse, NeighboursAtRisk, NeedsRights, CannotRewrite.
        """
        ...

    def start(self, argv: Sequence[str], *, files: Sequence[LaunchFile] = ()) -> Launch:
        """Start the service with ``argv`` in place of the found arguments; returns before it is ready.

        ``files`` stand where the service can read them as long as the launch lasts; names in ``argv`` become their paths. The
        previous launch has been stopped, its port and memory are known to be free. Raises LaunchFailed (it cannot be executed),
        PortTaken, NeedsRights, ReadBackDiffers, HostCommandFailed.
        """
        ...

    def status(self, launch: Launch) -> Status:
        """What became of a launch."""
        ...

    def log(self, launch: Launch, *, start: int = 0, limit_bytes: int = 1 << 20) -> bytes:
        """Output of this launch from byte ``start``; a negative ``start`` counts from the end."""
        ...

    def listeners(self, port: int) -> tuple[Listener, ...]:
        """Who listens on a TCP port of the service's host."""
        ...

    def owns(self, launch: Launch, pid: int) -> bool:
        """Whether ``pid`` belongs to this launch (process tree, cgroup), not merely to a process of that name."""
        ...

    def stop(self, launch: Launch, *, signal: str = "TERM", grace_s: float = 10.0) -> Exit:
        """Ask for a stop, then insist; returns when no process of the launch is left."""
        ...

    def renew(self) -> None:
        """Tell the dead-man that leadline still lives. Cheap; call it often."""
        ...

    def restore(self) -> str:
        """Put the service back exactly as found; returns what was done. Raises NotRestored."""
        ...

    def apply(self, argv: Sequence[str], *, files: Sequence[LaunchFile] = ()) -> str:
        """Make ``argv`` (and the files it names) permanent; returns what was done."""
        ...

    def evidence(self, launch: Launch | None) -> Evidence:
        """Everything that can be gathered about this launch (or the service as it stands), kept verbatim."""
        ...

    def close(self) -> None: ...


def placed(argv: Sequence[str], files: Sequence[LaunchFile], path: Callable[[str], str]) -> tuple[str, ...]:
    """``argv`` with the name of every file replaced by ``path(name)``, where it is a whole word or stands behind ``=``.

    >>> placed(("--file", "a.json", "--other=a.json", "aa.json"), [LaunchFile(name="a.json", text="")], lambda name: "/run/" + name)
    ('--file', '/run/a.json', '--other=/run/a.json', 'aa.json')
    """
    paths = {file.name: path(file.name) for file in files}

    def word(text: str) -> str:
        head, equals, tail = text.rpartition("=")
        return head + equals + paths.get(tail, tail)

    return tuple(word(text) for text in argv)
