"""Whatever a campaign meets, the mind neither raises nor loops, and what it says survives the journal."""

from __future__ import annotations

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline.config import Measure, Tune
from leadline.decide import next_launch, plan
from leadline.engines import Axis
from leadline.predict import predict
from leadline.recommend import recommend
from leadline.records import (
    Abandoned,
    Acceptance,
    Candidate,
    Capacity,
    FrontierRow,
    Level,
    Outcome,
    PlannedLaunch,
    Prediction,
    Stop,
    Verdict,
)
from leadline.state import Knowledge, fold
from replay import OFF, Noise, Player, Surface, counts, depth_curve

DEPTHS = (1, 2, 3, 5, 8, 16)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Surface, Tune, int]:
    """A service with gaps, crashes, odd acceptance and any budget."""
    workloads = draw(st.sampled_from([("chat",), ("chat", "copy")]))
    concurrencies = draw(st.lists(st.sampled_from([1, 2, 4, 16, 64]), min_size=1, max_size=3, unique=True))
    levels = tuple(Level(workload=w, concurrency=c) for w in workloads for c in sorted(concurrencies))
    axes = []
    for name in draw(st.lists(st.sampled_from(["EAGLE", "ngram", "mtp"]), max_size=2, unique=True)):
        depths = tuple(sorted(draw(st.sets(st.sampled_from(DEPTHS), min_size=1, max_size=6))))
        pinned = draw(st.sampled_from([(), (("n", "4"),)]))
        axes.append(Axis(algorithm=name, depths=depths, settings=pinned, modelled=draw(st.booleans())))
    every = [c for axis in axes for c in axis.candidates()]
    found = draw(st.sampled_from([OFF, *every]))
    cells, acceptance, capacity, rows = {}, {}, {}, []
    for candidate in (OFF, *every):
        for level in levels:
            if draw(st.integers(0, 9)):
                cells[candidate, level] = draw(st.floats(0.5, 5000.0))
        kind = draw(st.integers(0, 3))
        if kind == 1 and not candidate.off:
            lengths = depth_curve([draw(st.floats(0.0, 1.0))] * candidate.depth)
            acceptance |= {(candidate, w): counts(lengths, candidate.depth, 50) for w in workloads}
        elif kind == 2 and not candidate.off:
            acceptance |= {(candidate, w): Acceptance(length=draw(st.floats(1.0, candidate.depth + 1.0))) for w in workloads}
        if draw(st.booleans()):
            capacity[candidate] = draw(st.integers(1, 64))
        starts = draw(st.sampled_from([True, True, False, None]))
        if draw(st.booleans()):
            other = Candidate(algorithm=candidate.algorithm, depth=candidate.depth, settings=(("max_running_requests", "20"),))
            rows.append(
                FrontierRow(
                    candidate=candidate,
                    starts=starts,
                    reason="because",
                    capacity=Capacity(max_running_requests=draw(st.integers(1, 64))),
                    feasible_as=other if starts is False and draw(st.booleans()) else None,
                )
            )
    surface = Surface(
        name="anything",
        axes=tuple(axes),
        levels=levels,
        found=found,
        tok_s=cells,
        acceptance=acceptance,
        capacity=capacity,
        frontier=tuple(rows),
        crashes=frozenset(draw(st.lists(st.sampled_from([OFF, *every]), max_size=3))),
        load_s=draw(st.sampled_from([0.0, 2.0, 90.0])),
        facts=draw(st.sampled_from([(), (("num_experts", "64"), ("num_experts_per_tok", "6"))])),
        engine=draw(st.sampled_from(["vllm", "sglang", "llamacpp"])),
    )
    tune = Tune(
        objective=draw(st.sampled_from(["single", "peak", "balanced", "goodput"])),
        max_launches=draw(st.integers(1, 12)),
        max_minutes=draw(st.sampled_from([0.1, 3.0, 60.0])),
        ask=tuple(c.label for c in draw(st.lists(st.sampled_from([OFF, *every]), max_size=2))),
        ttft_ms=40.0,
        min_gain=draw(st.sampled_from([0.01, 0.03, 0.2])),
    )
    return surface, tune, draw(st.integers(0, 1000))


def survives(value: object, kind: object) -> None:
    assert msgspec.json.decode(msgspec.json.encode(value), type=kind) == value  # no infinity, no NaN


@settings(deadline=None, max_examples=60)
@given(worlds())
def test_any_campaign_ends_in_a_verdict(world: tuple[Surface, Tune, int]) -> None:
    surface, tune, seed = world
    player = Player(surface, Noise(block=0.05, launch=0.03), seed)
    measure = Measure()

    def decide(known: Knowledge) -> PlannedLaunch | Stop:
        return next_launch(known, surface.axes, tune, measure, surface.levels, surface.found)

    for launch in plan(player.knowledge, surface.axes, tune, measure, surface.levels, surface.found):
        survives(launch, PlannedLaunch)
        assert launch.seconds > 0
    for _ in range(tune.max_launches + 1):
        step = decide(player.knowledge)
        survives(step, type(step))
        if isinstance(step, Stop):
            break
        assert step.levels
        assert step.blocks >= 1
        assert step.candidate not in player.knowledge.refused
        player.play(step)
        last = player.knowledge.trials[-1]
        if last.blocks:
            # the same trial, interrupted after its first block
            part = last.number, last.blocks[0]
            cut = msgspec.structs.replace(last, blocks=(part[1],), ended=False, observed=None, down_s=None)
            known = msgspec.structs.replace(
                player.knowledge, trials=(*player.knowledge.trials[:-1], cut), decided=player.knowledge.decided[:-1]
            )
            assert decide(fold([Abandoned(trial=last.number, at_s=0.0, retry=True, why="killed")], known)) == step
        survives(predict(player.knowledge, surface.axes, surface.levels, found=surface.found, tune=tune), tuple[Prediction, ...])
    else:
        raise AssertionError("no stop within the launches allowed")
    said = recommend(player.knowledge, surface.axes, tune, surface.levels, surface.found, lambda c: (c.label,), step)
    survives(said, Verdict)
    assert said.sentence
    served = {
        trial.candidate for trial in player.knowledge.trials if any(r.outcome is Outcome.OK for b in trial.blocks for r in b.requests)
    }
    assert said.overall == surface.found or said.overall in served
