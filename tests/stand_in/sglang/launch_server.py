"""Start like the server in tests/data/recordings/sglang-0.5.12.post1-h200, then answer requests with words at a planted pace.

``STAND_IN_SPEED`` divides all times (default 20). A round of B requests at k drafts takes 5.2 + 0.035 B + (0.55 + 0.02 B) k ms.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).resolve().parents[2] / "data" / "recordings" / "sglang-0.5.12.post1-h200"
SPEED = float(os.environ.get("STAND_IN_SPEED", "20"))
# cells of 24,576 bytes: what the H200 had left for pools, and one request's state (tests/data/recordings/.../README.md)
BUDGET, STATE, RATIO, SHARE = 1_577_893, 3144, 5, 0.9 / 1.9


def flag(name: str, default: str = "") -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


STEPS = int(flag("--speculative-num-steps", "0")) if "--speculative-algorithm" in sys.argv else 0
DRAFTS = STEPS + 1 if STEPS else 0
ASKED = int(flag("--max-running-requests", "48" if STEPS else "0"))
LOG_INTERVAL = int(flag("--decode-log-interval", "40"))
PORT = int(flag("--port", "30000"))
LENGTH = min(STEPS + 1.0, float(os.environ.get("SGLANG_SIMULATE_ACC_LEN", "1")))


def capacity() -> tuple[int, int, int]:
    """(state slots, running requests, tokens) by the rule of releases up to 0.5.12."""
    rest = BUDGET - (ASKED * DRAFTS * STATE if STEPS else 0)
    slots = int(rest * SHARE / STATE)
    running = min(ASKED, slots // RATIO) if ASKED else slots // RATIO
    return slots, running, rest - slots * STATE


SLOTS, RUNNING, TOKENS = capacity()
EXAMPLE = RECORDED / ("k3" if STEPS else "k0")


def say(text: str) -> None:
    sys.stderr.write(text.rstrip("\n") + "\n")
    sys.stderr.flush()


def stamp() -> str:
    return time.strftime("[%Y-%m-%d %H:%M:%S]")


def start_up() -> None:
    """The recorded lines up to readiness, with this start's own numbers."""
    replaced = {
        r"speculative_num_steps=\d+": f"speculative_num_steps={STEPS}",
        r"speculative_num_draft_tokens=\d+": f"speculative_num_draft_tokens={DRAFTS}",
        r"(?<!pp_)max_running_requests=(48|None)": f"max_running_requests={ASKED or None}",
        r"max_mamba_cache_size: \d+": f"max_mamba_cache_size: {SLOTS}",
        r"#tokens: \d+": f"#tokens: {TOKENS}",
        r"max_total_num_tokens=\d+": f"max_total_num_tokens={TOKENS}",
        r"max_running_requests=(29|47)": f"max_running_requests={RUNNING}",
    }
    for line in (EXAMPLE / "server.log").read_text().splitlines():
        if TOKENS <= 0 and "Mamba Cache is allocated" in line:
            die()
        for pattern, text in replaced.items():
            line = re.sub(pattern, text, line)
        say(line)
        if "Uvicorn running on" in line:
            return
        time.sleep(0.15 / SPEED)


def die() -> None:
    log = (RECORDED / "k10-crash" / "server.log").read_text()
    say(log[log.index("Scheduler hit an exception") - 22 :] if "Scheduler hit an exception" in log else log)
    os.kill(os.getpid(), signal.SIGKILL)


