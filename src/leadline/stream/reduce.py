"""From the bytes and times of a request to what they mean: tokens, latencies, and how it ended. Pure."""

from __future__ import annotations

import bisect
import collections
import contextlib
import hashlib
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from ..records import Outcome, RequestResult
from . import sse, wire
from .trace import RequestTrace

_LATE_NS = 1_000_000
"""A read this late may hold events that came apart: the kernel keeps the last one's time only. An earlier read holds a burst."""
_ONE_CLOCK_NS = 1_000_000_000
"""Stamps within this share one sample of the two clocks."""


class Asked(NamedTuple):
    """What a request asked for, as far as reading its answer needs it."""

    prompt_id: str
    max_tokens: int
    ignore_eos: bool = False
    keep_text: bool = True


class Reading(NamedTuple):
    """One request reduced, with what the level's summary needs beside it. Times in ns of the monotonic clock."""

    result: RequestResult
    sent_ns: int
    last_ns: int
    """Time of the last token-bearing event; 0 when there was none."""
    lags_ns: list[int]
    """``read - kernel`` of every read that has a stamp."""
    reads: int
    """Reads that finished at least one token-bearing event."""
    merged: int
    """Reads that finished more than one: the times of all but the last are too late by at most the lag."""


_ABSENT = msgspec.Raw()
_NOTHING = (b"", b"null", b"[]", b'""')


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: msgspec.Raw = _ABSENT


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Timings(msgspec.Struct, gc=False):
    """llama.cpp's own account of a request (last chunk, or every chunk with ``timings_per_token``)."""

    cache_n: int | None = None
    prompt_n: int | None = None
    predicted_n: int | None = None
    draft_n: int | None = None
    draft_n_accepted: int | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    timings: _Timings | None = None
    error: msgspec.Raw = _ABSENT


_decoder = msgspec.json.Decoder(_Chunk)


class _Stream:
    """What the events of one response said."""

    def __init__(self) -> None:
        self.times_at: list[int] = []
        """Raw offset behind each token-bearing event."""
        self.counts: list[int] = []
        self.texts: list[str] = []
        self.usage: _Usage | None = None
        self.timings: _Timings | None = None
        self.finish: str | None = None
        self.done = False
        self.error = ""
        self.malformed = ""
        self.events = 0

    def take(self, data: bytes, end: int) -> None:
        self.events += 1
        if data == b"[DONE]":
            self.done = True
            return
        try:
            chunk = _decoder.decode(data)
        except msgspec.DecodeError as error:
            self.malformed = self.malformed or f"{error}: {data[:120].decode('utf-8', 'replace')}"
            return
        self.take_chunk(chunk, end)

    def take_all(self, events: list[bytes], ends: Sequence[int]) -> None:
        """The same as :meth:`take` on each, at a third of the cost. No event holds a line break."""
        last = len(events) - (events[-1] == b"[DONE]")
        lines = b"\n".join(events[:last])
        chunks: list[_Chunk] = []
        # where every line begins with { and ends with }, one that is no whole object cannot be made one by its neighbour
        if lines.startswith(b"{") and lines.endswith(b"}") and lines.count(b"}\n{") == last - 1:
            with contextlib.suppress(msgspec.DecodeError):
                chunks = _decoder.decode_lines(lines)
        if len(chunks) != last:
            for data, end in zip(events, ends, strict=True):
                self.take(data, end)
            return
        self.done = last < len(events)
        self.events += len(events)
        texts, times_at, counts = self.texts.append, self.times_at.append, self.counts.append
        for chunk, end in zip(chunks, ends, strict=False):
            if len(chunk.choices) == 1 and chunk.usage is None and chunk.timings is None and chunk.error is _ABSENT:
                choice = chunk.choices[0]
                delta = choice.delta
                text = choice.text if delta is None else delta.content
                if text and choice.finish_reason is None and (delta is None or delta.tool_calls is _ABSENT):
                    texts(text)
                    times_at(end)
                    counts(0)
                    continue
            self.take_chunk(chunk, end)

    def take_chunk(self, chunk: _Chunk, end: int) -> None:
        counted: int | None = None
        if chunk.usage is not None:
            self.usage = chunk.usage
            counted = chunk.usage.completion_tokens
        if chunk.timings is not None:
            self.timings = chunk.timings
            counted = chunk.timings.predicted_n if counted is None else counted
        if bytes(chunk.error) not in _NOTHING:
            self.error = self.error or bytes(chunk.error)[:300].decode("utf-8", "replace")
        bearing = False
        for choice in chunk.choices:
            self.finish = choice.finish_reason or self.finish
            delta = choice.delta
            if delta is None:
                text = choice.text
            else:
                text = delta.content or delta.reasoning_content or delta.reasoning or delta.refusal
                if bytes(delta.tool_calls) not in _NOTHING:
                    text = text or bytes(delta.tool_calls).decode("utf-8", "replace")
            if text:
                self.texts.append(text)
                bearing = True
        if bearing:
            self.times_at.append(end)
            self.counts.append(counted or 0)


