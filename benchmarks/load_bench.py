"""Accuracy and cost of load clients against the ground-truth server: ``make load-bench``.

The server runs on core 0 and logs when it sent what; each client runs on core 1 as a process of its own; clients take turns, in
reverse order on every second round. An error is a percentile of what the client says minus the same percentile of what the
server's log says, where a request arrives when the server's kernel has it. CPU is that of the client's whole process tree (user + system) above the same client's run at concurrency 1, per
1,000 chunks. Peers are found below ``--peers`` (benchmarks/peers/README.md says how to put them there); those missing are left out.
wrk, which keeps nothing of what it reads, is played beside them where it is installed: what the bare reading costs on this machine at this hour.

    python benchmarks/load_bench.py [--rounds 5] [--peers DIR] [--levels 1,64,512,2048] [--clients leadline,wrk,vllm,sglang,aiperf]
"""

from __future__ import annotations

import argparse
import http.server
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

import loadmock  # noqa: E402
from leadline.measure import percentile  # noqa: E402

SHAPES = {1: (2, 128, 10_000), 64: (192, 128, 10_000), 512: (1024, 64, 40_000), 2048: (2048, 64, 80_000)}
"""Concurrency -> requests, tokens (= chunks) a request, microseconds between chunks."""
TTFT_US = 50_000
TIMEOUT_S = 170


@dataclass
class Run:
    """One client, once, at one concurrency."""

    client: str
    concurrency: int
    ttft_ms: list[float]
    gaps_ms: list[float]
    """Every gap, or one mean a request where the client keeps no more (``mean_only``)."""
    mean_only: bool = False
    cost_only: bool = False
    """It measures no latency a stream: only what it used is compared."""
    failed: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    peak_mb: float = 0.0
    first_send_cpu_s: float = 0.0
    load_mb: float = 0.0
    load_cpu_s: float = 0.0
    """Of ``cpu_s``, what leadline's load processes used; the rest starts the tool, reads what they stored and writes the result."""
    chunks: int = 0
    unsure: float = 0.0
    """Share of leadline's gaps of which an end was estimated, because one read brought several events."""
    others: float = 0.0
    """Cores that neither the client nor the server used but were busy: what else ran on the machine."""
    truth_ttft_ms: list[float] = field(default_factory=list)
    truth_gaps_ms: list[float] = field(default_factory=list)


class Client:
    """How one client is started and read."""

    def __init__(self, name: str, argv: Callable[[Path, str, int, int, int], list[str]], read: Callable[[Path, Run], None]) -> None:
        self.name, self.argv, self.read = name, argv, read


def leadline_argv(folder: Path, url: str, concurrency: int, count: int, tokens: int) -> list[str]:
    (folder / "leadline.toml").write_text(
        f"[measure]\nprompts = {count}\nmax_tokens = {tokens}\nmax_blocks = 1\nwarmup_requests = 1\nlevel_limit_s = 600\n"
    )
    out = str(folder / "leadline.json")
    options = ["-n", str(concurrency), "-c", str(folder / "leadline.toml"), "--traces", str(folder / "traces")]
    return [sys.executable, "-m", "leadline", "bench", url, *options, "--out", out, "--quiet"]


def leadline_read(folder: Path, run: Run) -> None:
    from leadline import bench
    from leadline.stream import trace

    result = bench.load(folder / "leadline.json")
    requests = [request for level in result.levels for block in level.blocks for request in block.requests]
    run.ttft_ms = [request.ttft_ms for request in requests if request.ttft_ms is not None]
    run.gaps_ms = [gap for request in requests for gap in request.step_gap_ms]
    run.failed = sum(request.outcome.value != "ok" for request in requests)
    run.unsure = sum(request.gaps_unsure for request in requests) / max(1, len(run.gaps_ms))
    traces = {path: trace.read(path.read_bytes()).healths for path in folder.glob("traces/*/load-*.trace")}
    run.load_cpu_s = sum(float(str(health["cpu_s"])) for healths in traces.values() for health in healths)
    healths = [health for path, healths in traces.items() if "1000000" not in str(path) for health in healths]  # without the warm-up
    run.first_send_cpu_s = max(float(str(health["first_send_cpu_s"])) for health in healths)
    run.load_mb = max(float(str(health["peak_bytes"])) for health in healths) / 2**20


