"""Throughput and latency of candidates that were not launched, from those that were.

For a modelled axis, at one level with C clients and capacity C*:  B = min(C, C*),  X = B * AL(k) / R(B, k).
AL comes from the deepest run (:mod:`acceptance`), tied to every other depth that was measured; R is interpolated between the
measured depths at that batch (:mod:`cost`).  R is *defined* by X, B and AL of the same launch, so prefill and queueing effects
that do not depend on depth are inside it and cancel.  Where the engine reports no acceptance the constant-acceptance form is
averaged over its plausible range: that says little about acceptance itself, but the curve through two ends is good enough.

An axis without a model only knows its neighbours: an unmeasured point is its measured sibling, give or take a wide margin.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from . import acceptance as accepted
from . import cost
from .compare import Board
from .config import Tune
from .engines import Axis
from .records import Candidate, Interval, Level, Prediction, Record
from .space import Option, options
from .state import Knowledge
from .stats import expected_excess, t_quantile

SIBLING_SD = 0.15
"""Log spread between points of an axis without a model."""
UNKNOWN_SD = 0.40
"""Log spread of an axis of which nothing was measured at this workload."""
NO_CONTROL_SD = 0.30
"""Log spread of the round time at depth 1 when one depth and no control were measured."""
ACROSS_LEVELS_SD = 0.04
"""Log error of bringing a throughput from one batch to another (other prompts, other shape)."""
OUTSIDE_BATCH_SD = 0.10
"""The same for every factor of two beyond the batches it was measured at: what wins alone may lose in company."""
BREAKDOWN = 0.12
"""A shallower run that accepts this much more (log) than the deep run predicts means that the drafter breaks down in between."""
ALPHA, ALPHA_SD = 0.72, 0.14
"""Constant acceptance assumed where the engine reports none: trained drafters lie at 0.5-0.9."""
ALPHAS = tuple(0.40 + 0.05 * i for i in range(12))
_DF = 30.0
_Z = 1.645


class Outlook(Record, frozen=True):
    """Expected log throughput of a candidate at a level."""

    mean: float
    sd: float
    method: str
    length: float | None = None
    """Acceptance length, bonus token included."""
    length_error: float = 0.0
    """Standard deviation of its log."""


def predict(
    knowledge: Knowledge,
    axes: Sequence[Axis],
    levels: Sequence[Level],
    confidence: float = 0.90,
    *,
    found: Candidate | None = None,
    tune: Tune | None = None,
) -> tuple[Prediction, ...]:
    """Every candidate that may start at every level it has not been measured at, with intervals.

    Empty while nothing has been measured. ``found`` is taken from the journal when not given.
    """
    if found is None:
        found = knowledge.began.found if knowledge.began is not None else Candidate(algorithm="off", depth=0)
    board = Board(knowledge, levels, found)
    forecast = Forecast(board, options(knowledge, axes, tune or Tune()))
    out = []
    for option in forecast.options:
        for level in levels:
            if board.cell(option.candidate, level):
                continue
            outlook = forecast.outlook(option, level)
            if outlook is not None:
                out.append(_prediction(board, option, level, outlook, confidence))
    return tuple(out)


class Forecast:
    """Outlooks for the options of a board; remembers what it has worked out."""

    def __init__(self, board: Board, choices: Sequence[Option]) -> None:
        self.board = board
        self.options = tuple(choices)
        self.experts = _experts(board.facts)
        self.step_tokens = _step_tokens(board.facts)
        self._lengths: dict[tuple[Candidate, str], float | None] = {}
        self._known: dict[tuple[Candidate, Level], Outlook | None] = {}

    def outlook(self, option: Option, level: Level) -> Outlook | None:
        """None while not even the anchor was measured at the level."""
        key = (option.candidate, level)
        if key not in self._known:
            self._known[key] = self._outlook(option, level)
        return self._known[key]

    def _outlook(self, option: Option, level: Level) -> Outlook | None:
        anchor = self.board.anchor(level)
        base = self.board.log_tok_s(anchor, level) if anchor is not None else None
        if anchor is None or base is None:
            return None
        points = self._points(option, level)
        if not option.modelled:
            points = [point for point in points if self.board.cell(point.candidate, level)]
        if not points:
            return self._elsewhere(option, level, base)
        if not option.modelled:
            near = min(points, key=lambda p: abs(math.log(p.depth / option.candidate.depth)))
            sd = math.hypot(SIBLING_SD, self.board.sd(near.candidate, level))
            return Outlook(mean=near.log_tok_s, sd=sd, method=f"like {near.candidate.label}, no model")
        if all(point.length is not None for point in points):
            return self._with_acceptance(option, level, points)
        return self._without_acceptance(option, level, points)

    def hope(self, option: Option, level: Level, tune: Tune) -> float:
        """Expected gain (log) over the leader of the level beyond what would matter, if the option were measured there.

        What matters is ``min_gain`` over the configuration as found and ``tie`` over any other leader.
        """
        outlook, top = self.outlook(option, level), self.board.leader(level)
        if outlook is None or top is None:
            return 0.0
        leader, value = top
        matters = math.log1p(tune.min_gain if leader == self.board.found else tune.tie)
        return expected_excess(outlook.mean - value - matters, outlook.sd)

    def _points(self, option: Option, level: Level) -> list[_Point]:
        """Measured depths of the option's axis, brought to the batch the option would run at, shallow to deep."""
        batch = cost.closed_loop(max(1, level.concurrency), option.running).batch
        out: dict[int, _Point] = {}
        for other in self.options:
            if other.axis != option.axis or other.candidate == option.candidate or not _same_kind(other, option):
                continue
            point = self._at_batch(other.candidate, level, batch)
            if point is not None:
                out[other.candidate.depth] = point
        return [out[depth] for depth in sorted(out)]

    def _at_batch(self, candidate: Candidate, level: Level, batch: int) -> _Point | None:
        """Throughput of a measured candidate if ``batch`` requests ran, from its levels of the same workload."""
        held = self.board.running(candidate)
        here = self.board.log_tok_s(candidate, level)
        mine = cost.closed_loop(max(1, level.concurrency), held).batch
        length = self._length(candidate, level.workload)
        if here is not None and mine == batch:
            return _Point(
                candidate=candidate, depth=candidate.depth, log_tok_s=here, batch=batch, length=length, sd=self._sd(candidate, level)
            )
        seen: dict[float, float] = {}
        for other in self.board.levels:
            value = self.board.log_tok_s(candidate, other) if other.workload == level.workload else None
            if value is not None:
                b = cost.closed_loop(max(1, other.concurrency), held).batch
                seen[math.log(b)] = math.log(b) - value - self._anchor_step(other, b)
        if not seen:
            return None
        at = math.log(batch)
        outside = max(0.0, at - max(seen), min(seen) - at) / math.log(2)
        step = self._anchor_step(level, batch) + _between(sorted(seen.items()), at)
        sd = math.sqrt(self._sd(candidate, level) ** 2 + ACROSS_LEVELS_SD**2 + (OUTSIDE_BATCH_SD * outside) ** 2)
        return _Point(candidate=candidate, depth=candidate.depth, log_tok_s=at - step, batch=batch, length=length, sd=sd)

    def _anchor_step(self, level: Level, batch: int) -> float:
        """Log seconds per token and request of the anchor at a batch: its own at this level, else between its levels (log-log)."""
        anchor = self.board.anchor(level)
        assert anchor is not None  # asked for measured levels only
        held = self.board.running(anchor)
        seen: dict[float, float] = {}
        for other in self.board.levels:
            value = self.board.log_tok_s(anchor, other) if other.workload == level.workload else None
            if value is not None:
                b = cost.closed_loop(max(1, other.concurrency), held).batch
                if b == batch and other == level:
                    return math.log(b) - value
                seen[math.log(b)] = math.log(b) - value
        points, at = sorted(seen.items()), math.log(batch)
        if points[0][0] <= at <= points[-1][0] or len(points) == 1:
            return _between(points, at)
        (x0, y0), (x1, y1) = points[:2] if at < points[0][0] else points[-2:]
        slope = min(1.0, max(0.0, (y1 - y0) / (x1 - x0)))  # a round costs more in a larger batch, but no request waits for all others
        near = (x0, y0) if at < points[0][0] else (x1, y1)
        return near[1] + slope * (at - near[0])

    def _sd(self, candidate: Candidate, level: Level) -> float:
        return self.board.sd(candidate, level) if self.board.cell(candidate, level) else self.board.launch.sd

    def _length(self, candidate: Candidate, workload: str) -> float | None:
        key = (candidate, workload)
        if key not in self._lengths:
            self._lengths[key] = self.board.length(candidate, workload)
        return self._lengths[key]

    def _elsewhere(self, option: Option, level: Level, base: float) -> Outlook:
        """Nothing of the axis was measured here: its gain at the other levels is all there is."""
        gains = []
        for other in self.board.levels:
            anchor = self.board.anchor(other)
            for mate in self.options:
                if anchor is None or mate.axis != option.axis:
                    continue
                versus = self.board.contrast(mate.candidate, anchor, other)
                if versus is not None:
                    gains.append(versus.mean)
        if gains:
            return Outlook(mean=base + sum(gains) / len(gains), sd=UNKNOWN_SD, method="its axis was measured at other levels only")
        return Outlook(mean=base, sd=UNKNOWN_SD, method="nothing of its axis was measured")

    def _with_acceptance(self, option: Option, level: Level, points: Sequence[_Point]) -> Outlook:
        depth = option.candidate.depth
        length, length_sd, how_long = self._expected_length(option, level, points)
        batch = points[0].batch
        rounds = [(p.depth, p.batch * (p.length or 1.0) / math.exp(p.log_tok_s)) for p in points]
        round_s, round_sd, how = self._round(rounds, depth, batch, level)
        sd = math.sqrt(length_sd**2 + round_sd**2 + _measured_sd(points, depth) ** 2)
        method = f"{how_long}, {how}"
        return Outlook(mean=math.log(batch * length / round_s), sd=sd, method=method, length=length, length_error=length_sd)

    def _expected_length(self, option: Option, level: Level, points: Sequence[_Point]) -> tuple[float, float, str]:
        """(acceptance length at the option's depth, standard deviation of its log, how it was made).

        The deepest run gives the shape, every other measured depth ties it down.  Where a shallower run accepts far more than the
        deep one allows, the drafter breaks down in between (it was trained for shorter blocks): then the deep run says nothing about
        depths below the break, and the shallower one is continued instead.
        """
        depth = option.candidate.depth
        known = [p for p in points if p.length is not None]
        source = known[-1]
        while True:
            curve = accepted.curve(self.board.acceptance(source.candidate, level.workload), source.depth)
            assert curve is not None  # it has a length
            below = [p for p in known if p.depth < source.depth]
            broken = [p for p in below if math.log((p.length or 1.0) / curve.at(p.depth)) > BREAKDOWN]
            if not broken or depth >= source.depth:
                break
            source = broken[-1]
        measured = [p.depth for p in known if p.depth <= source.depth]
        ties = [(float(p.depth), math.log((p.length or 1.0) / curve.at(p.depth))) for p in known if p.depth <= source.depth]
        length = min(depth + 1.0, curve.at(depth) * math.exp(_between(ties, float(depth))))
        distance, inside = cost.place(measured, depth)
        sd = curve.error / _Z * distance * (0.5 if inside and len(measured) > 1 else 1.0)
        deep = known[-1]
        if source is deep or depth <= source.depth:
            return length, sd, f"{curve.method} acceptance from depth {source.depth}"
        # the break may lie anywhere between: a mixture of going on as at `source` and being as broken as at `deep`
        broken_length = min(length, deep.length or 1.0)
        share = (depth - source.depth) / (deep.depth - source.depth)
        fall = math.log(length / broken_length)
        sd = math.hypot(sd, fall * math.sqrt(share * (1 - share)))
        return length * math.exp(-share * fall), sd, f"the drafter breaks down between depths {source.depth} and {deep.depth}"

    def _without_acceptance(self, option: Option, level: Level, points: Sequence[_Point]) -> Outlook:
        """Average over constant acceptances; each is weighted by how sane a cost curve it implies."""
        depth, batch = option.candidate.depth, points[0].batch
        values, weights, spreads = [], [], []
        how = ""
        for alpha in ALPHAS:
            rounds = [(p.depth, p.batch * accepted.geometric(alpha, p.depth) / math.exp(p.log_tok_s)) for p in points]
            round_s, round_sd, how = self._round(rounds, depth, batch, level)
            values.append(math.log(batch * accepted.geometric(alpha, depth) / round_s))
            spreads.append(round_sd)
            weights.append(_plausible(rounds) * math.exp(-0.5 * ((alpha - ALPHA) / ALPHA_SD) ** 2))
        total = sum(weights)
        mean = sum(w * v for w, v in zip(weights, values, strict=True)) / total
        variance = sum(w * ((v - mean) ** 2 + s**2) for w, v, s in zip(weights, values, spreads, strict=True)) / total
        distance, _ = cost.place([p.depth for p in points], depth)
        sd = math.sqrt(variance + (0.015 * distance) ** 2 + _measured_sd(points, depth) ** 2)
        return Outlook(mean=mean, sd=sd, method=f"constant acceptance averaged over {ALPHAS[0]:.2f}-{ALPHAS[-1]:.2f}, {how}")

    def _round(self, rounds: Sequence[tuple[int, float]], depth: int, batch: int, level: Level) -> tuple[float, float, str]:
        """Seconds per round at ``depth``, the standard deviation of its log, and how it was made."""
        unit = "experts read" if self.experts is not None else "depth"
        if len(rounds) > 1:
            depths = [k for k, _ in rounds]
            distance, inside = cost.place(depths, depth)
            sd = cost.LINE_SD * distance if inside else cost.EXTRAPOLATED_SD * distance
            return (
                cost.round_s(rounds, depth, batch, self.experts, self.step_tokens),
                math.hypot(sd, cost.step_sd(depths, depth, batch, self.step_tokens)),
                f"round time linear in {unit} over depths {', '.join(str(k) for k, _ in rounds)}",
            )
        deepest, deep_s = rounds[0]
        off = self.board.log_tok_s(self.board.off, level)
        if off is not None:
            plain = cost.closed_loop(max(1, level.concurrency), self.board.running(self.board.off)).batch / math.exp(off)
            foot, foot_sd, how = min(cost.SCAFFOLD * plain, deep_s), cost.SCAFFOLD_SD, "a guess between off and"
        else:
            foot, foot_sd, how = 0.6 * deep_s, NO_CONTROL_SD, "a guess below"
        value = max(cost.round_s([(0, foot), (deepest, deep_s)], depth, batch, self.experts, self.step_tokens), foot / 2)
        share = abs(1 - depth / deepest) * foot / value
        distance, _ = cost.place([deepest], depth)
        return value, math.hypot(foot_sd * share, cost.LINE_SD * min(1.0, distance)), f"{how} depth {deepest}"


