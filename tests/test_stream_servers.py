"""The load process against servers that behave in their own ways: TLS, other framings, connections that close."""

from __future__ import annotations

import contextlib
import gzip
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leadline import measure
from leadline.config import Measure
from leadline.errors import NotServing
from leadline.records import BlockResult, Level, Outcome
from leadline.workload import Prompt

DATA = Path(__file__).parent / "data" / "stream"
SETTINGS = Measure(idle_timeout_s=2, level_limit_s=20, cache="production")
EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": "w"}, "finish_reason": null}]}\n\n'
LAST = b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}\n\ndata: [DONE]\n\n'
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = SSE + b"transfer-encoding: chunked\r\n\r\n"

Script = Callable[[socket.socket, int], bool]
"""Answers one request (its number on the connection is given); returns whether the connection stays open."""


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Server:
    """A thread a connection; each request is answered by the script."""

    def __init__(self, script: Script, context: ssl.SSLContext | None = None) -> None:
        self.script, self.context = script, context
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.requests: list[bytes] = []
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self.listener.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.closing(peer):
            if self.context is not None:
                peer = self.context.wrap_socket(peer, server_side=True)
            number, data = 0, b""
            while True:
                while b"\r\n\r\n" not in data:
                    more = peer.recv(65536)
                    if not more:
                        return
                    data += more
                head, _, body = data.partition(b"\r\n\r\n")
                length = int(next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")).split(b":")[1])
                while len(body) < length:
                    body += peer.recv(65536)
                self.requests.append(head + b"\r\n\r\n" + body[:length])
                data = body[length:]
                if not self.script(peer, number):
                    if self.context is not None:
                        peer.unwrap()
                    return
                number += 1


@contextlib.contextmanager
def serving(script: Script, context: ssl.SSLContext | None = None) -> Iterator[Server]:
    server = Server(script, context)
    try:
        yield server
    finally:
        server.listener.close()


def play(
    server: Server, count: int = 3, concurrency: int = 1, scheme: str = "http", prompt: str = "hello", rehearsed: int = 0, **options: object
) -> BlockResult:
    prompts = [Prompt(prompt_id=str(n), messages=(("user", prompt),), max_tokens=4) for n in range(count)]
    rehearsal = [Prompt(prompt_id=f"r{n}", messages=(("user", "rehearsal"),), max_tokens=4) for n in range(rehearsed)]
    level = Level(workload="x", concurrency=concurrency)
    url = f"{scheme}://localhost:{server.port}" if scheme == "https" else f"http://127.0.0.1:{server.port}"
    chosen = measure.Options(**options)  # type: ignore[arg-type]
    return measure.play(url, level, prompts, block=0, model="m", settings=SETTINGS, options=chosen, rehearsal=rehearsal)


def served(result: BlockResult) -> list[tuple[Outcome, int, int]]:
    return [(request.outcome, request.tokens_out, request.events) for request in result.requests]


def chunked(peer: socket.socket, number: int) -> bool:
    peer.sendall(CHUNKED)
    for _ in range(4):
        peer.sendall(chunk(EVENT))
        time.sleep(0.002)
    peer.sendall(chunk(LAST) + b"0\r\n\r\n")
    return True


def trailers(peer: socket.socket, number: int) -> bool:
    body = EVENT.replace(b"\n", b"\r\n") * 4 + LAST
    peer.sendall(CHUNKED + b"%x;name=value\r\n%s\r\n" % (len(body), body) + b"0\r\nx-sum: 1\r\n\r\n")
    return True


def late_trailers(peer: socket.socket, number: int) -> bool:
    peer.sendall(CHUNKED + chunk(EVENT) * 4 + chunk(LAST) + b"0;name=value\r\n")
    time.sleep(0.3)
    peer.sendall(b"x-sum: 123456789\r\n")
    time.sleep(0.3)
    peer.sendall(b"\r\n")
    return True


def one_line_end_too_many(peer: socket.socket, number: int) -> bool:
    peer.sendall(CHUNKED + chunk(EVENT) * 4 + chunk(LAST) + b"0\r\n\r\n\r\n")
    return False


def with_length(peer: socket.socket, number: int) -> bool:
    body = EVENT * 4 + LAST
    peer.sendall(SSE + b"content-length: %d\r\n\r\n" % len(body) + body[:50])
    time.sleep(0.01)
    peer.sendall(body[50:])
    return True


def until_close(peer: socket.socket, number: int) -> bool:
    peer.sendall(SSE + b"\r\n" + EVENT * 4 + LAST)
    return False


def says_close(peer: socket.socket, number: int) -> bool:
    peer.sendall(SSE + b"connection: close\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(EVENT * 4 + LAST) + b"0\r\n\r\n")
    return False


def byte_by_byte(peer: socket.socket, number: int) -> bool:
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    raw = CHUNKED + chunk(EVENT) * 4 + chunk(LAST) + b"0\r\n\r\n"
    for at in range(0, len(raw), 7):
        peer.sendall(raw[at : at + 7])
    return True


def interim(peer: socket.socket, number: int) -> bool:
    peer.sendall(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + CHUNKED + chunk(EVENT) * 4 + chunk(LAST) + b"0\r\n\r\n")
    return True


def spelt_otherwise(peer: socket.socket, number: int) -> bool:
    head = b"HTTP/1.1 200\r\nCONTENT-TYPE:Text/Event-Stream; charset=UTF-8\r\nTransfer-Encoding:  Chunked \r\n\r\n"
    peer.sendall(head + chunk(EVENT) * 4 + chunk(LAST) + b"0\r\n\r\n")
    return True


@pytest.mark.parametrize(
    "script",
    [chunked, trailers, late_trailers, one_line_end_too_many, with_length, until_close, says_close, byte_by_byte, interim, spelt_otherwise],
)
def test_every_framing_is_read(script: Script) -> None:
    with serving(script) as server:
        assert served(play(server)) == [(Outcome.OK, 4, 4)] * 3
        assert server.connections == (3 if script in (until_close, says_close, one_line_end_too_many) else 1)


def one_chunk(peer: socket.socket, number: int) -> bool:
    """Four events in one chunk that takes its time."""
    body = EVENT * 4 + LAST
    peer.sendall(CHUNKED + b"%x\r\n" % len(body))
    for _ in range(4):
        time.sleep(0.05)
        peer.sendall(EVENT)
    peer.sendall(LAST + b"\r\n0\r\n\r\n")
    return True


def test_an_event_came_when_its_own_bytes_did() -> None:
    with serving(one_chunk) as server:
        (request,) = play(server, 1).requests
        assert request.ttft_ms is not None
        assert 50 <= request.ttft_ms < 100
        assert all(49 < gap < 100 for gap in request.step_gap_ms)


@pytest.mark.parametrize(
    ("said", "detail"),
    [
        (b'data: {"error": {"message": "boom"}}\n\n', "boom"),
        (b'data: {"object": "error", "message": "boom", "code": 500}\n\ndata: [DONE]\n\n', "boom"),
        (b'event: error\ndata: {"message": "boom"}\n\n', "boom"),
        (b'error: {"code": 500, "message": "boom"}\n\n', "boom"),
        (b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "abort"}]}\n\n' + LAST, "finish_reason abort after 2 events"),
        (b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "error"}]}\n\n' + LAST, "finish_reason error after 2 events"),
    ],
)
def test_a_failure_inside_a_stream_is_told(said: bytes, detail: str) -> None:
    def script(peer: socket.socket, number: int) -> bool:
        peer.sendall(CHUNKED + chunk(EVENT) * 2 + chunk(said) + b"0\r\n\r\n")
        return True

    with serving(script) as server:
        (request,) = play(server, 1).requests
        assert (request.outcome, request.events) == (Outcome.ERROR_EVENT, 2)
        assert detail in request.detail


