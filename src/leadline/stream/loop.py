"""The load process: one thread, one epoll, nothing but reading, stamping and storing.

It runs as a script of its own (``python -I -S loop.py PLAN TRACE``) and imports the standard library only, so that it
starts in milliseconds, stays small, and shares no interpreter lock with a progress display or a parser.  Everything that
could wait waits until later: no JSON, no SSE, no chunk decoding, no token counting happens here.  An event's time is the
moment the kernel received its packet (``SO_TIMESTAMPNS``); the moment we read it is stored beside it, and the
difference is this process's own lag.

When every connection is there, and what is to be rehearsed has been played on them, it says ``r`` on standard output and waits
for a line on standard input: the monotonic ns at which to start, 0 = now. Then it says one ``.`` for each request that ended.

PLAN is one line of JSON (:class:`~leadline.stream.plan.Plan` writes it) followed by the bytes of all requests; it is removed once read.  TRACE is
a sequence of frames, header ``<BxxxII`` = tag, request number, payload length:

=== ==========================================================================================================
C   clock sample: monotonic ns, realtime ns (``<qq``); kernel stamps are realtime
S   sent: intended, start of connecting (0 = connection was there), first ``send`` (``<qqq``, monotonic ns)
R   reads of all requests in the order of time: counts of polls and of reads ``<II``; for each poll since when what it reports can have
    come ``<q``, when it returned ``<q``, when what it reported had been read ``<q`` (monotonic ns), and how many reads that took
    ``<I``; for each read its request ``<i`` (-1 = bytes that nobody asked for), kernel stamp (``<qq`` s, ns; zeros where missing)
    and length ``<I``; then the bytes read
E   end: monotonic ns ``<q``, then one of the words of :data:`ENDS`, optionally ``: detail``
H   this process's own figures, JSON
=== ==========================================================================================================

They are written four times a second, so that a kill loses little more than that.
"""

from __future__ import annotations

import array
import contextlib
import errno
import gc
import heapq
import json
import os
import re
import resource
import select
import signal
import socket
import struct
import sys
import time
from typing import Any, TextIO

ENDS = ("complete", "eof", "reset", "refused", "stall", "deadline", "aborted", "malformed")

SO_TIMESTAMPNS = 35  # linux/include/uapi/asm-generic/socket.h; the socket module does not name it
NO_STAMP = bytes(16)
HEADER = struct.Struct("<BxxxII")
SENT = struct.Struct("<BxxxIIqqq")
ENDED = struct.Struct("<BxxxIIq")
CLOSED, CHUNKED, LENGTH, UNTIL_CLOSE, HEAD = range(5)
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
NO_SPACE_STATUS = 28
"""What the process ends with when there is no room for its trace."""
GONE = "the process that started the load is gone"
READS_KEPT = 1024
"""Bring reads to the trace when there are so many: few enough not to be missed, 0.3 ms of work."""
CLOCKS_S = 1.0
# The kernel has the times, so there is no hurry to read: with many streams, waiting a moment for more of them saves most of the
# wake-ups. It shows as lag, and delays the next request of a connection by as much.
GATHER_S = 0.0005
GATHER_BELOW = 16
READ_BYTES = 4096  # an event is some 200 bytes; a larger buffer costs more to allocate than it saves in calls
END = b"\r\n\r\n"
WHOLE = b"\n\n\r\n"
"""A read that ends so ends with an event and its chunk: nothing needs to be looked at."""
LAST_CHUNK = re.compile(rb"\r\n0+[ \t]*(?:;[^\r\n]*)?\r\n(?:[!-9;-~]+:[^\r\n]*\r\n)*(?:\r\n)+\Z")
"""The end of a chunked response: last chunk, trailers, empty line (and more of them, from servers that send too many)."""
CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]+[ \t]*(?:;[^\r\n]*)?")
TAIL_BYTES = 4096
"""How much of what came before is looked at for it."""
IN, OUT = select.EPOLLIN, select.EPOLLOUT
EDGE = IN | select.EPOLLRDHUP | select.EPOLLET
"""An established connection is reported once for what comes: a read that fills its buffer, or sees the other end close, is tried again."""


