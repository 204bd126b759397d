"""One real server, several clients, the same prompts: do throughput and time per token agree?

    python benchmarks/peers/same_server.py URL MODEL [--rounds 5] [--peers DIR] [--concurrency 4]

Clients take turns; every request is greedy, ignores the end of sequence and bypasses the prefix cache, so that all ask for
the same work. Printed: medians and the range of each client, and leadline's own repeat as the noise floor.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "src"))

from leadline import bench, workload  # noqa: E402

TOKENS, COUNT = 48, 12


def leadline(folder: Path, url: str, model: str, concurrency: int, prompts: list[str], peers: Path) -> tuple[float, float, float]:
    (folder / "mine.jsonl").write_text("\n".join(json.dumps({"prompt": prompt, "output_tokens": TOKENS}) for prompt in prompts))
    (folder / "leadline.toml").write_text(
        f'[measure]\nprompts = {len(prompts)}\nmax_tokens = {TOKENS}\nmax_blocks = 1\nworkloads = ["{folder}/mine.jsonl"]\ncache = "cold"\n'
    )
    argv = [sys.executable, "-m", "leadline", "bench", url, "-n", str(concurrency), "-c", str(folder / "leadline.toml"), "--ignore-eos"]
    subprocess.run([*argv, "--model", model, "--out", str(folder / "l.json"), "-q"], check=True, capture_output=True)
    figures = bench.figures(bench.load(folder / "l.json").levels[0])
    assert figures.output_tok_s is not None
    return figures.output_tok_s.value, figures.time_per_token_ms[0], figures.ttft_ms[0]


def vllm(folder: Path, url: str, model: str, concurrency: int, prompts: list[str], peers: Path) -> tuple[float, float, float]:
    (folder / "v.jsonl").write_text("\n".join(json.dumps({"prompt": prompt, "output_tokens": TOKENS}) for prompt in prompts))
    argv = [
        *(str(peers / "vllm/bin/python"), str(ROOT / "benchmarks/peers/run_vllm.py"), "--backend", "openai-chat", "--base-url", url),
        *("--endpoint", "/v1/chat/completions", "--model", model, "--tokenizer", str(peers / "tok"), "--dataset-name", "custom"),
        *("--dataset-path", str(folder / "v.jsonl"), "--custom-output-len", str(TOKENS), "--num-prompts", str(len(prompts))),
        *("--max-concurrency", str(concurrency), "--save-result", "--result-filename", str(folder / "v.json"), "--disable-shuffle"),
        *("--temperature", "0", "--ignore-eos", "--extra-body", '{"cache_prompt": false}', "--percentile-metrics", "ttft,tpot,itl,e2el"),
    ]
    subprocess.run(argv, check=True, capture_output=True, cwd=folder)
    said = json.loads((folder / "v.json").read_text())
    return said["output_throughput"], said["median_tpot_ms"], said["median_ttft_ms"]


def sglang(folder: Path, url: str, model: str, concurrency: int, prompts: list[str], peers: Path) -> tuple[float, float, float]:
    lines = [json.dumps({"conversations": [{"content": prompt}, {"content": "word " * TOKENS}]}) for prompt in prompts]
    (folder / "s.jsonl").write_text("\n".join(lines))
    argv = [
        *(str(peers / "sgl/bin/python"), str(ROOT / "benchmarks/peers/run_sglang.py"), "--backend", "sglang-oai-chat", "--base-url", url),
        *("--model", model, "--tokenizer", str(peers / "tok"), "--dataset-name", "custom", "--dataset-path", str(folder / "s.jsonl")),
        *("--sharegpt-output-len", str(TOKENS), "--num-prompts", str(len(prompts)), "--max-concurrency", str(concurrency)),
        *("--output-file", str(folder / "s.json"), "--temperature", "0", "--extra-request-body"),
        '{"stream_options":{"include_usage":true},"cache_prompt":false}',
    ]
    subprocess.run(argv, check=True, capture_output=True, cwd=folder)
    said = json.loads((folder / "s.json").read_text().splitlines()[-1])
    return said["output_throughput"], said["median_tpot_ms"], said["median_ttft_ms"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--peers", type=Path, default=Path(tempfile.gettempdir()) / "peers")
    parser.add_argument("--out", type=Path, help="append one JSON line a run; those that are there count")
    args = parser.parse_args()
    os.environ |= {"PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    prompts = [p.messages[1][1] for p in workload.blocks("chat", seed=5, block=0, count=COUNT, max_tokens=TOKENS)]
    clients = {"leadline": leadline, "vllm": vllm, "sglang": sglang, "leadline again": leadline}
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in clients}
    if args.out and args.out.exists():
        for line in args.out.read_text().splitlines():
            name, figures = json.loads(line)
            found[name].append(figures)
    for number in range(args.rounds):
        for name in list(clients)[:: 1 if number % 2 == 0 else -1]:
            with tempfile.TemporaryDirectory() as folder:
                figures = clients[name](Path(folder), args.url, args.model, args.concurrency, prompts, args.peers)
            found[name].append(figures)
            sys.stderr.write(f"{name}: {figures}\n")
            if args.out:
                with args.out.open("a") as file:
                    file.write(json.dumps([name, figures]) + "\n")
    for name, rows in found.items():
        parts = []
        for index, unit in enumerate(("tok/s", "ms TPOT", "ms TTFT")):
            values = [row[index] for row in rows]
            parts.append(f"{statistics.median(values):8.1f} ({min(values):.1f}-{max(values):.1f}) {unit}")
        print(f"{name:15} " + "   ".join(parts) + f"   n={len(rows)}")


if __name__ == "__main__":
    main()
