"""``tally.py FILE``: the table of a fault run (``LEADLINE_TALLY=FILE``), for docs/hosts.md. Exit status 1 when a fault was not restored in time."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any


def main(path: str) -> int:
    rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    print("| fault | events | as it should be | trials put back | seconds, median | longest | bound | since the last renewal, longest |")
    print("|---|---|---|---|---|---|---|---|")
    every, good = 0, 0
    for kind in dict.fromkeys(row["kind"] for row in rows):
        mine = [row for row in rows if row["kind"] == kind]
        faults: list[dict[str, Any]] = [fault for row in mine for fault in row["faults"]]
        bound_s = mine[0]["bound_s"]
        seconds = [fault["seconds"] for fault in faults if fault["seconds"] is not None]
        silent_s = [fault["silent_s"] for fault in faults if fault["silent_s"] is not None]
        right = sum(1 for fault in faults if fault["back"] and (fault["seconds"] or 0.0) <= bound_s)
        every, good = every + len(faults), good + right
        longest = f"{max(silent_s)}" if silent_s else "-"
        print(
            f"| {kind} | {len({fault['event'] for fault in faults})} | {right} of {len(faults)} | {len(seconds)} "
            f"| {statistics.median(seconds):.1f} | {max(seconds):.1f} | {bound_s:.0f} | {longest} |"
        )
    print(f"\n{good} of {every} as they should be, within the bound")
    return 0 if good == every else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
