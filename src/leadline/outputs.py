"""Reading the bounded output of a launch: a head, a gap that was not kept, and the rolling tail (written by :mod:`leadline.keeper`)."""

from __future__ import annotations

from pathlib import Path

from .records import Record, Source

HEAD = "output.log"


class _Part(Record, frozen=True):
    path: Path
    offset: int
    """Bytes of output before this part."""
    line: int
    """Number of its first line."""
    size: int


def seen(folder: Path) -> int:
    """Bytes that the launch has printed, kept or not."""
    try:
        return int((folder / "progress").read_text().split()[0])
    except (FileNotFoundError, IndexError, ValueError):
        return 0


def read(folder: Path, start: int, limit_bytes: int) -> bytes:
    """Output from byte ``start`` (negative: from the end); bytes that were not kept are skipped."""
    if start < 0:
        start = max(0, seen(folder) + start)
    data = bytearray()
    for part in _parts(folder):
        if part.offset + part.size > start and len(data) < limit_bytes:
            data += _slice(part.path, max(0, start - part.offset), limit_bytes - len(data))
    return bytes(data)


def sources(folder: Path, head_bytes: int, tail_bytes: int) -> tuple[Source, ...]:
    """The start and the end of the output as evidence, each with the number of its first line."""
    whole = seen(folder)
    if whole <= head_bytes + tail_bytes:
        return (Source(name="log", text=read(folder, 0, head_bytes + tail_bytes).decode("utf-8", "replace")),)
    head = read(folder, 0, head_bytes)
    head = head[: head.rfind(b"\n") + 1] or head
    tail, line = _tail(folder, whole - tail_bytes)
    return (
        Source(name="log", text=head.decode("utf-8", "replace"), truncated=True),
        Source(name="log", text=tail.decode("utf-8", "replace"), truncated=True, first_line=line),
    )


def _tail(folder: Path, start: int) -> tuple[bytes, int]:
    """Whole lines from byte ``start`` on, and the number of the first."""
    kept = [part for part in _parts(folder) if part.offset + part.size > start]
    if not kept:
        return b"", 1
    first = kept[0]
    skip = max(0, start - first.offset)
    before = _slice(first.path, 0, skip)
    data = b"".join(_slice(part.path, skip if part is first else 0, part.size) for part in kept)
    cut = data.find(b"\n") + 1 if skip and not before.endswith(b"\n") else 0
    return data[cut:], first.line + before.count(b"\n") + (1 if cut else 0)


def _parts(folder: Path) -> list[_Part]:
    found = []
    for path in folder.glob("output.*"):
        words = path.name.split(".")
        try:
            size = path.stat().st_size
        except FileNotFoundError:  # rolled away
            continue
        offset, line = (int(words[1]), int(words[2])) if len(words) == 3 else (0, 1)
        found.append(_Part(path=path, offset=offset, line=line, size=size))
    return sorted(found, key=lambda part: part.offset)


def _slice(path: Path, start: int, count: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(count)
    except FileNotFoundError:  # rolled away between the look and the read
        return b""
