"""HTTP/1.1 responses, read after the fact: h11 decides, a fast path saves it the common case.

h11 is strict and well kept but costs some 40 us a chunk.  :func:`plain_chunks` accepts only the plainest subset of chunked framing
(hexadecimal size, CRLF, data, CRLF; no extensions, no trailers); whatever it does not accept goes to h11 whole, and
a property test holds the two equal where both accept.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import h11

from .loop import WHOLE


class Piece(NamedTuple):
    """Body bytes and where they ended in the raw stream."""

    data: bytes
    end: int


class Regular(NamedTuple):
    """Neighbouring chunks that begin and end alike."""

    texts: list[bytes]
    """What each holds between the two."""
    ends: list[int]
    """Offset of the end of each in the raw stream, without its line end."""


class Response(NamedTuple):
    """What a server sent for one request."""

    status: int | None
    content_type: str
    pieces: list[Piece]
    complete: bool
    fault: str
    """What broke HTTP, empty when nothing did."""
    retry_after: str = ""
    location: str = ""
    """Where a redirection points to; it is not followed."""
    encoding: str = ""
    """What the body was packed with, which nobody asked for."""
    regular_at: int = -1
    """Where the body begins, if it ends as one does that has an event a chunk; ``pieces`` is then left to :func:`regular`."""


def response(raw: bytes, *, closed: bool, regular: bool = True) -> Response:
    """Read one response to a POST; ``closed`` = the connection ended behind ``raw``, ``regular`` = a body that looks so may be left unread."""
    head_end = raw.find(b"\r\n\r\n") + 4
    if head_end < 4 or raw.startswith((b"HTTP/1.1 1", b"HTTP/1.0 1")):  # interim responses are rare: h11 reads them
        return _slow(raw, closed)
    head = _head(raw[:head_end])
    if head is None:
        return _slow(raw, closed)
    if regular and raw.endswith(SEPARATOR + LAST_CHUNK):
        return head._replace(regular_at=head_end, complete=True)
    plain = plain_chunks(raw, head_end)
    if plain is None:
        return _slow(raw, closed)
    return head._replace(pieces=plain[0], complete=plain[1])


@functools.lru_cache(1024)  # a server repeats its heads, and h11 takes 100 us for one
def _head(raw: bytes) -> Response | None:
    """The head alone; ``None`` where the body is not chunked or h11 objects."""
    head = _slow(raw, False)
    return None if head.fault or not _chunked(raw) else head


def regular(raw: bytes, at: int, end: int, before: bytes, behind: bytes) -> Regular | None:
    """The chunks from ``at`` to ``end``, when each is its size, ``before``, a text and ``behind``, else ``None``. The last one ends so.

    Splitting at ``behind`` loses nothing, and every chunk size is then compared with what stands there, so that a chunk whose text contains
    it is not mistaken for two. Every step goes over all chunks in C.
    """
    if at == end:
        return Regular([], [])
    pieces = raw[at : end - len(behind)].split(behind)
    lengths = list(map(len, pieces))
    around = len(behind) - 2 * len(LINE_END)  # what belongs to a chunk but not to its piece, less what belongs to the piece alone
    for capital in (False, True):
        front = {length: _size(length + around, capital) + before for length in set(lengths)}
        fronts = list(map(front.__getitem__, lengths))
        texts = list(map(bytes.removeprefix, pieces, fronts))
        if sum(map(len, texts)) == sum(lengths) - sum(map(len, fronts)):  # each of them was there
            ends = itertools.accumulate([length + len(behind) for length in lengths], initial=at - len(LINE_END))
            return Regular(texts, list(ends)[1:])
    return None


LINE_END = b"\r\n"
SEPARATOR = WHOLE
LAST_CHUNK = b"0\r\n\r\n"
FIELD = LINE_END + b"data: "
"""What stands between the size of a chunk and its event."""


def chunk_size(digits: bytes) -> int:
    """A chunk size as it stands there; -1 for anything but up to eight hexadecimal digits."""
    return int(digits, 16) if 0 < len(digits) <= 8 and not digits.strip(b"0123456789abcdefABCDEF") else -1


@functools.lru_cache(4096)
def _size(length: int, capital: bool) -> bytes:
    """The size in front of a chunk that has ``length`` bytes together with it; more than fits into them where no size does."""
    for digits in range(1, 9):
        size = b"%x" % max(0, length - digits)
        if len(size) == digits:
            return size.upper() if capital else size
    return bytes(length + 1)


def _chunked(head: bytes) -> bool:
    return any(line.replace(b" ", b"").replace(b"\t", b"") == b"transfer-encoding:chunked" for line in head.lower().split(b"\r\n"))


def plain_chunks(raw: bytes, at: int) -> tuple[list[Piece], bool] | None:
    """The chunks from offset ``at``, and whether the last one was seen; ``None`` for anything but the plainest framing."""
    pieces: list[Piece] = []
    append, find = pieces.append, raw.find
    size_of = _SIZES
    total = len(raw)
    while True:
        line = find(b"\r\n", at)
        if line < 0:
            return (pieces, False) if _might_be_size(raw[at:]) else None
        text = raw[at:line]
        size = size_of.get(text, -1)
        if size < 0:
            size = chunk_size(text)
            if size < 0:
                return None
            size_of[text] = size
        begin = line + 2
        if size == 0:
            rest = raw[begin:]
            if rest == b"\r\n":
                return pieces, True
            return (pieces, False) if rest in (b"", b"\r") else None
        at = begin + size + 2
        if at > total:
            if begin + size < total and raw[begin + size : total] != b"\r":
                return None
            return pieces, False  # an unfinished chunk holds no finished event that could not wait
        if raw[at - 2 : at] != b"\r\n":
            return None
        append(Piece(raw[begin : at - 2], begin + size))


_SIZES: dict[bytes, int] = {}


def _might_be_size(text: bytes) -> bool:
    return len(text) <= 9 and (not text or text.removesuffix(b"\r").isalnum() or text == b"\r")


def _slow(raw: bytes, closed: bool) -> Response:
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    connection.send(h11.Request(method="POST", target="/", headers=[("host", "x"), ("content-length", "0")]))
    connection.send(h11.EndOfMessage())
    status: int | None = None
    content_type = retry_after = location = encoding = ""
    pieces: list[Piece] = []
    complete = False
    fault = ""
    # one byte range at a time would be exact but slow: feed up to each line end or chunk, so that `end` is exact enough to
    # find the read that carried it
    fed = 0
    try:
        for part in _parts(raw):
            connection.receive_data(part)
            fed += len(part)
            for event in _events(connection):
                if isinstance(event, h11.Response):
                    status = event.status_code
                    fields = dict(event.headers)
                    content_type = fields.get(b"content-type", b"").decode("latin-1")
                    retry_after = fields.get(b"retry-after", b"").decode("latin-1")
                    location = fields.get(b"location", b"").decode("latin-1")
                    encoding = fields.get(b"content-encoding", b"").decode("latin-1").lower()
                elif isinstance(event, h11.Data):
                    pieces.append(Piece(bytes(event.data), fed))
                elif isinstance(event, h11.EndOfMessage):
                    complete = True
            if complete:
                break
        if closed and not complete:
            connection.receive_data(b"")
            for event in _events(connection):
                complete = complete or isinstance(event, h11.EndOfMessage)
    except h11.RemoteProtocolError as error:
        fault = str(error)
    if "peer closed connection" in fault:
        fault = ""  # an early end, which the caller tells from how the connection ended
    return Response(status, content_type, pieces, complete, fault, retry_after, location, encoding)


def _parts(raw: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(raw):
        stop = raw.find(b"\n", at)
        stop = len(raw) if stop < 0 else stop + 1
        yield raw[at:stop]
        at = stop


def _events(connection: h11.Connection) -> Iterator[h11.Event]:
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA or event is h11.PAUSED:
            return
        assert not isinstance(event, type)
        if isinstance(event, h11.ConnectionClosed):
            return
        yield event
        if isinstance(event, h11.EndOfMessage):
            return
