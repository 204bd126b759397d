"""``tally.py FILE``: the table of a fault run (``LEADLINE_TALLY=FILE``), for docs/hosts.md. Exit status 1 when a fault was not restored."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

NOTHING_THERE = "ll-planned.service"
"""At this event nothing stands on the host yet; it counts as restored and not as a time."""


def main(path: str) -> int:
    rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    print("| fault | events | restored | seconds, median | longest | bound |\n|---|---|---|---|---|---|")
    events = restored = 0
    for row in rows:
        times = [seconds for unit, seconds in row["back_s"].items() if unit != NOTHING_THERE]
        events, restored = events + row["events"], restored + len(row["back_s"])
        print(
            f"| {row['kind']} | {row['events']} | {len(row['back_s'])} | {statistics.median(times):.0f} | {max(times):.0f} | {row['bound_s']:.0f} |"
        )
    print(f"\n{restored} of {events} restored")
    return 0 if restored == events else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
