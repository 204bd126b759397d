"""Comparisons that hold: paired blocks, the noise of a relaunch, how many blocks a claim needs.

Notation
--------
===========  ============================================================================================================
unit         what is compared with its twin: a block, or at concurrency 1 a prompt of a block
contrast     log of a ratio of throughputs between two candidates at one level
spread       a standard deviation of logs, with the degrees of freedom it rests on
launch       standard deviation of the log throughput from one start of a configuration to the next start of it
===========  ============================================================================================================

A variance estimated from two or three units is nearly worthless, so every spread is *moderated*: it is averaged, by degrees
of freedom, with a prior spread (as Smyth 2004, doi 10.2202/1544-6115.1027, does for many small experiments).  The priors are
the repeatability published for inference servers: 1.5-3.7 % between repeats, about 1 % between launches.

Only equals are compared: a level with itself, a block with its twin of the same prompts.  Everything else raises ValueError.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from .records import BlockResult, Interval, Level, Outcome, Record

Measurement: TypeAlias = BlockResult | tuple[int, BlockResult]
"""A block, or (number of its launch, block) as :meth:`leadline.state.Knowledge.blocks` gives it."""


class Spread(Record, frozen=True):
    """Standard deviation of a log, and the degrees of freedom it was estimated with."""

    sd: float
    df: float


BLOCK_PRIOR = Spread(sd=0.04, df=2.0)
"""Contrast of two blocks of one level before anything is known of this host."""
LAUNCH_PRIOR = Spread(sd=0.01, df=4.0)
"""One launch against the next, before any configuration was launched twice."""


class Contrast(Record, frozen=True):
    """log(throughput of a / throughput of b) with its error, split by where the error comes from."""

    mean: float
    sd: float
    """Standard error of ``mean``: units and launches together."""
    df: float
    n: int
    """Units that pair."""
    unit_sd: float
    """Moderated standard deviation of one unit's contrast."""
    launch_sd: float
    """Part of ``sd`` that comes from the launches (levels played in one launch share it)."""
    by: str
    """``block`` or ``prompt``."""

    def interval(self, confidence: float = 0.90, comparisons: int = 1) -> Interval:
        """The ratio with a t-interval; with ``comparisons`` > 1 all of that many intervals hold at once (Bonferroni)."""
        half = t_quantile(1 - (1 - confidence) / (2 * max(1, comparisons)), self.df) * self.sd
        joint = f", holds for {comparisons} comparisons at once" if comparisons > 1 else ""
        return Interval(
            value=math.exp(self.mean),
            low=math.exp(self.mean - half),
            high=math.exp(self.mean + half),
            n=self.n,
            unit="ratio",
            confidence=confidence,
            method=f"t over {self.n} paired {self.by}s, {self.df:.1f} df, launch noise included{joint}",
        )


@functools.cache
def _special() -> Any:
    """The distributions; they take a tenth of a second to load, which no load should wait for."""
    from scipy import special

    return special


@functools.lru_cache(maxsize=4096)
def t_quantile(p: float, df: float) -> float:
    """Quantile of Student's t."""
    return float(_special().stdtrit(df, p))


def moderated(sum_squares: float, df: float, prior: Spread) -> Spread:
    """Average a sum of squares on ``df`` degrees of freedom with a prior spread, by degrees of freedom."""
    total = df + prior.df
    return Spread(sd=math.sqrt((prior.df * prior.sd**2 + sum_squares) / total), df=total)


def estimate(
    values: Iterable[float], *, confidence: float = 0.90, unit: str = "tok/s", prior: Spread = BLOCK_PRIOR, launch: Spread | None = None
) -> Interval:
    """Geometric mean of positive values with a moderated t-interval on the log scale.

    ``launch`` widens it by the noise of one launch (for values of a single launch). Raises ValueError without values or if
    one is not positive.
    """
    logs = [_log(value) for value in values]
    if not logs:
        raise ValueError("nothing to estimate: no values")
    n, mean = len(logs), sum(logs) / len(logs)
    spread = moderated(sum((x - mean) ** 2 for x in logs), n - 1, prior)
    sd, df = _joined(spread.sd**2 / n, spread.df, launch.sd**2 if launch else 0.0, launch.df if launch else 1.0)
    half = t_quantile(0.5 + confidence / 2, df) * sd
    return Interval(
        value=math.exp(mean),
        low=math.exp(mean - half),
        high=math.exp(mean + half),
        n=n,
        unit=unit,
        confidence=confidence,
        method=f"geometric mean, t with {df:.1f} df" + (", launch noise included" if launch else ""),
    )


