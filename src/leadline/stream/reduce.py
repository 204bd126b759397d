"""From the bytes and times of a request to what they mean: tokens, latencies, and how it ended. Pure."""

from __future__ import annotations

import bisect
import contextlib
import hashlib
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..records import Outcome, RequestResult
from . import sse, wire
from .loop import READ_BYTES
from .trace import Numbers, RequestTrace

_BURST_NS = 1_000_000
"""What came within this came together. A read that took longer to come may hold events that came apart, and the kernel keeps the time of
the last one only: those before it are estimated."""


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
    lags_ns: Numbers
    """``read - kernel`` of every read that has a stamp."""
    total: int
    """Reads."""
    reads: int
    """Reads that finished at least one token-bearing event."""
    merged: int
    """Reads that finished more than one: the times of all but the last are not the kernel's."""


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
    object: str | None = None
    message: msgspec.Raw = _ABSENT
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    timings: _Timings | None = None
    error: msgspec.Raw = _ABSENT


_decoder = msgspec.json.Decoder(_Chunk)
_string = msgspec.json.Decoder(str)
_strings = msgspec.json.Decoder(list[str])
_CONTENT = re.compile(rb'"content": ?"')


def _text(chunk: _Chunk) -> str:
    """The text of a chunk that says nothing else; empty when it does, or holds none."""
    if not chunk.choices or len(chunk.choices) > 1 or chunk.usage is not None or chunk.timings is not None or chunk.error is not _ABSENT:
        return ""
    choice = chunk.choices[0]
    delta = choice.delta
    if choice.finish_reason is not None or (delta is not None and delta.tool_calls is not _ABSENT):
        return ""
    return (choice.text if delta is None else delta.content) or ""


class Run(NamedTuple):
    """Neighbouring chunks that differ in nothing but the text of their events."""

    begin: int
    """Where in the raw stream the first begins."""
    end: int
    """One behind the last."""
    events: wire.Regular
    """Texts as they stand in the JSON; none is empty."""


