"""``leadline demo`` on the real llama.cpp server against an exhaustive grid on the same machine in the same hour.

The grid is the same campaign with another chooser: every candidate once, every level, the same blocks.  Printed per level: what each
found, whether leadline's point is the grid's best or inside its tie set, and what it loses by the grid's own figures; then launches
and minutes of both.  Needs the machine for itself: about 5 and 10 minutes on two cores.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence

import msgspec

import leadline.campaign
from leadline import demo, verbs
from leadline.compare import Board
from leadline.config import Measure, Settings, Tune
from leadline.engines import Axis
from leadline.records import Candidate, Level, PlannedLaunch, Stop
from leadline.space import options
from leadline.state import Knowledge


def grid_next(
    knowledge: Knowledge,
    axes: Sequence[Axis],
    tune: Tune,
    measure: Measure,
    levels: Sequence[Level],
    found: Candidate,
    *,
    now_s: float | None = None,
) -> PlannedLaunch | Stop:
    """Every candidate in order, the configuration as found first."""
    wanted = [found, *(option.candidate for option in options(knowledge, axes, tune))]
    done = {trial.candidate for trial in knowledge.trials if trial.ended}
    left = [candidate for candidate in wanted if candidate not in done]
    if not left:
        return Stop(rule="exhausted", why="the grid is complete")
    kind = "baseline" if left[0] == found else "explore"
    return PlannedLaunch(candidate=left[0], why="grid", levels=tuple(levels), blocks=measure.explore_blocks, seconds=30.0, kind=kind)


def play(settings: Settings, target: str, *, grid: bool) -> tuple[Knowledge, float]:
    """(everything known at the end, seconds)."""
    with tempfile.TemporaryDirectory(prefix="leadline-bench-") as state:
        os.environ["LEADLINE_HOME"] = state
        kept = leadline.campaign.next_launch
        if grid:
            leadline.campaign.next_launch = grid_next
        start = time.monotonic()
        try:
            return verbs.tune(target, settings, yes=True, fresh=True, quiet=True), time.monotonic() - start
        finally:
            leadline.campaign.next_launch = kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    asked = parser.parse_args()
    target, settings = demo.prepare(narrate=True)
    wide = msgspec.structs.replace(settings, tune=msgspec.structs.replace(settings.tune, max_launches=99, max_minutes=60.0))
    outside = 0
    for turn in range(asked.repeat):
        # the order changes, so that a machine that warms up favours neither
        order = (False, True) if turn % 2 == 0 else (True, False)
        runs = {grid: play(wide if grid else settings, target, grid=grid) for grid in order}
        mine, grid = runs[False][0], runs[True][0]
        assert mine.verdict is not None
        board = Board(grid, settings_levels(settings), mine.verdict.found)
        print(f"repetition {turn + 1}: leadline {mine.launches} launches, {runs[False][1] / 60:.1f} min", end="; ")
        print(f"grid {grid.launches} launches, {runs[True][1] / 60:.1f} min")
        for point in mine.verdict.points:
            outside += not _level(board, point.level, point.candidate, settings.tune)
    print(f"{outside} points outside the grid's tie set")
    return 1 if outside else 0


def settings_levels(settings: Settings) -> tuple[Level, ...]:
    from leadline.config import levels

    return levels(settings.measure)


def _level(board: Board, level: Level, chosen: Candidate, tune: Tune) -> bool:
    top = board.leader(level)
    if top is None:
        print(f"  {level.label}: the grid measured nothing")
        return False
    best = top[0]
    versus = board.contrast(chosen, best, level)
    if chosen == best:
        print(f"  {level.label}: {chosen.label} in both")
        return True
    if versus is None:
        print(f"  {level.label}: leadline {chosen.label}, grid {best.label}, not comparable")
        return False
    gain = versus.interval(tune.confidence)
    tied = gain.high >= 1 - tune.tie
    print(
        f"  {level.label}: leadline {chosen.label}, grid {best.label}: {gain.value:.2f}x of it ({gain.low:.2f}-{gain.high:.2f}) "
        f"by the grid's figures, {'tied' if tied else 'OUTSIDE the tie set'}"
    )
    return tied


if __name__ == "__main__":
    sys.exit(main())