def contrast(
    a: Sequence[Measurement], b: Sequence[Measurement], *, prior: Spread = BLOCK_PRIOR, launch: Spread = LAUNCH_PRIOR, prompts: bool = True
) -> Contrast:
    """Compare two candidates on the units they share.

    At concurrency 1 the unit is the prompt where both sides have it, and the ratio is one of totals (all tokens over all
    seconds), linearised, so that it agrees with the throughput of the blocks; elsewhere it is the block and the mean of log
    ratios.  A unit measured in several launches counts once, by its mean.  The noise of the launches is added by the number
    of launches each side rests on.  Raises ValueError when the levels differ, when blocks of one number hold different
    prompts, or when nothing pairs.
    """
    left, right = _sides(a, b)
    if prompts and left[0][1].level.concurrency == 1:
        rates = _rates_by_prompt(left), _rates_by_prompt(right)
        if rates[0].keys() & rates[1].keys():
            return _by_prompt(*rates, prior, launch)
    return _by_block(_logs_by_block(left), _logs_by_block(right), prior, launch)


def paired_ratio(
    a: Sequence[Measurement],
    b: Sequence[Measurement],
    *,
    confidence: float = 0.90,
    prior: Spread = BLOCK_PRIOR,
    launch: Spread = LAUNCH_PRIOR,
    comparisons: int = 1,
) -> Interval:
    """Throughput of ``a`` over throughput of ``b`` on the units they share; see :func:`contrast`."""
    return contrast(a, b, prior=prior, launch=launch).interval(confidence, comparisons)


def launch_spread(cells: Iterable[Sequence[tuple[int, BlockResult]]], *, prior: Spread = LAUNCH_PRIOR) -> Spread:
    """Noise of a launch from every cell (one candidate at one level) that was measured in several launches.

    The difference of two launches holds twice the launch variance and the variance of the blocks; the latter is taken off.
    """
    total, df = 0.0, 0.0
    for difference, noise in _differences(cells):
        total += max(0.0, difference**2 - noise) / 2
        df += 1
    # levels of one pair of launches share the launch, so they are worth less than that many independent pairs
    return moderated(total / 2, df / 2, prior)


def noise_floor(cells: Iterable[Sequence[tuple[int, BlockResult]]], *, confidence: float = 0.90) -> Interval | None:
    """A/A: how far two launches of one configuration lie apart, as a ratio (root mean square), or None without a repeat.

    A gain below this ratio is what a plain relaunch shows as well.
    """
    squares = [difference**2 for difference, _ in _differences(cells)]
    if not squares:
        return None
    n, total = len(squares), sum(squares)
    tail = (1 - confidence) / 2
    low, high = (math.sqrt(total / float(_special().chdtri(n, p))) for p in (tail, 1 - tail))
    return Interval(
        value=math.exp(math.sqrt(total / n)),
        low=math.exp(low),
        high=math.exp(high),
        n=n,
        unit="ratio",
        confidence=confidence,
        method="root mean square over cells measured in two launches, chi-squared",
    )


def block_spread(cells: Iterable[Sequence[Measurement]], *, prior: Spread = BLOCK_PRIOR) -> Spread:
    """Spread of a block's contrast, pooled over all pairs of candidates of **one** level (residuals of candidate + block).

    Raises ValueError when the cells are not of one level.
    """
    tables = [_logs_by_block(_numbered(cell)) for cell in cells if cell]
    rows = [{block: sum(logs.values()) / len(logs) for block, logs in table.items()} for table in tables]
    _one_level([_numbered(cell)[0][1].level for cell in cells if cell])
    total, df = 0.0, 0.0
    for i, row in enumerate(rows[1:], 1):
        shared = sorted(row.keys() & rows[0].keys())
        if len(shared) < 2:
            continue
        differences = [row[block] - rows[0][block] for block in shared]
        mean = sum(differences) / len(differences)
        # contrasts with one reference share its noise: after the first they are worth about half an independent one
        weight = 1.0 if i == 1 else 0.5
        total += weight * sum((d - mean) ** 2 for d in differences)
        df += weight * (len(shared) - 1)
    return moderated(total, df, prior)