class _Point(Record, frozen=True):
    candidate: Candidate
    depth: int
    log_tok_s: float
    batch: int
    length: float | None
    sd: float


def _measured_sd(points: Sequence[_Point], depth: int) -> float:
    """Error of the measured depths as it reaches ``depth``: by their weights in the interpolation, at least that of the best."""
    least = min(p.sd for p in points)
    if len(points) == 1:
        return least
    index = next((i for i in range(1, len(points) - 1) if depth <= points[i].depth), len(points) - 1)
    low, high = points[index - 1], points[index]
    u = (depth - low.depth) / (high.depth - low.depth)
    return max(least, math.hypot((1 - u) * low.sd, u * high.sd))


def _same_kind(a: Option, b: Option) -> bool:
    """Of one axis, whatever else is pinned: pinning changes capacity, which the batch accounts for."""
    return a.axis == b.axis and a.candidate.algorithm == b.candidate.algorithm


def _between(points: Sequence[tuple[float, float]], x: float) -> float:
    """Linear between points, constant outside."""
    if x <= points[0][0]:
        return points[0][1]
    if x >= points[-1][0]:
        return points[-1][1]
    return next(y0 + (y1 - y0) * (x - x0) / (x1 - x0) for (x0, y0), (x1, y1) in itertools.pairwise(points) if x <= x1)


