"""The journal: durable, one writer, refuses what it cannot read and leaves it as it was."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from leadline import journal
from leadline import records as r
from leadline.errors import DiskFull, JournalBusy, JournalDamaged, JournalVersion, NoCampaign
from leadline.journal import Journal
from leadline.state import fold
from stories import LEVELS, began, block, campaigns


@given(campaigns())
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, story: list[r.AnyEvent]) -> None:
    folder = tmp_path_factory.mktemp("campaign")
    with Journal(folder, write=True) as book:
        for event in story[: len(story) // 2]:
            book.append(event)
    with Journal(folder, write=True) as book, Journal(folder, write=False) as beside:
        for event in story[len(story) // 2 :]:
            book.append(event)
        assert list(book.events()) == story
        assert beside.refresh() == book.knowledge == fold(story)
        assert beside.refresh() == book.knowledge


def test_one_writer(tmp_path: Path) -> None:
    with Journal(tmp_path, write=True):
        assert journal.writer_alive(tmp_path)
        with pytest.raises(JournalBusy) as caught:
            Journal(tmp_path, write=True)
        assert str(os.getpid()) in caught.value.message
    assert not journal.writer_alive(tmp_path)
    Journal(tmp_path, write=True).close()


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    Journal(tmp_path, write=True).close()
    with Journal(tmp_path, write=False) as book, pytest.raises(RuntimeError):
        book.append(began())


def _after(folder: Path, statement: str) -> bytes:
    with sqlite3.connect(folder / journal.FILE) as db:
        db.execute(statement)
        db.commit()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    return (folder / journal.FILE).read_bytes()


@pytest.mark.parametrize(
    ("statement", "kind", "words"),
    [
        ("UPDATE meta SET value='99' WHERE key='format'", JournalVersion, "99"),
        ("DELETE FROM meta", JournalDamaged, "format"),
        ("DELETE FROM events WHERE seq=2", JournalDamaged, "event 2"),
        ('UPDATE events SET body=CAST(\'{"event":"later"}\' AS BLOB) WHERE seq=2', JournalDamaged, "event 2"),
        ("UPDATE events SET body=CAST('{' AS BLOB) WHERE seq=3", JournalDamaged, "event 3"),
        ("DROP TABLE events", JournalDamaged, "events"),
    ],
)
@pytest.mark.parametrize("write", [True, False])
def test_what_cannot_be_read_is_refused_and_left(tmp_path: Path, statement: str, kind: type[Exception], words: str, write: bool) -> None:
    with Journal(tmp_path, write=True) as book:
        for event in (began(), r.Inspected(at_s=1.0, frontier=()), r.Planned(at_s=1.0, launches=())):
            book.append(event)
    before = _after(tmp_path, statement)
    with pytest.raises(kind) as caught:
        Journal(tmp_path, write=write)
    assert words in str(caught.value)
    assert (tmp_path / journal.FILE).read_bytes() == before


def test_not_a_database(tmp_path: Path) -> None:
    (tmp_path / journal.FILE).write_bytes(b"not a database at all " * 100)
    with pytest.raises(JournalDamaged):
        Journal(tmp_path, write=True)


def test_an_impossible_story_is_damage(tmp_path: Path) -> None:
    with Journal(tmp_path, write=True) as book:
        book.append(began())
        with pytest.raises(ValueError, match="begins once"):
            book.append(began())
        assert len(book.events()) == 1


def test_events_survive_kill_9(tmp_path: Path) -> None:
    script = (
        "import sys, os, signal; sys.path[:0] = sys.argv[2:]\n"
        "from pathlib import Path; from leadline.journal import Journal; from stories import began, block, LEVELS\n"
        "import leadline.records as r\n"
        "book = Journal(Path(sys.argv[1]), write=True); book.append(began())\n"
        "book.append(r.Intended(trial=1, at_s=1.0, candidate=r.Candidate(algorithm='off', depth=0), kind='baseline', why=''))\n"
        "book.append(r.Measured(trial=1, at_s=1.0, result=block(LEVELS[0], 0)))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path), *sys.path], check=False)
    assert done.returncode == -signal.SIGKILL
    with Journal(tmp_path, write=True) as book:
        assert len(book.knowledge.trials[0].blocks) == 1


def fill(book: Journal) -> None:
    for number in range(10000):
        book.append(r.Measured(trial=1, at_s=1.0, result=block(LEVELS[0], number)))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small file system")
def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", small], check=False, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        with Journal(small / "c", write=True) as book:
            book.append(began())
            book.append(r.Intended(trial=1, at_s=1.0, candidate=r.Candidate(algorithm="off", depth=0), kind="baseline", why=""))
            with pytest.raises(DiskFull) as caught:
                fill(book)
            assert "resumes" in caught.value.next
            kept = len(book.knowledge.trials[0].blocks)
        subprocess.run(["mount", "-o", "remount,size=4m", small], check=True)
        with Journal(small / "c", write=True) as book:
            assert len(book.knowledge.trials[0].blocks) == kept
            book.append(r.Measured(trial=1, at_s=1.0, result=block(LEVELS[0], kept)))
    finally:
        subprocess.run(["umount", small], check=False)


def test_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEADLINE_HOME", str(tmp_path))
    with pytest.raises(NoCampaign):
        journal.find(None)
    for name in ("20260101-a", "20260102-b"):
        Journal(tmp_path / "campaigns" / name, write=True).close()
    os.utime(tmp_path / "campaigns" / "20260101-a" / journal.FILE, (1, 1))
    assert journal.find(None).name == "20260102-b"
    assert journal.find("20260101").name == "20260101-a"
    assert journal.find(str(tmp_path / "campaigns" / "20260101-a")).name == "20260101-a"
    with pytest.raises(NoCampaign, match="begin so"):
        journal.find("2026")
    with pytest.raises(NoCampaign):
        journal.find("zzz")
    with pytest.raises(NoCampaign):
        Journal(tmp_path / "none", write=False)


def test_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LEADLINE_HOME", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert journal.home() == tmp_path / "leadline"
    monkeypatch.delenv("XDG_STATE_HOME")
    assert journal.home() == Path.home() / ".local" / "state" / "leadline"
