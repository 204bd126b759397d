"""The raw record of a load, as the load process wrote it: bytes and their two times, per request."""

from __future__ import annotations

import bisect
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]

_HEADER = struct.Struct("<BxxxII")


def _none() -> Numbers:
    return np.empty(0, np.int64)


@dataclass
class RequestTrace:
    """What happened on the wire to one request. Times in ns of the monotonic clock, kernel stamps of the realtime clock."""

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
    kernel_ns: Numbers = field(default_factory=_none)
    """Receive stamp of each read, 0 where the kernel gave none."""
    read_ns: Numbers = field(default_factory=_none)
    read_end: Numbers = field(default_factory=_none)
    """Bytes read so far, after each read."""
    raw: bytearray = field(default_factory=bytearray)


@dataclass
class Trace:
    """All requests of one load process."""

    requests: dict[int, RequestTrace]
    clocks: list[tuple[int, int]]
    healths: list[dict[str, object]]
    """One of each load process that came to its end."""

    def monotonic(self, real_ns: int) -> int:
        """A realtime stamp on the monotonic clock, by the nearest sample of both (one a second: slewing stays below 1 us)."""
        index = min(bisect.bisect_left(self.clocks, real_ns, key=lambda pair: pair[1]), len(self.clocks) - 1)
        monotonic_ns, sampled_ns = self.clocks[index]
        return real_ns - sampled_ns + monotonic_ns


def read(data: bytes) -> Trace:
    """Decode a trace file; a torn last frame (a kill) is left out."""
    requests: dict[int, RequestTrace] = {}
    clocks: list[tuple[int, int]] = []
    healths: list[dict[str, object]] = []
    at = 0
    while at + _HEADER.size <= len(data):
        tag, number, size = _HEADER.unpack_from(data, at)
        at += _HEADER.size
        if at + size > len(data):
            break
        body = memoryview(data)[at : at + size]
        at += size
        if tag == ord("C"):
            clocks.append(struct.unpack("<qq", body))
            continue
        if tag == ord("H"):
            healths.append(json.loads(bytes(body)))
            continue
        request = requests.get(number)
        if request is None:
            request = requests[number] = RequestTrace(number)
        if tag == ord("S"):
            request.intended_ns, request.connect_ns, request.sent_ns = struct.unpack("<qqq", body)
        elif tag == ord("R"):
            _reads(request, body)
        elif tag == ord("E"):
            (request.end_ns,) = struct.unpack_from("<q", body)
            request.how, _, request.detail = bytes(body[8:]).decode("utf-8", "replace").partition(": ")
    return Trace(requests, clocks, healths)


def _reads(request: RequestTrace, body: memoryview) -> None:
    (count,) = struct.unpack_from("<I", body)
    at = 4
    stamps = np.frombuffer(body, "<i8", 2 * count, at)
    kernel = stamps[::2] * 1_000_000_000 + stamps[1::2]
    at += 16 * count
    reads = np.frombuffer(body, "<i8", count, at)
    at += 8 * count
    ends = np.frombuffer(body, "<u4", count, at).cumsum(dtype=np.int64)
    at += 4 * count
    if len(request.read_ns):
        kernel, reads = np.concatenate((request.kernel_ns, kernel)), np.concatenate((request.read_ns, reads))
        ends = np.concatenate((request.read_end, ends + len(request.raw)))
    request.kernel_ns, request.read_ns, request.read_end = kernel, reads, ends
    request.raw += body[at:]


def merge(traces: Sequence[Trace]) -> Trace:
    """The traces of several load processes that played parts of one plan (their request numbers differ)."""
    requests: dict[int, RequestTrace] = {}
    for trace in traces:
        requests.update(trace.requests)
    clocks = sorted(pair for trace in traces for pair in trace.clocks)
    return Trace(dict(sorted(requests.items())), clocks, [health for trace in traces for health in trace.healths])
