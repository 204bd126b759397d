"""A host reached through the user's own OpenSSH client, over one shared connection.

The connection is a master session (``ControlMaster``) whose remote command is ``cat``: it ends when its standard input
ends, so it lives exactly as long as leadline does, even after kill -9, and it echoes what it is sent, which measures the
round trip without starting anything.  Every further command is a client of that master's socket and can reach nothing
else: it is given no configuration and a proxy command that fails, so a lost connection is an error and never a silent
second connection.  ``~/.ssh/config``, jump hosts, agents and host keys are the user's business: the master reads them
as any ssh does, in batch mode.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import shlex
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from .errors import DiskFull, HostCommandFailed, HostKeyRefused, HostTimeout, HostUnreachable, NeedsRights
from .socketfolder import SocketFolder
from .target import Completed, free_port

# Replaces $1 (mode $2, $3 bytes) by standard input, or changes nothing: a cut connection delivers fewer bytes.
_WRITE = """\
trap '' HUP PIPE; umask 022; d=$(dirname -- "$1")
mkdir -p -- "$d" && t=$(mktemp -- "$d/.leadline-XXXXXX") || exit 74
trap 'rm -f -- "$t"' EXIT
cat >"$t" && [ "$(wc -c <"$t")" -eq "$3" ] && chmod "$2" -- "$t" && mv -f -- "$t" "$1"
"""

_SOCKET_PATH_LIMIT = 80  # sun_path holds 108 bytes, of which ssh wants some for a temporary name

SUDOERS = "{account} ALL=(root) NOPASSWD: ALL"
"""The line that makes ``sudo -n`` work. Anything narrower would be no safer: who writes a unit decides what root runs."""


def needs_sudo(account: str, host: str, said: str) -> NeedsRights:
    """The error for a refused ``sudo -n``, with the line to add."""
    line = SUDOERS.format(account=account)
    return NeedsRights(
        account=account,
        what=f"use sudo without a password ({said or 'sudo refused'})",
        host=host,
        fix=f"log in as root, or add this line with `sudo visudo -f /etc/sudoers.d/leadline` on {host}: {line}",
    )


class SshTarget:
    """A host behind ``ssh destination``. Commands may be run from several threads."""

    def __init__(
        self,
        destination: str,
        *,
        port: int | None = None,
        ssh: Sequence[str] = ("ssh",),
        connect_timeout_s: float = 15.0,
        alive_s: int = 10,
    ) -> None:
        self.name = destination
        self.uid = 0
        self.account = ""
        self._ssh = tuple(ssh)
        self._where = ("-p", str(port)) if port else ()
        self._connect_timeout_s = connect_timeout_s
        self._alive_s = alive_s
        self._lock = threading.RLock()
        self._master: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None
        self._forwards: dict[int, int] = {}
        runtime = os.environ.get("XDG_RUNTIME_DIR", "")
        usable = runtime and len(runtime) < _SOCKET_PATH_LIMIT - 30 and os.access(runtime, os.W_OK)
        self._parent = Path(runtime if usable else "/tmp")
        self._folder: SocketFolder | None = None
        self._socket = ""

    # -- the port ------------------------------------------------------------------------------------------------------

    def run(self, argv: Sequence[str], *, timeout_s: float = 30.0, stdin: bytes = b"", root: bool = False) -> Completed:
        self._connect()
        full = ("sudo", "-n", "--", *argv) if root and self.uid != 0 else tuple(argv)
        command = [*self._client(), "-T", "--", "leadline", shlex.join(full)]
        try:
            done = subprocess.run(command, input=stdin, capture_output=True, timeout=timeout_s, check=False, start_new_session=True)
        except subprocess.TimeoutExpired:
            raise HostTimeout(host=self.name, seconds=f"{timeout_s:g}", what=shlex.join(full)[:200]) from None
        if done.returncode == 255 and not self._alive(wait_s=0.5):
            raise HostUnreachable(host=self.name, why=f"the connection was lost during `{shlex.join(full)[:120]}`{self._last_words()}")
        completed = Completed(argv=full, status=done.returncode, stdout=done.stdout, stderr=done.stderr)
        if full[0] == "sudo" and done.returncode in (1, 127) and b"sudo: " in done.stderr:
            raise needs_sudo(self.account, self.name, completed.error_text.splitlines()[-1])
        return completed

    def read(self, path: str, *, limit_bytes: int = 1 << 24, root: bool = False) -> bytes:
        done = self.run(["env", "LC_ALL=C", "head", "-c", str(limit_bytes), "--", path], root=root)
        if done.status == 0:
            return done.stdout
        if "No such file" in done.error_text or "Not a directory" in done.error_text:
            raise FileNotFoundError(path)
        if "Permission denied" in done.error_text:
            raise NeedsRights(account=self.account, what=f"read {path}", host=self.name, fix=f"give {self.account} read rights on {path}")
        done.check(self.name)
        return b""

    def write(self, path: str, data: bytes, *, mode: int = 0o644, root: bool = False) -> None:
        script = ["env", "LC_ALL=C", "sh", "-c", _WRITE, "sh", path, f"{mode:o}", str(len(data))]
        done = self.run(script, stdin=data, root=root, timeout_s=60.0)
        if done.status == 0:
            return
        if "No space left" in done.error_text or "quota exceeded" in done.error_text:
            raise DiskFull(path=f"{self.name}:{path}")
        if "Permission denied" in done.error_text or "Read-only file system" in done.error_text:
            raise NeedsRights(account=self.account, what=f"write {path}", host=self.name, fix=done.error_text.splitlines()[-1])
        done.check(self.name)

    @contextlib.contextmanager
    def forward(self, port: int) -> Iterator[int]:
        with self._lock:  # a reconnect by another thread renews every forward
            self._connect()
            local = free_port()
            self._forwards[local] = port
            self._forward(local, "forward")
        try:
            yield local
        finally:
            with self._lock:
                with contextlib.suppress(HostCommandFailed, HostTimeout):  # the connection is gone, and its forwards with it
                    self._forward(local, "cancel")
                del self._forwards[local]

    def close(self) -> None:
        """End the connection. Idempotent."""
        atexit.unregister(self.close)
        with self._lock:
            self._hang_up()
            if self._folder is not None:
                self._folder.remove()
                self._folder = None

    # -- beyond the port -----------------------------------------------------------------------------------------------

    def round_trip_ms(self, samples: int = 5) -> float:
        """Median time of an echo over the shared connection; what every latency measured through :meth:`forward` carries."""
        seen = []
        with self._lock:
            self._connect()
            for number in range(samples):
                word = f"echo-{number}\n".encode()
                begin = time.perf_counter()
                self._say(word)
                self._hear(word.strip(), begin + self._connect_timeout_s)
                seen.append((time.perf_counter() - begin) * 1e3)
        return statistics.median(seen)

    # -- the connection ------------------------------------------------------------------------------------------------

    def _client(self) -> list[str]:
        return [self._ssh[0], "-F", "none", "-S", self._socket, "-o", "ControlMaster=no", "-o", "BatchMode=yes", "-o", "ProxyCommand=false"]

    def _connect(self) -> None:
        with self._lock:
            if self._alive():
                return
            self._hang_up()
            if self._folder is None:
                self._folder = SocketFolder(self._parent)
                self._socket = str(self._folder.path / "s")
                atexit.register(self.close)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._socket)  # a connection that was killed leaves its socket, and ssh would not share the next one over it
            options = {
                "ControlMaster": "yes",
                "ControlPersist": "no",
                "ControlPath": self._socket,
                "BatchMode": "yes",
                "ConnectTimeout": f"{self._connect_timeout_s:.0f}",
                "ServerAliveInterval": str(self._alive_s),
                "ServerAliveCountMax": "3",
                "RequestTTY": "no",
                "RemoteCommand": "none",
                "PermitLocalCommand": "no",
                "ClearAllForwardings": "yes",
                "ForwardAgent": "no",
                "ForwardX11": "no",
            }
            flags = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
            hello = "echo leadline-hello $(id -u) $(id -un); exec cat"
            self._said = tempfile.TemporaryFile(dir=self._folder.path)  # noqa: SIM115 - closed in _hang_up
            self._master = subprocess.Popen(
                [*self._ssh, *flags, *self._where, "--", self.name, f"sh -c {shlex.quote(hello)}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                start_new_session=True,  # a Ctrl-C in the terminal must not cut the connection that restores the service
            )
            try:
                words = self._hear(b"leadline-hello", time.perf_counter() + self._connect_timeout_s + 15.0).split()
            except HostUnreachable:
                self._hang_up()
                raise
            self.uid, self.account = int(words[1]), words[2].decode()
            for local in self._forwards:
                self._forward(local, "forward")

    def _alive(self, wait_s: float = 0.0) -> bool:
        if self._master is None:
            return False
        try:
            self._master.wait(wait_s)
        except subprocess.TimeoutExpired:
            return True
        return False

    def _hang_up(self) -> None:
        master, self._master = self._master, None
        if master is not None:
            for pipe in (master.stdin, master.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
            try:
                master.wait(2.0)
            except subprocess.TimeoutExpired:
                master.kill()
                master.wait()
        if self._said is not None:
            self._said.close()
            self._said = None

    def _forward(self, local: int, what: str) -> None:
        places = f"127.0.0.1:{local}:127.0.0.1:{self._forwards[local]}"
        command = [*self._client(), "-O", what, "-L", places, "leadline"]
        try:
            done = subprocess.run(command, capture_output=True, timeout=30.0, check=False, start_new_session=True)
        except subprocess.TimeoutExpired:
            raise HostTimeout(host=self.name, seconds="30", what=f"{what} port {self._forwards[local]}") from None
        Completed(argv=tuple(command), status=done.returncode, stdout=done.stdout, stderr=done.stderr).check(
            self.name, hint="sshd must allow TCP forwarding (AllowTcpForwarding)"
        )

    def _say(self, data: bytes) -> None:
        assert self._master is not None
        assert self._master.stdin is not None
        try:
            self._master.stdin.write(data)
            self._master.stdin.flush()
        except BrokenPipeError:
            raise HostUnreachable(host=self.name, why="the connection was lost") from None

    def _hear(self, word: bytes, until: float) -> bytes:
        """The first line that begins with ``word``; a talkative login script may print others before it."""
        assert self._master is not None
        assert self._master.stdout is not None
        heard = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._master.stdout, selectors.EVENT_READ)
            while True:
                if not selector.select(max(0.0, until - time.perf_counter())):
                    raise HostUnreachable(host=self.name, why=f"no answer within {self._connect_timeout_s:g} s")
                piece = os.read(self._master.stdout.fileno(), 65536)
                if not piece:
                    raise self._refused()
                heard += piece
                for line in heard.splitlines(keepends=True):
                    if line.startswith(word) and line.endswith(b"\n"):
                        return line

    def _refused(self) -> HostUnreachable | HostKeyRefused:
        """Why the master ended, from its last words."""
        self._alive(wait_s=2.0)
        return explain(self.name, self._heard())

    def _last_words(self) -> str:
        """What the master said when it ended, as the end of a sentence; empty when it said nothing."""
        said = self._heard().splitlines()
        return f": {said[-1].strip()}" if said else ""

    def _heard(self) -> str:
        """Everything on the master's standard error so far."""
        said = self._said
        if said is None or said.closed:
            return ""
        with contextlib.suppress(ValueError):  # another thread hung up just now
            return os.pread(said.fileno(), 1 << 16, 0).decode("utf-8", "replace").strip()
        return ""


def explain(host: str, said: str) -> HostUnreachable | HostKeyRefused:
    """The error behind ssh's own words (recordings: ``c19-permission/ssh-errors.txt``). Pure."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if lines and "Host key verification failed" in lines[-1]:
        changed = any("HAS CHANGED" in line for line in lines)
        why = "it is not the key that known_hosts holds" if changed else "it is not in known_hosts"
        return HostKeyRefused(host=host, why=why)
    return HostUnreachable(host=host, why=lines[-1] if lines else "ssh ended without a word")
