"""The target ``process:``: a command that leadline itself supervises, through the keeper (:mod:`leadline.keeper`).

One folder a launch under ``state_dir``; the keeper's module docstring says what stands in it.  Whatever ends leadline, the
keeper ends the service; whatever ends the keeper as well, the next :meth:`ProcessSupervisor.start` finds what is left by
the mark in its environment and ends it before anything new begins.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from . import gpus, keeper, outputs, sockets
from .config import Deploy
from .errors import DiskFull, HostInUse, LaunchFailed, MemoryNotFree, PortTaken
from .records import Command, Evidence, Exit, Launch, LaunchFile, Listener, Source, Status
from .supervisor import Service, placed
from .target import LocalTarget, Target, write_atomically

HANDSHAKE_S = 30.0
POLL_S = 0.02
GPU_POLL_S = 0.5
EVIDENCE_HEAD_BYTES, EVIDENCE_TAIL_BYTES = 1 << 18, 1 << 17
KERNEL_LINES = 200


class ProcessSupervisor:
    """Runs ``command`` (or another argument vector in its place) as one service on this machine.

    ``port`` is the port the service is to listen on: it must be free before a start. ``None`` skips that check.
    """

    def __init__(
        self, command: Command, state_dir: Path, deploy: Deploy | None = None, *, port: int | None = None, target_name: str = ""
    ) -> None:
        self.target_name = target_name or "process:" + shlex.join(command.argv)
        self.target: Target = LocalTarget()
        self.port = port
        self._command = command
        self._state = state_dir.absolute()
        self._deploy = deploy or Deploy()
        self._keepers: dict[str, subprocess.Popen[bytes]] = {}
        self._current: Launch | None = None
        self._gpu_idle: tuple[int, ...] | None = None
        """GPU memory in use before the first launch."""

    # -- before anything is touched -------------------------------------------------------------------------------

    def service(self) -> Service:
        running = self._current if self._current is not None and self.status(self._current).running else None
        return Service(
            name=Path(self._command.argv[0]).name,
            command=self._command,
            running=running is not None,
            launch=running,
            active_state="active" if running else "inactive",
            digest=shlex.join(self._command.argv),
        )

    def plan(self, argv: Sequence[str], *, files: Sequence[LaunchFile] = ()) -> str:
        return f"run on this machine, under leadline's keeper: {shlex.join(argv)}"

    # -- one launch -----------------------------------------------------------------------------------------------

    def arm(self) -> None:
        """Nothing to take: what runs is leadline's own, and the keeper ends it with leadline."""

    def start(self, argv: Sequence[str], *, files: Sequence[LaunchFile] = ()) -> Launch:
        """Start ``argv``; the previous launch and what an earlier leadline left are ended first.

        Raises PortTaken, MemoryNotFree, HostInUse, LaunchFailed (it cannot be executed), DiskFull.
        """
        if self._current is not None:
            self.stop(self._current, grace_s=self._deploy.stop_grace_s)
        self.clear()
        self._await_port()
        self._await_gpu_memory()
        launch_id = uuid.uuid4().hex[:12]
        folder = self._folder(launch_id)
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise _full(error, folder) from error
        for file in files:
            write_atomically(folder / file.name, file.text.encode())
        argv = placed(argv, files, lambda name: str(folder / name))
        started_s = time.time()
        process = self._spawn_keeper(folder, launch_id, argv)
        answer = _handshake(process)
        if "pid" not in answer:
            process.wait()
            raise _not_started(answer, argv, folder)
        self._keepers[launch_id] = process
        self._current = Launch(launch_id=launch_id, pid=int(answer["pid"]), started_s=started_s, log=str(folder / outputs.HEAD))
        return self._current

    def _spawn_keeper(self, folder: Path, launch_id: str, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        limit = str(self._deploy.log_limit_bytes)
        try:
            with open(folder / "keeper.err", "wb") as complaints:
                return subprocess.Popen(
                    [sys.executable, "-I", "-S", keeper.__file__, str(folder), launch_id, limit, *argv],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=complaints,
                    cwd=self._command.cwd,
                    env={**os.environ, **dict(self._command.env)},
                    start_new_session=True,
                )
        except OSError as error:
            if isinstance(error, NotADirectoryError | FileNotFoundError) and self._command.cwd:
                line = f"its working directory {self._command.cwd} does not exist"
                raise LaunchFailed(candidate="the command", how="not executed", after_s=0, line=line, fix="create it") from error
            raise _full(error, folder) from error

    def status(self, launch: Launch) -> Status:
        folder = self._folder(launch.launch_id)
        record = self._record(launch)
        log_bytes = outputs.seen(folder)
        if record is not None:
            return Status(running=False, exit=_exit(record), log_bytes=log_bytes)
        pid = self._keeper_pid(launch.launch_id)
        if pid is None:
            # the record may have been written between the two looks
            record = self._record(launch)
            self._end_marked({launch.launch_id})
            return Status(running=False, exit=_exit(record) if record else Exit(by="keeper", signal=signal.SIGKILL), log_bytes=log_bytes)
        cpu_s, memory = _usage(pid)
        return Status(running=True, cpu_s=cpu_s, memory_bytes=memory, log_bytes=log_bytes)

    def log(self, launch: Launch, *, start: int = 0, limit_bytes: int = 1 << 20) -> bytes:
        return outputs.read(self._folder(launch.launch_id), start, limit_bytes)

    def listeners(self, port: int) -> tuple[Listener, ...]:
        return sockets.listeners(port)

    def owns(self, launch: Launch, pid: int) -> bool:
        above = self._keeper_pid(launch.launch_id)
        if pid == above or pid <= 0:
            return False
        try:
            parents = psutil.Process(pid).parents()
        except psutil.Error:
            return False
        return any(parent.pid == above for parent in parents) or _mark(pid) == launch.launch_id

    def stop(self, launch: Launch, *, signal: str = "TERM", grace_s: float = 10.0) -> Exit:
        """Raises MemoryNotFree when a process of the launch cannot be ended (it hangs in the kernel)."""
        process = self._keepers.get(launch.launch_id)
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):  # the keeper is gone: what is left is ended below
                process.stdin.write(f"stop {signal} {grace_s}\n".encode())
                process.stdin.flush()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(grace_s + self._deploy.free_timeout_s)
        self._end_marked({launch.launch_id})
        if process is not None and process.poll() is None:
            who = ", ".join(map(str, keeper.descendants(process.pid)))
            raise MemoryNotFree(what="the previous launch", seconds=grace_s + self._deploy.free_timeout_s, who=f"pids {who}")
        self._forget(launch)
        record = self._record(launch)
        return _exit(record) if record else Exit(by="keeper", signal=9)

    def _forget(self, launch: Launch) -> None:
        process = self._keepers.pop(launch.launch_id, None)
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        if self._current is not None and self._current.launch_id == launch.launch_id:
            self._current = None

    # -- leaving --------------------------------------------------------------------------------------------------

    def renew(self) -> None:
        """Nothing to renew: the keeper sees the end of leadline itself."""

    def restore(self) -> str:
        ended = self._current.launch_id if self._current is not None else ""
        self.close()
        self.clear()
        return f"launch {ended} was ended; nothing of leadline's runs on this machine" if ended else "nothing of leadline's was running"

    def apply(self, argv: Sequence[str], *, files: Sequence[LaunchFile] = ()) -> str:
        """A command has no place to write to: this is what to run from now on. Files that it names are kept in the state folder."""
        for file in files:
            write_atomically(self._state / file.name, file.text.encode())
        return shlex.join(placed(argv, files, lambda name: str(self._state / name)))

    def close(self) -> None:
        for launch_id in list(self._keepers):
            self.stop(self._known(launch_id), grace_s=min(self._deploy.stop_grace_s, keeper.ORPHAN_GRACE_S))

    def clear(self) -> None:
        """End whatever launches of an earlier leadline are still there. Raises HostInUse, MemoryNotFree."""
        left: set[str] = set()
        for folder in self._state.glob("launch-*"):
            note = _json(folder / "launch.json")
            mark = folder.name.removeprefix("launch-")
            if note is None or mark in self._keepers:
                continue
            owner = note["leadline"]
            if owner["pid"] != os.getpid() and _same(owner, note) and _same(note["keeper"], note):
                raise HostInUse(
                    what=f"the launches in {self._state}",
                    owner=f"leadline with pid {owner['pid']}",
                    since=time.strftime("%H:%M:%S", time.localtime(folder.stat().st_mtime)),
                    fix=f"kill {owner['pid']}",
                )
            left.add(mark)
            if _same(note["keeper"], note):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(note["keeper"]["pid"], signal.SIGTERM)
                self._await_end(note)
        if left:
            self._end_marked(left)

    def _await_end(self, note: dict[str, Any]) -> None:
        until = time.monotonic() + keeper.ORPHAN_GRACE_S + self._deploy.free_timeout_s
        while _same(note["keeper"], note):
            if time.monotonic() > until:
                who = f"keeper {note['keeper']['pid']} of an earlier leadline"
                raise MemoryNotFree(what="the previous launch", seconds=self._deploy.free_timeout_s, who=who)
            time.sleep(POLL_S)

    def _end_marked(self, marks: set[str]) -> None:
        """Kill every process that carries one of the marks: what a killed keeper could not end. Raises MemoryNotFree."""
        until = time.monotonic() + self._deploy.free_timeout_s
        while found := [pid for pid in psutil.pids() if _mark(pid) in marks]:
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > until:
                raise MemoryNotFree(what="the previous launch", seconds=self._deploy.free_timeout_s, who=f"pids {found}")
            time.sleep(POLL_S)

    def _await_port(self) -> None:
        if self.port is None:
            return
        until = time.monotonic() + self._deploy.free_timeout_s
        while holders := self.listeners(self.port):
            # only our own, already killed launches are waited for
            foreign = [holder for holder in holders if not (self._folder(_mark(holder.pid) or "?")).exists()]
            if foreign:
                raise PortTaken(port=self.port, pid=foreign[0].pid or "(unknown)", command=foreign[0].command[:200])
            if time.monotonic() > until:
                raise MemoryNotFree(what=f"port {self.port}", seconds=self._deploy.free_timeout_s, who=holders[0].command[:200])
            time.sleep(POLL_S)

    def _await_gpu_memory(self) -> None:
        """Wait until the GPUs hold no more than before the first launch: the driver frees memory after the process is gone."""
        visible = {**os.environ, **dict(self._command.env)}.get("CUDA_VISIBLE_DEVICES", "")
        used = gpus.used_bytes(self.target, visible)
        if self._gpu_idle is None or len(self._gpu_idle) != len(used):
            self._gpu_idle = used
            return
        until = time.monotonic() + self._deploy.free_timeout_s
        while grown := gpus.grown(self._gpu_idle, used):
            if time.monotonic() > until:
                raise MemoryNotFree(what=f"GPU memory ({grown})", seconds=self._deploy.free_timeout_s, who=gpus.holders(self.target))
            time.sleep(GPU_POLL_S)
            used = gpus.used_bytes(self.target, visible)

    # -- evidence -------------------------------------------------------------------------------------------------

    def evidence(self, launch: Launch | None) -> Evidence:
        sources = list(_host_sources(self.port, launch))
        exit_ = None
        if launch is not None:
            status = self.status(launch)
            exit_ = status.exit
            folder = self._folder(launch.launch_id)
            sources = [*outputs.sources(folder, EVIDENCE_HEAD_BYTES, EVIDENCE_TAIL_BYTES), *sources]
            text = exit_.text + f", ended by {exit_.by}" if exit_ is not None else "still running"
            sources.append(Source(name="exit", text=text))
        return Evidence(sources=tuple(sources), taken_s=time.time(), exit=exit_)

    # -- the folder of a launch -----------------------------------------------------------------------------------

    def _folder(self, launch_id: str) -> Path:
        return self._state / f"launch-{launch_id}"

    def _known(self, launch_id: str) -> Launch:
        if self._current is not None and self._current.launch_id == launch_id:
            return self._current
        return Launch(launch_id=launch_id, pid=0, started_s=0.0, log=str(self._folder(launch_id) / outputs.HEAD))

    def _record(self, launch: Launch) -> dict[str, Any] | None:
        return _json(self._folder(launch.launch_id) / "exit.json")

    def _keeper_pid(self, launch_id: str) -> int | None:
        """Pid of the living keeper of a launch, also of one that an earlier leadline started."""
        process = self._keepers.get(launch_id)
        if process is not None:
            return process.pid if process.poll() is None else None
        note = _json(self._folder(launch_id) / "launch.json")
        return int(note["keeper"]["pid"]) if note is not None and _same(note["keeper"], note) else None


