"""The raw record of a load, as the load process wrote it: bytes and their times, per request."""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = bytes | mmap.mmap
Numbers = NDArray[np.int64]

_HEADER = struct.Struct("<BxxxII")
_COUNTS = struct.Struct("<II")


def _none() -> Numbers:
    return np.empty(0, np.int64)


@dataclass
class RequestTrace:
    """What happened on the wire to one request. Times in ns of the monotonic clock."""

    number: int
    intended_ns: int = 0
    connect_ns: int = 0
    """When connecting began; 0 = the connection was there before."""
    sent_ns: int = 0
    """First ``send``; 0 = never sent."""
    end_ns: int = 0
    how: str = ""
    """One of the words of :data:`leadline.stream.loop.ENDS`; empty = the record breaks off (the load process was killed)."""
    detail: str = ""
    came_ns: Numbers = field(default_factory=_none)
    """When the kernel had the last packet of each read; when the poll returned that reported it, where the kernel gave no stamp."""
    since_ns: Numbers = field(default_factory=_none)
    """The first packet of each read came no earlier than this, nor than the request was sent."""
    lags_ns: Numbers = field(default_factory=_none)
    """From the kernel stamp until all that the poll reported had been read: at least the lag of the read itself. Of stamped reads."""
    read_end: Numbers = field(default_factory=_none)
    """Bytes read so far, after each read."""
    raw: bytes = b""


@dataclass
class Trace:
    """All requests of one load process."""

    requests: dict[int, RequestTrace]
    healths: list[dict[str, object]]
    """One of each load process that came to its end."""


def read(data: Bytes) -> Trace:
    """Decode a trace file; a torn last frame (a kill) is left out."""
    requests: dict[int, RequestTrace] = {}
    clocks: list[tuple[int, int]] = []
    healths: list[dict[str, object]] = []
    frames: list[_Reads] = []
    at = 0
    while at + _HEADER.size <= len(data):
        tag, number, size = _HEADER.unpack_from(data, at)
        at += _HEADER.size
        if at + size > len(data):
            break
        if tag == ord("C"):
            clocks.append(struct.unpack_from("<qq", data, at))
        elif tag == ord("H"):
            healths.append(json.loads(data[at : at + size]))
        elif tag == ord("R"):
            frames.append(_reads(data, at))
        else:
            request = requests.get(number)
            if request is None:
                request = requests[number] = RequestTrace(number)
            if tag == ord("S"):
                request.intended_ns, request.connect_ns, request.sent_ns = struct.unpack_from("<qqq", data, at)
            elif tag == ord("E"):
                (request.end_ns,) = struct.unpack_from("<q", data, at)
                request.how, _, request.detail = data[at + 8 : at + size].decode("utf-8", "replace").partition(": ")
        at += size
    if frames:
        _deal(requests, data, frames, clocks)
    return Trace(requests, healths)


class _Reads(NamedTuple):
    """The polls and the reads of one frame, in the order of time."""

    since_ns: Numbers
    """What a poll reports came no earlier than this."""
    polled_ns: Numbers
    """When it returned."""
    done_ns: Numbers
    """What each poll reported had been read by then."""
    reads: Numbers
    """Of each poll."""
    whose: NDArray[np.int32]
    kernel_ns: Numbers
    """Realtime clock; 0 = no stamp."""
    begin: Numbers
    """Where the bytes of each read stand in the file."""
    lengths: Numbers


