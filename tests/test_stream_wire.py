"""HTTP and SSE as pure functions: the fast paths agree with the strict ones, and nothing malformed passes."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.errors import BadTarget
from leadline.records import Outcome
from leadline.stream import Plan, Shot, loop, plan, reduce, sse, wire
from leadline.stream.trace import RequestTrace

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def delta(text: str, **more: object) -> bytes:
    return json.dumps({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}], **more}, ensure_ascii=False).encode()


def answered(raw: bytes, how: str = "complete", **asked: object) -> reduce.Reading:
    trace = RequestTrace(0, sent_ns=1, how=how, came_ns=np.array([2]), since_ns=np.array([1]), read_end=np.array([len(raw)]), raw=raw)
    return reduce.reduce([trace], [reduce.Asked("p", 9, **asked)], start_ns=0)[0]  # type: ignore[arg-type]


def body(events: list[bytes]) -> bytes:
    return HEAD + b"".join(chunk(b"data: " + event + b"\n\n") for event in events) + END


def said(stream: reduce._Stream) -> dict[str, object]:
    return {**vars(stream), "texts": "".join(stream.texts)}


def read_alike(events: list[bytes]) -> None:
    """In bulk and one by one."""
    raw = body(events)
    bulk, plain = reduce._Stream(), reduce._Stream()
    assert bulk.take_regular(raw, len(HEAD))
    pieces, _ = wire.plain_chunks(raw, len(HEAD)) or ([], False)
    for event, piece in zip(events, pieces, strict=True):
        plain.take(event, piece.end)
    assert said(bulk) == said(plain)


# -- SSE ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_fields_comments_and_line_ends(end: str) -> None:
    lines = [": ping", "", "event: x", "data: a", "data:b", "data", "id: 7", "", "retry: 5", "", "data: late"]
    found, rest = sse.events(end.join(lines).encode())
    assert [(event.data, event.name) for event in found] == [(b"a\nb\n", "x")]
    assert b"data: late" in rest


def test_a_byte_order_mark_is_no_field() -> None:
    assert [event.data for event in sse.events(b"\xef\xbb\xbfdata: a\n\n")[0]] == [b"a"]


data_lines = st.lists(
    st.text(alphabet=st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=12), min_size=1, max_size=3
)


@settings(deadline=None, max_examples=100)
@given(st.lists(data_lines, max_size=6), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_what_is_written_is_read(events: list[list[str]], end: bytes) -> None:
    stream = b"".join(b"".join(b"data: " + line.encode() + end for line in lines) + end for lines in events)
    found, rest = sse.events(stream)
    assert [event.data.decode() for event in found] == ["\n".join(lines) for lines in events]
    assert rest == b""
    assert not found or found[-1].end == len(stream)


# -- HTTP --------------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=150)
@given(st.lists(st.binary(min_size=1, max_size=40), max_size=8), st.integers(0, 400))
def test_the_fast_framing_agrees_with_h11(pieces: list[bytes], cut: int) -> None:
    raw = (HEAD + b"".join(map(chunk, pieces)) + END)[: len(HEAD) + cut]
    fast = wire.response(raw, closed=False, regular=False)
    slow = wire._slow(raw, False)
    assert (fast.status, fast.complete, fast.fault) == (slow.status, slow.complete, slow.fault)
    fast_body = b"".join(piece.data for piece in fast.pieces)
    assert b"".join(piece.data for piece in slow.pieces).startswith(fast_body)
    if fast.complete:
        assert fast_body == b"".join(pieces)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=10), min_size=1, max_size=6), st.booleans(), st.booleans()
)
def test_the_bulk_reader_agrees_with_the_plain_one(texts: list[str], done: bool, capital: bool) -> None:
    events = [delta(text) for text in texts] + [b"[DONE]"] * done
    bodies = [b"data: " + event + b"\n\n" for event in events]
    raw = HEAD + b"".join((b"%X\r\n%s\r\n" if capital else b"%x\r\n%s\r\n") % (len(body), body) for body in bodies) + END
    regular = wire.regular(raw, len(HEAD), len(raw) - len(END), wire.FIELD, wire.SEPARATOR)
    assert regular is not None
    assert regular.texts == events
    pieces, complete = wire.plain_chunks(raw, len(HEAD)) or ([], False)
    assert complete
    assert [piece.end for piece in pieces] == regular.ends
    bulk, plain = reduce._Stream(), reduce._Stream()
    assert bulk.take_regular(raw, len(HEAD))
    for event, end in zip(events, regular.ends, strict=True):
        plain.take(event, end)
    assert said(bulk) == said(plain)


pieces_of_text = st.text(alphabet='ab"\\n{}:,é\x00', max_size=4) | st.sampled_from(['","', '"content":"', "data: "])
plain_events = st.builds(lambda text, spaced: delta(text) if spaced else delta(text).replace(b'": ', b'":'), pieces_of_text, st.booleans())
other_events = st.sampled_from(
    [
        b'{"choices":[{"delta":{"content":"x"},"finish_reason":"stop"}]}',
        b'{"choices":[{"delta":{"content":"x","tool_calls":[{"n":1}]}}]}',
        b'{"choices":[{"delta":{"content":"x"},"logprobs":{"content":[{"token":"y"}]}}]}',
        b'{"meta":{"content":"m"},"choices":[{"delta":{"content":"m"}}]}',
        b'{"choices":[],"usage":{"completion_tokens":3}}',
        b'{"error":{"message":"no"}}',
        b'{"choices":[{"delta":{"content":"a\\"}}]}',
        b'{"choices":[{"delta":{"content":"',
        b'{"choices":[{"delta":{"content":"\xff"}}]}',
        b"[DONE]",
    ]
)


@settings(deadline=None, max_examples=400)
@given(st.lists(plain_events | other_events, min_size=1, max_size=8) | st.lists(other_events, min_size=1, max_size=1).map(lambda e: e * 4))
def test_a_run_of_like_events_is_read_as_each_of_them_would_be(events: list[bytes]) -> None:
    read_alike(events)


@settings(deadline=None, max_examples=600)
@given(
    st.lists(plain_events, min_size=2, max_size=7),
    st.lists(st.tuples(st.integers(0, 900), st.integers(0, 60), st.integers(0, 900), st.integers(0, 60)), min_size=1, max_size=3),
    st.sampled_from([b"", b"\n", b"\r\n", b'"', b"0", b"a", b"\n\n\r\n", b"\\"]),
)
def test_a_damaged_stream_is_never_read_in_bulk_as_anything_else(
    events: list[bytes], moves: list[tuple[int, int, int, int]], more: bytes
) -> None:
    """Parts of a stream cut out, and put elsewhere: read in bulk as the strict reader reads it, or not at all."""
    raw = body(events)
    for cut, length, place, kept in moves:
        taken = raw[len(HEAD) + cut : len(HEAD) + cut + length]
        rest = raw[: len(HEAD) + cut] + raw[len(HEAD) + cut + length :]
        raw = rest[: len(HEAD) + place] + taken[:kept] + more + rest[len(HEAD) + place :]
    bulk, strict = reduce._Stream(), reduce._Stream()
    if not raw.endswith(wire.SEPARATOR + wire.LAST_CHUNK) or not bulk.take_regular(raw, len(HEAD)):
        return
    pieces, complete = wire.plain_chunks(raw, len(HEAD)) or ([], False)
    assert complete
    assert reduce._read_events(pieces, strict) == b""
    assert said(bulk) == said(strict)


def test_most_of_a_usual_stream_is_one_run() -> None:
    first, last = (
        [b'{"choices":[{"delta":{"role":"assistant","content":""}}]}'],
        [b'{"choices":[{"delta":{},"finish_reason":"stop"}]}', b"[DONE]"],
    )
    for texts in (["a", "héllo", " x", "b", "."], ["\n", "\\", " x", 'say "', "\t"]):
        raw = body([*first, *(delta(text) for text in texts), *last])
        run = reduce.run_of(raw, len(HEAD), len(raw) - len(END))
        assert run is not None
        assert reduce._said_by(run.events.texts) == "".join(texts)
        assert len(run.events.texts) == len(texts)
    assert reduce._said_by([b"x\\", b'y","z']) is None, "two wrongs make no right"
    assert reduce.run_of(body([delta("a"), delta(""), delta("b"), delta("c")]), len(HEAD), len(raw) - len(END)) is None, (
        "left to the parser"
    )


@pytest.mark.parametrize(
    "events",
    [
        [b'{"choices": []}{"choices": []}', b'{"choices": ['],
        [b'{"choices": [{}', b"{}]}"],
        [b'{"a": "}', b'{"}'],
        [b"[DONE]", delta("x")],
        [b"{}", b"{"],
    ],
)
def test_broken_events_do_not_mend_each_other(events: list[bytes]) -> None:
    read_alike(events)


@pytest.mark.parametrize("instead", [b"", b"\n", b"\r\n", b"\0", b"11"])
def test_a_length_that_no_chunk_can_have_is_not_read_in_bulk(instead: bytes) -> None:
    """One digit can announce 15 bytes, two digits 16 or more: no chunk has 17 bytes together with its size."""
    odd = (instead + wire.FIELD + b"{}").ljust(17)
    raw = HEAD + chunk(b"data: {}\n\n") * 3 + odd + wire.SEPARATOR + END
    assert not reduce._Stream().take_regular(raw, len(HEAD))


def test_a_chunk_that_has_no_choices_may_say_so_in_every_way() -> None:
    for said_of_none in (b'"choices":[],', b'"choices":null,', b""):
        stream = reduce._Stream()
        stream.take(b"{" + said_of_none + b'"usage":{"completion_tokens":3}}', 10)
        assert (stream.malformed, stream.usage and stream.usage.completion_tokens) == ("", 3)


def test_text_that_looks_like_framing_is_text() -> None:
    inner = "\n\n\r\n5\r\ndata: {\r\n0\r\n\r\n"
    raw = HEAD + chunk(b"data: " + delta(inner) + b"\n\n") + chunk(b"data: [DONE]\n\n") + END
    assert answered(raw).result.text == inner


@pytest.mark.parametrize(
    ("raw", "outcome"),
    [
        (HEAD + b"zz\r\nabc\r\n" + END, Outcome.MALFORMED_HTTP),
        (b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n", Outcome.MALFORMED_HTTP),
        (b"nonsense\r\n\r\n", Outcome.MALFORMED_HTTP),
        (HEAD + chunk(b"data: nope\n\n") + END, Outcome.MALFORMED_SSE),
        (HEAD + chunk(b'data: {"choices": 5}\n\n') + END, Outcome.MALFORMED_SSE),
        (HEAD + chunk(b"data: " + delta("x")) + END, Outcome.MALFORMED_SSE),
        (HEAD + chunk(b"data: " + delta("x") + b"\n\n") + END, Outcome.EARLY_EOF),
        (HEAD + chunk(b"data: [DONE]\n\n") + END, Outcome.NO_TOKENS),
        (HEAD + chunk(b"data: " + delta("x") + b"\n\n") + chunk(b"data: [DONE]\n\n") + END, Outcome.OK),
        (HEAD + chunk(b'data: {"error": "boom"}\n\n') + chunk(b"data: [DONE]\n\n") + END, Outcome.ERROR_EVENT),
        (HEAD + chunk(b'event: error\ndata: {"error": {"message": "boom"}}\n\n') + END, Outcome.ERROR_EVENT),
        (b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}", Outcome.MALFORMED_SSE),
        (b"HTTP/1.1 429 No\r\nretry-after: 3\r\ncontent-length: 4\r\n\r\nslow", Outcome.HTTP_429),
        (b"HTTP/1.1 503 No\r\ncontent-length: 4\r\n\r\nbusy", Outcome.HTTP_503),
        (b"HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n", Outcome.HTTP_ERROR),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + chunk(b"data: " + delta("x") + b"\n\ndata: [DONE]\n\n") + END, Outcome.OK),
    ],
)
def test_answers_are_classified(raw: bytes, outcome: Outcome) -> None:
    reading = answered(raw)
    assert reading.result.outcome is outcome
    assert reading.result.detail or outcome is Outcome.OK


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=200), st.sampled_from(["complete", "eof", "reset", "stall", ""]), st.booleans())
def test_no_answer_is_so_strange_that_reading_it_fails(body: bytes, how: str, framed: bool) -> None:
    raw = HEAD + chunk(body or b"x") + END if framed else HEAD + body
    assert answered(raw, how).result.outcome in Outcome


def test_reasoning_tool_calls_and_llama_timings() -> None:
    lines = [
        {"choices": [{"delta": {"role": "assistant", "content": None}}]},
        {"choices": [{"delta": {"reasoning_content": "hm"}}]},
        {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}}]},
        {"choices": [{"delta": {"content": "ok"}, "finish_reason": "stop"}]},
        {"choices": [], "timings": {"cache_n": 3, "prompt_n": 10, "predicted_n": 12, "draft_n": 20, "draft_n_accepted": 9}},
    ]
    raw = HEAD + b"".join(chunk(b"data: " + json.dumps(line).encode() + b"\n\n") for line in lines) + chunk(b"data: [DONE]\n\n") + END
    result = answered(raw).result
    assert (result.outcome, result.events, result.tokens_out, result.token_source) == (Outcome.OK, 3, 12, "timings")
    assert (result.tokens_in, result.tokens_cached, result.drafted, result.accepted) == (13, 3, 20, 9)


@pytest.mark.parametrize("count", [0, -3])
@pytest.mark.parametrize("key", ["usage", "timings"])
def test_a_count_that_the_text_belies_counts_as_not_said(key: str, count: int) -> None:
    told = {"completion_tokens": count, "predicted_n": count}
    last = json.dumps({"choices": [{"delta": {}, "finish_reason": "stop"}], key: told}).encode()
    result = answered(body([delta("a"), delta("b"), last, b"[DONE]"])).result
    assert (result.outcome, result.tokens_out, result.token_source) == (Outcome.OK, 2, "chunks")
    assert answered(body([last, b"[DONE]"])).result.outcome is Outcome.NO_TOKENS


@pytest.mark.parametrize(
    ("counts", "first", "steps"),
    [((2, 2, 5), 2, (2, 0, 3)), ((3, 1, 5), 3, ()), ((-1, 2, 3), 1, ()), ((0, 2, 3), 1, ()), ((2, None, 3), 2, ())],
)
def test_tokens_of_steps_are_told_where_the_counts_rise(counts: tuple[int | None, ...], first: int, steps: tuple[int, ...]) -> None:
    events = [delta("w", usage=None if count is None else {"completion_tokens": count}) for count in counts]
    result = answered(body([*events, b"[DONE]"])).result
    assert (result.tokens_first, result.step_tokens) == (first, steps)


# -- plan --------------------------------------------------------------------------------------------------------------


def test_endpoints() -> None:
    assert plan.endpoint("http://h:8/v1/") == plan.Endpoint(False, "h", 8, "")
    assert plan.endpoint("https://[::1]/x/v1").authority == "[::1]"
    assert plan.endpoint("https://h/x").path == "/x"
    for wrong in ("h:80", "ftp://h", "http://h:99999", "http://"):
        with pytest.raises(BadTarget):
            plan.endpoint(wrong)


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("http://ops:hunter2@h:8", "give --header 'Authorization: Basic ...'"),
        ("http://ops@h:8", "name or password"),
        ("http://h/v1?api-version=1", "behind ? or #"),
        ("http://h/#x", "behind ? or #"),
        ("http://h/\u0142", "not ASCII"),
        ("http://\u0142.example", "xn--"),
    ],
)
def test_what_no_request_would_carry_is_refused(url: str, hint: str) -> None:
    """Left out, the requests would go somewhere else than was asked for."""
    with pytest.raises(BadTarget) as caught:
        plan.endpoint(url)
    assert hint in caught.value.next
    assert "hunter2" not in caught.value.message


def test_a_header_cannot_carry_another() -> None:
    bad = Plan(plan.endpoint("http://h"), (Shot(b"{}"),), 1, headers=(("A", "b\r\nC: d"),))
    with pytest.raises(ValueError, match="cannot be sent"):
        plan.encode(bad, ("127.0.0.1", 1))


@pytest.mark.parametrize(
    ("window_ms", "gaps", "unsure"), [(0.1, (10.0, 0.0, 10.0), 0), (3.0, (7.0, 3.0, 10.0), 2), (9.0, (5.0, 5.0, 10.0), 2)]
)
def test_events_that_shared_a_read_but_no_burst_are_estimated(window_ms: float, gaps: tuple[float, ...], unsure: int) -> None:
    """Four events in three reads, the second read holding two: they came together, or at even steps, no earlier than the poll before."""
    pieces = [chunk(b"data: " + delta("w") + b"\n\n") for _ in range(4)]
    reads = [HEAD + pieces[0], pieces[1] + pieces[2], pieces[3] + chunk(b"data: [DONE]\n\n") + END]
    came = np.array([10_000_000, 20_000_000, 30_000_000])
    ends = [sum(map(len, reads[: n + 1])) for n in range(3)]
    since = came - round(window_ms * 1e6)
    trace = RequestTrace(0, sent_ns=1, how="complete", came_ns=came, since_ns=since, read_end=np.array(ends), raw=b"".join(reads))
    result = reduce.reduce([trace], [reduce.Asked("p", 9)], start_ns=0)[0].result
    assert (result.step_gap_ms, result.gaps_unsure) == (gaps, unsure)


def test_a_line_break_inside_an_event_is_left_to_the_strict_reader() -> None:
    broken = delta("b").replace(b'{"index"', b'\ndata: {"index"')
    for events in ([delta("a"), broken, delta("c")], [broken], [delta("a")] * 4 + [broken], [delta("a\n"), b"x\rdata: y", delta("c")]):
        raw = body(events)
        assert wire.response(raw, closed=False).regular_at == len(HEAD)
        strict = reduce._Stream()
        reduce._read_events(wire.response(raw, closed=False, regular=False).pieces, strict)
        read = reduce._answered(RequestTrace(0, how="complete", raw=raw)).stream
        assert said(read) == said(strict)


class Fed(loop.Loop):
    """A load process that is handed what it would have read."""

    def __init__(self) -> None:
        self.ends: list[str] = []

    def end(self, flow: loop.Flow, how: str, detail: str = "") -> None:
        self.ends.append(how)

    def feed(self, flow: loop.Flow, read: bytes) -> None:
        if flow.slow or not read.endswith(loop.WHOLE):
            self.progress(flow, read)
        else:
            flow.before = read

    def feed_cut(self, data: bytes, cuts: list[int]) -> None:
        """Nothing may have ended before the last piece."""
        flow = loop.Flow()
        flow.request = 0
        for start, stop in itertools.pairwise([0, *sorted({cut for cut in cuts if cut < len(data)}), len(data)]):
            assert self.ends == []
            self.feed(flow, data[start:stop])


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.sampled_from([b"data: {}\n\n", b"data: {}\r\n\r\n", b": ping\r\n\r\n", b"0", b"\r\n", "é".encode() * 30]), max_size=8),
    st.sampled_from([b"0\r\n\r\n", b"000;a=b\r\n\r\n", b"0\r\nx-sum: 5\r\ny: z\r\n\r\n"]),
    st.lists(st.integers(1, 400), max_size=12),
)
def test_the_end_of_a_response_is_seen_however_its_bytes_are_cut(pieces: list[bytes], last: bytes, cuts: list[int]) -> None:
    data = HEAD + b"".join(map(chunk, pieces)) + last
    fed = Fed()
    fed.feed_cut(data, cuts)
    assert fed.ends == ["complete"]


def timed(reads: list[tuple[int, int, int]], sent_ms: float = 0.0) -> reduce.Reading:
    """One request of (events in the read, came at ms, since ms) each."""
    raws = [chunk(b"data: " + delta("w") + b"\n\n") * count for count, _, _ in reads]
    raws[0], raws[-1] = HEAD + raws[0], raws[-1] + chunk(b"data: [DONE]\n\n") + END
    came, since = (np.array([int(read[which] * 1e6) for read in reads]) for which in (1, 2))
    ends = np.cumsum([len(raw) for raw in raws])
    trace = RequestTrace(0, sent_ns=round(sent_ms * 1e6), how="complete", came_ns=came, since_ns=since, read_end=ends, raw=b"".join(raws))
    return reduce.reduce([trace], [reduce.Asked("p", 9)], start_ns=0)[0]


def test_no_time_to_first_token_is_told_shorter_than_it_was() -> None:
    result = timed([(3, 50, 1), (1, 60, 60), (1, 70, 70)], sent_ms=1).result
    assert result.ttft_ms == 49.0
    assert (result.step_gap_ms, result.gaps_unsure) == ((0.0, 0.0, 10.0, 10.0), 2)


def test_a_burst_after_an_unusual_pause_is_marked() -> None:
    steady = [(1, 10 * step, 10 * step) for step in range(1, 9)]
    assert timed([*steady, (2, 90, 90)]).result.gaps_unsure == 0, "two at a step"
    assert timed([*steady, (3, 110, 110)]).result.gaps_unsure == 3, "or three steps read at once"


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=60), st.lists(st.integers(1, 200), max_size=8))
def test_a_body_of_known_length_ends_with_its_last_byte(body: bytes, cuts: list[int]) -> None:
    data = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    fed = Fed()
    fed.feed_cut(data, cuts)
    assert fed.ends == ["complete"]
