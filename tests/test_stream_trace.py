"""What the load process writes is what is read back: its own writer against the reader."""

from __future__ import annotations

import array
import struct
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.stream import loop, trace

REAL = 1_700_000_000_000_000_000
"""The realtime clock when the monotonic one stood at 0."""


class Written(loop.Loop):
    """A load process whose trace stays in memory."""

    def __init__(self) -> None:
        self.frames = bytearray()
        self.got, self.whose = [], array.array("i")
        self.since_ns, self.polled_ns, self.read_ns = array.array("q"), array.array("q"), array.array("q")
        self.reads = array.array("I")

    def clock(self, monotonic_ns: int, apart_ns: int) -> None:
        self.frame("C", 0, struct.pack("<qq", monotonic_ns, monotonic_ns + apart_ns))

    def poll(self, at_ns: int, done_ns: int, reads: list[tuple[int, int, bytes]], since_ns: int = 0) -> None:
        for number, stamp_ns, data in reads:
            self.got.append((data, [(1, 35, struct.pack("<qq", *divmod(stamp_ns, 10**9)))] if stamp_ns else []))
            self.whose.append(number)
        self.since_ns.append(since_ns)
        self.polled_ns.append(at_ns)
        self.read_ns.append(done_ns)
        self.reads.append(len(reads))


a_read = st.tuples(st.integers(-1, 3), st.booleans(), st.integers(0, 900), st.binary(min_size=1, max_size=5))
polls = st.lists(st.tuples(st.lists(a_read, max_size=4), st.booleans()), max_size=12)


@settings(deadline=None, max_examples=200)
@given(polls)
def test_reads_are_dealt_to_their_requests(story: list[tuple[list[tuple[int, bool, int, bytes]], bool]]) -> None:
    written = Written()
    written.clock(0, REAL)
    expected: dict[int, list[tuple[int, int, int | None, bytes]]] = {}
    for number, (reads, cut) in enumerate(story, 1):
        at, done = number * 1000, number * 1000 + 300
        written.poll(at, done, [(whose, REAL + at - early if stamped else 0, data) for whose, stamped, early, data in reads], at - 500)
        earliest = min([at - 500, *(at - early for _, stamped, early, _ in reads if stamped)])
        for whose, stamped, early, data in reads:
            came = at - early if stamped else at
            expected.setdefault(whose, []).append((came, earliest, done - came if stamped else None, data))
        if cut:
            written.frame_reads()
    written.frame_reads()
    written.clock(100_000, REAL)
    found = trace.read(bytes(written.frames)).requests
    expected.pop(-1, None)
    assert found.keys() == expected.keys()
    for number, reads_of in expected.items():
        one = found[number]
        assert one.raw == b"".join(data for *_, data in reads_of)
        assert one.came_ns.tolist() == [came for came, *_ in reads_of]
        assert one.since_ns.tolist() == [since for _, since, *_ in reads_of]
        assert one.lags_ns.tolist() == [lag for *_, lag, _ in reads_of if lag is not None]
        assert one.read_end.tolist() == [sum(len(data) for *_, data in reads_of[: upto + 1]) for upto in range(len(reads_of))]


def test_a_realtime_clock_that_drifts_is_followed() -> None:
    """Slewed by 2 us between two samples: a stamp in the middle is off by 1 us from both."""
    written = Written()
    written.clock(0, REAL)
    written.clock(10**9, REAL + 2000)
    written.poll(6 * 10**8, 6 * 10**8, [(0, REAL + 5 * 10**8 + 1000, b"x"), (1, REAL - 7, b"y"), (2, REAL + 2 * 10**9 + 2000, b"z")])
    written.frame_reads()
    found = trace.read(bytes(written.frames)).requests
    assert [found[number].came_ns.tolist() for number in range(3)] == [[5 * 10**8], [-7], [2 * 10**9]]


def test_a_read_came_no_earlier_than_its_poll_says_nor_than_the_request() -> None:
    """Unless a stamp shows that the load process woke late."""
    written = Written()
    written.clock(0, REAL)
    written.frame("S", 0, struct.pack("<qqq", 0, 0, 95))
    written.poll(100, 101, [(0, REAL + 99, b"a"), (1, REAL + 100, b"b")], since_ns=90)
    written.poll(200, 201, [(0, REAL + 150, b"c"), (1, REAL + 199, b"d")], since_ns=190)
    written.frame_reads()
    found = trace.read(bytes(written.frames)).requests
    assert found[0].since_ns.tolist() == [95, 150]
    assert found[1].since_ns.tolist() == [90, 150]


def test_a_torn_last_frame_is_left_out() -> None:
    written = Written()
    written.clock(0, REAL)
    written.frame("S", 0, struct.pack("<qqq", 1, 2, 3))
    written.poll(10, 11, [(0, REAL + 9, b"whole")])
    written.frame_reads()
    whole = bytes(written.frames)
    written.poll(20, 21, [(0, REAL + 19, b"torn")])
    written.frame_reads()
    for size in range(len(whole), len(written.frames)):
        request: Any = trace.read(bytes(written.frames[:size])).requests[0]
        assert (request.raw, request.sent_ns, request.how) == (b"whole", 3, "")