def _plausible(rounds: Sequence[tuple[int, float]]) -> float:
    """How well a cost curve fits what is known of costs: deeper rounds cost more, and a middle depth lies near the line."""
    weight = 1.0
    for (_, one), (_, two) in itertools.pairwise(rounds):
        drop = math.log(two / one)
        weight *= 1.0 if drop >= 0 else math.exp(-0.5 * (drop / 0.03) ** 2)
    for left, middle, right in zip(rounds, rounds[1:], rounds[2:], strict=False):
        guess = cost.interpolate([left, right], middle[0])
        weight *= math.exp(-0.5 * (math.log(middle[1] / guess) / 0.04) ** 2)
    return max(weight, 1e-9)


def _experts(facts: Mapping[str, str]) -> cost.Experts | None:
    """From the facts ``num_experts`` and ``num_experts_per_tok`` the engine reported."""
    total, active = facts.get("num_experts", ""), facts.get("num_experts_per_tok", "")
    if total.isdigit() and active.isdigit() and 0 < int(active) < int(total):
        return cost.Experts(total=int(total), active=int(active))
    return None


def _step_tokens(facts: Mapping[str, str]) -> int | None:
    """From the fact ``kernel_step_tokens``: rounds of more tokens run another, dearer kernel."""
    told = facts.get("kernel_step_tokens", "")
    return int(told) if told.isdigit() and int(told) > 0 else None