def vllm_argv(peers: Path) -> Callable[[Path, str, int, int, int], list[str]]:
    def argv(folder: Path, url: str, concurrency: int, count: int, tokens: int) -> list[str]:
        lines = [json.dumps({"prompt": _text(n), "output_tokens": tokens}) for n in range(count)]
        (folder / "vllm.jsonl").write_text("\n".join(lines))
        return [
            *(str(peers / "vllm/bin/python"), str(ROOT / "benchmarks/peers/run_vllm.py"), "--backend", "openai-chat", "--base-url", url),
            *("--endpoint", "/v1/chat/completions", "--model", "mock", "--tokenizer", str(peers / "tok"), "--dataset-name", "custom"),
            *("--dataset-path", str(folder / "vllm.jsonl"), "--custom-output-len", str(tokens), "--num-prompts", str(count)),
            *("--max-concurrency", str(concurrency), "--save-result", "--save-detailed", "--result-filename", str(folder / "vllm.json")),
            *("--percentile-metrics", "ttft,tpot,itl,e2el", "--disable-shuffle"),
        ]

    return argv


def vllm_read(folder: Path, run: Run) -> None:
    result = json.loads((folder / "vllm.json").read_text())
    run.ttft_ms = [1e3 * value for value in result["ttfts"]]
    run.gaps_ms = [1e3 * gap for gaps in result["itls"] for gap in gaps]
    run.failed = result["failed"]


def sglang_argv(peers: Path) -> Callable[[Path, str, int, int, int], list[str]]:
    def argv(folder: Path, url: str, concurrency: int, count: int, tokens: int) -> list[str]:
        lines = [json.dumps({"conversations": [{"content": _text(n)}, {"content": "word " * tokens}]}) for n in range(count)]
        (folder / "sglang.jsonl").write_text("\n".join(lines))
        return [
            *(str(peers / "sgl/bin/python"), str(ROOT / "benchmarks/peers/run_sglang.py"), "--backend", "sglang-oai-chat"),
            *("--base-url", url, "--model", "mock", "--tokenizer", str(peers / "tok"), "--dataset-name", "custom"),
            *("--dataset-path", str(folder / "sglang.jsonl"), "--sharegpt-output-len", str(tokens), "--num-prompts", str(count)),
            *("--max-concurrency", str(concurrency), "--output-file", str(folder / "sglang-out.jsonl"), "--output-details"),
            *("--extra-request-body", '{"stream_options":{"include_usage":true}}'),
        ]

    return argv


def sglang_read(folder: Path, run: Run) -> None:
    result = json.loads((folder / "sglang-out.jsonl").read_text().splitlines()[-1])
    run.ttft_ms = [1e3 * value for value in result["ttfts"]]
    run.gaps_ms = [1e3 * gap for gaps in result["itls"] for gap in gaps]
    run.failed = sum(bool(error) for error in result.get("errors", []))


def aiperf_argv(peers: Path) -> Callable[[Path, str, int, int, int], list[str]]:
    def argv(folder: Path, url: str, concurrency: int, count: int, tokens: int) -> list[str]:
        return [
            *(str(peers / "aiperf/bin/aiperf"), "profile", "--url", url, "--endpoint-type", "chat", "--streaming", "--model", "mock"),
            *("--tokenizer", "local/tok", "--concurrency", str(concurrency), "--request-count", str(count), "--isl", "20"),
            *("--osl", str(tokens), "--extra-inputs", f"max_tokens:{tokens}", "--ui", "none", "--artifact-dir", str(folder / "aiperf")),
        ]

    return argv


def aiperf_read(folder: Path, run: Run) -> None:
    run.mean_only = True
    for line in (folder / "aiperf/profile_export.jsonl").read_text().splitlines():
        metrics = json.loads(line)["metrics"]
        if "time_to_first_token" not in metrics:
            run.failed += 1
            continue
        run.ttft_ms.append(metrics["time_to_first_token"]["value"])
        if "inter_token_latency" in metrics:
            run.gaps_ms.append(metrics["inter_token_latency"]["value"])