def _handshake(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """The keeper's first line: ``{"pid": …}`` or what went wrong."""
    timer = time.monotonic() + HANDSHAKE_S
    stdout = process.stdout
    assert stdout is not None
    line = b""
    os.set_blocking(stdout.fileno(), False)
    while not line.endswith(b"\n") and time.monotonic() < timer:
        piece = stdout.readline()
        if piece == b"" and process.poll() is not None:
            break
        line += piece or b""
        if not line.endswith(b"\n"):
            time.sleep(0.002)
    if not line.endswith(b"\n"):
        process.kill()
        return {"errno": 0, "error": f"the keeper said nothing (exit status {process.poll()})", "stage": "keep"}
    answer: dict[str, Any] = json.loads(line)
    return answer


def _not_started(answer: dict[str, Any], argv: Sequence[str], folder: Path) -> Exception:
    if answer["errno"] in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(path=folder)
    if answer["stage"] != "execute":
        complaints = (folder / "keeper.err").read_text(errors="replace").strip().splitlines()
        line = complaints[-1] if complaints else answer["error"]
        fix = f"see {folder}/keeper.err"
    else:
        line = f"{argv[0]}: {answer['error']}"
        fix = {
            errno.ENOENT: "give the path of a program that exists, or put it on the PATH",
            errno.EACCES: f"make it executable: chmod +x {argv[0]}",
            errno.ENOEXEC: "it is no program for this machine: name the interpreter in front of a script",
        }.get(answer["errno"], "start it by hand to see what is wrong")
    return LaunchFailed(candidate="the command", how="not executed", after_s=0, line=line, fix=fix)


def _full(error: OSError, path: Path) -> Exception:
    return DiskFull(path=path) if error.errno in (errno.ENOSPC, errno.EDQUOT) else error


def _exit(record: dict[str, Any]) -> Exit:
    return Exit(code=record["code"], signal=record["signal"], by=record["by"], at_s=record["at_s"])


def _json(path: Path) -> dict[str, Any] | None:
    """The record in a file; ``None`` while it is absent, blank or being written."""
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return found if isinstance(found, dict) else None


def _same(process: dict[str, Any], note: dict[str, Any]) -> bool:
    """Whether the process that a note names still lives: same boot, same pid, same start."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return note["boot_id"] == boot and process["start"] is not None and _living_start(process["pid"]) == process["start"]


def _living_start(pid: int) -> int | None:
    try:
        if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return None
    except psutil.Error:
        return None
    return keeper.start_ticks(pid)


def _mark(pid: int) -> str | None:
    """The launch whose mark the process carries in its environment."""
    try:
        data = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    for entry in data.split(b"\0"):
        name, _, value = entry.partition(b"=")
        if name == keeper.MARK.encode():
            return value.decode("ascii", "replace")
    return None


def _usage(keeper_pid: int) -> tuple[float, int]:
    """CPU seconds and resident bytes of everything below the keeper; what ended and was reaped counts by its parent."""
    cpu_s, memory = 0.0, 0
    try:
        root = psutil.Process(keeper_pid)
        times = root.cpu_times()
        cpu_s += times.children_user + times.children_system
        below = root.children(recursive=True)
    except psutil.Error:
        return cpu_s, memory
    for process in below:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            cpu_s += times.user + times.system + times.children_user + times.children_system
            memory += process.memory_info().rss
    return cpu_s, memory


def _host_sources(port: int | None, launch: Launch | None) -> Iterator[Source]:
    if port is not None:
        lines = [f"port {one.port} pid {one.pid} {one.command}" for one in sockets.listeners(port)]
        yield Source(name="sockets", text="\n".join(lines) or f"nobody listens on port {port}")
    memory = Path("/proc/meminfo").read_text().splitlines()
    yield Source(name="memory", text="\n".join(line for line in memory if line.startswith(("Mem", "Swap", "Commit"))))
    kernel = _kernel_log(launch.started_s if launch is not None else None)
    if kernel:
        yield Source(name="kernel", text=kernel)


def _kernel_log(since_s: float | None) -> str:
    """Kernel messages since the launch, where this account may read them (``dmesg_restrict``)."""
    boot_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        handle = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ""
    lines: list[str] = []
    try:
        while True:
            try:
                record = os.read(handle, 8192).decode("utf-8", "replace")
            except BrokenPipeError:  # a message was overwritten while we read: the next read goes on after it
                continue
            head, _, text = record.partition(";")
            at_s = boot_s + int(head.split(",")[2]) / 1e6
            if since_s is None or at_s >= since_s - 1.0:
                lines.append(text.splitlines()[0] if text else "")
    except BlockingIOError:
        return "\n".join(lines[-KERNEL_LINES:])
    finally:
        os.close(handle)