def _prediction(board: Board, option: Option, level: Level, outlook: Outlook, confidence: float) -> Prediction:
    z = t_quantile(0.5 + confidence / 2, _DF)

    def around(log_value: float, sd: float, unit: str) -> Interval:
        return Interval(
            value=math.exp(log_value),
            low=math.exp(log_value - z * sd),
            high=math.exp(log_value + z * sd),
            n=0,
            unit=unit,
            confidence=confidence,
            method=outlook.method,
        )

    wait = cost.closed_loop(max(1, level.concurrency), option.running)
    anchor = board.anchor(level)
    tpot = ttft = None
    if anchor is not None:
        base, at = board.log_tok_s(anchor, level), board.median_ms(anchor, level, "tpot_ms")
        held = cost.closed_loop(max(1, level.concurrency), board.running(anchor)).batch
        if at and base is not None:
            # TPOT scales with batch / throughput
            tpot = around(math.log(at) + math.log(wait.batch / held) + base - outlook.mean, outlook.sd, "ms")
        first, tokens = board.median_ms(anchor, level, "ttft_ms"), board.tokens_out(level)
        if first and tokens:
            running_ms = 1e3 * wait.batch * tokens / math.exp(outlook.mean)
            already = cost.closed_loop(max(1, level.concurrency), board.running(anchor)).waits
            base_ms = first if already == 0 else min(first, running_ms)
            ttft = around(math.log(base_ms + wait.waits * running_ms), math.hypot(outlook.sd, 0.1), "ms")
    length = around(math.log(outlook.length), outlook.length_error, "tokens/round") if outlook.length is not None else None
    return Prediction(
        candidate=option.candidate,
        level=level,
        output_tok_s=around(outlook.mean, outlook.sd, "tok/s"),
        tpot_ms=tpot,
        ttft_ms=ttft,
        acceptance_length=length,
        method=outlook.method,
    )