def wrk_argv(folder: Path, url: str, concurrency: int, count: int, tokens: int) -> list[str]:
    body = {"model": "mock", "messages": [{"role": "user", "content": _text(0)}], "max_tokens": tokens, "stream": True}
    lines = ['wrk.method = "POST"', 'wrk.headers["Content-Type"] = "application/json"', f"wrk.body = {json.dumps(json.dumps(body))}"]
    (folder / "wrk.lua").write_text("\n".join(lines))
    wave_s = (TTFT_US + tokens * SHAPES[concurrency][2]) / 1e6
    seconds = max(1, round(count / concurrency * wave_s))
    return [
        "wrk",
        "-t1",
        f"-c{concurrency}",
        f"-d{seconds}s",
        "--timeout",
        "60s",
        "-s",
        str(folder / "wrk.lua"),
        url + "/v1/chat/completions",
    ]


def wrk_read(folder: Path, run: Run) -> None:
    run.cost_only = True


def _text(number: int) -> str:
    return f"This is request number {number}. Tell me in a few words what comes after it, and why."


def clients(peers: Path) -> dict[str, Client]:
    """Every client that is there."""
    found = {"leadline": Client("leadline", leadline_argv, leadline_read)}
    if shutil.which("wrk"):
        found["wrk"] = Client("wrk", wrk_argv, wrk_read)
    if (peers / "vllm/bin/python").exists():
        found["vllm"] = Client("vllm", vllm_argv(peers), vllm_read)
    if (peers / "sgl/bin/python").exists():
        found["sglang"] = Client("sglang", sglang_argv(peers), sglang_read)
    if (peers / "aiperf/bin/aiperf").exists():
        found["aiperf"] = Client("aiperf", aiperf_argv(peers), aiperf_read)
    return found


def once(client: Client, mock: loadmock.Mock, concurrency: int, peers: Path) -> Run:
    """Run a client and set beside it what the server says."""
    count, tokens, gap_us = SHAPES[concurrency]
    run = Run(client.name, concurrency, [], [])
    with tempfile.TemporaryDirectory(prefix="load-bench-") as name:
        folder = Path(name)
        mock.set(ttft=TTFT_US, itl=gap_us)
        argv = client.argv(folder, mock.url, concurrency, count, tokens)
        began, busy, own = time.monotonic(), _busy_s(), _used_s(mock.process.pid)
        with open(folder / "said", "wb") as said:
            child = subprocess.Popen(
                ["taskset", "-c", "1", *argv], stdout=said, stderr=said, cwd=folder, env=_environment(peers), start_new_session=True
            )
            status, usage, peak = _watched(child)
        run.wall_s, run.cpu_s, run.peak_mb = time.monotonic() - began, usage, peak
        run.others = max(0.0, (_busy_s() - busy - usage - (_used_s(mock.process.pid) - own)) / run.wall_s)
        if status:
            raise SystemExit(f"{client.name} at {concurrency} ended with {status}:\n" + (folder / "said").read_text()[-2000:])
        client.read(folder, run)
        truth = mock.truth(folder)
        run.chunks = sum(len(request.chunk_ns) for request in truth)
        measured = [request for request in truth if request.max_tokens == tokens and request.chunk_ns]
        run.truth_ttft_ms = [(request.chunk_ns[0] - request.arrived_ns) / 1e6 for request in measured]
        run.truth_gaps_ms = [(b - a) / 1e6 for request in measured for a, b in itertools.pairwise(request.chunk_ns)]
    return run


def _environment(peers: Path) -> dict[str, str]:
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HOME": str(peers / "hf")}
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), **offline}


def _busy_s() -> float:
    """CPU seconds that all cores together were not idle, since boot."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def _used_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _watched(child: subprocess.Popen[bytes]) -> tuple[int, float, float]:
    """Exit status, CPU seconds of the tree, peak of the tree's summed PSS in MB."""
    import psutil

    peak = 0.0
    limit = time.monotonic() + TIMEOUT_S
    root = psutil.Process(child.pid)
    while True:
        pid, status, usage = os.wait4(child.pid, os.WNOHANG)
        if pid:
            child.returncode = os.waitstatus_to_exitcode(status)
            return child.returncode, usage.ru_utime + usage.ru_stime, peak
        if time.monotonic() > limit:
            os.killpg(child.pid, 9)
        total = 0.0
        try:
            for process in [root, *root.children(recursive=True)]:
                total += process.memory_full_info().pss / 2**20
        except (psutil.Error, OSError):
            total = 0.0
        peak = max(peak, total)
        time.sleep(0.5)


