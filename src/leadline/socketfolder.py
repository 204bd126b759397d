"""A private folder for the socket of one connection, which ends with its process: after kill -9 the next leadline clears it.

Each folder holds a file that its process keeps locked (flock(2)); the kernel lets go of that whatever becomes of the process.  A
folder gets its name only once it is locked, so that whoever finds one that nobody locks may remove it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path

PREFIX, UNFINISHED, LOCK = "leadline-ssh-", "leadline-new-", "lock"


class SocketFolder:
    """A new folder below ``parent``, readable by this account only; clears those of this account that dead processes left there."""

    def __init__(self, parent: Path) -> None:
        _clear(parent)
        unfinished = Path(tempfile.mkdtemp(prefix=UNFINISHED, dir=parent))
        self._lock = open(unfinished / LOCK, "w")  # noqa: SIM115  # held as long as the folder stands
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = unfinished.rename(parent / unfinished.name.replace(UNFINISHED, PREFIX, 1))

    def remove(self) -> None:
        """Idempotent."""
        with contextlib.suppress(FileNotFoundError):
            _remove(self.path)
        self._lock.close()


def _clear(parent: Path) -> None:
    for path in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(FileNotFoundError):  # another leadline clears, too
            if path.is_symlink() or path.stat().st_uid != os.geteuid():
                continue
            if not (path / LOCK).exists():
                _remove(path)  # whoever cleared it was killed over it
                continue
            with open(path / LOCK) as lock, contextlib.suppress(BlockingIOError):  # that process lives
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(path)


def _remove(path: Path) -> None:
    """The lock goes last, so that what is left of an interrupted removal is still found."""
    for name in sorted(os.listdir(path), key=LOCK.__eq__):
        (path / name).unlink(missing_ok=True)
    path.rmdir()