def required_n(ratio: float, *, unit_sd: float, launch: Spread = LAUNCH_PRIOR, confidence: float = 0.90, power: float = 0.8) -> int | None:
    """Paired blocks needed so that a true ``ratio`` is shown (interval excludes 1.0) with probability ``power``.

    None when no number of blocks does it because the launches alone differ by more; then more launches are needed.
    """
    effect = abs(math.log(ratio))
    for n in range(2, 1001):
        sd, df = _joined(unit_sd**2 / n, n - 1 + BLOCK_PRIOR.df, 2 * launch.sd**2, launch.df)
        if effect >= (t_quantile(0.5 + confidence / 2, df) + t_quantile(power, df)) * sd:
            return n
    return None


def expected_excess(mean: float, sd: float) -> float:
    """E[max(0, x)] of a normal x: what may be hoped for beyond zero."""
    if sd <= 0:
        return max(0.0, mean)
    z = mean / sd
    return mean * float(_special().ndtr(z)) + sd * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def drift(first: Sequence[Measurement], last: Sequence[Measurement], *, launch: Spread = LAUNCH_PRIOR) -> Contrast:
    """The same candidate at the end over itself at the start; an interval that excludes 1.0 means that the host has changed.

    The launch noise is the prior, not what was measured: that came from the same two launches and would hide any drift.
    """
    return contrast(last, first, launch=launch)


def combined(parts: Sequence[tuple[float, Contrast]]) -> Contrast:
    """Weighted mean of contrasts at different levels: a gain over a mix of loads, not a pooling of their measurements.

    Weights are scaled to add up to 1. The levels' units are independent, their launches are taken as shared. Raises ValueError
    without parts.
    """
    scale = sum(weight for weight, _ in parts)
    if not parts or scale <= 0:
        raise ValueError("a mix needs at least one level with a positive weight")
    shares = [(weight / scale, part) for weight, part in parts]
    launch_sd = sum(w * part.launch_sd for w, part in shares)
    unit_variance = sum(w**2 * max(0.0, part.sd**2 - part.launch_sd**2) for w, part in shares)
    return Contrast(
        mean=sum(w * part.mean for w, part in shares),
        sd=math.sqrt(unit_variance + launch_sd**2),
        df=min(part.df for _, part in parts),
        n=sum(part.n for _, part in parts),
        unit_sd=math.sqrt(sum(w * part.unit_sd**2 for w, part in shares)),
        launch_sd=launch_sd,
        by="unit",
    )


# -- inside -----------------------------------------------------------------------------------------------------------


def _log(value: float) -> float:
    if value <= 0:
        raise ValueError(f"a throughput is positive, got {value}")
    return math.log(value)


def _numbered(cell: Sequence[Measurement]) -> list[tuple[int, BlockResult]]:
    return [item if isinstance(item, tuple) else (0, item) for item in cell]


def _one_level(levels: Sequence[Level]) -> None:
    if len(set(levels)) > 1:
        raise ValueError(f"unlike conditions are never pooled: {' and '.join(sorted({level.label for level in levels}))}")


def _sides(a: Sequence[Measurement], b: Sequence[Measurement]) -> tuple[list[tuple[int, BlockResult]], list[tuple[int, BlockResult]]]:
    left, right = _numbered(a), _numbered(b)
    if not left or not right:
        raise ValueError("nothing pairs: one side has no block")
    _one_level([block.level for _, block in (*left, *right)])
    prompts: dict[int, list[str]] = {}
    for _, block in (*left, *right):
        mine = sorted(request.prompt_id for request in block.requests)
        if prompts.setdefault(block.block, mine) != mine:
            raise ValueError(f"unlike conditions are never pooled: block {block.block} of {block.level.label} has different prompts")
    return left, right


_Logs: TypeAlias = dict[int, dict[int, float]]  # block number -> launch -> log throughput
_Rates: TypeAlias = dict[tuple[int, str], dict[int, tuple[float, float]]]  # (block, prompt) -> launch -> (tokens, seconds)


def _logs_by_block(side: Sequence[tuple[int, BlockResult]]) -> _Logs:
    out: _Logs = {}
    for launch, block in side:
        out.setdefault(block.block, {})[launch] = _log(block.output_tok_s)
    return out


