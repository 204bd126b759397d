"""Whole campaigns in memory: planted truths found, null engines left alone, interruptions without consequence."""

from __future__ import annotations

import msgspec
import pytest

from leadline.config import Measure, Tune
from leadline.decide import next_launch, plan
from leadline.engines import Axis
from leadline.recommend import recommend
from leadline.records import Abandoned, Candidate, Capacity, FrontierRow, Intended, Level, Measured, PlannedLaunch, Stop, Verdict
from leadline.state import fold
from replay import OFF, Noise, Player, Surface, campaign, counts, depth_curve, llamacpp_demo, rename

LEVELS = tuple(Level(workload="chat", concurrency=c) for c in (1, 4, 16))


def service(*, best: dict[int, int], gain: float = 1.6, depths: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8), load_s: float = 90.0) -> Surface:
    """One axis whose throughput peaks at depth ``best[concurrency]`` with ``gain`` over speculation off."""
    lengths = depth_curve([0.85] * max(depths))
    tok_s = {}
    for level in LEVELS:
        off = 100.0 * level.concurrency**0.7
        tok_s[OFF, level] = off
        top = best[level.concurrency]
        for depth in depths:
            tok_s[Candidate(algorithm="EAGLE", depth=depth), level] = off * gain * (1 - 0.04 * abs(depth - top))
    return Surface(
        name=f"service-{sorted(best.items())}",
        axes=(Axis(algorithm="EAGLE", depths=depths),),
        levels=LEVELS,
        found=OFF,
        tok_s=tok_s,
        acceptance={(Candidate(algorithm="EAGLE", depth=d), "chat"): counts(lengths, d) for d in depths},
        load_s=load_s,
    )


def null(seed: int, load_s: float = 2.0) -> Surface:
    return rename(
        service(best={1: 4, 4: 4, 16: 4}, load_s=load_s), name="null", tok_s=dict.fromkeys(service(best={1: 4, 4: 4, 16: 4}).tok_s, 100.0)
    )


def verdict(surface: Surface, player: Player, stop: Stop, tune: Tune | None = None) -> Verdict:
    return recommend(player.knowledge, surface.axes, tune or Tune(), surface.levels, surface.found, lambda c: ("serve", c.label), stop)


@pytest.mark.parametrize("seed", range(20))
def test_planted_optimum_is_found(seed: int) -> None:
    surface = service(best={1: 6, 4: 4, 16: 2})
    player, stop = campaign(surface, seed=seed, noise=Noise(block=0.01 + 0.002 * seed))
    said = verdict(surface, player, stop)
    for point in said.points:
        assert surface.regret(point.candidate, point.level) <= 0.08, (point.level.label, point.candidate.label)
        assert point.gain_vs_found is not None
        assert point.gain_vs_found.low > 1.0
    assert said.change


@pytest.mark.parametrize("seed", range(20))
def test_the_demo_finds_three_winners_in_its_time(seed: int) -> None:
    surface = llamacpp_demo()
    tune = Tune(max_minutes=6)
    player, stop = campaign(surface, seed=seed, tune=tune, noise=Noise(block=0.01 + 0.001 * seed))
    points = {point.level.label: point for point in verdict(surface, player, stop, tune).points}
    assert points["chat c=4"].candidate == OFF
    assert points["chat c=1"].candidate.algorithm == "draft-simple"
    assert points["chat c=1"].candidate.depth >= 6
    for label in ("copy c=1", "copy c=4"):
        assert points[label].candidate == Candidate(algorithm="ngram-simple", depth=16, settings=(("ngram_n", "4"),))
    for label in ("chat c=1", "copy c=1", "copy c=4"):
        gain = points[label].gain_vs_found
        assert gain is not None
        assert gain.low > 1.0
    assert player.clock_s < 1.05 * 6 * 60  # the last block is planned, not cut
    assert len(player.knowledge.trials) <= 12


def test_null_engines_are_left_alone() -> None:
    changed = 0
    for seed in range(100):
        surface = null(seed)
        player, stop = campaign(surface, seed=seed, noise=Noise(block=0.01 + 0.04 * (seed % 5) / 4))
        said = verdict(surface, player, stop)
        changed += said.change or any(point.candidate != OFF for point in said.points)
    assert changed <= 5


def test_a_crash_makes_deeper_ones_suspect_and_is_no_end() -> None:
    surface = service(best={1: 4, 4: 3, 16: 2})
    deep = [Candidate(algorithm="EAGLE", depth=d) for d in (6, 8)]
    player, stop = campaign(rename(surface, crashes=frozenset(deep)), seed=3)
    launched = [trial.candidate.depth for trial in player.knowledge.trials]
    assert launched.count(8) == 1
    assert 6 not in launched
    assert all(surface.regret(p.candidate, p.level) < 0.05 for p in verdict(surface, player, stop).points)


def test_infeasible_depths_are_replaced_or_left_out_unless_asked_for() -> None:
    surface = service(best={1: 5, 4: 4, 16: 2})
    eight, six = (Candidate(algorithm="EAGLE", depth=d) for d in (8, 6))
    pinned = Candidate(algorithm="EAGLE", depth=8, settings=(("max_running_requests", "20"),))
    rows = (
        FrontierRow(candidate=eight, starts=False, reason="pool too small", feasible_as=pinned),
        FrontierRow(candidate=six, starts=False, reason="pool too small"),
    )
    cells = {**surface.tok_s, **{(pinned, level): surface.tok_s[eight, level] for level in LEVELS}}
    surface = rename(
        surface, frontier=rows, tok_s=cells, acceptance={**surface.acceptance, (pinned, "chat"): surface.acceptance[eight, "chat"]}
    )
    player, stop = campaign(surface, seed=1)
    launched = [trial.candidate for trial in player.knowledge.trials]
    assert pinned in launched
    assert eight not in launched
    assert six not in launched
    assert any("EAGLE 6 (pool too small)" in text for text in verdict(surface, player, stop).not_shown)
    player, _ = campaign(surface, seed=1, tune=Tune(ask=("EAGLE 6",)))
    mine = [trial for trial in player.knowledge.trials if trial.candidate == six]
    assert [trial.kind for trial in mine] == ["asked"]
    assert "pool too small" in mine[0].why


