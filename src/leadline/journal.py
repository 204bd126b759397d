"""Append-only events in SQLite: the only memory of a campaign. One writer, any number of readers.

Format 1 (``journal.db``): table ``meta(key, value)`` with ``format``, ``writer``, ``campaign_id``; table ``events(seq,
at_s, kind, body)`` where ``body`` is the event as JSON (``leadline.records``), ``seq`` runs 1, 2, 3, ... without a gap.
The history of the format stands in docs/journal.md.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO

import msgspec

from . import __version__
from .errors import DiskFull, JournalBusy, JournalDamaged, JournalVersion, NoCampaign
from .records import AnyEvent
from .state import Knowledge, fold

FORMAT = 1
FILE = "journal.db"

_decoder: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
_encoder = msgspec.json.Encoder()


class Journal:
    """One campaign's journal, open for reading or (with the lock held) for writing.

    Raises JournalDamaged, JournalVersion, JournalBusy, DiskFull, NoCampaign; the file is never changed by a failed open.
    """

    def __init__(self, folder: Path, *, write: bool) -> None:
        self.folder = folder
        self.path = folder / FILE
        self._lock: IO[str] | None = None
        self._knowledge = Knowledge()
        self._seq = 0
        if not write and not self.path.exists():
            raise NoCampaign(which=folder.name, where=folder.parent)
        if write:
            self._take_lock()
        try:
            self._open(write)
        except BaseException:
            self.close()
            raise

    # -- reading -------------------------------------------------------------------------------------------------------

    @property
    def knowledge(self) -> Knowledge:
        """The fold of every event so far (those appended by another process appear after :meth:`refresh`)."""
        return self._knowledge

    def refresh(self) -> Knowledge:
        """Read what was appended since, and return all that is known."""
        with self._told("read"):
            for event in self._read(self._seq):
                self._knowledge = fold([event], self._knowledge)
        return self._knowledge

    def events(self) -> tuple[AnyEvent, ...]:
        """Every event, in order."""
        with self._told("read"):
            return tuple(event for _, event in self._rows(0))

    # -- writing -------------------------------------------------------------------------------------------------------

    def append(self, event: AnyEvent) -> Knowledge:
        """Make ``event`` durable, then return what is known with it. Raises DiskFull; then the event is not known."""
        if self._lock is None:
            raise RuntimeError("this journal is open for reading")
        known = fold([event], self._knowledge)
        with self._told("write"):
            self._db.execute(
                "INSERT INTO events(seq, at_s, kind, body) VALUES (?, ?, ?, ?)",
                (self._seq + 1, getattr(event, "at_s", 0.0), type(event).__name__, _encoder.encode(event)),
            )
        self._seq += 1
        self._knowledge = known
        return known

    def close(self) -> None:
        with contextlib.suppress(AttributeError):
            self._db.close()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _take_lock(self) -> None:
        with self._told("write"):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = open(self.folder / "journal.lock", "a+")  # noqa: SIM115  # held as long as the journal is open
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            pid = lock.read().strip() or "?"
            lock.close()
            raise JournalBusy(pid=pid, path=self.path) from None
        lock.seek(0)
        lock.truncate()
        lock.write(str(os.getpid()))
        lock.flush()
        self._lock = lock

    def _open(self, write: bool) -> None:
        if write and not self.path.exists():
            self._create()
        with self._told("read"):
            mode = "rw" if write else "ro"
            self._db = sqlite3.connect(f"{self.path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, timeout=10.0)
            self._check_meta()
            if write:
                self._db.execute("PRAGMA journal_mode=WAL")
                self._db.execute("PRAGMA synchronous=FULL")
            for event in self._read(0):
                self._knowledge = fold([event], self._knowledge)

    def _create(self) -> None:
        """Make the file beside its place and move it there whole: whoever reads it sees every table or no file."""
        fresh = self.path.with_suffix(".new")
        with self._told("write"):
            fresh.unlink(missing_ok=True)
            with contextlib.closing(sqlite3.connect(fresh, isolation_level=None)) as db:
                db.execute("BEGIN")
                db.execute("CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT")
                db.execute(
                    "CREATE TABLE events(seq INTEGER PRIMARY KEY, at_s REAL NOT NULL, kind TEXT NOT NULL, body BLOB NOT NULL) STRICT"
                )
                meta = {"format": str(FORMAT), "writer": __version__, "campaign_id": self.folder.name}
                db.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
                db.execute("COMMIT")
            os.replace(fresh, self.path)

    def _check_meta(self) -> None:
        meta = dict(self._db.execute("SELECT key, value FROM meta"))
        if "format" not in meta:
            raise JournalDamaged(path=self.path, why="it names no format")
        if meta["format"] != str(FORMAT):
            raise JournalVersion(path=self.path, found=meta["format"], known=FORMAT, writer=meta.get("writer", "unknown"))

    def _read(self, after: int) -> Iterator[AnyEvent]:
        for seq, event in self._rows(after):
            yield event
            self._seq = seq

    def _rows(self, after: int) -> Iterator[tuple[int, AnyEvent]]:
        expected = after + 1
        for seq, body in self._db.execute("SELECT seq, body FROM events WHERE seq > ? ORDER BY seq", (after,)):
            if seq != expected:
                raise JournalDamaged(path=self.path, why=f"event {expected} is missing (the next one there is {seq})")
            try:
                event = _decoder.decode(body)
            except (msgspec.ValidationError, msgspec.DecodeError) as error:
                raise JournalDamaged(path=self.path, why=f"event {seq} cannot be read: {error}") from None
            yield seq, event
            expected += 1

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            text = str(error)
            if "full" in text or (what == "write" and "disk I/O error" in text):
                raise DiskFull(path=self.path) from error
            raise JournalDamaged(path=self.path, why=text) from error
        except ValueError as error:
            raise JournalDamaged(path=self.path, why=str(error)) from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskFull(path=self.path) from error
            raise


def home() -> Path:
    """Where campaigns live: ``$LEADLINE_HOME``, else ``$XDG_STATE_HOME/leadline``, else ``~/.local/state/leadline``."""
    own = os.environ.get("LEADLINE_HOME")
    if own:
        return Path(own)
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "leadline"


def campaigns() -> tuple[Path, ...]:
    """Folders of every campaign of this machine, newest first."""
    folder = home() / "campaigns"
    found = [path.parent for path in folder.glob(f"*/{FILE}")] if folder.is_dir() else []
    return tuple(sorted(found, key=lambda path: (path / FILE).stat().st_mtime, reverse=True))


def writer_alive(folder: Path) -> bool:
    """Whether some leadline holds the journal's lock right now."""
    path = folder / "journal.lock"
    if not path.exists():
        return False
    with open(path) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def find(which: str | None) -> Path:
    """The folder of a campaign by id or unique beginning; the newest one for ``None``. Raises NoCampaign."""
    known = campaigns()
    if which is None:
        if not known:
            raise NoCampaign(which="of any target", where=home() / "campaigns")
        return known[0]
    if os.sep in which and (Path(which) / FILE).exists():
        return Path(which)
    exact = [path for path in known if path.name == which]
    near = [path for path in known if path.name.startswith(which)]
    if not exact and len(near) != 1:
        why = f"{which!r}" if not near else f"{which!r} alone ({', '.join(path.name for path in near[:5])} begin so)"
        raise NoCampaign(which=why, where=home() / "campaigns")
    return (exact or near)[0]
