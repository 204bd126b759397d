"""The output of one invocation of a unit, mirrored from the journal piece by piece.

``--after-cursor`` with a match loses an entry on systemd 252 (systemd issue 30288), so every look asks for everything since
the second of the last entry seen and drops what is known by its cursor.
"""

from __future__ import annotations

import contextlib
import time

from .errors import NeedsRights
from .probes import journal_hidden, parse_journal
from .target import Target


class UnitLog:
    """Bytes of one launch's log; the front is dropped beyond ``limit_bytes``."""

    def __init__(self, target: Target, scope: tuple[str, ...], invocation: str, since_s: float, limit_bytes: int) -> None:
        self._target, self._scope, self._invocation = target, scope, invocation
        self._since_s, self._limit_bytes = max(0.0, since_s - 1.0), limit_bytes
        self._recent: set[str] = set()
        self._data = bytearray()
        self._dropped = 0
        self._looked = -1e9
        self._root = False

    @property
    def size(self) -> int:
        """Bytes written so far, those dropped from the front included."""
        return self._dropped + len(self._data)

    def refresh(self, *, at_most_every_s: float = 0.0) -> None:
        """Fetch what is new."""
        if time.monotonic() - self._looked < at_most_every_s:
            return
        argv = [
            "journalctl",
            *self._scope,
            "--no-pager",
            "-o",
            "json",
            "--all",
            "--output-fields=MESSAGE",
            f"--since=@{int(self._since_s)}",
        ]
        argv.append(f"_SYSTEMD_INVOCATION_ID={self._invocation}")
        done = self._target.run(argv, root=self._root, timeout_s=60.0)
        if not self._root and not self._scope and (journal_hidden(done.error_text) or not done.stdout):
            # an account that may not see the messages gets none, and with -o json no word about it
            with contextlib.suppress(NeedsRights):
                done = self._target.run(argv, root=True, timeout_s=60.0)
                self._root = bool(done.stdout)
        done.check(self._target.name)
        self._looked = time.monotonic()
        for line in parse_journal(done.text):
            if line.cursor in self._recent:
                continue
            if int(line.at_s) > int(self._since_s):
                self._recent.clear()
                self._since_s = line.at_s
            self._recent.add(line.cursor)
            self._data += line.text + b"\n"
        excess = len(self._data) - self._limit_bytes
        if excess > 0:
            del self._data[:excess]
            self._dropped += excess

    def part(self, start: int, limit_bytes: int) -> bytes:
        """At most ``limit_bytes`` from byte ``start``; a negative ``start`` counts from the end."""
        begin = max(0, len(self._data) + start) if start < 0 else max(0, start - self._dropped)
        return bytes(self._data[begin : begin + limit_bytes])
