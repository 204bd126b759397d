"""The ground-truth server of the load tests: built, started, steered and read back."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import struct
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parent / "mock" / "mock.c"
COMPILER = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")


@dataclass
class Truth:
    """One request as the server's own log tells it. Times: ns of the monotonic clock."""

    id: int
    arrived_ns: int
    """The kernel of the server had the whole request."""
    received_ns: int
    """The server had read it."""
    done_ns: int
    status: int
    fault: int
    prompt_tokens: int
    max_tokens: int
    chunk_ns: list[int]
    chunk_tokens: list[int]

    @property
    def tokens(self) -> int:
        return sum(self.chunk_tokens)


class Mock:
    """A running mock server; ``close`` ends it."""

    def __init__(self, binary: Path, *, cpu: int | None = None) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        argv = [str(binary), "-p", str(self.port)]
        self.process = subprocess.Popen(argv if cpu is None else ["taskset", "-c", str(cpu), *argv])
        self.url = f"http://127.0.0.1:{self.port}"
        limit = time.monotonic() + 10
        while True:
            try:
                self.get("/ctl")
                return
            except OSError:
                if time.monotonic() > limit:
                    raise
                time.sleep(0.02)

    def get(self, path: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            return connection.getresponse().read()
        finally:
            connection.close()

    def set(self, **knobs: object) -> dict[str, object]:
        """Set the schedule; every knob not named goes back to its default, counters and log are cleared."""
        plain: dict[str, object] = {
            "ttft": 2000, "itl": 500, "k": 1, "mode": "fixed", "usage": 0, "role": 0, "reasoning": 0, "fault": "none", "fevery": 1, "fat": 5, "jit": 0,
        }  # fmt: skip
        query = "&".join(f"{name}={value}" for name, value in {**plain, **knobs, "reset": 1}.items())
        answer: dict[str, object] = json.loads(self.get(f"/ctl?{query}"))
        return answer

    def last(self) -> bytes:
        """The last request as it came."""
        return self.get("/ctl/last")

    def truth(self, folder: Path) -> list[Truth]:
        """The log since it was last read or cleared, by request number."""
        path = folder / "dump"
        self.get(f"/ctl/dump?path={path}")
        data = path.read_bytes()
        magic, count, total, size = struct.unpack_from("<4Q", data)
        assert magic == 0x4D4F434B
        assert size == 80
        at = 32
        times = struct.unpack_from(f"<{total}Q", data, at + count * size)
        tokens = struct.unpack_from(f"<{total}I", data, at + count * size + 8 * total)
        found = []
        for number in range(count):
            row = struct.unpack_from("<6Q6IQ", data, at + number * size)
            ident, _, received, _, done, arrived, chunks, _, status, fault, prompt, most, offset = row
            found.append(
                Truth(
                    ident,
                    arrived,
                    received,
                    done,
                    status,
                    fault,
                    prompt,
                    most,
                    list(times[offset : offset + chunks]),
                    list(tokens[offset : offset + chunks]),
                )
            )
        return sorted(found, key=lambda truth: truth.id)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(10)


def build(folder: Path) -> Path:
    """Compile the mock into ``folder``."""
    assert COMPILER is not None
    binary = folder / "mock"
    subprocess.run([COMPILER, "-O2", "-Wall", "-o", str(binary), str(SOURCE)], check=True)
    return binary