def _read_events(pieces: list[wire.Piece], stream: _Stream) -> bytes:
    """Feed every event; returns bytes left over. Quick as long as each HTTP chunk is one ``data:`` line."""
    take = stream.take
    for index, (data, end) in enumerate(pieces):
        if data.startswith(b"data: ") and data.endswith(b"\n\n") and data.count(b"\n") == 2 and b"\r" not in data:
            take(data[6:-2], end)
        else:
            return _read_mixed(pieces[index:], stream)
    return b""


def _read_mixed(pieces: list[wire.Piece], stream: _Stream) -> bytes:
    body_ends: list[int] = []
    total = 0
    for piece in pieces:
        total += len(piece.data)
        body_ends.append(total)
    found, rest = sse.events(b"".join(piece.data for piece in pieces))
    for event in found:
        stream.take(event.data, pieces[bisect.bisect_left(body_ends, event.end)].end)
    return rest


def reduce(trace: RequestTrace, asked: Asked, *, start_ns: int, monotonic: Callable[[int], int]) -> Reading:
    """Read one request. ``start_ns`` is the level's zero, ``monotonic`` maps a kernel stamp to the monotonic clock."""
    raw = bytes(trace.raw)
    answer = wire.response(raw, closed=trace.how in ("eof", "reset", "complete")) if raw else None
    stream = _Stream()
    rest = b""
    streamed = answer is not None and answer.status == 200 and answer.content_type.split(";")[0].strip() == "text/event-stream"
    if answer is not None and streamed:
        if answer.events is not None:
            stream.take_all(answer.events, answer.ends)
        else:
            rest = _read_events(answer.pieces, stream)
    stamps, lags = _stamps(trace, monotonic)
    which = _reads_of(stream.times_at, trace.read_end)
    times = [stamps[index] for index in which]
    carried = collections.Counter(which)
    tokens, source = _tokens(stream)
    outcome, detail = _outcome(trace, answer, stream, rest, streamed, tokens, asked)
    text = "".join(stream.texts)
    said, timed = _said(stream), _timed(trace.sent_ns, times, stream.counts, tokens, _unknown(which, lags, len(trace.read_ns)))
    return Reading(
        result=RequestResult(
            prompt_id=asked.prompt_id,
            outcome=outcome,
            detail=detail,
            intended_s=(trace.intended_ns - start_ns) / 1e9 if trace.intended_ns else 0.0,
            sent_s=(trace.sent_ns - start_ns) / 1e9 if trace.sent_ns else 0.0,
            tokens_out=tokens,
            token_source=source,
            events=len(times),
            text_sha256=hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest() if text else "",
            text=text if asked.keep_text else "",
            tokens_in=said.tokens_in,
            tokens_cached=said.tokens_cached,
            drafted=said.drafted,
            accepted=said.accepted,
            ttft_ms=timed.ttft_ms,
            e2e_ms=timed.e2e_ms,
            tpot_ms=timed.tpot_ms,
            tokens_first=timed.tokens_first,
            step_tokens=timed.step_tokens,
            step_gap_ms=timed.step_gap_ms,
            gaps_unsure=timed.gaps_unsure,
        ),
        sent_ns=trace.sent_ns,
        last_ns=times[-1] if times else 0,
        lags_ns=lags,
        reads=len(carried),
        merged=len(carried) - list(carried.values()).count(1),
    )


def _reads_of(offsets: list[int], read_end: list[int]) -> list[int]:
    """The read that brought the byte before each offset (both ascending)."""
    which: list[int] = []
    read = 0
    for offset in offsets:
        while read_end[read] < offset:
            read += 1
        which.append(read)
    return which


def _stamps(trace: RequestTrace, monotonic: Callable[[int], int]) -> tuple[list[int], list[int]]:
    """When each read's bytes came (monotonic ns; the read's own time where the kernel gave no stamp), and the lags of the stamped."""
    stamped = [stamp for stamp in trace.kernel_ns if stamp]
    if not stamped:
        return trace.read_ns, []
    if len(stamped) == len(trace.kernel_ns):
        stamps = _shifted(stamped, monotonic)
        return stamps, [read - stamp for read, stamp in zip(trace.read_ns, stamps, strict=True)]
    stamps = [monotonic(stamp) if stamp else read for stamp, read in zip(trace.kernel_ns, trace.read_ns, strict=True)]
    return stamps, [read - stamp for read, stamp, raw in zip(trace.read_ns, stamps, trace.kernel_ns, strict=True) if raw]


def _shifted(stamps: list[int], monotonic: Callable[[int], int]) -> list[int]:
    """Each stamp on the monotonic clock; those within a second of one another share one look at the two clocks."""
    shifted: list[int] = []
    while len(shifted) < len(stamps):
        first = stamps[len(shifted)]
        shift = monotonic(first) - first
        stop = bisect.bisect_left(stamps, first + _ONE_CLOCK_NS, len(shifted) + 1)
        shifted += [stamp + shift for stamp in stamps[len(shifted) : stop]]
    return shifted


class _Said(NamedTuple):
    """What the server counted beside the output."""

    tokens_in: int | None
    tokens_cached: int | None
    drafted: int | None
    accepted: int | None