class Flow:
    """One connection and the request that is on it."""

    __slots__ = (
        "before",
        "connect_ns",
        "connected",
        "fd",
        "framing",
        "intended_ns",
        "keep",
        "length",
        "out",
        "recvmsg",
        "request",
        "seen_ns",
        "sent_ns",
        "slow",
        "sock",
        "tls",
        "used",
    )

    def __init__(self) -> None:
        self.fd = -1
        self.sock: socket.socket | None = None
        self.recvmsg: Any = None
        self.tls: Any = None
        self.connected = False
        self.connect_ns = 0
        self.used = 0
        self.request = -1
        self.out: Any = b""
        self.intended_ns = self.sent_ns = 0
        self.seen_ns = 0
        """Last sign of life: connecting, sending, or a read."""
        self.clear()

    def clear(self) -> None:
        self.framing = HEAD
        self.slow = True
        """Look at everything that comes: the head is not there yet, or bytes are counted."""
        self.before = b""
        """The end of what was read of this response."""
        self.keep = True
        self.length = 0
        """Bytes of the body that are still to come, where the head said how many."""


class Loop:
    """Plays one plan."""

    def __init__(self, plan_path: str, trace_path: str) -> None:
        with open(plan_path, "rb") as file:
            self.plan: dict[str, Any] = json.loads(file.readline())
            self.body = memoryview(file.read())
        self.trace = os.open(trace_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.address = tuple(self.plan["address"])
        self.family = socket.AF_INET6 if ":" in self.address[0] else socket.AF_INET
        self.idle_ns = int(self.plan["idle_s"] * 1e9)
        self.connect_ns = int(self.plan["connect_s"] * 1e9)
        self.most = self.plan["connections"]
        self.open_loop = bool(self.plan["open"])
        self.reuse = bool(self.plan["reuse"])
        self.kernel_clock = bool(self.plan["kernel_clock"])
        self.requests: list[list[int]] = self.plan["requests"]  # [due_us, after, delay_us, length]
        self.rehearsed: int = self.plan["rehearsed"]
        self.offsets = [0]
        for request in self.requests:
            self.offsets.append(self.offsets[-1] + request[3])
        self.followers: dict[int, list[int]] = {}
        self.ready: list[tuple[int, int]] = []
        self.epoll = select.epoll()
        self.schedstat: int | None = None
        with contextlib.suppress(OSError):
            self.schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            self.run_delay()  # not every kernel that has the file can be asked
        self.flows: dict[int, Flow] = {}
        self.hot: list[Flow | None] = [None]
        """By file descriptor: those of :attr:`flows` that are established."""
        self.frames = bytearray()
        self.got: list[Any] = []
        """What ``recvmsg`` returned, of all connections, since the last time it was brought to :attr:`frames`."""
        self.whose = array.array("i")
        self.since_ns, self.polled_ns, self.read_ns = array.array("q"), array.array("q"), array.array("q")
        self.reads = array.array("I")
        self.news = 0
        """Requests that ended and were not yet told to whoever started us."""
        self.answered = 0
        self.rehearsing = False
        self.limit_ns = 0
        """When all ends; 0 until the first request is to be played."""
        self.idle: list[Flow] = []
        self.left = 0
        self.stopped = ""
        self.context: Any = None
        self.first_send_cpu_s = 0.0
        self.polls = 0
        self.reconnects = 0
        """Requests that were sent again because the server had closed a kept connection."""

    # -- trace ---------------------------------------------------------------------------------------------------------

    def frame(self, tag: str, request: int, *parts: bytes | bytearray | memoryview) -> None:
        self.frames += HEADER.pack(ord(tag), request, sum(map(len, parts)))
        for part in parts:
            self.frames += part

    def store(self) -> None:
        """Write the frames made so far, and tell how many requests ended."""
        self.frame_reads()
        with memoryview(self.frames) as rest:
            at = 0
            while at < len(rest):  # a signal or a full disk in between: finish it or fail loudly
                at += os.write(self.trace, rest[at:])
        self.frames.clear()
        if self.news:
            os.write(1, b"." * self.news)
            self.news = 0

    def sample_clocks(self) -> None:
        before = time.monotonic_ns()
        real = time.time_ns()
        after = time.monotonic_ns()
        self.frame("C", 0, struct.pack("<qq", (before + after) // 2, real))

    def frame_reads(self) -> None:
        """Make one frame of the reads of all connections."""
        got, polls = self.got, (self.since_ns, self.polled_ns, self.read_ns, self.reads)
        if not got:
            for part in polls:
                del part[:]
            return
        chunks = [one[0] for one in got]
        self.frame(
            "R",
            0,
            struct.pack("<II", len(self.reads), len(got)),
            *(part.tobytes() for part in (*polls, self.whose)),
            b"".join([one[1][0][2] if one[1] else NO_STAMP for one in got]),
            array.array("I", map(len, chunks)).tobytes(),
            b"".join(chunks),
        )
        got.clear()
        for part in (*polls, self.whose):
            del part[:]

    # -- connections ---------------------------------------------------------------------------------------------------

    def connect(self, flow: Flow) -> None:
        flow.connect_ns = flow.seen_ns = time.monotonic_ns()
        try:
            sock = socket.socket(self.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        except OSError as error:  # no file descriptor is left
            self.broken(flow, "refused", error.strerror or "")
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self.kernel_clock:
            try:
                sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            except OSError:
                self.kernel_clock = False  # reported as clock "user": every stamp is missing
        flow.sock, flow.fd, flow.recvmsg = sock, sock.fileno(), sock.recvmsg
        flow.connected = False
        flow.used = 0
        self.flows[flow.fd] = flow
        self.hot += [None] * (flow.fd + 1 - len(self.hot))
        code = sock.connect_ex(self.address)
        if code not in (0, errno.EINPROGRESS):
            self.broken(flow, "refused", os.strerror(code))
            return
        self.epoll.register(flow.fd, IN | OUT)
        if code == 0 and self.context is None:  # on this machine a connection is there at once
            self.usable(flow)

    def connected(self, flow: Flow) -> None:
        assert flow.sock is not None
        code = flow.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self.broken(flow, "refused", os.strerror(code))
            return
        if self.context is not None:
            flow.tls = Tls(self.context, self.plan["tls"]["server_name"])
            if not self.shake(flow, b""):
                return
        self.usable(flow)

    def usable(self, flow: Flow) -> None:
        flow.connected = True
        self.hot[flow.fd] = flow
        self.epoll.modify(flow.fd, EDGE)
        if flow.request >= 0:
            self.send_first(flow)
        else:
            self.idle.append(flow)

    def shake(self, flow: Flow, received: bytes) -> bool:
        """One step of the TLS handshake; True when it is done."""
        assert flow.sock is not None
        try:
            done, reply = flow.tls.handshake(received)
            flow.sock.sendall(reply)  # a handshake message fits into any send buffer
        except OSError as error:  # ssl.SSLError is one
            self.broken(flow, "refused", f"TLS: {error}")
            return False
        if not done:
            self.epoll.modify(flow.fd, IN)
        return bool(done)

    def drop(self, flow: Flow) -> None:
        if flow.sock is not None:
            self.flows.pop(flow.fd, None)
            self.hot[flow.fd] = None
            flow.sock.close()  # closing also takes it out of the epoll set
            flow.sock = flow.recvmsg = flow.tls = None
        flow.connected = False

    def take_idle(self) -> Flow | None:
        """A connection without a request; those that the server closed meanwhile are passed over."""
        while self.idle:
            flow = self.idle.pop()
            if flow.connected:
                return flow
        return None

    def broken(self, flow: Flow, how: str, detail: str = "") -> None:
        """The connection is gone; so is the request on it, if there is one."""
        if how in ("eof", "reset") and flow.request >= 0 and flow.used and not flow.before:
            self.closed_before_use(flow)
            return
        self.drop(flow)
        if flow.request >= 0:
            self.end(flow, how, detail)

    def closed_before_use(self, flow: Flow) -> None:
        """The server had closed a connection that it promised to keep (llama-server does after every stream).

        Not one byte was answered and the connection had served before: this is no failed request but a connection that was no longer
        there. The request goes out on a new one, and connections of this server are not used twice any more.
        """
        self.reuse = False
        self.reconnects += 1
        self.drop(flow)
        flow.sent_ns = 0
        start, stop = self.offsets[flow.request], self.offsets[flow.request + 1]
        flow.out = self.body[start:stop]
        self.connect(flow)

    # -- requests ------------------------------------------------------------------------------------------------------

    def dispatch(self, now: int) -> None:
        """Give every request that is due to a connection, oldest first."""
        while self.ready and self.ready[0][0] <= now:
            flow = self.take_idle()
            if flow is None:
                if len(self.flows) >= self.most and not self.open_loop:
                    return
                flow = Flow()
            due, number = heapq.heappop(self.ready)
            flow.request = number
            flow.intended_ns = due if self.open_loop or self.requests[number][1] >= 0 else max(due, self.freed_ns)
            flow.clear()
            start, stop = self.offsets[number], self.offsets[number + 1]
            flow.out = self.body[start:stop]
            if flow.sock is None:
                self.connect(flow)
            else:
                flow.connect_ns = 0
                self.send_first(flow)
        if self.open_loop and not self.idle and self.ready and len(self.flows) < self.most:
            self.connect(Flow())  # one spare, connected before it is needed

    def send_first(self, flow: Flow) -> None:
        flow.sent_ns = flow.seen_ns = time.monotonic_ns()
        if not self.first_send_cpu_s:
            self.first_send_cpu_s = time.process_time()
        sent = SENT.pack(ord("S"), flow.request, 24, flow.intended_ns, flow.connect_ns, flow.sent_ns)
        if flow.tls is not None:
            flow.out = memoryview(flow.tls.encrypt(flow.out))
        self.send(flow)
        self.frames += sent  # behind the send, which may also end the request

    def send(self, flow: Flow, *, waiting: bool = False) -> None:
        """Send what the socket takes. ``waiting``: it was watched for room before."""
        assert flow.sock is not None
        try:
            sent = flow.sock.send(flow.out)
        except BlockingIOError:
            sent = 0
        except OSError:
            # the server may have answered before it closed: read that first, the read side (or the idle timeout) ends the request
            flow.out = b""
            self.watch(flow)
            return
        flow.out = flow.out[sent:]
        if flow.out or waiting:
            self.watch(flow)

    def watch(self, flow: Flow) -> None:
        """Have an established connection reported for all it waits for, also for what came before."""
        self.epoll.modify(flow.fd, EDGE | OUT if flow.out else EDGE)

    def end(self, flow: Flow, how: str, detail: str = "") -> None:
        number, now = flow.request, time.monotonic_ns()
        if flow.sent_ns == 0:
            self.frames += SENT.pack(ord("S"), number, 24, flow.intended_ns, flow.connect_ns, 0)
        text = (f"{how}: {detail}" if detail else how).encode()
        self.frames += ENDED.pack(ord("E"), number, 8 + len(text), now)
        self.frames += text
        flow.request, flow.sent_ns = -1, 0
        self.freed_ns = now
        self.left -= 1
        self.news += not self.rehearsing
        self.answered += how == "complete"
        for follower in self.followers.pop(number, ()):
            due_us, _, delay_us, _ = self.requests[follower]
            heapq.heappush(self.ready, (max(now + delay_us * 1000, self.start_ns + due_us * 1000), follower))
        whole = how == "complete" and not flow.out  # answered before all of it was sent: the server still waits for the rest
        if whole and flow.keep and self.reuse and flow.sock is not None and (self.ready or self.followers or self.rehearsing):
            flow.used += 1
            self.idle.append(flow)
        else:
            self.drop(flow)  # an idle connection would hold a thread of a thread-per-connection server

    # -- framing: only as much as finding the end of a response needs ----------------------------------------------------

    def progress(self, flow: Flow, chunk: bytes) -> None:
        """Look whether the response is over."""
        if flow.request < 0:  # bytes nobody asked for
            self.drop(flow)
            return
        data, body = flow.before + chunk, chunk
        if flow.framing == HEAD:
            flow.before = data
            found = self.head(flow, data)
            if found is None:
                return
            body = found
            line, whole, _ = body.partition(b"\r\n")
            if whole and flow.framing == CHUNKED and not CHUNK_SIZE.fullmatch(line):
                self.end(flow, "malformed")  # nothing it says later can be read
                return
        flow.before = data[-TAIL_BYTES:]
        if flow.framing == CHUNKED:
            complete = bool(body) and data.endswith(END) and LAST_CHUNK.search(flow.before) is not None
        else:
            flow.length -= len(body)
            complete = flow.framing == LENGTH and flow.length <= 0
        if complete:
            self.end(flow, "complete")

    def head(self, flow: Flow, data: bytes) -> bytes | None:
        """Read the head, once it is whole, and return what is behind it."""
        at = 0
        while True:
            stop = data.find(END, at)
            if stop < 0:
                return None
            head = data[at:stop].lower()
            at = stop + 4
            if not head.startswith((b"http/1.1 1", b"http/1.0 1")):
                break
        fields = {}
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            fields[name.strip()] = value.strip()
        flow.keep = b"close" not in fields.get(b"connection", b"close" if head.startswith(b"http/1.0") else b"")
        flow.slow = False
        if fields.get(b"transfer-encoding", b"").endswith(b"chunked"):
            flow.framing = CHUNKED
        elif fields.get(b"content-length", b"").isdigit():
            flow.framing, flow.slow = LENGTH, True
            flow.length = int(fields[b"content-length"])
        else:
            flow.framing = UNTIL_CLOSE
        return data[at:]

    # -- the loop --------------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Connect."""
        if self.plan["tls"]:
            self.context = tls_context(self.plan["tls"])
        primer = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)  # the kernel starts stamping a moment after the first request to
        if self.kernel_clock:
            try:
                primer.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            except OSError:
                self.kernel_clock = False
        self.primer = primer
        self.sample_clocks()
        self.connect_first()
        self.epoll.register(0, IN)  # end of file: whoever started us is gone

    def connect_first(self) -> None:
        """As many connections as the first requests can use; those that take longer than they may are given up."""
        first = sum(after < 0 for _, after, _, _ in self.requests[self.rehearsed :])
        for _ in range(min(self.most, first) - len(self.flows)):
            self.connect(Flow())
        limit = time.monotonic_ns() + self.connect_ns
        while any(not flow.connected for flow in self.flows.values()):
            if time.monotonic_ns() > limit:
                for flow in [f for f in self.flows.values() if not f.connected]:
                    self.drop(flow)
                break
            for fd, event in self.epoll.poll(0.05):
                if fd in self.flows:
                    self.ready_flow(self.flows[fd], event)
        self.look_again()

    def look_again(self) -> None:
        """Have reported once more what there is on idle connections: an edge is reported once, and whoever got it had no use for it."""
        for flow in self.idle:
            if flow.connected:
                self.watch(flow)

    def rehearse(self) -> None:
        """Play the leading requests in a closed loop and keep their connections; stop if not one was answered."""
        if not self.rehearsed:
            return
        open_loop, self.open_loop = self.open_loop, False
        self.rehearsing = True
        self.schedule(time.monotonic_ns(), 0, self.rehearsed)
        self.play()
        self.rehearsing, self.open_loop = False, open_loop
        if not self.answered:
            self.stopped = self.stopped or "no request of the rehearsal was answered"
        if self.stopped:  # what is still open ends with the rest
            return
        self.look_again()
        for fd, _ in self.epoll.poll(0.01, 4096):  # what the server ended meanwhile is connected again before the clock starts
            if fd in self.flows:
                self.drop(self.flows[fd])
        self.connect_first()

    def begin(self) -> None:
        """Wait for the word of whoever started us, and set the clock that arrivals are counted from."""
        os.write(1, b"r")
        word = os.read(0, 64)
        if not word:
            self.stopped = self.stopped or GONE
        start = max(int(word or b"0"), time.monotonic_ns())
        while time.monotonic_ns() < start:
            time.sleep(max(0.0, min(0.01, (start - time.monotonic_ns()) / 1e9)))
        self.start_ns = start if self.open_loop else time.monotonic_ns()
        self.schedule(self.start_ns, self.rehearsed, len(self.requests))

    def schedule(self, start_ns: int, first: int, behind: int) -> None:
        """These requests are to be played, their times counted from ``start_ns``."""
        for number in range(first, behind):
            due_us, after, _, _ = self.requests[number]
            if after >= 0:
                self.followers.setdefault(after, []).append(number)
            else:
                self.ready.append((start_ns + max(due_us, 0) * 1000, number))
        heapq.heapify(self.ready)
        self.freed_ns = start_ns
        self.left = behind - first
        self.limit_ns = self.limit_ns or start_ns + int(self.plan["limit_s"] * 1e9)

    def ready_flow(self, flow: Flow, event: int) -> None:
        """Everything but the plain read of an established connection."""
        if not flow.connected:
            if flow.tls is None:
                self.connected(flow)
            else:
                received = self.receive(flow)
                if received and self.shake(flow, received):
                    self.usable(flow)
            return
        if event & OUT and flow.out:
            self.send(flow, waiting=True)

    def receive(self, flow: Flow) -> bytes:
        """Bytes of a handshake; empty when there are none or the connection ended."""
        try:
            received: bytes = flow.recvmsg(65536)[0]
        except BlockingIOError:
            return b""
        except OSError as error:
            self.broken(flow, "reset", error.strerror or "")
            return b""
        if not received:
            self.broken(flow, "refused", "closed while connecting")
        return received

    def play(self) -> None:
        """The hot path. Per readable socket: one ``recvmsg``, two appends, a few comparisons."""
        poll, flows, clock = self.epoll.poll, self.flows, time.monotonic_ns
        hot = self.hot
        again: list[Flow] = []
        got, keep, whose = self.got, self.got.append, self.whose.append
        since, polled, read, reads = self.since_ns.append, self.polled_ns.append, self.read_ns.append, self.reads.append
        tick_ns = int(max(1e6, min(250e6, self.idle_ns / 4)))
        next_tick = next_clocks = bound = earliest = clock()
        size = 65536 if self.context is not None else READ_BYTES
        encrypted, gather = self.context is not None, self.kernel_clock
        if not self.stopped:
            self.dispatch(clock())
        while self.left and not self.stopped:
            now = clock()
            if now >= next_tick:
                self.check(now)
                next_tick = now + tick_ns
                if now >= next_clocks:
                    self.sample_clocks()
                    next_clocks = now + int(CLOCKS_S * 1e9)
            elif len(got) >= READS_KEPT:
                self.store()
            wait = next_tick - now
            if self.ready and (self.open_loop or self.ready[0][0] > now):
                wait = min(wait, self.ready[0][0] - now)
            # what is there at once had not been there when the poll before was called; the rest of a read that filled its buffer had
            earliest, bound = earliest if again else bound, now
            events = poll(0, 4096)
            if not events and not again:
                delay = self.run_delay()
                events = poll(max(0, wait // 1_000_000) / 1e3, 4096)  # it rounds up to whole ms: wait for these, then look again
                # a wait ends with the first packet, though another process may have kept us from seeing it at once
                earliest = bound = clock() - (self.run_delay() - delay)
            self.polls += 1
            if gather and len(events) < GATHER_BELOW <= len(flows) and not again:
                time.sleep(GATHER_S)
                bound = clock()
                events += poll(0, 4096)
            now = clock()
            before = len(got)
            if again:
                events += [(flow.fd, IN) for flow in again if hot[flow.fd] is flow]
                again.clear()
            for fd, event in events:
                flow = hot[fd]
                if flow is None or event & OUT:
                    if fd == 0:
                        self.stopped = GONE
                        break
                    if fd in flows:
                        self.ready_flow(flows[fd], event)
                    continue
                recvmsg = flow.recvmsg  # called as an attribute it would be looked up as a method first
                try:
                    one = recvmsg(size, 32)
                except BlockingIOError:
                    continue
                except OSError as error:
                    self.broken(flow, "reset", error.strerror or "")
                    continue
                chunk = one[0]
                if event != IN or len(chunk) == size:
                    again.append(flow)
                if encrypted and chunk:
                    plain = self.decrypt(flow, chunk)
                    if plain is None:
                        continue
                    chunk = plain
                    one = chunk, one[1]
                if not chunk:
                    self.closed(flow)
                    continue
                keep(one)
                whose(flow.request)
                flow.seen_ns = now
                if flow.slow or not chunk.endswith(WHOLE):
                    self.progress(flow, chunk)
                else:
                    flow.before = chunk
                if encrypted and flow.tls is not None and flow.tls.ended:
                    self.closed(flow)
            since(earliest)
            polled(now)
            read(clock())
            reads(len(got) - before)
            if self.ready:
                self.dispatch(clock())

    def run_delay(self) -> int:
        """Ns so far in which this thread could have run and another one did (proc_pid_schedstat(5)); 0 where the kernel does not count."""
        if self.schedstat is None:
            return 0
        return int(os.pread(self.schedstat, 64, 0).split()[1])

    def decrypt(self, flow: Flow, received: bytes) -> bytes | None:
        try:
            plain: bytes | None = flow.tls.decrypt(received)
        except OSError as error:  # ssl.SSLError is one
            self.broken(flow, "reset", f"TLS: {error}")
            return None
        return plain

    def closed(self, flow: Flow) -> None:
        complete = flow.request >= 0 and flow.framing == UNTIL_CLOSE
        self.broken(flow, "complete" if complete else "eof")

    def check(self, now: int) -> None:
        """A few times a second: idle timeouts, the level's limit, what there is to the file."""
        self.store()
        if now > self.limit_ns:
            self.stopped = "deadline"
            return
        for flow in list(self.flows.values()):
            if flow.request < 0 and flow.connected:
                continue
            if not flow.connected:
                if now - flow.connect_ns > self.connect_ns:
                    self.broken(flow, "refused", "timed out while connecting")
            elif now - flow.seen_ns > self.idle_ns:
                self.broken(flow, "stall")

    def finish(self, how: str) -> None:
        """Whatever is still open or was never sent ends as ``how``."""
        for flow in list(self.flows.values()):
            self.broken(flow, how)
        pending = sorted({number for _, number in self.ready} | {n for group in self.followers.values() for n in group})
        for number in pending:
            self.frame("E", number, struct.pack("<q", time.monotonic_ns()), f"{how}: not sent".encode())
        self.left = 0

    def run(self) -> None:
        raise_file_limit()
        own_status = open("/proc/self/status", encoding="ascii")  # noqa: SIM115  # read at the end, when no descriptor may be left
        signal.signal(signal.SIGTERM, self.on_signal)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is the parent's to handle
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self.start_ns = self.freed_ns = 0
        self.prepare()
        gc.collect()
        gc.freeze()
        gc.disable()
        self.rehearse()
        self.begin()
        hot = time.process_time()
        wall = time.monotonic_ns()
        self.play()
        health: dict[str, Any] = {
            "cpu_s": time.process_time(),
            "hot_cpu_s": time.process_time() - hot,
            "wall_s": (time.monotonic_ns() - wall) / 1e9,
            "first_send_cpu_s": self.first_send_cpu_s,
            "polls": self.polls,
            "reconnects": self.reconnects,
            "kernel_clock": self.kernel_clock,
            "start_ns": self.start_ns,
        }
        if self.stopped:
            self.finish("deadline" if self.stopped == "deadline" else "aborted")
        self.sample_clocks()
        health["peak_bytes"] = peak_bytes(own_status)
        health["stopped"] = self.stopped
        self.frame("H", 0, json.dumps(health).encode())
        self.store()

    def on_signal(self, number: int, _: object) -> None:
        self.stopped = signal.Signals(number).name


def raise_file_limit() -> None:
    """As many open connections as this process may have at all: 1,024 is what a shell usually starts with."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def peak_bytes(status: TextIO) -> int:
    """Largest resident size so far, from ``/proc/self/status`` (rusage would count what the forking parent had)."""
    with status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


class Tls:
    """TLS over memory buffers, so that the ciphertext's kernel stamps stay ours to read."""

    def __init__(self, context: Any, server_name: str) -> None:
        import ssl

        self.want = ssl.SSLWantReadError
        self.over = (ssl.SSLZeroReturnError, ssl.SSLEOFError)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.ended = False
        self.object = context.wrap_bio(self.incoming, self.outgoing, server_hostname=server_name)

    def handshake(self, received: bytes) -> tuple[bool, bytes]:
        self.incoming.write(received)
        try:
            self.object.do_handshake()
        except self.want:
            return False, self.outgoing.read()
        return True, self.outgoing.read()

    def encrypt(self, plain: Any) -> bytes:
        self.object.write(plain)
        return bytes(self.outgoing.read())

    def decrypt(self, received: bytes) -> bytes | None:
        """Plain text; ``None`` when no whole record is there yet. :attr:`ended` says whether more can come."""
        self.incoming.write(received)
        plain = []
        try:
            while part := self.object.read(65536):
                plain.append(part)
            self.ended = True
        except self.want:
            return b"".join(plain) or None
        except self.over:
            self.ended = True
        return b"".join(plain)


def tls_context(options: dict[str, Any]) -> Any:
    import ssl

    context = ssl.create_default_context(cafile=options.get("ca_file") or None)
    if not options.get("verify", True):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


if __name__ == "__main__":
    try:
        player = Loop(sys.argv[1], sys.argv[2])
        os.unlink(sys.argv[1])  # the headers in it may hold a key, and whoever wrote it may be killed before it can
        player.run()
    except OSError as problem:
        if problem.errno not in NO_SPACE:
            raise
        sys.exit(NO_SPACE_STATUS)