def start(client: Client, peers: Path) -> tuple[float, float]:
    """CPU seconds of the client's tree, and seconds, from its start to its first request for a completion."""
    import psutil

    first = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = b'{"object":"list","data":[{"id":"mock","object":"model"}]}'
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            first.set()
            time.sleep(1)

        def log_message(self, *args: object) -> None:
            """Nobody asked."""

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 1024

    with tempfile.TemporaryDirectory(prefix="load-bench-") as name, Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        folder = Path(name)
        argv = client.argv(folder, f"http://127.0.0.1:{server.server_port}", 64, *SHAPES[64][:2])
        began = time.monotonic()
        with open(folder / "said", "wb") as said:
            child = subprocess.Popen(
                ["taskset", "-c", "1", *argv], stdout=said, stderr=said, cwd=folder, env=_environment(peers), start_new_session=True
            )
        try:
            if not first.wait(TIMEOUT_S):
                raise SystemExit(f"{client.name} sent no request:\n" + (folder / "said").read_text()[-2000:])
            took = time.monotonic() - began
            root = psutil.Process(child.pid)
            used = [process.cpu_times() for process in [root, *root.children(recursive=True)]]
            # of those that ended already, what their parents inherited
            cpu = sum(times.user + times.system + times.children_user + times.children_system for times in used)
        finally:
            os.killpg(child.pid, 9)
            child.wait()
            server.shutdown()
    return cpu, took


def starts(there: dict[str, Client], rounds: int, peers: Path) -> str:
    lines = ["start to first request: CPU s of the whole tree (seconds), medians"]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in there if name != "wrk"}
    for _ in range(rounds):
        for name in found:
            found[name].append(start(there[name], peers))
    for name, values in found.items():
        cpu, took = (statistics.median(column) for column in zip(*values, strict=True))
        lines.append(f"{name:9} {cpu:.2f} ({took:.2f})  n={len(values)}")
    return "\n".join(lines)


def errors(run: Run) -> dict[str, float]:
    """Reported percentile minus true percentile, ms."""
    told, true = sorted(run.ttft_ms), sorted(run.truth_ttft_ms)
    gaps, gaps_true = sorted(run.gaps_ms), sorted(run.truth_gaps_ms)
    return {
        "ttft_p50": percentile(told, 0.5) - percentile(true, 0.5),
        "ttft_p99": percentile(told, 0.99) - percentile(true, 0.99),
        "itl_p50": percentile(gaps, 0.5) - percentile(gaps_true, 0.5),
        "itl_p99": percentile(gaps, 0.99) - percentile(gaps_true, 0.99),
    }


def table(runs: list[Run]) -> str:
    """Medians over the rounds."""
    head = "client    c     TTFT error p50/p99 ms   ITL error p50/p99 ms    CPU ms/1k   load  peak MB  load MB  start CPU s  others  failed"
    lines = [head]
    for client in dict.fromkeys(run.client for run in runs):
        ones = [run.cpu_s for run in runs if run.client == client and run.concurrency == 1]
        fixed = statistics.median(ones) if ones else 0.0
        idle = [run.load_cpu_s for run in runs if run.client == client and run.concurrency == 1]
        load_fixed = statistics.median(idle) if idle else 0.0
        for concurrency in dict.fromkeys(run.concurrency for run in runs):
            mine = [run for run in runs if run.client == client and run.concurrency == concurrency]
            if not mine:
                continue
            latency = "    (does not measure)    (does not measure) "
            middle = {key: statistics.median(errors(run)[key] for run in mine) for key in errors(mine[0])}
            cost = statistics.median((run.cpu_s - fixed) * 1e6 / run.chunks for run in mine)
            load = statistics.median((run.load_cpu_s - load_fixed) * 1e6 / run.chunks for run in mine)
            mark = "+" if mine[0].mean_only else " "
            if not mine[0].cost_only:
                latency = (
                    f"{middle['ttft_p50']:+9.2f}/{middle['ttft_p99']:+9.2f}    {middle['itl_p50']:+8.3f}/{middle['itl_p99']:+9.3f}{mark}"
                )
            lines.append(
                f"{client:9} {concurrency:<5} {latency}   "
                + (f"{cost:8.1f} {load:8.1f} " if concurrency > 1 else "       -        - ")
                + f"{statistics.median(run.peak_mb for run in mine):7.0f}  {statistics.median(run.load_mb for run in mine):7.1f}"
                f"  {statistics.median(run.first_send_cpu_s for run in mine):11.3f}  {statistics.median(run.others for run in mine):6.2f}  {sum(run.failed for run in mine)} (n={len(mine)})"
            )
    lines.append(
        "+ the client keeps one mean a request, so that its p99 is one of means; load (MB, CPU) and start CPU: leadline's load process alone"
    )
    return "\n".join(lines)