def broken_size(peer: socket.socket, number: int) -> bool:
    peer.sendall(CHUNKED + b"hello\r\n" + EVENT + b"\r\n\r\n")
    return True


def no_http(peer: socket.socket, number: int) -> bool:
    peer.sendall(b"SSH-2.0-OpenSSH\r\n\r\n")
    return False


def says_nothing(peer: socket.socket, number: int) -> bool:
    return False


@pytest.mark.parametrize(
    ("script", "outcome"), [(broken_size, Outcome.MALFORMED_HTTP), (no_http, Outcome.MALFORMED_HTTP), (says_nothing, Outcome.EARLY_EOF)]
)
def test_what_is_no_answer_is_called_so(script: Script, outcome: Outcome) -> None:
    with serving(script) as server:
        result = play(server, 2)
        assert [request.outcome for request in result.requests] == [outcome] * 2
        assert max(request.sent_s for request in result.requests) < SETTINGS.idle_timeout_s, "the first was not waited for"


def packed(peer: socket.socket, number: int) -> bool:
    body = gzip.compress(EVENT * 4 + LAST)
    peer.sendall(SSE + b"content-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(body) + b"0\r\n\r\n")
    return True


def redirected(peer: socket.socket, number: int) -> bool:
    peer.sendall(b"HTTP/1.1 307 Temporary Redirect\r\nlocation: https://elsewhere.example/v1/\r\ncontent-length: 0\r\n\r\n")
    return True


def json_after_all(peer: socket.socket, number: int) -> bool:
    body = b'{"error": {"message": "streaming is not supported"}}'
    peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    return True


@pytest.mark.parametrize(
    ("script", "outcome", "detail"),
    [
        (
            json_after_all,
            Outcome.MALFORMED_SSE,
            'content type \'application/json\' where text/event-stream was asked for: {"error": {"message": "streaming is not supported"}}',
        ),
        (packed, Outcome.MALFORMED_SSE, "content encoding 'gzip' where none was asked for"),
        (redirected, Outcome.HTTP_ERROR, "HTTP 307 to https://elsewhere.example/v1/, which is not followed: "),
    ],
)
def test_why_an_answer_is_of_no_use_is_told(script: Script, outcome: Outcome, detail: str) -> None:
    with serving(script) as server:
        (request,) = play(server, 1).requests
        assert (request.outcome, request.detail) == (outcome, detail)
        assert b"accept-encoding: identity" in server.requests[0].lower()


def hangs_up(peer: socket.socket, number: int) -> bool:
    """Ends a connection that it promised to keep, as llama-server does."""
    chunked(peer, number)
    return False


@pytest.mark.parametrize(("script", "processes"), [(chunked, 1), (chunked, 2), (hangs_up, 1)])
def test_a_rehearsal_leaves_connections_and_nothing_else(script: Script, processes: int) -> None:
    with serving(script) as server:
        result = play(server, 8, 4, rehearsed=8, processes=processes)
        assert served(result) == [(Outcome.OK, 4, 4)] * 8
        assert [request.prompt_id for request in result.requests] == [str(n) for n in range(8)]
        rehearsed = [b"rehearsal" in request for request in server.requests]
        assert rehearsed == [True] * 8 + [False] * 8, "all of it before the clock starts"
        if script is chunked:
            assert server.connections == 4
            assert result.client.reconnects == 0


def closes_and_lingers(peer: socket.socket, number: int) -> bool:
    """The end of the answer and that of the connection in one packet; what comes later is read and not answered, as some servers close."""
    peer.sendall(CHUNKED + chunk(EVENT) * 4)
    time.sleep(0.05)
    peer.send(chunk(LAST) + b"0\r\n\r\n", socket.MSG_MORE)
    peer.shutdown(socket.SHUT_WR)
    while peer.recv(65536):
        pass
    return False


@pytest.mark.parametrize("connections", [1, 4])
def test_a_connection_that_was_closed_with_the_last_word_is_not_used_again(connections: int) -> None:
    with serving(closes_and_lingers) as server:
        result = play(server, 2 * connections, connections, rehearsed=connections)
    assert served(result) == [(Outcome.OK, 4, 4)] * 2 * connections


def test_a_key_does_not_lie_on_the_disk_while_the_load_rehearses(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    def looks(peer: socket.socket, number: int) -> bool:
        seen.append(sorted(path.name for path in tmp_path.glob("*/*")))
        return chunked(peer, number)

    with serving(looks) as server:
        play(server, 2, rehearsed=1, headers=(("Authorization", "Bearer k"),), keep=str(tmp_path))
    assert seen == [["load-0.trace"]] * 3


def test_when_a_whole_rehearsal_fails_nothing_is_played() -> None:
    with serving(says_nothing) as server:
        with pytest.raises(NotServing, match="all 3 warm-up requests failed: early_eof"):
            play(server, 5, 2, rehearsed=3)
        assert len(server.requests) == 3


def test_a_large_request_arrives_whole() -> None:
    with serving(chunked) as server:
        assert served(play(server, 1, prompt="x" * 3_000_000)) == [(Outcome.OK, 4, 4)]
        assert len(server.requests[0]) > 3_000_000


def test_a_request_answered_before_it_was_read_leaves_no_connection_behind() -> None:
    """Its rest would still be due on it, and the next request would be taken for that."""
    listener = socket.create_server(("127.0.0.1", 0))
    heads: list[bytes] = []

    def serve(peer: socket.socket) -> None:
        with contextlib.suppress(OSError), contextlib.closing(peer):
            while head := peer.recv(5):
                heads.append(head)
                while b"\r\n\r\n" not in head:
                    head += peer.recv(1)
                left = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
                peer.sendall(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")
                time.sleep(0.2)
                while left and (part := peer.recv(min(left, 65536))):
                    left -= len(part)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    with listener:
        prompts = [Prompt(prompt_id=str(n), messages=(("user", "x" * 8_000_000),), max_tokens=4) for n in range(3)]
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        result = measure.play(url, Level(workload="x", concurrency=1), prompts, block=0, model="m", settings=SETTINGS)
    assert [request.detail for request in result.requests] == ["HTTP 413: "] * 3
    assert heads == [b"POST "] * 3


def context() -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(DATA / "cert.pem", DATA / "key.pem")
    return made


def test_tls_keeps_the_kernels_times() -> None:
    with serving(chunked, context()) as server:
        result = play(server, 4, 2, scheme="https", ca_file=str(DATA / "cert.pem"))
        assert served(result) == [(Outcome.OK, 4, 4)] * 4
        assert result.client.clock == "kernel"
        assert {len(request.step_gap_ms) for request in result.requests} == {3}


@pytest.mark.parametrize("script", [until_close, says_close, hangs_up])
def test_tls_that_is_closed_ends_what_was_on_it(script: Script) -> None:
    with serving(script, context()) as server:
        result = play(server, 3, scheme="https", ca_file=str(DATA / "cert.pem"))
        assert served(result) == [(Outcome.OK, 4, 4)] * 3
        assert result.duration_s < SETTINGS.idle_timeout_s


def test_a_certificate_nobody_vouches_for_is_refused_unless_told() -> None:
    with serving(chunked, context()) as server:
        refused = play(server, 1, scheme="https")
        assert refused.requests[0].outcome is Outcome.REFUSED
        assert "certificate" in refused.requests[0].detail
        assert served(play(server, 1, scheme="https", verify=False)) == [(Outcome.OK, 4, 4)]


def test_sessions_wait_for_their_answers() -> None:
    with serving(chunked) as server:
        prompts = [
            Prompt(prompt_id="a0", messages=(("user", "one"),), max_tokens=4),
            Prompt(prompt_id="a1", messages=(("user", "two"),), max_tokens=4, after="a0", delay_s=0.1),
            Prompt(prompt_id="b0", messages=(("user", "three"),), max_tokens=4),
        ]
        url = f"http://127.0.0.1:{server.port}"
        result = measure.play(url, Level(workload="x", concurrency=3), prompts, block=0, model="m", settings=SETTINGS)
        first, second, _ = result.requests
        assert served(result) == [(Outcome.OK, 4, 4)] * 3
        assert first.e2e_ms is not None
        assert second.sent_s >= first.sent_s + first.e2e_ms / 1e3 + 0.1


def test_a_turn_of_a_session_is_sent_at_its_time_but_not_before_the_answer() -> None:
    def slow(peer: socket.socket, number: int) -> bool:
        time.sleep(0.1)
        return chunked(peer, number)

    with serving(slow) as server:
        turns = [("a0", 0.0, "", 0.0), ("a1", 0.5, "a0", 0.0), ("a2", 0.5, "a1", 0.0), ("a3", None, "a2", 0.05), ("b0", 0.2, "", 0.0)]
        prompts = [
            Prompt(prompt_id=name, messages=(("user", name),), max_tokens=4, due_s=due_s, after=after, delay_s=delay_s)
            for name, due_s, after, delay_s in turns
        ]
        result = measure.play(
            f"http://127.0.0.1:{server.port}", Level(workload="x", concurrency=0), prompts, block=0, model="m", settings=SETTINGS
        )
        assert served(result) == [(Outcome.OK, 4, 4)] * 5
        intended = {request.prompt_id: request.intended_s for request in result.requests}
        ended = {request.prompt_id: request.sent_s + (request.e2e_ms or 0.0) / 1e3 for request in result.requests}
        assert (intended["a1"] - intended["a0"], intended["b0"] - intended["a0"]) == pytest.approx((0.5, 0.2), abs=1e-6)
        assert ended["a1"] <= intended["a2"] < ended["a1"] + 0.05
        assert ended["a2"] + 0.05 <= intended["a3"] < ended["a2"] + 0.1
        assert all(0 <= request.sent_s - request.intended_s < 0.05 for request in result.requests)


def test_the_body_says_what_the_settings_ask() -> None:
    import json

    with serving(chunked) as server:
        play(server, 1, ignore_eos=True, extra=(("seed", "7"),), headers=(("Authorization", "Bearer k"),))
        head, _, body = server.requests[0].partition(b"\r\n\r\n")
        said = json.loads(body)
        assert b"authorization: bearer k" in head.lower()
        assert said["stream_options"] == {"include_usage": True}
        assert (said["max_tokens"], said["temperature"], said["ignore_eos"], said["seed"]) == (4, 0.0, True, 7)
        assert said["cache_prompt"] is True
        assert said["messages"] == [{"role": "user", "content": "hello"}]
        cold = json.loads(measure.body(Prompt(prompt_id="1", messages=(("user", "hello"),), max_tokens=4), model="m", settings=Measure()))
        assert cold["cache_prompt"] is False
        assert cold["messages"][0]["content"].endswith("] hello")
