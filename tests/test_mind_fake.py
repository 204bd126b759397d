"""Whole campaigns on the shipped fake engine, played in memory: the planted winner in every seed, nothing on the null engine."""

from __future__ import annotations

import statistics

import pytest

from leadline.config import Measure, Tune, levels
from leadline.decide import next_launch
from leadline.engines.fake import MODULE, SURFACES, FakeEngine, play
from leadline.recommend import recommend
from leadline.records import AnyEvent, Candidate, Level, Measured, Stop, Verdict
from replay import Noise, Player, Surface

ENGINE = FakeEngine()
OFF = Candidate(algorithm="off", depth=0)
MEASURE = Measure(concurrency=(1, 4), workloads=("chat", "copy"), max_tokens=64, prompts=2, explore_blocks=2, confirm_blocks=4)
SHORT = Measure(concurrency=(1, 4), workloads=("chat",), max_tokens=16, prompts=2, explore_blocks=2, confirm_blocks=4)
TUNE = Tune(max_minutes=60)


class _Fake(Player):
    """Plays blocks of the fake engine instead of a table."""

    def __init__(self, plant: str, seed: int, measure: Measure = MEASURE) -> None:
        parsed = ENGINE.parse(("python", "-m", MODULE, "--plant", plant))
        assert parsed is not None
        axes = ENGINE.axes(parsed)
        every = {c: 1.0 for axis in axes for c in axis.candidates()} | {OFF: 1.0}
        at = levels(measure)
        self.measure = measure
        table = Surface(
            name=plant, axes=axes, levels=at, found=OFF, tok_s={(c, level): 1.0 for c in every for level in at}, load_s=2.0, engine="fake"
        )
        super().__init__(table, Noise(), seed)
        self.planted = SURFACES[plant]

    def _level(self, number: int, candidate: Candidate, level: Level, blocks: int) -> list[AnyEvent]:
        out: list[AnyEvent] = []
        for block in range(1, blocks + 1):
            result = play(
                self.planted, candidate, level, block, self.seed, requests=self.measure.prompts, max_tokens=self.measure.max_tokens
            )
            self.clock_s += result.duration_s
            out.append(Measured(trial=number, at_s=self.clock_s, result=result))
        return out

    def mean(self, candidate: Candidate, level: Level, blocks: int) -> float:
        """Throughput over many blocks: the truth of this seed."""
        rows = [
            play(self.planted, candidate, level, b, self.seed, requests=self.measure.prompts, max_tokens=self.measure.max_tokens)
            for b in range(1, blocks + 1)
        ]
        return statistics.geometric_mean(row.output_tok_s for row in rows)


def campaign(plant: str, seed: int, measure: Measure = MEASURE) -> tuple[_Fake, Verdict]:
    player = _Fake(plant, seed, measure)
    surface = player.surface
    for _ in range(30):
        step = next_launch(player.knowledge, surface.axes, TUNE, measure, surface.levels, OFF)
        if isinstance(step, Stop):
            return player, recommend(player.knowledge, surface.axes, TUNE, surface.levels, OFF, lambda c: (c.label,), step)
        player.play(step)
    raise AssertionError("no stop within 30 launches")


@pytest.mark.parametrize("plant", ["regimes", "deep"])
def test_the_planted_winner_is_found_in_every_seed(plant: str) -> None:
    for seed in range(20):
        player, said = campaign(plant, seed)
        assert said.change
        for point in said.points:
            candidates = player.surface.candidates()
            law = {c: player.planted.output_tok_s(c, point.level) for c in candidates}
            if law[point.candidate] >= 0.97 * max(law.values()):
                continue
            # prefill and the end of an answer are not in the law: ask what is really played
            truth = {c: player.mean(c, point.level, 4) for c in candidates}
            best = max(truth, key=lambda c: truth[c])
            near = [c for c in candidates if truth[c] >= 0.97 * truth[best]]
            chosen = (point.candidate, *point.tied)
            assert point.candidate in near or best in chosen, (seed, point.level.label, point.candidate.label, best.label)
            assert truth[point.candidate] >= 0.93 * truth[best], (seed, point.level.label, point.candidate.label, best.label)


def test_the_null_engine_is_left_alone() -> None:
    changed = 0
    for seed in range(60):
        _, said = campaign("null", seed, SHORT)
        changed += said.change or any(point.candidate != OFF for point in said.points)
    assert changed <= 3
