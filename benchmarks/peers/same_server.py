"""One real server, several clients, the same prompts: do throughput and time per token agree?

    python benchmarks/peers/same_server.py URL MODEL [--server-log FILE] [--concurrency 1,4] [--rounds 5] [--peers DIR]

Clients take turns; every request is greedy, ignores the end of sequence and bypasses the prefix cache, so that all ask for
the same work. Printed: medians and the range of each client, and leadline's own repeat as the noise floor. With the log of a
llama-server (its ``print_timing`` lines), each client's time per token is also set against what the server says of the very
requests that this client sent: what a client measures, apart from how differently a server happens to serve.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "src"))

from leadline import bench, workload  # noqa: E402

TOKENS, COUNT = 48, 12
_GENERATED = re.compile(r"\|\s+eval time =\s+([\d.]+) ms /\s+(\d+) tokens")


class Told(NamedTuple):
    """What a client says of one run."""

    output_tok_s: float
    tpot_ms: float
    """Mean over requests."""
    ttft_ms: float
    """Median."""


class Task(NamedTuple):
    folder: Path
    url: str
    model: str
    concurrency: int
    prompts: list[str]
    peers: Path


def leadline(task: Task) -> Told:
    folder, prompts = task.folder, task.prompts
    (folder / "mine.jsonl").write_text("\n".join(json.dumps({"prompt": prompt, "output_tokens": TOKENS}) for prompt in prompts))
    (folder / "leadline.toml").write_text(
        f'[measure]\nprompts = {len(prompts)}\nmax_tokens = {TOKENS}\nmax_blocks = 1\nworkloads = ["{folder}/mine.jsonl"]\ncache = "production"\n'
    )
    argv = [sys.executable, "-m", "leadline", "bench", task.url, "-n", str(task.concurrency), "-c", str(folder / "leadline.toml")]
    argv += ["--ignore-eos", "--extra-body", '{"cache_prompt": false}', "--model", task.model, "--out", str(folder / "l.json"), "-q"]
    subprocess.run(argv, check=True, capture_output=True)
    level = bench.load(folder / "l.json").levels[0]
    figures = bench.figures(level)
    assert figures.output_tok_s is not None
    means = [request.tpot_ms for block in level.blocks for request in block.requests if request.tpot_ms is not None]
    return Told(figures.output_tok_s.value, statistics.fmean(means), figures.ttft_ms[0])


def vllm(task: Task) -> Told:
    folder, peers = task.folder, task.peers
    (folder / "v.jsonl").write_text("\n".join(json.dumps({"prompt": prompt, "output_tokens": TOKENS}) for prompt in task.prompts))
    argv = [
        *(str(peers / "vllm/bin/python"), str(ROOT / "benchmarks/peers/run_vllm.py"), "--backend", "openai-chat", "--base-url", task.url),
        *("--endpoint", "/v1/chat/completions", "--model", task.model, "--tokenizer", str(peers / "tok"), "--dataset-name", "custom"),
        *("--dataset-path", str(folder / "v.jsonl"), "--custom-output-len", str(TOKENS), "--num-prompts", str(len(task.prompts))),
        *("--max-concurrency", str(task.concurrency), "--save-result", "--result-filename", str(folder / "v.json"), "--disable-shuffle"),
        *("--temperature", "0", "--ignore-eos", "--extra-body", '{"cache_prompt": false}', "--percentile-metrics", "ttft,tpot,itl,e2el"),
    ]
    subprocess.run(argv, check=True, capture_output=True, cwd=folder)
    said = json.loads((folder / "v.json").read_text())
    return Told(said["output_throughput"], said["mean_tpot_ms"], said["median_ttft_ms"])


def sglang(task: Task) -> Told:
    folder, peers = task.folder, task.peers
    lines = [json.dumps({"conversations": [{"content": prompt}, {"content": "word " * TOKENS}]}) for prompt in task.prompts]
    (folder / "s.jsonl").write_text("\n".join(lines))
    argv = [
        *(str(peers / "sgl/bin/python"), str(ROOT / "benchmarks/peers/run_sglang.py"), "--backend", "sglang-oai-chat"),
        *("--base-url", task.url, "--model", task.model, "--tokenizer", str(peers / "tok"), "--dataset-name", "custom"),
        *("--dataset-path", str(folder / "s.jsonl"), "--sharegpt-output-len", str(TOKENS), "--num-prompts", str(len(task.prompts))),
        *("--max-concurrency", str(task.concurrency), "--output-file", str(folder / "s.json"), "--temperature", "0"),
        *("--extra-request-body", '{"stream_options":{"include_usage":true},"cache_prompt":false}'),
    ]
    subprocess.run(argv, check=True, capture_output=True, cwd=folder)
    said = json.loads((folder / "s.json").read_text().splitlines()[-1])
    return Told(said["output_throughput"], said["mean_tpot_ms"], said["median_ttft_ms"])


CLIENTS: dict[str, Callable[[Task], Told]] = {"leadline": leadline, "vllm": vllm, "sglang": sglang, "leadline again": leadline}


def served_tpot_ms(log: Path | None, offset: int) -> float:
    """Mean time per token of the last requests of a run by the server's own log, from the first token on; nan without one."""
    if log is None:
        return float("nan")
    found = _GENERATED.findall(log.read_bytes()[offset:].decode("utf-8", "replace"))
    times = [float(ms) / (TOKENS - 1) for ms, tokens in found if int(tokens) == TOKENS][-COUNT:]  # warm-up requests come first
    return statistics.fmean(times) if len(times) == COUNT else float("nan")


