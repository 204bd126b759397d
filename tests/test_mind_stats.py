"""Paired comparisons: they find a planted ratio, their intervals hold what they promise, and unlike things are refused."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline import stats
from leadline.records import BlockResult, Level, Outcome, RequestResult

ONE = Level(workload="chat", concurrency=1)
FOUR = Level(workload="chat", concurrency=4)


def block(level: Level, number: int, tok_s: float, prompts: tuple[tuple[float, float], ...] = ()) -> BlockResult:
    """``prompts`` are (tokens, seconds)."""
    requests = tuple(
        RequestResult(prompt_id=f"p{number}-{i}", outcome=Outcome.OK, tokens_out=int(t), e2e_ms=1e3 * s) for i, (t, s) in enumerate(prompts)
    )
    return BlockResult(level=level, block=number, duration_s=1.0, output_tok_s=tok_s, requests=requests)


def cell(level: Level, *tok_s: float, launch: int = 1) -> list[tuple[int, BlockResult]]:
    return [(launch, block(level, i, x)) for i, x in enumerate(tok_s, 1)]


def test_a_paired_ratio_cancels_what_blocks_share() -> None:
    a, b = cell(FOUR, 110, 220, 55), cell(FOUR, 100, 200, 50)
    ratio = stats.paired_ratio(a, b)
    assert ratio.value == pytest.approx(1.10)
    assert ratio.n == 3
    assert ratio.unit == "ratio"
    assert "paired blocks" in ratio.method
    assert ratio.excludes_one
    wide = stats.paired_ratio(a, b, comparisons=20)
    assert wide.low < ratio.low < ratio.value < ratio.high < wide.high
    assert "20 comparisons" in wide.method


def test_at_concurrency_one_prompts_pair_and_agree_with_the_totals() -> None:
    a = [(1, block(ONE, 1, 0.1, ((64, 2.0), (64, 8.0)))), (1, block(ONE, 2, 0.1, ((64, 4.0), (64, 4.0))))]
    b = [(2, block(ONE, 1, 0.1, ((64, 4.0), (64, 8.0)))), (2, block(ONE, 2, 0.1, ((64, 4.0), (64, 8.0))))]
    versus = stats.contrast(a, b)
    assert versus.by == "prompt"
    assert versus.n == 4
    assert math.exp(versus.mean) == pytest.approx((256 / 18) / (256 / 24))
    assert stats.contrast(a, b, prompts=False).by == "block"


def test_a_unit_measured_twice_counts_once_and_two_launches_lower_the_launch_noise() -> None:
    base = cell(FOUR, 100, 100)
    once = stats.contrast(cell(FOUR, 110, 110), base)
    twice = stats.contrast(cell(FOUR, 111, 111) + cell(FOUR, 109, 109, launch=3), base)
    assert once.n == twice.n == 2
    assert twice.launch_sd < once.launch_sd


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (cell(FOUR, 1.0), cell(ONE, 1.0), "never pooled"),
        (cell(FOUR, 1.0), [(1, block(FOUR, 2, 1.0))], "share no block"),
        (cell(FOUR, 1.0), [], "no block"),
        ([(1, block(FOUR, 1, 1.0, ((1, 1.0),)))], [(1, block(FOUR, 1, 1.0, ((1, 1.0), (1, 1.0))))], "different prompts"),
    ],
)
def test_unlike_conditions_are_refused(a: list[tuple[int, BlockResult]], b: list[tuple[int, BlockResult]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stats.paired_ratio(a, b)


def test_other_refusals() -> None:
    with pytest.raises(ValueError, match="nothing to estimate"):
        stats.estimate([])
    with pytest.raises(ValueError, match="positive"):
        stats.estimate([1.0, 0.0])
    with pytest.raises(ValueError, match="positive weight"):
        stats.combined([])
    with pytest.raises(ValueError, match="never pooled"):
        stats.block_spread([cell(FOUR, 1.0), cell(ONE, 1.0)])
    with pytest.raises(ValueError, match="never pooled"):
        stats.launch_spread([[*cell(FOUR, 1.0), *cell(ONE, 1.0, launch=2)]])


def test_estimates_travel_with_their_interval() -> None:
    interval = stats.estimate([90.0, 100.0, 110.0])
    assert interval.value == pytest.approx(statistics.geometric_mean([90, 100, 110]))
    assert interval.low < interval.value < interval.high
    assert interval.n == 3
    single = stats.estimate([100.0], launch=stats.LAUNCH_PRIOR)
    assert single.low < 100 < single.high
    assert "launch noise" in single.method


@settings(deadline=None, max_examples=60)
@given(
    values=st.lists(st.floats(0.5, 2.0), min_size=2, max_size=6),
    factor=st.floats(0.2, 5.0),
    scale=st.floats(0.1, 1000.0),
)
def test_ratios_do_not_depend_on_units_and_turn_around(values: list[float], factor: float, scale: float) -> None:
    a, b = cell(FOUR, *(v * factor * scale for v in values)), cell(FOUR, *(v * scale for v in values))
    there, back = stats.contrast(a, b), stats.contrast(b, a)
    assert there.mean == pytest.approx(math.log(factor), abs=1e-9)
    assert back.mean == pytest.approx(-there.mean, abs=1e-9)
    assert back.sd == pytest.approx(there.sd)


@pytest.mark.parametrize(("noise", "launch"), [(0.01, 0.01), (0.03, 0.01), (0.05, 0.01)])
def test_ninety_percent_intervals_cover(noise: float, launch: float) -> None:
    rng = np.random.default_rng(7)
    inside = 0
    runs = 400
    for _ in range(runs):
        content = rng.normal(0, 0.2, 4)
        one = np.exp(content + rng.normal(0, noise, 4) + rng.normal(0, launch) + math.log(1.1))
        two = np.exp(content + rng.normal(0, noise, 4) + rng.normal(0, launch))
        ratio = stats.paired_ratio(cell(FOUR, *one), cell(FOUR, *two, launch=2))
        inside += ratio.low <= 1.1 <= ratio.high
    assert inside / runs >= 0.85


def test_the_noise_floor_is_that_of_two_launches_of_one_thing() -> None:
    assert stats.noise_floor([cell(FOUR, 100, 100)]) is None
    same = [cell(FOUR, 100, 100) + cell(FOUR, 102, 102, launch=2), cell(ONE, 50, 50) + cell(ONE, 49, 49, launch=2)]
    floor = stats.noise_floor(same)
    assert floor is not None
    assert floor.value == pytest.approx(1.02, abs=0.002)
    assert floor.n == 2
    assert floor.low < floor.value < floor.high
    noisy = [cell(FOUR, 100, 100) + cell(FOUR, 120, 120, launch=2)] * 6
    assert stats.launch_spread(noisy).sd > 3 * stats.launch_spread([]).sd
    assert stats.launch_spread([[*cell(FOUR, 100), (2, block(FOUR, 2, 1.0))]]) == stats.LAUNCH_PRIOR


def test_spread_is_moderated_towards_what_is_known_of_servers() -> None:
    assert stats.block_spread([]) == stats.BLOCK_PRIOR
    quiet = stats.block_spread([cell(FOUR, 100, 200, 300, 400), cell(FOUR, 110, 220, 330, 440), cell(FOUR, 90, 180, 270, 360)])
    loud = stats.block_spread([cell(FOUR, 100, 200, 300, 400), cell(FOUR, 150, 220, 250, 440), cell(FOUR, 90, 250, 200, 360)])
    assert quiet.sd < stats.BLOCK_PRIOR.sd < loud.sd
    assert stats.block_spread([cell(FOUR, 100.0), cell(FOUR, 110.0)]) == stats.BLOCK_PRIOR


def test_required_n_falls_with_the_effect_and_gives_up_where_launches_differ_more() -> None:
    few, many = stats.required_n(1.2, unit_sd=0.03), stats.required_n(1.07, unit_sd=0.05)
    assert few is not None
    assert many is not None
    assert few < many
    assert stats.required_n(1.005, unit_sd=0.03) is None


def test_drift_of_the_host_is_seen() -> None:
    start, end = cell(FOUR, 100, 110, 90, 100), cell(FOUR, 90, 99, 81, 90, launch=9)
    assert stats.drift(start, end).interval().high < 1.0
    assert not stats.drift(start, cell(FOUR, 101, 110, 90, 100, launch=9)).interval().excludes_one


def test_a_mix_of_levels_weighs_gains() -> None:
    up = stats.contrast(cell(ONE, 120, 120), cell(ONE, 100, 100))
    down = stats.contrast(cell(FOUR, 90, 90), cell(FOUR, 100, 100))
    mixed = stats.combined([(3.0, up), (1.0, down)])
    assert mixed.mean == pytest.approx(0.75 * math.log(1.2) + 0.25 * math.log(0.9))
    assert mixed.n == 4
    alike = stats.combined([(1.0, up), (1.0, up)])
    assert alike.launch_sd == pytest.approx(up.launch_sd)  # one launch, not two
    assert alike.sd < up.sd


def test_expected_excess() -> None:
    assert stats.expected_excess(0.0, 1.0) == pytest.approx(0.3989, abs=1e-4)
    assert stats.expected_excess(2.0, 0.0) == 2.0
    assert stats.expected_excess(-2.0, 0.0) == 0.0
    assert stats.expected_excess(-1.0, 0.5) < stats.expected_excess(-1.0, 1.0)