def _rates_by_prompt(side: Sequence[tuple[int, BlockResult]]) -> _Rates:
    out: _Rates = {}
    for launch, block in side:
        ids = [request.prompt_id for request in block.requests]
        for request in block.requests:
            usable = request.outcome is Outcome.OK and request.tokens_out > 0 and (request.e2e_ms or 0) > 0
            if usable and ids.count(request.prompt_id) == 1:
                out.setdefault((block.block, request.prompt_id), {})[launch] = (request.tokens_out, (request.e2e_ms or 0) / 1e3)
    return out


def _launch_share(launches: Iterable[Iterable[int]], n: int) -> float:
    """Sum of squared weights of the launches: 1 for one launch, 1/2 for two of equal weight."""
    weight: dict[int, float] = {}
    for unit in launches:
        numbers = list(unit)
        for launch in numbers:
            weight[launch] = weight.get(launch, 0.0) + 1 / len(numbers) / n
    return sum(w**2 for w in weight.values())


def _joined(unit_variance: float, unit_df: float, launch_variance: float, launch_df: float) -> tuple[float, float]:
    """Standard error and its degrees of freedom (Satterthwaite) of a sum of two estimated variances."""
    total = unit_variance + launch_variance
    df = total**2 / (unit_variance**2 / unit_df + launch_variance**2 / launch_df) if total > 0 else unit_df
    return math.sqrt(total), round(df, 2)


def _by_block(a: _Logs, b: _Logs, prior: Spread, launch: Spread) -> Contrast:
    shared = sorted(a.keys() & b.keys())
    if not shared:
        raise ValueError("nothing pairs: the two sides share no block")
    n = len(shared)
    differences = [sum(a[k].values()) / len(a[k]) - sum(b[k].values()) / len(b[k]) for k in shared]
    mean = sum(differences) / n
    spread = moderated(sum((d - mean) ** 2 for d in differences), n - 1, prior)
    between = _launch_share((a[k] for k in shared), n) + _launch_share((b[k] for k in shared), n)
    sd, df = _joined(spread.sd**2 / n, spread.df, between * launch.sd**2, launch.df)
    return Contrast(mean=mean, sd=sd, df=df, n=n, unit_sd=spread.sd, launch_sd=math.sqrt(between) * launch.sd, by="block")


def _by_prompt(a: _Rates, b: _Rates, prior: Spread, launch: Spread) -> Contrast:
    shared = sorted(a.keys() & b.keys())
    n = len(shared)
    mean, residuals = 0.0, [0.0] * n
    for side, sign in ((a, 1.0), (b, -1.0)):
        pairs = [[sum(column) / len(side[k]) for column in zip(*side[k].values(), strict=True)] for k in shared]
        tokens, seconds = sum(p[0] for p in pairs), sum(p[1] for p in pairs)
        mean += sign * math.log(tokens / seconds)
        for i, (t, s) in enumerate(pairs):
            residuals[i] += sign * n * (t / tokens - s / seconds)
    spread = moderated(sum(r**2 for r in residuals), n - 1, prior)
    between = _launch_share((a[k] for k in shared), n) + _launch_share((b[k] for k in shared), n)
    sd, df = _joined(spread.sd**2 / n, spread.df, between * launch.sd**2, launch.df)
    return Contrast(mean=mean, sd=sd, df=df, n=n, unit_sd=spread.sd, launch_sd=math.sqrt(between) * launch.sd, by="prompt")


def _differences(cells: Iterable[Sequence[tuple[int, BlockResult]]]) -> list[tuple[float, float]]:
    """(mean difference of two launches on their shared blocks, variance of that mean due to blocks) per pair of launches."""
    out = []
    for cell in cells:
        launches: dict[int, _Logs] = {}
        for launch, block in cell:
            launches.setdefault(launch, {}).setdefault(block.block, {})[launch] = _log(block.output_tok_s)
        if cell:
            _one_level([block.level for _, block in cell])
        numbers = sorted(launches)
        for one, two in itertools.pairwise(numbers):
            shared = sorted(launches[one].keys() & launches[two].keys())
            if not shared:
                continue
            gaps = [launches[two][k][two] - launches[one][k][one] for k in shared]
            mean = sum(gaps) / len(gaps)
            spread = moderated(sum((g - mean) ** 2 for g in gaps), len(gaps) - 1, BLOCK_PRIOR)
            out.append((mean, spread.sd**2 / len(gaps)))
    return out
