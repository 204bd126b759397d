"""Score the doctor on labelled cases by the rules of tests/data/cases/README.md, and time it on a large log.

    python benchmarks/diagnose_bench.py [FOLDER...]      default: the case sets of the project
    python benchmarks/diagnose_bench.py --large 2        also a generated log of that many GiB: seconds and peak memory
    python benchmarks/diagnose_bench.py --mutated        also every case with other prefixes, ranks, times and noise around it

A folder holds ``labels.jsonl`` and the logs it names. Ends with 1 when a bar of the issue is missed on the labelled development set.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from leadline.diagnose import diagnose
from leadline.logs import evidence_from_logs
from leadline.records import Evidence, Finding, Source

ROOT = Path(__file__).resolve().parent.parent / "tests" / "data"
Label = dict[str, Any]


class Score:
    """Counts, as the README of the cases defines them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = self.right = self.hits = self.right_hits = self.misses = 0
        self.loss = 0
        self.healthy = self.healthy_right = self.opened = self.opened_right = 0
        self.wrong: list[str] = []

    def add(self, label: Label, findings: tuple[Finding, ...]) -> None:
        head = findings[0]
        right = head.cls in (label["class"], *label["accept"])
        cited = [quote for finding in findings for quote in finding.quotes]
        lines = {item["line"] for item in label["evidence"]}
        hit = len(cited) <= 5 and any(quote.line in lines for quote in cited)
        if not label["failure"] and head.failure and head.cls != "unknown":
            self.loss += 2
        elif not label["open"] and not right:
            self.loss += 1
        if label["open"]:
            self.opened += 1
            self.opened_right += head.cls == "unknown" or (right and head.confidence != "certain")
            return
        self.closed += 1
        self.right += right
        self.hits += hit
        self.right_hits += hit and right
        self.misses += label["failure"] and not head.failure
        if label["class"] == "healthy":
            self.healthy += 1
            self.healthy_right += right
        if not right:
            self.wrong.append(f"{label['id']}: {label['class']} called {head.cls} by {head.id}")

    def text(self) -> str:
        def share(part: int, whole: int) -> str:
            return f"{part}/{whole} ({100 * part / whole:.1f} %)" if whole else "none"

        rows = [
            f"{self.name}",
            f"  class right        {share(self.right, self.closed)}",
            f"  evidence hit       {share(self.hits, self.closed)}; of the right ones {share(self.right_hits, self.right)}",
            f"  healthy is healthy {share(self.healthy_right, self.healthy)}",
            f"  open: abstained    {share(self.opened_right, self.opened)}",
            f"  weighted loss      {self.loss / max(1, self.closed + self.opened):.3f} a case; failures called no failure: {self.misses}",
        ]
        return "\n".join(rows + [f"  wrong {line}" for line in self.wrong])


def labels_of(folder: Path) -> list[Label]:
    return [json.loads(line) for line in (folder / "labels.jsonl").read_text().splitlines()]


def judge(folder: Path, label: Label, change: Callable[[str], str] = str) -> tuple[Finding, ...]:
    text = change((folder / label["log"]).read_text(errors="replace"))
    return diagnose(Evidence(sources=(Source(name="log", text=text),), symptom=label["symptom"]))


def score(folder: Path, name: str, only: Callable[[Label], bool] = lambda label: True, change: Callable[[str], str] = str) -> Score:
    result = Score(name)
    for label in labels_of(folder):
        if only(label):
            result.add(label, judge(folder, label, change))
    return result


# -- mutations: the same event as another launcher, version or terminal would have printed it ------------------------------


def _engine_lines(text: str, change: Callable[[str], str]) -> str:
    """Apply to engine output only: supervisors, kernels and other sections keep their own form."""
    engine, changed = True, []
    for line in text.split("\n"):
        header = re.match(r"^==> (.+?) <==", line)
        if header:
            engine = "engine" in header.group(1) or "log" in header.group(1)
        plain = (
            not header and engine and line and not re.match(r"^(?:[A-Z][a-z]{2} [ \d]\d |[\w.-]+\s+\| |NVRM|[A-Z]\w+=|\S+ exited)", line)
        )
        changed.append(change(line) if plain else line)
    return "\n".join(changed)


MUTATIONS: dict[str, Callable[[str], str]] = {
    "compose": lambda text: _engine_lines(text, lambda line: f"engine-1  | {line}"),
    "container times": lambda text: _engine_lines(text, lambda line: f"2026-10-02T03:04:05.123456789Z {line}"),
    "journal": lambda text: _engine_lines(text, lambda line: f"Oct 02 03:04:05 gpu7 serve[4711]: {line}"),
    "colour": lambda text: _engine_lines(text, lambda line: f"\x1b[31m{line}\x1b[0m"),
    "carriage returns": lambda text: text.replace("\n", "\r\n"),
    "other paths": lambda text: re.sub(r"/opt/[\w.-]+|/usr/lib", "/data/env", text),
    "noise before": lambda text: "".join(f"[notice] loading plugin {n}\n" for n in range(40)) + text,
}


def large_log(path: Path, gibibytes: float) -> None:
    """A start, hours of load, a crash in the middle and a long noisy tail."""
    base = (ROOT / "recordings/sglang-0.5.12.post1-h200/k3/server.log").read_bytes()
    start = base[: base.rfind(b"SIGTERM")]
    start = start[: start.rfind(b"\n") + 1]
    load = b"\n".join(line for line in start.split(b"\n") if b"Decode batch" in line or b"HTTP/1.1" in line) + b"\n"
    crash = (ROOT / "cases/06.log").read_bytes().partition(b"ready to roll!\n")[2]
    noise = b"[2026-09-07 14:06:49] rank 2: Connection closed by peer\n" * 1000
    with path.open("wb") as file:
        file.write(start)
        while file.tell() < gibibytes * 2**29:
            file.write(load)
        file.write(crash)
        while file.tell() < gibibytes * 2**30:
            file.write(noise)


def time_large(gibibytes: float) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.log"
        large_log(path, gibibytes)
        began = time.perf_counter()
        findings = diagnose(evidence_from_logs([path]))
        took = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return (
        f"large log: {gibibytes:g} GiB in {took:.1f} s, peak {peak:.0f} MB, verdict {findings[0].cls} at line {findings[0].quotes[0].line}"
    )


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--large", type=float, metavar="GIB")
    parser.add_argument("--mutated", action="store_true")
    given = parser.parse_args(None if arguments is None else list(arguments))
    folders = given.folders or [ROOT / "cases", ROOT / "cases-fresh", ROOT / "cases-fresh-second", ROOT / "cases-fresh-third"]
    missed = False
    for folder in folders:
        kinds = sorted({label.get("fidelity", "") for label in labels_of(folder)})
        for kind in [None, *(kinds if len(kinds) > 1 else [])]:
            result = score(
                folder, f"{folder.name}: {kind or 'all'}", lambda label, kind=kind: kind is None or label.get("fidelity") == kind
            )
            print(result.text())
            if kind is None and folder.name == "cases":
                missed = (
                    result.right < 0.9 * result.closed or result.healthy_right < result.healthy or result.opened_right < 0.8 * result.opened
                )
        if given.mutated:
            for name, change in MUTATIONS.items():
                result = score(folder, f"{folder.name}, mutated: {name}", change=change)
                print(
                    f"{result.name}: {result.right}/{result.closed} closed right, {result.opened_right}/{result.opened} open"
                    + "".join(f"\n    {w}" for w in result.wrong)
                )
    if given.large:
        print(time_large(given.large))
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
