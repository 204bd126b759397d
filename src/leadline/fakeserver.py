"""``python -m leadline.fakeserver``: a real process on a real socket that serves a planted surface (:mod:`leadline.engines.fake`).

It speaks what the load client and the adapter need: ``/health``, ``/info``, ``/metrics`` and streamed ``/v1/chat/completions``.  One loop
plays the rounds of all active requests; ``--speed`` scales its time, so that a campaign takes seconds.  Every way in which a
real engine fails can be planted.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from typing import Any

from .engines.fake import CONTEXT_TOKENS, DEFAULT_PORT, Surface, normal, surface_of, word
from .errors import LeadlineError
from .records import OFF, Candidate

LATE_S = 0.02
"""A round that started later than this is not made up for: the machine was busy."""


class Sequence:
    """One request: what it asked for and how far it is."""

    def __init__(self, body: dict[str, Any], surface: Surface) -> None:
        text = "\n".join(str(message.get("content", "")) for message in body.get("messages", [])) or str(body.get("prompt", ""))
        self.prompt = text
        self.workload = surface.workload_of(text)
        self.limit = int(body.get("max_tokens") or body.get("max_completion_tokens") or 16)
        self.done = self.drafted = self.accepted = 0
        self.chunks: asyncio.Queue[str | None] = asyncio.Queue()
        self.gone = False


class Server:
    def __init__(self, options: argparse.Namespace, surface: Surface, candidate: Candidate) -> None:
        self.options, self.surface, self.candidate = options, surface, candidate
        self.slots = options.slots or surface.slots
        self.ready = False
        self.waiting: list[Sequence] = []
        self.active: list[Sequence] = []
        self.wake = asyncio.Event()
        self.counts = {"rounds": 0, "drafted": 0, "accepted": 0, "requests": 0}
        self.positions = [0] * candidate.depth

    # -- rounds ---------------------------------------------------------------------------------------------------

    async def rounds(self) -> None:
        due, turn = time.monotonic(), 0
        while True:
            if not self.waiting and not self.active:
                self.wake.clear()
                await self.wake.wait()
                due = time.monotonic()
            admitted = self.waiting[: self.slots - len(self.active)]
            del self.waiting[: len(admitted)]
            self.active.extend(admitted)
            noise = 1 + self.surface.noise * normal("server", self.options.seed, turn)
            cost_ms = self.surface.cost_ms(self.candidate, len(self.active)) + self.surface.prefill_ms * len(admitted)
            turn += 1
            due = max(due, time.monotonic() - LATE_S) + noise * cost_ms * self.options.speed / 1000
            await asyncio.sleep(due - time.monotonic())
            for one in self.active:
                self._advance(one)
            self.active = [one for one in self.active if one.done < one.limit and not one.gone]

    def _advance(self, one: Sequence) -> None:
        taken = 0
        if not self.candidate.off:
            taken = min(self.surface.accepted(self.candidate, one.workload, one.prompt, one.done), one.limit - one.done - 1)
            self.counts["rounds"] += 1
            self.counts["drafted"] += self.candidate.depth
            self.counts["accepted"] += taken
            one.drafted += self.candidate.depth
            one.accepted += taken
            for position in range(taken):
                self.positions[position] += 1
        one.chunks.put_nowait("".join(word(one.prompt, one.done + n) for n in range(taken + 1)))
        one.done += taken + 1
        if one.done >= one.limit:
            one.chunks.put_nowait(None)
            self._served()

    def _served(self) -> None:
        self.counts["requests"] += 1
        if self.options.plant_crash_after and self.counts["requests"] >= self.options.plant_crash_after:
            print("error: planted crash under load", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    # -- HTTP -----------------------------------------------------------------------------------------------------

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = head.splitlines()
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                method, path, _ = first.split(" ", 2)
                await self._answer(method, path.partition("?")[0], body, writer)
        writer.close()

    async def _answer(self, method: str, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        if not self.ready:
            error = {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}
            await _reply(writer, 503, json.dumps(error))
        elif path == "/health":
            await _reply(writer, 200, '{"status":"ok"}')
        elif path == "/info":
            await _reply(writer, 200, json.dumps(self._info()))
        elif path == "/metrics":
            await _reply(writer, 200, self._metrics(), "text/plain")
        elif path == "/v1/models":
            await _reply(writer, 200, json.dumps({"object": "list", "data": [{"id": "planted", "object": "model"}]}))
        elif method == "POST" and path in ("/v1/chat/completions", "/v1/completions"):
            await self._complete(json.loads(body), writer)
        else:
            await _reply(writer, 404, '{"error":{"message":"not found","code":404}}')

    def _info(self) -> dict[str, Any]:
        silent = self.options.plant_silent
        shown = Candidate(algorithm=OFF, depth=0) if silent else self.candidate
        return {"method": shown.algorithm, "depth": shown.depth, "slots": self.slots, "context": CONTEXT_TOKENS}

    def _metrics(self) -> str:
        lines = [f"fake:{name}_total {value}" for name, value in self.counts.items()]
        lines += [f'fake:accepted_position_total{{position="{n}"}} {value}' for n, value in enumerate(self.positions)]
        lines += [f"fake:active {len(self.active)}", f"fake:waiting {len(self.waiting)}"]
        return "\n".join(lines) + "\n"

    async def _complete(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        one = Sequence(body, self.surface)
        self.waiting.append(one)
        self.wake.set()
        try:
            if body.get("stream"):
                await self._stream(one, writer)
            else:
                await self._whole(one, writer)
        except ConnectionError:
            one.gone = True
            raise

    async def _stream(self, one: Sequence, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        while (text := await one.chunks.get()) is not None:
            await _event(writer, {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]})
        await _event(writer, {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
        await _event(writer, {"choices": [], **self._account(one)})
        _chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _whole(self, one: Sequence, writer: asyncio.StreamWriter) -> None:
        parts = []
        while (text := await one.chunks.get()) is not None:
            parts.append(text)
        message = {"role": "assistant", "content": "".join(parts)}
        answer = {
            "choices": [{"index": 0, "message": message, "text": message["content"], "finish_reason": "length"}],
            **self._account(one),
        }
        await _reply(writer, 200, json.dumps(answer))

    def _account(self, one: Sequence) -> dict[str, Any]:
        prompt = len(one.prompt.split())
        timings: dict[str, Any] = {"prompt_n": prompt, "cache_n": 0, "predicted_n": one.done}
        if one.drafted:
            timings |= {"draft_n": one.drafted, "draft_n_accepted": one.accepted}
        usage = {"prompt_tokens": prompt, "completion_tokens": one.done, "total_tokens": prompt + one.done}
        return {"object": "chat.completion.chunk", "usage": usage, "timings": timings}

    # -- life -----------------------------------------------------------------------------------------------------

    async def serve(self) -> None:
        server = await asyncio.start_server(self.connection, self.options.host, self.options.port, limit=1 << 22)
        await self._load()
        self.ready = not self.options.plant_never_ready
        print(f"serving on http://{self.options.host}:{self.options.port}", flush=True)
        async with server:
            await self.rounds()

    async def _load(self) -> None:
        depth = self.candidate.depth
        for percent in (0, 25, 50, 75, 100):
            print(f"loading {percent} %", flush=True)
            if percent == 50 and 0 < self.options.plant_hang_depth <= depth:
                await asyncio.Event().wait()
            if percent == 50 and 0 < self.options.plant_crash_depth <= depth:
                print(f"error: planted: no memory left for depth {depth}", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            await asyncio.sleep(self.options.plant_load_s / 5)


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


async def _event(writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
    _chunk(writer, f"data: {json.dumps(event)}\n\n".encode())
    await writer.drain()


async def _reply(writer: asyncio.StreamWriter, status: int, text: str, kind: str = "application/json") -> None:
    reason = {200: "OK", 404: "Not Found", 503: "Service Unavailable"}[status]
    body = text.encode()
    writer.write(f"HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name if __spec__ else 'leadline.fakeserver'}", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT)
    parser.add_argument("--spec-method", help="a method of the planted surface; left out = speculation off")
    parser.add_argument("--spec-depth", type=int, default=1)
    parser.add_argument("--slots", type=int, default=0, help="requests running at once; further ones wait")
    parser.add_argument("--plant", default="regimes", help="a planted surface: its name or its JSON")
    parser.add_argument("--speed", type=float, default=1.0, help="scale of time: 0.1 = ten times faster")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plant-exit", type=int, default=-1, help="end at once with this status")
    parser.add_argument("--plant-crash-depth", type=int, default=0, help="die while loading from this depth on")
    parser.add_argument("--plant-hang-depth", type=int, default=0, help="stand still while loading from this depth on")
    parser.add_argument("--plant-crash-after", type=int, default=0, help="die after so many served requests")
    parser.add_argument("--plant-load-s", type=float, default=0.0)
    parser.add_argument("--plant-silent", action="store_true", help="report speculation off whatever was asked for")
    parser.add_argument("--plant-never-ready", action="store_true")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    if options.plant_exit >= 0:
        print(f"error: planted exit with status {options.plant_exit}", flush=True)
        return int(options.plant_exit)
    try:
        surface = surface_of(options.plant)
    except LeadlineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    method = options.spec_method
    if method is not None and method not in surface.methods:
        print(f"error: unknown method {method}", file=sys.stderr)
        return 1
    speculating = method is not None and not options.plant_silent
    candidate = Candidate(algorithm=method, depth=options.spec_depth) if speculating else Candidate(algorithm=OFF, depth=0)
    try:
        asyncio.run(Server(options, surface, candidate).serve())
    except OSError as error:
        print(f"error: cannot listen: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
