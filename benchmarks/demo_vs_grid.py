"""``leadline demo`` on the real llama.cpp server against an exhaustive grid on the same machine in the same hour.

The grid is the same campaign with another chooser: every candidate once, every level, the same blocks.  Printed per level: what each
found, whether leadline's point is the grid's best or inside its tie set, and what it loses by the grid's own figures; then launches
and minutes of both.  Needs the machine for itself: about 5 and 10 minutes on two cores.

``--by-cpu`` is for a machine that others use: both sides then count output tokens per second of the *server's* CPU time.  The
demo's server computes in one thread, so that is its throughput without what the neighbours take; minutes stay those of the clock.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import msgspec

import leadline.campaign
from leadline import demo, verbs
from leadline.compare import Board
from leadline.config import Measure, Settings, Tune
from leadline.engines import Axis
from leadline.records import BlockResult, Candidate, Level, PlannedLaunch, Stop
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


def clock_by_cpu() -> None:
    """Make every block tell tokens per second of the server's CPU time, and its requests their share of that time."""
    kept = leadline.campaign.RealHands.play

    def played(self: leadline.campaign.RealHands, *args: Any, **kwargs: Any) -> BlockResult:
        block = kept(self, *args, **kwargs)
        seconds, tokens = block.server_cpu_s, sum(r.tokens_out for r in block.requests)
        wall_ms = sum(r.e2e_ms or 0.0 for r in block.requests)
        if not seconds or not tokens or not wall_ms:
            return block
        scale = 1e3 * seconds / wall_ms
        requests = tuple(msgspec.structs.replace(r, e2e_ms=scale * (r.e2e_ms or 0.0)) for r in block.requests)
        return msgspec.structs.replace(block, output_tok_s=tokens / seconds, requests=requests)

    leadline.campaign.RealHands.play = played  # type: ignore[method-assign]


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
    parser.add_argument("--by-cpu", action="store_true", help="count the server's CPU time instead of the clock (busy machine)")
    parser.add_argument("--minutes", type=float, help="leadline's budget instead of the demo's own")
    parser.add_argument("--grid-blocks", type=int, help="blocks of every grid cell (default: as many as leadline explores with)")
    asked = parser.parse_args()
    if asked.by_cpu:
        clock_by_cpu()
    target, settings = demo.prepare(narrate=True)
    if asked.minutes:
        settings = msgspec.structs.replace(settings, tune=msgspec.structs.replace(settings.tune, max_minutes=asked.minutes))
    grid_measure = msgspec.structs.replace(settings.measure, explore_blocks=asked.grid_blocks or settings.measure.explore_blocks)
    wide = msgspec.structs.replace(
        settings, measure=grid_measure, tune=msgspec.structs.replace(settings.tune, max_launches=99, max_minutes=60.0)
    )
    outside = 0
    for turn in range(asked.repeat):
        # the order changes, so that a machine that warms up favours neither
        order = (False, True) if turn % 2 == 0 else (True, False)
        runs = {grid: play(wide if grid else settings, target, grid=grid) for grid in order}
        mine, grid = runs[False][0], runs[True][0]
        assert mine.verdict is not None
        board = Board(grid, settings_levels(settings), mine.verdict.found)
        print(f"repetition {turn + 1}: leadline {mine.launches} launches, {runs[False][1] / 60:.1f} min", end="; ")
        print(f"grid {grid.launches} launches, {runs[True][1] / 60:.1f} min", flush=True)
        print(f"  {mine.verdict.sentence}", flush=True)
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