def _said(stream: _Stream) -> _Said:
    usage, timings = stream.usage, stream.timings
    tokens_in = usage.prompt_tokens if usage else None
    cached = usage.prompt_tokens_details.cached_tokens if usage and usage.prompt_tokens_details else None
    if timings is None:
        return _Said(tokens_in, cached, None, None)
    if tokens_in is None and timings.prompt_n is not None:
        tokens_in = timings.prompt_n + (timings.cache_n or 0)
    cached = timings.cache_n if timings.cache_n is not None else cached
    return _Said(tokens_in, cached, timings.draft_n, timings.draft_n_accepted)


class _Timed(NamedTuple):
    ttft_ms: float | None = None
    e2e_ms: float | None = None
    tpot_ms: float | None = None
    tokens_first: int = 1
    step_tokens: tuple[int, ...] = ()
    step_gap_ms: tuple[float, ...] = ()
    gaps_unsure: int = 0


def _unknown(which: list[int], lags: list[int], reads: int) -> set[int]:
    """Events whose own time is not known: not the last of their read, and the read was late (``which``: read of each event)."""
    if len(lags) != reads:
        return set()
    pairs = enumerate(itertools.pairwise(which))
    return {event for event, (read, following) in pairs if read == following and lags[read] > _LATE_NS}


def _timed(sent_ns: int, times: list[int], counts: list[int], tokens: int, unknown: set[int]) -> _Timed:
    if not times:
        return _Timed()
    first = counts[0] or 1
    later = tokens - first
    gaps = tuple((after - before) // 100 / 1e4 for before, after in itertools.pairwise(times))
    return _Timed(
        ttft_ms=(times[0] - sent_ns) / 1e6,
        e2e_ms=(times[-1] - sent_ns) / 1e6,
        tpot_ms=(times[-1] - times[0]) / 1e6 / later if later > 0 else None,
        tokens_first=first,
        step_tokens=(first, *(after - before for before, after in itertools.pairwise(counts))) if len(counts) > 1 and all(counts) else (),
        step_gap_ms=gaps,
        gaps_unsure=sum(bool(unknown & {event, event + 1}) for event in range(len(gaps))) if unknown else 0,
    )


def _tokens(stream: _Stream) -> tuple[int, str]:
    """Output tokens and where the count comes from: what the server says, before what we could count."""
    if stream.usage is not None and stream.usage.completion_tokens is not None:
        closing = stream.finish is not None or stream.done
        return stream.usage.completion_tokens, "usage" if closing else "continuous_usage"
    if stream.timings is not None and stream.timings.predicted_n is not None:
        return stream.timings.predicted_n, "timings"
    return (len(stream.times_at), "chunks") if stream.times_at else (0, "none")


_ENDS = {
    "reset": Outcome.RESET,
    "refused": Outcome.REFUSED,
    "stall": Outcome.STALL,
    "deadline": Outcome.DEADLINE,
    "aborted": Outcome.ABORTED,
    "": Outcome.ABORTED,
}
_STATUS = {429: Outcome.HTTP_429, 503: Outcome.HTTP_503}


def _outcome(
    trace: RequestTrace, answer: wire.Response | None, stream: _Stream, rest: bytes, streamed: bool, tokens: int, asked: Asked
) -> tuple[Outcome, str]:
    """How a request ended. What the server said comes before how the connection ended, for it says more."""
    if answer is not None and (answer.fault or trace.how == "malformed"):
        return Outcome.MALFORMED_HTTP, answer.fault or "chunk size is not hexadecimal"
    if answer is not None and answer.status is not None and answer.status != 200:
        body = b"".join(piece.data for piece in answer.pieces)[:300].decode("utf-8", "replace")
        retry = f" (retry-after {answer.retry_after})" if answer.retry_after else ""
        return _STATUS.get(answer.status, Outcome.HTTP_ERROR), f"HTTP {answer.status}{retry}: {body}"
    if stream.error:
        return Outcome.ERROR_EVENT, stream.error
    if trace.how in _ENDS:
        return _ENDS[trace.how], trace.detail or f"after {len(stream.times_at)} events"
    if stream.malformed:
        return Outcome.MALFORMED_SSE, stream.malformed
    if answer is None or not answer.complete:
        return Outcome.EARLY_EOF, f"connection closed after {len(trace.raw)} bytes, {len(stream.times_at)} events"
    if not streamed:
        return Outcome.MALFORMED_SSE, f"content type {answer.content_type!r} where text/event-stream was asked for"
    if rest.strip():
        return Outcome.MALFORMED_SSE, f"the stream ends inside an event: {rest[:120].decode('utf-8', 'replace')}"
    if stream.finish is None and not stream.done:
        return Outcome.EARLY_EOF, f"neither finish_reason nor [DONE] after {len(stream.times_at)} events"
    if not stream.times_at and tokens <= 0:
        return Outcome.NO_TOKENS, f"finish_reason {stream.finish}"
    if asked.ignore_eos and tokens < asked.max_tokens:
        return Outcome.EARLY_STOP, f"{tokens} of {asked.max_tokens} tokens, finish_reason {stream.finish}"
    return Outcome.OK, "" if stream.done else "no [DONE]"
