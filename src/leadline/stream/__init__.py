"""Streamed requests, timed per token: the only HTTP client of the load.

A load is played by processes of their own (``loop.py``), which only read, stamp and store; :func:`play` writes the plan, runs
them and returns the raw :class:`~leadline.stream.trace.Trace`, which :mod:`~leadline.stream.reduce` turns into figures
afterwards.  The life of a request:

1. ``plan`` renders it to bytes before the clock starts.
2. The load processes connect, play what is to be rehearsed, say so, and start together when told to.  A connection is open when
   its request is due; the intended time is noted, then the request is sent and that is noted.
3. Each read is stored with the kernel's receive stamp and the time of the read.
4. When the response ends (or breaks, stalls, runs past the limit) the bytes go to the trace file, and the next one is sent.
5. ``wire`` reads the HTTP, ``sse`` the events, ``reduce`` the tokens; an event's time is that of the read that completed it.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DiskFull, MeasurementInvalid, NotServing
from . import plan as planning
from .loop import NO_SPACE, NO_SPACE_STATUS
from .plan import Endpoint, Plan, Shot

if TYPE_CHECKING:  # numpy is loaded when there is something to read: the load begins a tenth of a second sooner
    from .trace import Trace

__all__ = ["Endpoint", "Plan", "Shot", "play"]

_LOOP = Path(__file__).with_name("loop.py")
_GRACE_S = 5.0
_ACCEPT_S = 2.0
"""How long one of several addresses may take to accept a connection."""
_TOGETHER_NS = 5_000_000
"""From the word to start until several processes do."""


def resolve(endpoint: Endpoint) -> tuple[str, int]:
    """The first address of the endpoint's host that accepts a connection, or else the first: the load then says why it is refused.

    Raises :class:`~leadline.errors.NotServing`.
    """
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise NotServing(url=endpoint.authority, why=f"its name cannot be resolved: {error}", fix="check the URL") from None
    hosts = list(dict.fromkeys(str(address[0]) for *_, address in found))
    if len(hosts) > 1:  # one alone is not tried: a server that is measured sees no connection but the load's
        return next((host for host in hosts if _accepts(host, endpoint.port)), hosts[0]), endpoint.port
    return hosts[0], endpoint.port


def _accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=_ACCEPT_S).close()
    except OSError:
        return False
    return True


def play(
    plan: Plan,
    *,
    processes: int = 1,
    keep: Path | None = None,
    path: str = "/v1/chat/completions",
    begin: Callable[[], None] | None = None,
    tick: Callable[[int], None] | None = None,
) -> Trace:
    """Play ``plan`` and return what happened; request numbers are positions in ``plan.shots``.

    ``keep`` is a folder for the trace files (``load-0.trace`` ..., for their owner only), which are complete up to the last quarter of a second whatever
    happens to this process; ``begin`` is called just before the clock starts; ``tick`` is told the number of ended requests, a few times
    a second. Interrupting it (KeyboardInterrupt) ends the load
    and re-raises.  Raises NotServing, DiskFull, MeasurementInvalid (a load process died).
    """
    address = resolve(plan.endpoint)
    found: list[Trace] = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="leadline-load-"))) if keep is None else keep
        _make_private(folder)
        parts = split(plan, processes)
        running = [
            stack.enter_context(_Process(folder, number, planning.encode(part, address, path))) for number, (_, part) in enumerate(parts)
        ]
        for process in running:
            process.wait_until_ready()
        if begin is not None:
            begin()
        at = time.monotonic_ns() + _TOGETHER_NS if len(running) > 1 else 0
        for process in running:
            process.start(at)
        _wait(running, tick)
        for (numbers, _), process in zip(parts, running, strict=True):
            trace = process.trace()
            for request in trace.requests.values():
                request.number = numbers[request.number]
            trace.requests = {request.number: request for request in trace.requests.values()}
            found.append(trace)
    from . import trace as tracing

    return found[0] if len(found) == 1 else tracing.merge(found)


def _make_private(folder: Path) -> None:
    """Make a folder, and what is missing above it, for its owner only. One that is there stays as it is."""
    if not folder.is_dir():
        _make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read, whatever stood there."""
    path.unlink(missing_ok=True)
    with open(path, "xb", opener=functools.partial(os.open, mode=0o600)) as file:
        file.write(data)


def split(plan: Plan, processes: int) -> list[tuple[list[int], Plan]]:
    """Deal the requests of a plan to load processes, sessions kept together: (numbers in the whole, part) each."""
    count = max(1, min(processes, plan.connections, len(plan.shots)))
    if count == 1:
        return [(list(range(len(plan.shots))), plan)]
    owner: list[int] = []
    for number, shot in enumerate(plan.shots):
        owner.append(owner[shot.after] if shot.after >= 0 else number % count)
    parts = []
    for process in range(count):
        numbers = [number for number, who in enumerate(owner) if who == process]
        local = {number: index for index, number in enumerate(numbers)}
        shots = tuple(plan.shots[n]._replace(after=local[plan.shots[n].after] if plan.shots[n].after >= 0 else -1) for n in numbers)
        rehearsed = sum(number < plan.rehearsed for number in numbers)
        share = plan.connections // count + (process < plan.connections % count)
        parts.append((numbers, plan._replace(shots=shots, connections=share, rehearsed=rehearsed)))
    return parts


def _wait(running: Sequence[_Process], tick: Callable[[int], None] | None) -> None:
    ended = 0
    for process in running:
        while True:
            news = process.news()
            if not news:
                break
            ended += len(news)
            if tick is not None:
                tick(ended)


class _Process:
    """One load process: started with its plan, ended with this context."""

    def __init__(self, folder: Path, number: int, plan: bytes) -> None:
        self._plan = folder / f"load-{number}.plan"
        self._trace = folder / f"load-{number}.trace"
        try:
            _write_private(self._plan, plan)
            _write_private(self._trace, b"")
        except OSError as error:
            raise DiskFull(path=self._plan) if error.errno in NO_SPACE else error from error

    def __enter__(self) -> _Process:
        # its standard input is our hold on it: when we are gone, it reads the end of the file and stops
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_LOOP), str(self._plan), str(self._trace)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        return self

    def wait_until_ready(self) -> None:
        """Connected and rehearsed. A process that ends instead says why with its status, which :meth:`trace` reads."""
        assert self._child.stdout is not None
        os.read(self._child.stdout.fileno(), 1)

    def start(self, at_ns: int) -> None:
        assert self._child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            os.write(self._child.stdin.fileno(), b"%d\n" % at_ns)

    def news(self) -> bytes:
        assert self._child.stdout is not None
        return os.read(self._child.stdout.fileno(), 65536)

    def trace(self) -> Trace:
        from . import trace as tracing

        assert self._child.stderr is not None
        complaint = self._child.stderr.read().decode("utf-8", "replace").strip()
        status = self._child.wait(_GRACE_S)
        if status == NO_SPACE_STATUS:
            raise DiskFull(path=self._trace)
        if status:
            raise MeasurementInvalid(
                level="the load",
                why=f"a load process ended with status {status}: {complaint.splitlines()[-1] if complaint else 'it said nothing'}",
                fix="nothing it measured is used; run it again, and report it if it happens again",
            )
        with open(self._trace, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return tracing.read(data)

    def __exit__(self, *_: object) -> None:
        for stream in (self._child.stdin, self._child.stdout, self._child.stderr):
            if stream is not None:
                stream.close()
        if self._child.poll() is None:
            self._child.terminate()
            try:
                self._child.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                self._child.kill()
                self._child.wait()
        self._plan.unlink(missing_ok=True)