@pytest.mark.parametrize("cut", range(1, 30, 3))
def test_an_interrupted_trial_is_intended_again(cut: int) -> None:
    surface = llamacpp_demo()
    tune, measure = Tune(max_minutes=6), Measure()
    whole, _ = campaign(surface, seed=2, tune=tune)
    measured = [i for i, event in enumerate(whole.events) if isinstance(event, Measured)]
    at = measured[cut % len(measured)]
    before = fold(whole.events[: at + 1])
    trial = before.trials[-1]
    intents = [i for i, event in enumerate(whole.events[: at + 1]) if isinstance(event, Intended)]
    calm = next_launch(fold(whole.events[: intents[-1]]), surface.axes, tune, measure, surface.levels, OFF)
    gone = fold([Abandoned(trial=trial.number, at_s=1.0, retry=True, why="killed")], before)
    assert next_launch(gone, surface.axes, tune, measure, surface.levels, OFF) == calm
    assert next_launch(before, surface.axes, tune, measure, surface.levels, OFF) == calm
    assert isinstance(calm, PlannedLaunch)
    assert calm.candidate == trial.candidate


def test_budgets_stop_and_say_so() -> None:
    surface = service(best={1: 6, 4: 4, 16: 2})
    player, stop = campaign(surface, tune=Tune(max_launches=2))
    assert stop.rule == "budget"
    assert len(player.knowledge.trials) == 2
    player, stop = campaign(surface, tune=Tune(max_minutes=5))
    assert stop.rule == "budget"
    assert player.clock_s <= 1.05 * 300
    player, stop = campaign(surface, tune=Tune(max_down_minutes=5))
    assert stop.rule == "budget"
    assert player.clock_s <= 1.05 * 300


def test_the_plan_names_what_will_come() -> None:
    surface = service(best={1: 6, 4: 4, 16: 2})
    tune, measure = Tune(ask=("EAGLE 5",)), Measure()
    three = Candidate(algorithm="EAGLE", depth=3)
    known = Player(rename(surface, found=three), Noise(), 0).knowledge
    launches = plan(known, surface.axes, tune, measure, surface.levels, three)
    assert [launch.kind for launch in launches] == ["baseline", "control", "asked", "deep", "shallow", "confirm", "recheck"]
    assert all(launch.seconds > 0 and launch.why for launch in launches)
    assert launches[3].candidate.depth == 8
    first = next_launch(known, surface.axes, tune, measure, surface.levels, three)
    assert first == launches[0]


def test_speculation_that_hurts_is_switched_off() -> None:
    surface = service(best={1: 2, 4: 2, 16: 2}, gain=0.7)
    surface = rename(surface, found=Candidate(algorithm="EAGLE", depth=3))
    player, stop = campaign(surface, seed=5)
    said = verdict(surface, player, stop)
    assert said.overall == OFF
    assert said.command == ("serve", "off")
    assert all(point.candidate == OFF for point in said.points)


def test_capacity_is_read_from_what_ran() -> None:
    surface = rename(service(best={1: 4, 4: 4, 16: 4}), capacity={Candidate(algorithm="EAGLE", depth=8): 6})
    player, _ = campaign(surface)
    deep = next(trial for trial in player.knowledge.trials if trial.candidate.depth == 8)
    assert deep.capacity == Capacity(max_running_requests=6)
    assert msgspec.structs.asdict(deep)["kind"] == "deep"


@pytest.mark.parametrize("seed", range(4))
def test_the_last_depth_before_a_dearer_kernel_is_launched_early(seed: int) -> None:
    """Rounds of an H200 at 16 requests: flat at the top but for the step after 128 tokens, which the engine's log announces."""
    level = Level(workload="chat", concurrency=16)
    depths = tuple(range(1, 11))
    lengths = depth_curve([0.88] * 10)
    named = {d: Candidate(algorithm="EAGLE", depth=d) for d in depths}
    round_ms = {d: 16.5 + 1.2 * d + 0.08 * (16.5 + 1.2 * d) * (16 * (d + 1) > 128) for d in depths}
    surface = Surface(
        name="step",
        axes=(Axis(algorithm="EAGLE", depths=depths),),
        levels=(level,),
        found=named[3],
        tok_s={(OFF, level): 1400.0} | {(c, level): 16e3 * lengths[d] / round_ms[d] for d, c in named.items()},
        acceptance={(c, "chat"): counts(lengths, d) for d, c in named.items()},
        load_s=75.0,
        facts=(("kernel_step_tokens", "128"), ("num_experts", "128"), ("num_experts_per_tok", "10")),
    )
    assert surface.best(level)[0] == named[7]
    player, _ = campaign(surface, seed=seed, noise=Noise(block=0.01))
    launched = [trial.candidate for trial in player.knowledge.trials]
    assert launched.index(named[7]) == 3, [c.label for c in launched]  # after as found, off and the deepest
