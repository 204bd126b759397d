"""The keeper: a small process between leadline and the service, which outlives leadline and leaves nothing running.

Started by :mod:`leadline.process` as ``python -I -S keeper.py FOLDER MARK LOG_LIMIT COMMAND...``; standard library only, because it must come up fast and never break.
Its standard input is a pipe from leadline: when that closes, or when the parent is gone, leadline went away (also by
``kill -9``) and the whole process tree is ended.  As a *child subreaper* (prctl(2)) it adopts every orphan of the service, so
that the tree can be walked until none is left, daemons included.  Should the keeper itself be killed, the kernel ends the
service's first process (``PR_SET_PDEATHSIG``) and the next leadline the rest, found by the mark in their environment.

Files in the launch's folder (written in place after a reservation at the start, so that a full disk cannot lose the exit):

``launch.json``           who keeps what: pids with their start times, the mark, the command
``exit.json``             blank until the service ended, then its record
``progress``              ``bytes seen, bytes dropped, lines seen``
``output.log``            the first half of the limit: the boot log is precious
``output.OFFSET.LINE``    what follows, in two rolling quarters; OFFSET = bytes before it, LINE = number of its first line
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import selectors
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
RECORD_BYTES = 4096
PROGRESS_BYTES = 96
CHUNK = 1 << 16
ORPHAN_GRACE_S = 2.0
"""Seconds between TERM and KILL once leadline is gone: nobody waits for a polite end."""
MARK = "LEADLINE_LAUNCH"


def start_ticks(pid: int) -> int | None:
    """Start of a process in clock ticks since boot (field 22 of proc_pid_stat(5)); ``None`` when it is gone.

    A pid alone may have been given to another process; a pid with its start is that one process.
    """
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def _stat(pid: int) -> list[str]:
    """Fields of ``/proc/PID/stat`` from the state (field 3) on; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def descendants(root: int) -> list[int]:
    """Every living process below ``root``, parents first; zombies are not alive."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        fields = _stat(int(name)) if name.isdigit() else []
        if fields and fields[0] not in "ZX":
            children.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    queue = [root]
    while queue:
        below = children.get(queue.pop(), [])
        found.extend(below)
        queue.extend(below)
    return found


class Output:
    """The bounded log: a head, then two rolling parts. Never fails: what cannot be written is dropped and counted."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.head_limit, self.part_limit = folder, max(1, limit // 2), max(1, limit // 4)
        self.seen = self.dropped = self.lines = 0
        self.parts: list[Path] = []
        self.file: int | None = os.open(folder / "output.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self.room = self.head_limit
        self.progress = reserve(folder / "progress", PROGRESS_BYTES)
        self.note()

    def write(self, data: bytes) -> None:
        while data:
            if self.file is None or self.room == 0:
                self._next_part()
            piece = data[: self.room] if self.file is not None else data
            written = self._put(piece)
            if written < len(piece):
                self.dropped += len(piece) - written
                # the parts' offsets must stay true, so a gap ends a part
                self._close()
                self._forget_empty_part()
            self.seen += len(piece)
            self.lines += piece.count(b"\n")
            data = data[len(piece) :]
        self.note()

    def _put(self, piece: bytes) -> int:
        done = 0
        while self.file is not None and done < len(piece):
            try:
                done += os.write(self.file, piece[done:])
            except OSError:
                break
        self.room -= done
        return done

    def _next_part(self) -> None:
        self._close()
        path = self.folder / f"output.{self.seen}.{self.lines + 1}"
        try:
            self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        except OSError:
            return
        self.room = self.part_limit
        self.parts.append(path)
        while len(self.parts) > 2:
            with contextlib.suppress(OSError):
                self.parts.pop(0).unlink()

    def _forget_empty_part(self) -> None:
        with contextlib.suppress(OSError):
            if self.parts and self.parts[-1].stat().st_size == 0:
                self.parts.pop().unlink()

    def _close(self) -> None:
        if self.file is not None:
            os.close(self.file)
        self.file, self.room = None, 0

    def note(self) -> None:
        text = f"{self.seen} {self.dropped} {self.lines}".encode()
        with contextlib.suppress(OSError):
            os.pwrite(self.progress, text.ljust(PROGRESS_BYTES), 0)


def reserve(path: Path, size: int) -> int:
    """A file of ``size`` blanks whose blocks are taken, open for writing in place. Raises OSError."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(handle, b" " * size)
    os.fsync(handle)
    return handle


class Keeper:
    """One service. ``argv`` is executed with this process's environment (plus the mark) and working directory."""

    def __init__(self, folder: Path, mark: str, log_limit: int, argv: list[str]) -> None:
        self.folder, self.mark, self.argv = folder, mark, argv
        self.parent = os.getppid()
        self.main = 0
        self.code: int | None = None
        self.ended_s = 0.0
        self.by = "itself"
        self.stopping_until: float | None = None
        self.commands = b""
        self.record = reserve(folder / "exit.json", RECORD_BYTES)
        self.output = Output(folder, log_limit)
        self.reading = -1

    # -- start ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Fork and execute the service; tell leadline how it went. Raises OSError when it could not be executed."""
        keeper = {"pid": os.getpid(), "start": start_ticks(os.getpid())}
        leadline = {"pid": self.parent, "start": start_ticks(self.parent)}
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        note = {"mark": self.mark, "keeper": keeper, "leadline": leadline, "boot_id": boot_id, "argv": self.argv}
        temporary = self.folder / "launch.json.new"
        temporary.write_text(json.dumps(note))
        temporary.rename(self.folder / "launch.json")
        self.reading, writing = os.pipe()
        broken, telling = os.pipe()
        me = os.getpid()
        self.main = os.fork()
        if self.main == 0:
            self._become(me, writing, telling)
        os.close(writing)
        os.close(telling)
        failure = os.read(broken, 16)
        os.close(broken)
        if failure:
            os.waitpid(self.main, 0)
            raise OSError(int(failure), os.strerror(int(failure)))
        os.set_blocking(self.reading, False)

    def _become(self, keeper: int, writing: int, telling: int) -> NoReturn:
        """In the child: become the service. Never returns."""
        try:
            os.setpgid(0, 0)
            _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != keeper:  # it died before the line above
                os._exit(127)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(writing, 1)
            os.dup2(writing, 2)
            os.execvpe(self.argv[0], self.argv, {**os.environ, MARK: self.mark})
        except OSError as error:
            os.write(telling, str(error.errno or errno.EIO).encode())
        os._exit(127)

    # -- watch ----------------------------------------------------------------------------------------------------

    def run(self, wakeup: int) -> None:
        """Pump output and obey until the service and everything it started are gone; then write the record."""
        with selectors.DefaultSelector() as selector:
            for handle in (0, wakeup, self.reading, *_pidfd(self.parent)):
                selector.register(handle, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select(timeout=self._patience()):
                    self._serve(selector, key.fd, wakeup)
                self._reap()
                if os.getppid() != self.parent:
                    self._abandoned()
                if self._over():
                    break
        self._pump_rest()
        self._write_record(clean=True)

    def _patience(self) -> float:
        return 1.0 if self.stopping_until is None and self.code is None else 0.05

    def _serve(self, selector: selectors.BaseSelector, handle: int, wakeup: int) -> None:
        if handle == self.reading:
            if not self._pump():
                selector.unregister(handle)
        elif handle == wakeup:
            if signal.SIGTERM in os.read(wakeup, 256):
                self._end("keeper", signal.SIGTERM, ORPHAN_GRACE_S)
        elif handle == 0:
            data = os.read(0, 4096)
            if not data:
                selector.unregister(0)
                self._abandoned()
            self._obey(data)
        else:
            selector.unregister(handle)
            self._abandoned()

    def _obey(self, data: bytes) -> None:
        """Lines from leadline: blank (it lives) or ``stop SIGNAL GRACE_S``."""
        *lines, self.commands = (self.commands + data).split(b"\n")
        for line in lines:
            words = line.decode("ascii", "replace").split()
            if len(words) == 3 and words[0] == "stop":
                self._end("leadline", getattr(signal, f"SIG{words[1]}", signal.SIGTERM), float(words[2]))

    def _abandoned(self) -> None:
        self.parent = os.getppid()
        self._end("keeper", signal.SIGTERM, ORPHAN_GRACE_S)

    def _end(self, by: str, number: int, grace_s: float) -> None:
        """Ask the whole tree to stop; a later, shorter wish shortens the grace."""
        until = time.monotonic() + (0.0 if number == signal.SIGKILL else grace_s)
        if self.stopping_until is None:
            if self.code is None:
                self.by = by
            _signal_all(number)
            self.stopping_until = until
        self.stopping_until = min(self.stopping_until, until)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.main and self.code is None:
                self.code, self.ended_s = os.waitstatus_to_exitcode(status), time.time()
                self._write_record(clean=False)

    def _over(self) -> bool:
        """Whether nothing is left. A service whose first process ended is over: what it left behind is ended too."""
        if self.code is None and self.stopping_until is None:
            return False
        if self.code is not None and not descendants(os.getpid()):
            return True
        if self.stopping_until is None:
            self._end(self.by, signal.SIGTERM, ORPHAN_GRACE_S)
        elif time.monotonic() >= self.stopping_until:
            _signal_all(signal.SIGKILL)
        return False

    def _pump(self) -> bool:
        """Move what can be read; False at the end of the output."""
        for _ in range(16):
            try:
                data = os.read(self.reading, CHUNK)
            except BlockingIOError:
                return True
            if not data:
                return False
            self.output.write(data)
        return True

    def _pump_rest(self) -> None:
        while True:
            try:
                data = os.read(self.reading, CHUNK)
            except BlockingIOError:
                return
            if not data:
                return
            self.output.write(data)

    def _write_record(self, *, clean: bool) -> None:
        code = self.code if self.code is not None else 0
        record = {
            "code": code if code >= 0 else None,
            "signal": -code if code < 0 else None,
            "by": self.by,
            "at_s": self.ended_s,
            "leadline_gone": self.by == "keeper",
            "clean": clean,
            "log_bytes": self.output.seen,
            "log_dropped_bytes": self.output.dropped,
        }
        os.pwrite(self.record, json.dumps(record).encode().ljust(RECORD_BYTES), 0)


def _signal_all(number: int) -> None:
    for pid in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def _pidfd(pid: int) -> list[int]:
    """A handle that becomes readable when ``pid`` ends; none on a kernel without pidfd_open(2) (the loop looks at the parent too)."""
    try:
        return [os.pidfd_open(pid)]
    except OSError:
        return []


def _tell(answer: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # leadline may be gone already; the loop will notice
        os.write(1, json.dumps(answer).encode() + b"\n")
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.close(devnull)


def main(arguments: list[str]) -> int:
    folder, mark, limit, *argv = arguments
    wakeup, waking = os.pipe()
    os.set_blocking(waking, False)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)
    stage = "keep"
    try:
        _prctl(PR_SET_CHILD_SUBREAPER, 1)
        keeper = Keeper(Path(folder), mark, int(limit), argv)
        stage = "execute"
        keeper.start()
    except OSError as error:
        _tell({"errno": error.errno, "error": error.strerror, "stage": stage})
        return 1
    _tell({"pid": keeper.main})
    keeper.run(wakeup)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