class Engine:
    """Counts what runs and paces the rounds."""

    def __init__(self) -> None:
        self.slots = threading.Semaphore(max(0, RUNNING))
        self.lock = threading.Lock()
        self.running = 0
        self.rounds = 0
        self.generated = 0

    def round_s(self) -> float:
        batch = self.running
        return (5.2 + 0.035 * batch + (0.55 + 0.02 * batch) * STEPS) / 1000 / SPEED

    def step(self, share: float) -> None:
        with self.lock:
            self.rounds += 1
            self.generated += 1
            told = self.rounds % (LOG_INTERVAL * max(1, self.running)) == 0
        if told:
            spec = f", accept len: {LENGTH:.2f}, accept rate: {(LENGTH - 1) / STEPS:.2f}" if STEPS else ""
            rate = self.running * LENGTH / self.round_s()
            say(
                f"{stamp()} Decode batch, #running-req: {self.running}, #full token: 562, full token usage: 0.00, mamba num: 4, "
                f"mamba usage: 0.03{spec}, cuda graph: True, gen throughput (token/s): {rate:.2f}, #queue-req: 0"
            )


ENGINE = Engine()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name of the base class
        say(f"{stamp()} INFO:     127.0.0.1:42846 - {format % args}")

    def answer(self, value: Any, kind: str = "application/json") -> None:
        data = (json.dumps(value) if kind == "application/json" else value).encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.path in ("/health", "/health_generate"):
            self.answer({})
        elif self.path in ("/server_info", "/get_server_info"):
            self.answer(server_info())
        elif self.path in ("/model_info", "/get_model_info"):
            self.answer(json.loads((EXAMPLE / "get_model_info.json").read_text()) | {"model_path": flag("--model-path")})
        elif self.path == "/v1/models":
            self.answer({"data": [{"id": flag("--model-path")}]})
        elif self.path == "/metrics":
            self.answer(f"sglang:generation_tokens_total {ENGINE.generated}.0\n", "text/plain")
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with ENGINE.slots:
            with ENGINE.lock:
                ENGINE.running += 1
            try:
                self.generate(request)
            finally:
                with ENGINE.lock:
                    ENGINE.running -= 1
        self.wfile.write(b"0\r\n\r\n")

    def generate(self, request: dict[str, Any]) -> None:
        wanted, made, credit = int(request["max_tokens"]), 0, 0.0
        self.event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
        time.sleep(0.02 / SPEED)
        while made < wanted:
            time.sleep(ENGINE.round_s())
            ENGINE.step(LENGTH)
            credit += LENGTH if STEPS else 1.0
            count = min(int(credit), wanted - made)
            credit -= int(credit)
            made += count
            if count:
                self.event({"choices": [{"index": 0, "delta": {"content": " word" * count}, "finish_reason": None}]})
        self.event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
        usage = {"prompt_tokens": 300, "completion_tokens": made, "total_tokens": 300 + made}
        self.event({"choices": [], "usage": usage})
        self.chunk(b"data: [DONE]\n\n")

    def event(self, body: dict[str, Any]) -> None:
        head = {"id": "stand-in", "object": "chat.completion.chunk", "created": 0, "model": "stand-in"}
        self.chunk(b"data: " + json.dumps(head | body).encode() + b"\n\n")

    def chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def server_info() -> dict[str, Any]:
    info: dict[str, Any] = json.loads((EXAMPLE / "get_server_info.json").read_text())
    told: dict[str, Any] = {"model_path": flag("--model-path"), "max_running_requests": ASKED or None}
    if STEPS:
        told |= {"speculative_num_steps": STEPS, "speculative_num_draft_tokens": DRAFTS, "speculative_algorithm": "EAGLE"}
    info |= told | {"max_total_num_tokens": TOKENS}
    info["internal_states"][0] |= told | {"max_mamba_cache_size": SLOTS, "effective_max_running_requests_per_dp": RUNNING}
    return info


def drain(number: int, frame: object) -> None:
    say(f"{stamp()} SIGTERM received. signum=None frame=None. Draining requests and shutting down...")
    say(f"{stamp()} Gracefully exiting... Remaining number of requests 0. Remaining requests remaining_rids=[].")
    os.kill(os.getpid(), signal.SIGKILL)  # so does the real one


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


def main() -> None:
    start_up()
    signal.signal(signal.SIGTERM, drain)
    server = Server(("127.0.0.1", PORT), Handler)
    say(f"{stamp()} The server is fired up and ready to roll!")
    server.serve_forever()


if __name__ == "__main__":
    main()