def capacity(client: Client, mock: loadmock.Mock, peers: Path) -> str:
    """Chunks a second at concurrency 256 for shorter and shorter gaps, and whether the gaps' errors stay within max(1 ms, 5 %)."""
    lines = []
    for gap_us in (8000, 4000, 3000, 2500, 2133):
        SHAPES[256] = (256, 512, gap_us)
        run = once(client, mock, 256, peers)
        error = errors(run)
        limit = max(1.0, 0.05 * gap_us / 1e3)
        spans = len(run.truth_gaps_ms) / (sum(run.truth_gaps_ms) / 256 / 1e3)
        good = abs(error["itl_p50"]) <= limit and abs(error["itl_p99"]) <= limit
        lines.append(
            f"{client.name}: asked {256e3 / gap_us:.1f}k chunks/s, served {spans / 1e3:.1f}k: ITL error "
            f"{error['itl_p50']:+.3f}/{error['itl_p99']:+.3f} ms: {'within' if good else 'beyond'} {limit:.1f} ms "
            f"(estimated ends {run.unsure:.1%}, others {run.others:.2f} cores)"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", type=Path, default=Path(tempfile.gettempdir()) / "peers")
    parser.add_argument("--levels", default="1,64,512,2048")
    parser.add_argument("--peers-up-to", type=int, default=512, help="levels above are played by leadline only")
    parser.add_argument("--clients", default="leadline,wrk,vllm,sglang,aiperf")
    parser.add_argument("--capacity", action="store_true", help="instead: how many chunks a second each client keeps up with")
    parser.add_argument("--out", type=Path, help="append one JSON line a run here; lines that are there already are counted in")
    parser.add_argument("--start", action="store_true", help="instead: what each client uses until its first request")
    args = parser.parse_args()
    if loadmock.COMPILER is None or shutil.which("taskset") is None:
        raise SystemExit("load_bench needs a C compiler (cc) and taskset (util-linux)")
    there = {name: client for name, client in clients(args.peers).items() if name in args.clients.split(",")}
    if args.start:
        print(starts(there, args.rounds, args.peers))
        return
    runs: list[Run] = []
    if args.out and args.out.exists():
        runs = [Run(**json.loads(line)) for line in args.out.read_text().splitlines()]
    with tempfile.TemporaryDirectory() as folder:
        mock = loadmock.Mock(loadmock.build(Path(folder)), cpu=0)
        try:
            if args.capacity:
                for client in there.values():
                    if client.name != "wrk":
                        print(capacity(client, mock, args.peers), flush=True)
                return
            before = sum(run.client == "leadline" and run.concurrency == 64 for run in runs)
            for number in range(before, before + args.rounds):
                order = list(there.values()) if number % 2 == 0 else list(there.values())[::-1]
                for concurrency in [int(level) for level in args.levels.split(",")]:
                    for client in order:
                        if client.name != "leadline" and concurrency > args.peers_up_to:
                            continue
                        run = once(client, mock, concurrency, args.peers)
                        runs.append(run)
                        sys.stderr.write(f"round {number + 1}: {client.name} at {concurrency}: {run.cpu_s:.2f} s of CPU, {errors(run)}\n")
                        if args.out:
                            with args.out.open("a") as file:
                                file.write(json.dumps(run.__dict__) + "\n")
        finally:
            mock.close()
    print(table(runs))


if __name__ == "__main__":
    main()
