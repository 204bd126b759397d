"""Fakes that ship: a supervisor with no processes behind it.

:class:`FakeSupervisor` passes the same conformance suite as the real ones and keeps a script of what goes wrong, so that
a campaign, a mind or a plug-in can be tested without a host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from .errors import LaunchFailed, PortTaken
from .records import Command, Evidence, Exit, Launch, LaunchFile, Listener, Source, Status
from .supervisor import Service, placed
from .target import LocalTarget, Target

FIRST_PID = 100_000
"""Above any pid the tests' host uses, so that a fake pid is never taken for a real one."""


class FakeSupervisor:
    """In-memory launches. ``fate`` maps an argument vector to how it ends at once, or to ``None`` when it serves."""

    def __init__(
        self,
        command: Command,
        *,
        port: int = 8000,
        now: Callable[[], float] = lambda: 0.0,
        fate: Callable[[tuple[str, ...]], Exit | None] = lambda argv: None,
        running: bool = False,
    ) -> None:
        self.target_name = "process:" + " ".join(command.argv)
        self.target: Target = LocalTarget()
        self.started: list[tuple[str, ...]] = []
        self.foreign: list[Listener] = []
        self.applied: tuple[str, ...] | None = None
        self.files: dict[str, str] = {}
        self.renewals = 0
        self._command = command
        self._port = port
        self._now = now
        self._fate = fate
        self._logs: dict[str, bytes] = {}
        self._exits: dict[str, Exit] = {}
        self._current: Launch | None = None
        if running:
            self._current = self.start(command.argv)

    def service(self) -> Service:
        running = self._current is not None and self._current.launch_id not in self._exits
        return Service(
            name="fake", command=self._command, running=running, launch=self._current if running else None, digest=repr(self.applied)
        )

    def plan(self, argv: Sequence[str], *, files: Sequence[LaunchFile] = ()) -> str:
        return f"start {' '.join(argv)}"

    def arm(self) -> None:
        return None

    def start(self, argv: Sequence[str], *, files: Sequence[LaunchFile] = ()) -> Launch:
        argv = self._placed(argv, files)
        if self.foreign:
            holder = self.foreign[0]
            raise PortTaken(port=holder.port, pid=holder.pid, command=holder.command)
        if not argv or argv[0] == "/nonexistent":
            raise LaunchFailed(
                candidate="the command", how="not executed", after_s=0, line=f"{argv[:1]}: no such file", fix="name a program"
            )
        if self._current is not None:
            self.stop(self._current)
        self.started.append(tuple(argv))
        launch = Launch(
            launch_id=f"fake-{len(self.started)}",
            pid=FIRST_PID + len(self.started),
            started_s=self._now(),
            log=f"fake-{len(self.started)}.log",
        )
        self._logs[launch.launch_id] = f"started {' '.join(argv)}\n".encode()
        fate = self._fate(tuple(argv))
        if fate is not None:
            self.end(launch, fate)
        self._current = launch
        return launch

    def _placed(self, argv: Sequence[str], files: Sequence[LaunchFile]) -> tuple[str, ...]:
        self.files |= {f"/fake/{file.name}": file.text for file in files}
        return placed(argv, files, lambda name: f"/fake/{name}")

    def end(self, launch: Launch, how: Exit) -> None:
        """Let a launch die."""
        self._exits.setdefault(launch.launch_id, msgspec.structs.replace(how, at_s=self._now()))

    def say(self, launch: Launch, text: str) -> None:
        """Let a launch print."""
        self._logs[launch.launch_id] += text.encode()

    def status(self, launch: Launch) -> Status:
        ended = self._exits.get(launch.launch_id)
        log = len(self._logs.get(launch.launch_id, b""))
        if ended is None and launch.launch_id not in self._logs:
            ended = Exit(by="keeper")
        return Status(running=ended is None, exit=ended, cpu_s=0.0, memory_bytes=0, log_bytes=log)

    def log(self, launch: Launch, *, start: int = 0, limit_bytes: int = 1 << 20) -> bytes:
        return self._logs.get(launch.launch_id, b"")[start:][:limit_bytes]

    def listeners(self, port: int) -> tuple[Listener, ...]:
        found = [listener for listener in self.foreign if listener.port == port]
        if port == self._port and self._current is not None and self._current.launch_id not in self._exits:
            found.append(Listener(port=port, pid=self._current.pid, command="fake", started_s=self._current.started_s))
        return tuple(found)

    def owns(self, launch: Launch, pid: int) -> bool:
        return pid == launch.pid

    def stop(self, launch: Launch, *, signal: str = "TERM", grace_s: float = 10.0) -> Exit:
        self.end(launch, Exit(code=0, by="leadline"))
        return self._exits[launch.launch_id]

    def renew(self) -> None:
        self.renewals += 1

    def restore(self) -> str:
        if self._current is not None:
            self.stop(self._current)
        self.applied = None
        return "nothing of ours runs"

    def apply(self, argv: Sequence[str], *, files: Sequence[LaunchFile] = ()) -> str:
        argv = self._placed(argv, files)
        self.applied = tuple(argv)
        return f"run {' '.join(argv)}"

    def evidence(self, launch: Launch | None) -> Evidence:
        if launch is None:
            return Evidence()
        text = self.log(launch).decode("utf-8", "replace")
        return Evidence(sources=(Source(name="log", text=text),), exit=self._exits.get(launch.launch_id))

    def close(self) -> None:
        return None
