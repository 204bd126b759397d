"""Where the service runs: run a command, read and write a file, reach a port.

:class:`Target` is the port; :class:`LocalTarget` is this machine, :mod:`leadline.ssh` adds a host reached through the
user's own OpenSSH client.  A target knows nothing of engines, units or campaigns.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from .errors import ConfigError, DiskFull, HostCommandFailed, HostTimeout, NeedsRights
from .records import Record


class Completed(Record, frozen=True):
    """What a command said. ``status`` is its exit status, negative for a signal."""

    argv: tuple[str, ...]
    status: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        return self.stdout.decode("utf-8", "replace")

    @property
    def error_text(self) -> str:
        return self.stderr.decode("utf-8", "replace").strip()

    def check(self, host: str, hint: str = "") -> Completed:
        """Itself when the status is 0. Raises :class:`~leadline.errors.HostCommandFailed` otherwise."""
        if self.status != 0:
            raise HostCommandFailed(
                host=host,
                command=" ".join(self.argv)[:200],
                status=self.status,
                stderr=self.error_text[-400:] or "(nothing on stderr)",
                hint=hint,
            )
        return self


class Target(Protocol):
    """A host. Every call has a deadline."""

    name: str

    def run(self, argv: Sequence[str], *, timeout_s: float = 30.0, stdin: bytes = b"", root: bool = False) -> Completed:
        """Run ``argv`` (never through a shell of ours). ``root`` asks for root rights, through ``sudo -n`` if needed.

        Raises HostTimeout, HostUnreachable, NeedsRights.
        """
        ...

    def read(self, path: str, *, limit_bytes: int = 1 << 24, root: bool = False) -> bytes:
        """At most ``limit_bytes`` from the start of a file. Raises FileNotFoundError, NeedsRights."""
        ...

    def write(self, path: str, data: bytes, *, mode: int = 0o644, root: bool = False) -> None:
        """Replace a file atomically, creating its folder. Raises DiskFull, NeedsRights."""
        ...

    def forward(self, port: int) -> contextlib.AbstractContextManager[int]:
        """A local port on 127.0.0.1 that reaches ``port`` on the target's loopback, as long as the context is open."""
        ...

    def close(self) -> None: ...


class LocalTarget:
    """This machine."""

    name = "localhost"

    def run(self, argv: Sequence[str], *, timeout_s: float = 30.0, stdin: bytes = b"", root: bool = False) -> Completed:
        full = tuple(argv) if not root or os.geteuid() == 0 else ("sudo", "-n", *argv)
        try:
            done = subprocess.run(full, input=stdin, capture_output=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired:
            raise HostTimeout(host=self.name, seconds=timeout_s, what=" ".join(full)[:200]) from None
        except FileNotFoundError:
            return Completed(argv=full, status=127, stdout=b"", stderr=f"{full[0]}: not found".encode())
        if root and done.returncode == 1 and b"a password is required" in done.stderr:
            raise NeedsRights(
                account="this account", what="use sudo without a password", host=self.name, fix="run as root, or allow `sudo -n`"
            )
        return Completed(argv=full, status=done.returncode, stdout=done.stdout, stderr=done.stderr)

    def read(self, path: str, *, limit_bytes: int = 1 << 24, root: bool = False) -> bytes:
        try:
            with open(path, "rb") as file:
                return file.read(limit_bytes)
        except PermissionError:
            if root and os.geteuid() != 0:
                return self.run(["head", "-c", str(limit_bytes), "--", path], root=True).check(self.name).stdout
            raise NeedsRights(account="this account", what=f"read {path}", host=self.name, fix=f"give it read rights on {path}") from None

    def write(self, path: str, data: bytes, *, mode: int = 0o644, root: bool = False) -> None:
        if root and os.geteuid() != 0:
            temporary = f"{path}.leadline-new"
            self.run(["mkdir", "-p", "--", str(Path(path).parent)], root=True).check(self.name)
            self.run(["tee", "--", temporary], stdin=data, root=True).check(self.name)
            self.run(["chmod", f"{mode:o}", "--", temporary], root=True).check(self.name)
            self.run(["mv", "-f", "--", temporary, path], root=True).check(self.name)
            return
        write_atomically(Path(path), data, mode=mode)

    @contextlib.contextmanager
    def forward(self, port: int) -> Iterator[int]:
        yield port

    def close(self) -> None:
        return None


def write_atomically(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replace ``path`` by ``data`` so that a reader sees the old or the new file, never half of one. Raises DiskFull."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise _disk_full(error, path) from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, mode)
        os.replace(name, path)
    except OSError as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise _disk_full(error, path) from error


def check_writable(path: Path, option: str) -> None:
    """Refuse the file of ``option`` that :func:`write_atomically` could not write now. Nothing is left behind.

    Raises ConfigError, DiskFull.
    """
    made: list[Path] = []
    try:
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "a folder stands there" if path.is_dir() else "it is no regular file")
        made = [folder for folder in path.parents if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(handle)
        os.unlink(name)
    except OSError as error:
        raise cannot_write(error, path, option) from None
    finally:
        for folder in made:  # from the innermost on
            with contextlib.suppress(OSError):
                folder.rmdir()


def cannot_write(error: OSError, path: Path, option: str) -> ConfigError | DiskFull:
    """The refusal of a file that the user named with ``option``, from what the system said."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(path=path)
    why = "its folder is a file" if error.errno in (errno.EEXIST, errno.ENOTDIR) else error.strerror
    return ConfigError(place=option, what=f"{path} cannot be written: {why}", fix="give a path that you may write to")


def _disk_full(error: OSError, path: Path) -> Exception:
    return DiskFull(path=path) if error.errno in (errno.ENOSPC, errno.EDQUOT) else error


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def can_bind(port: int) -> bool:
    """Whether a server could listen on a loopback port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
