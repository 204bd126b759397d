"""CPU seconds of `leadline --help`, median of n runs: the bar is 0.3 s.

usage: python benchmarks/bench_cli.py [n]
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys

BAR_S = 0.3


def cpu_s(arguments: list[str]) -> float:
    """User plus system seconds of one run of leadline, children included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "leadline", *arguments], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(runs: int) -> int:
    seen = [cpu_s(["--help"]) for _ in range(runs)]
    median = statistics.median(seen)
    print(f"leadline --help: median {median:.3f} s of CPU (n={runs}, {min(seen):.3f}-{max(seen):.3f}); bar {BAR_S} s")
    return 0 if median < BAR_S else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