def _reads(data: Bytes, at: int) -> _Reads:
    polls, reads = _COUNTS.unpack_from(data, at)
    since_ns = np.frombuffer(data, "<i8", polls, at := at + _COUNTS.size)
    polled_ns = np.frombuffer(data, "<i8", polls, at := at + 8 * polls)
    done_ns = np.frombuffer(data, "<i8", polls, at := at + 8 * polls)
    counts = np.frombuffer(data, "<u4", polls, at := at + 8 * polls).astype(np.int64)
    whose = np.frombuffer(data, "<i4", reads, at := at + 4 * polls)
    stamps = np.frombuffer(data, "<i8", 2 * reads, at := at + 4 * reads)
    lengths = np.frombuffer(data, "<u4", reads, at := at + 16 * reads).astype(np.int64)
    begin = at + 4 * reads + lengths.cumsum() - lengths
    return _Reads(since_ns, polled_ns, done_ns, counts, whose, stamps[::2] * 1_000_000_000 + stamps[1::2], begin, lengths)


def _deal(requests: dict[int, RequestTrace], data: Bytes, frames: Sequence[_Reads], clocks: Sequence[tuple[int, int]]) -> None:
    """Give each request its reads."""
    whole = _Reads(*(np.concatenate(parts) for parts in zip(*frames, strict=True)))
    poll = np.repeat(np.arange(len(whole.reads)), whole.reads)
    came_ns = np.where(whole.kernel_ns != 0, _monotonic(whole.kernel_ns, clocks), whole.polled_ns[poll])
    since_ns = np.minimum(whole.since_ns, _earliest(whole, came_ns))[poll]
    lags_ns = whole.done_ns[poll] - came_ns
    order = np.argsort(whole.whose, kind="stable")
    whose, begin, lengths = whole.whose[order], whole.begin[order], whole.lengths[order]
    came_ns, since_ns, lags_ns, stamped = came_ns[order], since_ns[order], lags_ns[order], (whole.kernel_ns != 0)[order]
    edges = np.flatnonzero(np.diff(whose, prepend=-2, append=-2))
    counts = np.diff(edges)
    behind = lengths.cumsum()
    read_end = behind - np.repeat((behind - lengths)[edges[:-1]], counts)
    starts, stops, all_stamped = begin.tolist(), (begin + lengths).tolist(), bool(stamped.all())
    with memoryview(data) as view:
        for number, first, count in zip(whose[edges[:-1]].tolist(), edges.tolist(), counts.tolist(), strict=False):
            if number < 0:
                continue
            request = requests.get(number)
            if request is None:
                request = requests[number] = RequestTrace(number)
            mine = slice(first, first + count)
            request.came_ns, request.read_end = came_ns[mine], read_end[mine]
            request.since_ns = np.maximum(since_ns[mine], request.sent_ns)
            request.lags_ns = lags_ns[mine] if all_stamped else lags_ns[mine][stamped[mine]]
            request.raw = b"".join([view[start:stop] for start, stop in zip(starts[mine], stops[mine], strict=True)])


def _earliest(whole: _Reads, came_ns: Numbers) -> Numbers:
    """For each poll the earliest stamp of what it reported: where that is before the load process woke up, it did not wake at once."""
    earliest = whole.polled_ns.copy()
    some = np.flatnonzero(whole.reads)
    earliest[some] = np.minimum.reduceat(came_ns, (whole.reads.cumsum() - whole.reads)[some])
    return earliest


def _monotonic(real_ns: Numbers, clocks: Sequence[tuple[int, int]]) -> Numbers:
    """Realtime stamps on the monotonic clock, by the samples of both (one a second), linear between them."""
    monotonic, real = np.array(clocks, np.int64).reshape(-1, 2).T
    if not len(real):
        return real_ns
    apart = monotonic - real
    moved = np.interp(real_ns - real[0], real - real[0], apart - apart[0])  # small numbers: a float would round whole clocks
    shifted: Numbers = real_ns + apart[0] + np.rint(moved).astype(np.int64)
    return shifted


def merge(traces: Sequence[Trace]) -> Trace:
    """The traces of several load processes that played parts of one plan (their request numbers differ)."""
    requests: dict[int, RequestTrace] = {}
    for trace in traces:
        requests.update(trace.requests)
    return Trace(dict(sorted(requests.items())), [health for trace in traces for health in trace.healths])
