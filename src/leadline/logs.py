"""Read log files for the doctor, whatever their size and state: gigabytes, rotated, torn, binary-spoiled, compressed, UTF-16.

A file of up to :data:`WHOLE_BYTES` is read as it is.  Of a larger one the start, the end and windows around lines that
may decide are kept, each with its true line number, so memory stays bounded by :data:`WHOLE_BYTES` whatever the size.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, cast

from .errors import ConfigError
from .records import Evidence, Source

WHOLE_BYTES = 12 << 20
HEAD_BYTES = 2 << 20
TAIL_BYTES = 4 << 20
CHUNK_BYTES = 8 << 20
WINDOW_BEFORE, WINDOW_AFTER = 4 << 10, 12 << 10
MOST_WINDOWS = 256
MOST_HITS = 40
"""Hits a needle may have before it is no longer looked for: the first ones matter, the last ones are in the tail."""

# Plain substrings, since a compiled alternation is ten times slower on gigabytes, and few, since each costs a pass. They only
# choose what is read between head and tail; rules decide.
NEEDLES: tuple[bytes, ...] = (
    b"Traceback (most",
    b" hit an exception",
    b"CUDA error",
    b"oom-kill",
    b"NVRM: Xid",
    b"SIGTERM",
    b"fatal error",
    b"atchdog",
)


def evidence_from_logs(paths: Sequence[str | Path], symptom: str = "", *, engine: str | None = None) -> Evidence:
    """Evidence from files handed over; ``-`` is standard input. Raises ConfigError for a file that cannot be read."""
    sources: list[Source] = []
    for path in paths:
        name = "standard input" if str(path) == "-" else Path(path).name
        try:
            with _open(path) as file:
                segments = list(segments_of(_decoded(file)))
        except (OSError, EOFError, lzma.LZMAError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise ConfigError(
                place=f"--log {path}", what=reason or "cannot be read", fix="give a file that this account can read"
            ) from None
        kind = kind_of(name, segments[0][0][:65536].decode("utf-8", "replace") if segments else "")
        label = kind if len(paths) == 1 else f"{kind}:{name}"
        truncated = len(segments) > 1
        for data, first_line in segments:
            sources.append(Source(name=label, text=data.decode("utf-8", "replace"), truncated=truncated, first_line=first_line))
    return Evidence(sources=tuple(sources), symptom=symptom, engine=engine)


def kind_of(name: str, head: str) -> str:
    """What a file holds, from its text first and its name second: ``unit``, ``kernel``, ``journal`` or ``log``."""
    lines = [line for line in head.split("\n") if line.strip()][:60]
    if not lines:
        return "log"
    if any(line.startswith("==> ") for line in lines):
        return "log"

    def share(pattern: str) -> float:
        return sum(bool(re.search(pattern, line)) for line in lines) / len(lines)

    if share(r"^[A-Z][A-Za-z0-9]+=") > 0.7:
        return "unit"
    if (
        share(r" kernel: |^(?:<\d+>)?\[ *\d+\.\d+\] |^\d{4}-\d\d-\d\dT[\d:,.]+[+-]\d\d:\d\d ") > 0.7
        and not share(r"\[\d+\]: |\bpid=\d+\)") > 0.5
    ):
        return "kernel"
    if (
        share(r'^\{"?.*"(?:MESSAGE|__CURSOR)"') > 0.7
        or share(r"^(?:[A-Z][a-z]{2} [ \d]\d|\d{4}-\d\d-\d\dT)\S* ?[\d:+Z]* [\w.-]+ \S+\[\d+\]: ") > 0.7
    ):
        return "journal"
    return "kernel" if name.startswith(("dmesg", "kern")) else "log"


def _open(path: str | Path) -> BinaryIO:
    if str(path) == "-":
        return sys.stdin.buffer
    with open(path, "rb") as probe:
        magic = probe.read(6)
    if magic.startswith(b"\x1f\x8b"):
        return cast(BinaryIO, gzip.open(path, "rb"))
    if magic.startswith(b"BZh"):
        return cast(BinaryIO, bz2.open(path, "rb"))
    if magic.startswith(b"\xfd7zXZ"):
        return cast(BinaryIO, lzma.open(path, "rb"))
    return open(path, "rb", buffering=0)


def _decoded(file: BinaryIO) -> Iterator[bytes]:
    """Chunks of UTF-8-like bytes; UTF-16 (a Windows redirect) is recognised by its mark."""
    chunk = file.read(CHUNK_BYTES)
    if chunk[:2] in (b"\xff\xfe", b"\xfe\xff"):
        decoder = codecs.getincrementaldecoder("utf-16")("replace")
        while chunk:
            yield decoder.decode(chunk).encode("utf-8", "replace")
            chunk = file.read(CHUNK_BYTES)
        return
    while chunk:
        yield chunk
        chunk = file.read(CHUNK_BYTES)


def segments_of(chunks: Iterator[bytes]) -> Iterator[tuple[bytes, int]]:
    """``(bytes, number of the first line)`` of what is kept, in order; one segment when everything fits."""
    whole: list[bytes] = []
    size = 0
    for chunk in chunks:
        whole.append(chunk)
        size += len(chunk)
        if size > WHOLE_BYTES:
            yield from _large(whole, chunks)
            return
    yield b"".join(whole), 1


def _large(start: list[bytes], rest: Iterator[bytes]) -> Iterator[tuple[bytes, int]]:
    """Head, windows, tail of a large log. Chunks are cut at line ends; a line longer than a chunk is cut where the chunk ends."""
    finder = _Finder()
    tail: list[tuple[bytes, int]] = []
    tail_size = 0
    windows: list[tuple[int, int, bytes, int]] = []
    head: bytes | None = None
    line, offset = 1, 0
    for piece in _at_line_ends(_joined(start, rest)):
        if head is None:
            cut = piece.rfind(b"\n", 0, HEAD_BYTES) + 1 or min(HEAD_BYTES, len(piece))
            head = piece[:cut]
        for begin, end in finder.windows(piece):
            if len(windows) < MOST_WINDOWS:
                windows.append((offset + begin, offset + end, piece[begin:end], line + piece.count(b"\n", 0, begin)))
        tail.append((piece, line))
        tail_size += len(piece)
        while len(tail) > 1 and tail_size - len(tail[0][0]) >= TAIL_BYTES:
            tail_size -= len(tail.pop(0)[0])
        line += piece.count(b"\n")
        offset += len(piece)
    assert head is not None
    tail_start = offset - tail_size
    yield head, 1
    reached = len(head)
    for begin, end, data, number in windows:
        if begin < reached or end > tail_start:
            continue
        yield data, number
        reached = end
    yield b"".join(data for data, _ in tail), tail[0][1]


def _joined(start: list[bytes], rest: Iterator[bytes]) -> Iterator[bytes]:
    while start:
        yield start.pop(0)
    yield from rest


def _at_line_ends(chunks: Iterator[bytes]) -> Iterator[bytes]:
    left = b""
    for chunk in chunks:
        data = left + chunk if left else chunk
        cut = data.rfind(b"\n") + 1
        if cut == 0:
            yield data
            left = b""
            continue
        yield data[:cut]
        left = data[cut:]
    if left:
        yield left


class _Finder:
    """Windows around needles; a needle found too often is no longer looked for."""

    def __init__(self) -> None:
        self._hits = dict.fromkeys(NEEDLES, 0)

    def windows(self, piece: bytes) -> list[tuple[int, int]]:
        spots: list[int] = []
        for needle, hits in self._hits.items():
            position = piece.find(needle) if hits < MOST_HITS else -1
            while position >= 0 and self._hits[needle] < MOST_HITS:
                self._hits[needle] += 1
                spots.append(position)
                position = piece.find(needle, position + WINDOW_AFTER)
        merged: list[tuple[int, int]] = []
        for spot in sorted(spots):
            begin = piece.rfind(b"\n", 0, max(0, spot - WINDOW_BEFORE)) + 1
            end = piece.find(b"\n", min(len(piece), spot + WINDOW_AFTER)) + 1 or len(piece)
            end = min(end, begin + 4 * (WINDOW_BEFORE + WINDOW_AFTER))
            if merged and begin <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((begin, end))
        return merged
