"""Check that every mind module is covered by lines: ``python tests/mind_coverage.py coverage.json 95``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

MIND = (
    "workload",
    "stats",
    "state",
    "diagnose",
    "frontier",
    "predict",
    "decide",
    "recommend",
    "execstart",
    "shelltext",
    "unitfile",
    "probes",
    "objective",
    "schedule",
    "roofline",
    "targets",
)


def main(path: str, least: str) -> int:
    files = json.loads(Path(path).read_text())["files"]
    failed = 0
    for name, entry in sorted(files.items()):
        parts = Path(name).with_suffix("").parts
        if any(part == mind or part.startswith(f"{mind}_") for part in parts for mind in MIND):
            summary = entry["summary"]
            share = 100.0 * summary["covered_lines"] / max(1, summary["num_statements"])
            low = share < float(least)
            failed += low
            print(f"{share:6.1f} % of {summary['num_statements']:4d} lines  {name}{'   BELOW ' + least if low else ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