def row(name: str, values: list[float], unit: str) -> str:
    return f"{statistics.median(values):8.2f} ({min(values):.2f} to {max(values):.2f}) {unit}" if values else f"{name}: none"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", default="1,4")
    parser.add_argument("--server-log", type=Path)
    parser.add_argument("--peers", type=Path, default=Path(tempfile.gettempdir()) / "peers")
    parser.add_argument("--out", type=Path, help="append one JSON line a run; those that are there count")
    args = parser.parse_args()
    os.environ |= {"PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    prompts = [p.messages[1][1] for p in workload.blocks("chat", seed=5, block=0, count=COUNT, max_tokens=TOKENS)]
    levels = [int(level) for level in args.concurrency.split(",")]
    found: dict[tuple[int, str], list[tuple[Told, float]]] = {(level, name): [] for level in levels for name in CLIENTS}
    if args.out and args.out.exists():
        for line in args.out.read_text().splitlines():
            level, name, told, served = json.loads(line)
            found.setdefault((level, name), []).append((Told(*told), float("nan") if served is None else served))
    for number in range(args.rounds):
        for level in levels:
            for name in list(CLIENTS)[:: 1 if number % 2 == 0 else -1]:
                offset = args.server_log.stat().st_size if args.server_log else 0
                with tempfile.TemporaryDirectory() as folder:
                    told = CLIENTS[name](Task(Path(folder), args.url, args.model, level, prompts, args.peers))
                served = served_tpot_ms(args.server_log, offset)
                found[level, name].append((told, served))
                sys.stderr.write(f"round {number + 1}, concurrency {level}: {name}: {told}, server {served:.2f} ms a token\n")
                if args.out:
                    with args.out.open("a") as file:
                        file.write(json.dumps([level, name, told, None if served != served else served]) + "\n")
    for (level, name), runs in found.items():
        known = [(told.tpot_ms, served) for told, served in runs if served == served]
        parts = [
            row("output", [told.output_tok_s for told, _ in runs], "tok/s"),
            row("TPOT", [told.tpot_ms for told, _ in runs], "ms TPOT"),
            row("TTFT", [told.ttft_ms for told, _ in runs], "ms TTFT"),
        ]
        if known:
            parts.append(row("served", [served for _, served in known], "ms TPOT by the server's log"))
            parts.append(row("off", [100 * (mine / served - 1) for mine, served in known], "% off that"))
        print(f"c={level} {name:15} " + "  ".join(parts) + f"  n={len(runs)}")


if __name__ == "__main__":
    main()