def run_of(raw: bytes, at: int, end: int) -> Run | None:
    """The run around the middle of the chunks from ``at`` to ``end``, read without parsing the JSON of each.

    A stream repeats everything but the text: what stands before and behind the text of one parsed event is looked for around all of them,
    and every chunk size must be that of the text it leaves. ``None`` where it cannot be said for certain that nothing else differs.
    """
    middle = raw.rfind(wire.SEPARATOR, at, (at + end) // 2)
    line = at if middle < 0 else middle + len(wire.SEPARATOR)
    _, _, sample = raw[line : raw.find(wire.SEPARATOR, line)].partition(wire.FIELD)
    found = _CONTENT.search(sample)
    if found is None or _broken(sample):
        return None
    head, tail = sample[: found.end()], sample[sample.find(b'"', found.end()) :]
    try:
        plain = _text(_decoder.decode(sample)).encode() == sample[len(head) : len(sample) - len(tail)]
    except msgspec.DecodeError:
        return None
    if not plain or b'"content"' in tail:
        return None
    before, behind = wire.FIELD + head, tail + wire.SEPARATOR
    begin = raw.rfind(b"\n", at, raw.find(before, at, end)) + 1 or at
    end = raw.rfind(behind, at, end) + len(behind)
    events = wire.regular(raw, begin, end, before, behind)
    return Run(begin, end, events) if events is not None and b"" not in events.texts else None


def _said_by(texts: list[bytes]) -> str | None:
    """What texts of JSON say one after the other; ``None`` where one of them is no text of JSON."""
    together = b"".join(texts)
    if together.isascii() and b"\\" not in together and b'"' not in together:
        said = together.decode()
        if said.isprintable():
            return said
    quoted = b'"' in together  # then one text could make up for what another lacks
    try:
        each = [_string.decode(b'"' + text + b'"') for text in texts] if quoted else _strings.decode(b'["' + b'","'.join(texts) + b'"]')
    except msgspec.DecodeError:
        return None
    return "".join(each) if len(each) == len(texts) else None


def _broken(event: bytes) -> bool:
    return b"\n" in event or b"\r" in event


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

    def take_regular(self, raw: bytes, at: int) -> bool:
        """The same as :meth:`take` on every event from ``at`` on, at a fraction of the cost.

        False, and nothing taken, unless each is one line and a chunk of its own.
        """
        end = len(raw) - len(wire.LAST_CHUNK)
        run = run_of(raw, at, end)
        said = _said_by(run.events.texts) if run is not None else None
        first, last = (run.begin, run.end) if run is not None and said is not None else (at, at)
        before, behind = (wire.regular(raw, *place, wire.FIELD, wire.SEPARATOR) for place in ((at, first), (last, end)))
        if before is None or behind is None or any(map(_broken, before.texts)) or any(map(_broken, behind.texts)):
            return False
        self.take_lines(*before)
        if run is not None and said is not None:
            count = len(run.events.texts)
            self.events += count
            self.texts.append(said)
            self.times_at += run.events.ends
            self.counts += [0] * count
        self.take_lines(*behind)
        return True

    def take_lines(self, events: Sequence[bytes], ends: Sequence[int]) -> None:
        """The same, for events that differ in more than their text."""
        if not events:
            return
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
        self.done = self.done or last < len(events)
        self.events += len(events)
        texts, times_at, counts = self.texts.append, self.times_at.append, self.counts.append
        for chunk, end in zip(chunks, ends, strict=False):
            text = _text(chunk)
            if text:
                texts(text)
                times_at(end)
                counts(0)
            else:
                self.take_chunk(chunk, end)

    def fail(self, said: bytes) -> None:
        """The server said that it failed; what it said first counts."""
        self.error = self.error or said[:300].decode("utf-8", "replace")

    def take_chunk(self, chunk: _Chunk, end: int) -> None:
        counted: int | None = None
        if chunk.usage is not None:
            self.usage = chunk.usage
            counted = chunk.usage.completion_tokens
        if chunk.timings is not None:
            self.timings = chunk.timings
            counted = chunk.timings.predicted_n if counted is None else counted
        if bytes(chunk.error) not in _NOTHING:
            self.fail(bytes(chunk.error))
        elif chunk.object == "error":
            self.fail(bytes(chunk.message) or b"an error object without a message")
        bearing = False
        for choice in chunk.choices or ():
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
        if event.name == "error":
            stream.fail(event.data)
            continue
        index = bisect.bisect_left(body_ends, event.end)
        stream.take(event.data, pieces[index].end - (body_ends[index] - event.end))
    return rest


class _Answered(NamedTuple):
    """A response as it was read, before its events have times."""

    answer: wire.Response | None
    stream: _Stream
    streamed: bool
    rest: bytes
    """What was left behind the last event."""


def reduce(traces: Sequence[RequestTrace], asked: Sequence[Asked], *, start_ns: int) -> list[Reading]:
    """Read the requests of a block; ``start_ns`` is its zero. What needs no parsing is reckoned for all of them at once."""
    answers = [_answered(trace) for trace in traces]
    clocked = _clocked(traces, [answered.stream.times_at for answered in answers])
    return [_reading(*each, start_ns) for each in zip(traces, asked, answers, clocked, strict=True)]


def _answered(trace: RequestTrace) -> _Answered:
    raw, stream, rest = trace.raw, _Stream(), b""
    answer = wire.response(raw, closed=trace.how in ("eof", "reset", "complete")) if raw else None
    streamed = answer is not None and answer.status == 200 and answer.content_type.split(";")[0].strip().lower() == "text/event-stream"
    if answer is not None and answer.regular_at >= 0 and not (streamed and stream.take_regular(raw, answer.regular_at)):
        answer = wire.response(raw, closed=True, regular=False)
    if answer is not None and answer.regular_at < 0 and streamed:
        rest = _read_events(answer.pieces, stream)
    return _Answered(answer, stream, streamed, rest)


class _Clocked(NamedTuple):
    """When the token-bearing events of one request came (monotonic ns)."""

    began_ns: int = 0
    ended_ns: int = 0
    gaps_ms: tuple[float, ...] = ()
    gaps_unsure: int = 0
    reads: int = 0
    merged: int = 0


def _clocked(traces: Sequence[RequestTrace], offsets: Sequence[Sequence[int]]) -> list[_Clocked]:
    """The times of events whose ends stand at ``offsets`` of each request's bytes.

    An event came when the read that brought its last byte did. Where one read brought several and took longer to come than a burst, the
    time of the last is the kernel's and the others are put at even steps from the event before, though never earlier than the read can
    have come (``since_ns``): they are off by at most what lies between that and the stamp. Those that came with the first event of a
    request keep the stamp, so that no time to first token is told shorter than it was.
    """
    counts = np.array([len(ends) for ends in offsets], np.int64)
    bases = np.cumsum([0, *(len(trace.raw) for trace in traces)][:-1])
    total = int(counts.sum())
    if not total:
        return [_Clocked()] * len(traces)
    ends = np.fromiter(itertools.chain.from_iterable(offsets), np.int64, total) + np.repeat(bases, counts)
    read_end = np.concatenate([trace.read_end + base for trace, base in zip(traces, bases.tolist(), strict=True)])
    came_ns = np.concatenate([trace.came_ns for trace in traces])
    which = np.searchsorted(read_end, ends)  # the read that brought the byte before each offset
    times = came_ns[which]
    group, full = _joined(read_end, np.cumsum([len(trace.read_end) for trace in traces]))
    shared = np.concatenate((np.diff(group[which]) == 0, [False]))
    behind = np.cumsum(counts)
    first = behind - counts
    unknown = np.zeros(total, bool)
    reads = _sums(~shared, first, behind)
    if shared.any() or full.any():
        since_ns = np.concatenate([trace.since_ns for trace in traces])[which]
        unknown |= full[which] & (times - since_ns > _BURST_NS)
        spans = np.where(counts > 0, times[np.minimum(behind, total) - 1] - times[np.minimum(first, total - 1)], 0)
        usual_ns = np.repeat(spans // np.maximum(1, np.array(reads) - 1), counts)
        _estimate(times, unknown, _Shared(shared, since_ns, usual_ns, set(first.tolist())))
    unsure = _sums(unknown | np.concatenate(([False], unknown[:-1])), first + 1, behind)
    merged = _sums(~shared & np.concatenate(([False], shared[:-1])), first, behind)
    gaps = (np.diff(times) // 100 / 1e4).tolist()
    found = []
    for index, (begin, end) in enumerate(zip(first.tolist(), behind.tolist(), strict=True)):
        if begin == end:
            found.append(_Clocked())
            continue
        began_ns, ended_ns = int(times[begin]), int(times[end - 1])
        found.append(_Clocked(began_ns, ended_ns, tuple(gaps[begin : end - 1]), unsure[index], reads[index], merged[index]))
    return found


def _joined(read_end: Numbers, behind: Numbers) -> tuple[Numbers, NDArray[np.bool_]]:
    """Reads numbered so that those share a number which went on in the next because the buffer was full; and which reads filled it.

    The kernel joins packets that wait and keeps the newest stamp: what such a read holds may have come earlier than it says.
    ``behind``: one behind the last read of each request.
    """
    full = np.diff(read_end, prepend=0) == READ_BYTES
    goes_on = np.concatenate(([False], full[:-1]))
    goes_on[behind[behind < len(goes_on)]] = False
    group: Numbers = np.cumsum(~goes_on)
    return group, full


class _Shared(NamedTuple):
    """What is known of events that may not have come alone; one entry an event, but for ``firsts``."""

    shared: NDArray[np.bool_]
    """The next one came in the same read."""
    since_ns: Numbers
    usual_ns: Numbers
    """From one read to the next in this request, on average."""
    firsts: set[int]
    """The first of each request."""


def _estimate(times: Numbers, unknown: NDArray[np.bool_], known: _Shared) -> None:
    """Put events that came in one read, but not in one burst, where they may have come; mark those. Changes ``times``, ``unknown``.

    Marked but left are those that look like a burst after an unusual pause: it may have been the load process that paused.
    """
    for begin, end in _runs(np.flatnonzero(known.shared).tolist()):  # end: the last of the read, whose time is known
        earliest, last = int(known.since_ns[begin]), int(times[end])
        apart, at_first = last - earliest > _BURST_NS, begin in known.firsts
        before = last if at_first else int(times[begin - 1])
        unknown[begin:end] |= apart or last - before > max(_BURST_NS, 1.5 * int(known.usual_ns[begin]))
        if not apart or at_first:
            continue
        step = (last - before) / (end - begin + 1)
        for number, event in enumerate(range(begin, end), 1):
            times[event] = min(last, max(earliest, round(before + step * number)))


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Runs of neighbouring ``numbers``: the first of each, and one behind its last."""
    at = 0
    for stop, (number, following) in enumerate(itertools.zip_longest(numbers, numbers[1:], fillvalue=-1), 1):
        if following != number + 1:
            yield numbers[at], number + 1
            at = stop


def _sums(marks: NDArray[np.bool_], begin: Numbers, end: Numbers) -> list[int]:
    """How many of ``marks`` are set from each ``begin`` to its ``end``."""
    total = np.concatenate(([0], np.cumsum(marks)))
    found: list[int] = (total[end] - total[np.minimum(begin, end)]).tolist()
    return found


def _reading(trace: RequestTrace, asked: Asked, answered: _Answered, clocked: _Clocked, start_ns: int) -> Reading:
    stream = answered.stream
    tokens, source = _tokens(stream)
    outcome, detail = _outcome(trace, answered, tokens, asked)
    text = "".join(stream.texts)
    said, timed = _said(stream), _timed(trace.sent_ns, clocked, stream.counts, tokens)
    return Reading(
        result=RequestResult(
            prompt_id=asked.prompt_id,
            outcome=outcome,
            detail=detail,
            intended_s=(trace.intended_ns - start_ns) / 1e9 if trace.intended_ns else 0.0,
            sent_s=(trace.sent_ns - start_ns) / 1e9 if trace.sent_ns else 0.0,
            tokens_out=tokens,
            token_source=source,
            events=len(stream.times_at),
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
            step_gap_ms=clocked.gaps_ms,
            gaps_unsure=clocked.gaps_unsure,
        ),
        sent_ns=trace.sent_ns,
        last_ns=clocked.ended_ns,
        lags_ns=trace.lags_ns,
        total=len(trace.came_ns),
        reads=clocked.reads,
        merged=clocked.merged,
    )


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


def _timed(sent_ns: int, clocked: _Clocked, counts: list[int], tokens: int) -> _Timed:
    if not counts:
        return _Timed()
    first = max(1, counts[0])
    counted = len(counts) > 1 and counts[0] > 0 and all(before <= after for before, after in itertools.pairwise(counts))
    later = tokens - first
    return _Timed(
        ttft_ms=(clocked.began_ns - sent_ns) / 1e6,
        e2e_ms=(clocked.ended_ns - sent_ns) / 1e6,
        tpot_ms=(clocked.ended_ns - clocked.began_ns) / 1e6 / later if later > 0 else None,
        tokens_first=first,
        step_tokens=(first, *(after - before for before, after in itertools.pairwise(counts))) if counted else (),
    )


def _tokens(stream: _Stream) -> tuple[int, str]:
    """Output tokens and where the count comes from: what the server says, before what we could count.

    A count below one beside text that came says nothing (proxies fill in zeros).
    """
    least = 1 if stream.times_at else 0
    if stream.usage is not None and stream.usage.completion_tokens is not None and stream.usage.completion_tokens >= least:
        closing = stream.finish is not None or stream.done
        return stream.usage.completion_tokens, "usage" if closing else "continuous_usage"
    if stream.timings is not None and stream.timings.predicted_n is not None and stream.timings.predicted_n >= least:
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
_CUT = ("abort", "error")
"""Values of ``finish_reason`` by which vLLM (``v1/engine/__init__.py``) and SGLang say that they broke a request off."""


def _body(answer: wire.Response) -> str:
    """How it begins."""
    return b"".join(piece.data for piece in answer.pieces)[:300].decode("utf-8", "replace")


def _outcome(trace: RequestTrace, answered: _Answered, tokens: int, asked: Asked) -> tuple[Outcome, str]:
    """How a request ended. What the server said comes before how the connection ended, for it says more."""
    answer, stream, streamed, rest = answered
    if answer is not None and (answer.fault or trace.how == "malformed"):
        return Outcome.MALFORMED_HTTP, answer.fault or "chunk size is not hexadecimal"
    if answer is not None and answer.status is not None and answer.status != 200:
        more = f" (retry-after {answer.retry_after})" if answer.retry_after else ""
        more += f" to {answer.location}, which is not followed" if answer.location else ""
        return _STATUS.get(answer.status, Outcome.HTTP_ERROR), f"HTTP {answer.status}{more}: {_body(answer)}"
    if answer is not None and answer.encoding not in ("", "identity"):
        return Outcome.MALFORMED_SSE, f"content encoding {answer.encoding!r} where none was asked for"
    if stream.error:
        return Outcome.ERROR_EVENT, stream.error
    if stream.finish in _CUT:
        return Outcome.ERROR_EVENT, f"finish_reason {stream.finish} after {len(stream.times_at)} events"
    if trace.how in _ENDS:
        return _ENDS[trace.how], trace.detail or f"after {len(stream.times_at)} events"
    if stream.malformed:
        return Outcome.MALFORMED_SSE, stream.malformed
    if answer is None or not answer.complete:
        return Outcome.EARLY_EOF, f"connection closed after {len(trace.raw)} bytes, {len(stream.times_at)} events"
    if not streamed:
        return Outcome.MALFORMED_SSE, f"content type {answer.content_type!r} where text/event-stream was asked for: {_body(answer)}"
    if rest.strip():
        return Outcome.MALFORMED_SSE, f"the stream ends inside an event: {rest[:120].decode('utf-8', 'replace')}"
    if stream.finish is None and not stream.done:
        return Outcome.EARLY_EOF, f"neither finish_reason nor [DONE] after {len(stream.times_at)} events"
    if not stream.times_at and tokens <= 0:
        return Outcome.NO_TOKENS, f"finish_reason {stream.finish}"
    if asked.ignore_eos and tokens < asked.max_tokens:
        return Outcome.EARLY_STOP, f"{tokens} of {asked.max_tokens} tokens, finish_reason {stream.finish}"
    return Outcome.OK, "" if stream.done else "no [DONE]"
