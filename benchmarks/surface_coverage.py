"""Measured coverage of the prediction intervals: predict after few launches, then measure everything that was predicted."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence

from leadline.compare import Board
from leadline.predict import predict
from leadline.records import Candidate, PlannedLaunch, Record
from leadline.space import middle, off_of, options
from replay import Noise, Player, Surface
from surfaces import FAMILIES, generated, recorded


class Hit(Record, frozen=True):
    """One predicted cell against its measurement."""

    surface: str
    candidate: Candidate
    concurrency: int
    error: float
    """log(predicted / measured)."""
    half: float
    """Half width of the log interval."""
    inside: bool


def three_launches(surface: Surface, noise: Noise, seed: int, confidence: float = 0.90) -> list[Hit]:
    """As found, off, the deepest that starts and one shallow depth are launched; every other cell is predicted and then measured."""
    player = Player(surface, noise, seed)
    from leadline.config import Tune

    choices = [o.candidate for o in options(player.knowledge, surface.axes, Tune()) if o.modelled and o.candidate not in surface.crashes]
    depths = [c.depth for c in choices]
    shallow = middle(depths, depths[-1])
    first = dict.fromkeys((surface.found, off_of(surface.found), choices[-1], *(c for c in choices if c.depth == shallow)))
    for candidate in first:
        _launch(player, surface, candidate)
    predictions = predict(player.knowledge, surface.axes, surface.levels, confidence, found=surface.found)
    for candidate in choices:
        if candidate not in first:
            _launch(player, surface, candidate)
    board = Board(player.knowledge, surface.levels, surface.found)
    out = []
    for p in predictions:
        measured = board.log_tok_s(p.candidate, p.level)
        if measured is None or not any(c == p.candidate for c in choices):
            continue
        error = math.log(p.output_tok_s.value) - measured
        half = math.log(p.output_tok_s.high / p.output_tok_s.value)
        out.append(
            Hit(
                surface=surface.name,
                candidate=p.candidate,
                concurrency=p.level.concurrency,
                error=error,
                half=half,
                inside=abs(error) <= half,
            )
        )
    return out


def _launch(player: Player, surface: Surface, candidate: Candidate) -> None:
    if any(c == candidate for c, _ in surface.tok_s):
        player.play(PlannedLaunch(candidate=candidate, why="", levels=surface.levels, blocks=4, seconds=0.0))


def summary(hits: Sequence[Hit]) -> str:
    share = sum(hit.inside for hit in hits) / len(hits)
    error = statistics.fmean(abs(hit.error) for hit in hits)
    half = statistics.fmean(hit.half for hit in hits)
    return f"{len(hits):>6} cells   inside {share:>6.1%}   mean |error| {error:>6.1%}   mean half width {half:>6.1%}"


def all_hits(seeds: int) -> dict[str, list[Hit]]:
    """Hits by surface or family."""
    out: dict[str, list[Hit]] = {}
    for surface in recorded():
        for seed in range(seeds):
            out.setdefault(surface.name, []).extend(three_launches(surface, Noise(block=0.02), seed))
    for family in FAMILIES:
        for seed in range(seeds * 2):
            noise = Noise(block=(0.01, 0.02, 0.03, 0.05)[seed % 4])
            out.setdefault(family, []).extend(three_launches(generated(family, 100 + seed), noise, seed))
    return out


def print_coverage(table: dict[str, list[Hit]]) -> None:
    for name, hits in table.items():
        print(f"{name:36}{summary(hits) if hits else 'nothing predicted'}")
    print(f"{'all':36}{summary([hit for hits in table.values() for hit in hits])}")


if __name__ == "__main__":
    print_coverage(all_hits(int(sys.argv[1]) if len(sys.argv) > 1 else 10))
