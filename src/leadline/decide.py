"""The next launch, or to stop and why.

:func:`next_launch` is a pure function of the journal, so a resumed campaign decides what an uninterrupted one would have.
The order of thought: baseline as found, speculation off, what the user asked for, the deepest depth of every axis, one shallow
depth of every modelled axis; then whatever is expected to gain most per second; then confirmation of the winners that are not
shown yet; last the configuration as found once more, which tells drift and the noise of a launch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import msgspec

from . import objective, schedule, search, space, stats
from .compare import LOOKS, Board
from .config import Measure, Tune
from .engines import Axis
from .predict import Forecast
from .records import Candidate, Level, PlannedLaunch, Record, Stop
from .space import Option
from .state import Knowledge, Trial

LOAD_GUESS_S = {"llamacpp": 5.0}
"""Load time assumed before a launch was seen, by engine."""
OTHER_LOAD_GUESS_S = 90.0
BLOCK_GUESS_S = 6.0
"""Seconds of one block at one level before one was seen."""
DEAR_S = 30.0
"""A load longer than this dominates: such a launch plays every level."""
WORTH, WORTH_DEAR = 0.1, 0.2
"""Least expected gain, averaged over the levels and in units of ``tie``, for which something is launched at all."""
WORTH_SOMEWHERE = 0.5
"""... or at a single level."""
SEARCH_FROM = 6
"""With this many points left that no model covers, Optuna chooses among them."""
AFTER_CRASH = 2 / 3
"""Next depth tried after one crashed, as a share of it."""
REPEATS = 2
"""Launches of one candidate to settle one question, the first included; a third only when it decides the verdict."""


def plan(
    knowledge: Knowledge, axes: Sequence[Axis], tune: Tune, measure: Measure, levels: Sequence[Level], found: Candidate
) -> tuple[PlannedLaunch, ...]:
    """What is intended before anything is touched: the launches that do not depend on results, and the confirmation to come."""
    desk = _Desk(knowledge, axes, tune, measure, levels, found)
    launches = [launch for rule in (_baseline, _control, _asked, _deep, _unmodelled) for launch in rule(desk)]
    for index, axis in desk.axes():
        mine = desk.of_axis(index)
        deepest = next((launch.candidate for launch in launches if launch.candidate in [o.candidate for o in mine]), None)
        depth = space.middle([o.candidate.depth for o in mine], deepest.depth) if deepest is not None and axis.modelled else None
        for option in mine:
            if option.candidate.depth == depth:
                launches.append(desk.launch(option.candidate, "shallow", _WHY_SHALLOW.format(deep=deepest.depth if deepest else 0)))
    if desk.options:
        guess = desk.options[-1].candidate
        between = [o.candidate for o in desk.options if o.candidate not in [launch.candidate for launch in launches]]
        guess = between[len(between) // 2] if between else guess
        why = "the winner that the launches above predict (this depth is a placeholder), to confirm it against the control"
        launches.append(desk.launch(guess, "confirm", why, blocks=measure.confirm_blocks))
        why = "the configuration as found once more: has the host drifted, and how far do two launches of one thing lie apart"
        launches.append(desk.launch(found, "recheck", why))
    return tuple(launches[: tune.max_launches])


def next_launch(
    knowledge: Knowledge,
    axes: Sequence[Axis],
    tune: Tune,
    measure: Measure,
    levels: Sequence[Level],
    found: Candidate,
    *,
    now_s: float | None = None,
) -> PlannedLaunch | Stop:
    """What to start next, given everything known, or why nothing more.

    A trial that leadline itself interrupted is decided again as if it had not begun, which yields the same launch: the campaign
    skips the blocks it already has.  ``now_s`` (seconds since the epoch) counts time between trials of this sitting, too.
    """
    desk = _Desk(_settled(knowledge), axes, tune, measure, levels, found)
    if desk.launches_left <= 0:
        return Stop(rule="budget", why=f"{tune.max_launches} launches were allowed and are spent; raise max_launches to go on")
    too_dear: PlannedLaunch | None = None
    # the last launch goes to the recheck rather than to one more candidate, unless the plan itself is not through
    last = desk.launches_left == 1 and any(True for _ in _recheck(desk))
    for rule in (*_PLAN, _recheck) if last else _RULES:
        for launch in rule(desk):
            fitted = desk.fit(launch, now_s)
            if fitted is not None:
                return fitted
            too_dear = too_dear or launch
    if too_dear is not None:
        return Stop(
            rule="budget",
            why=f"{too_dear.candidate.label} would come next, but its {too_dear.seconds:.0f} s are over the limit of {desk.limits}",
        )
    return _finished(desk)


def _settled(knowledge: Knowledge) -> Knowledge:
    """Without the trials at the end that leadline interrupted."""
    trials = list(knowledge.trials)
    while trials and (trials[-1].open or (trials[-1].abandoned is not None and trials[-1].abandoned.retry)):
        trials.pop()
    return msgspec.structs.replace(knowledge, trials=tuple(trials))


def spent_s(trial: Trial) -> float:
    """Seconds a trial took, loading and measuring, whatever became of it."""
    measured = sum(block.duration_s for block in trial.blocks) + (trial.load_s or 0.0)
    return max(trial.down_s or 0.0, measured, trial.failed.after_s if trial.failed is not None else 0.0)


class _Desk:
    """Everything a rule looks at."""

    def __init__(
        self, knowledge: Knowledge, axes: Sequence[Axis], tune: Tune, measure: Measure, levels: Sequence[Level], found: Candidate
    ) -> None:
        self.knowledge = knowledge
        self.all_axes = tuple(axes)
        self.tune = tune
        self.measure = measure
        self.levels = tuple(levels)
        self.found = found
        self.off = space.off_of(found)
        self.board = Board(knowledge, levels, found)
        self.options = space.options(knowledge, axes, tune)
        self.forecast = Forecast(self.board, self.options)
        self.launches_left = tune.max_launches - knowledge.launches
        ended = {trial.candidate for trial in knowledge.trials if trial.ended}
        self.in_vain = {
            (event.next.candidate, level)
            for event in knowledge.decided
            if event.next is not None and event.next.candidate in ended
            for level in event.next.levels
        }
        self.trials = {c: [t for t in knowledge.of(c) if t.served or t.failed is not None] for c in {t.candidate for t in knowledge.trials}}

    def axes(self) -> Iterator[tuple[int, Axis]]:
        return iter(enumerate(self.all_axes))

    def of_axis(self, index: int) -> list[Option]:
        return [option for option in self.options if option.axis == index]

    def tried(self, candidate: Candidate) -> int:
        return len(self.trials.get(candidate, []))

    def played(self, candidate: Candidate, level: Level) -> bool:
        """Measured at the level, or tried there in vain (no valid block came of it): not to be explored there again."""
        return bool(self.board.cell(candidate, level)) or (candidate, level) in self.in_vain

    # -- time ---------------------------------------------------------------------------------------------------------

    @property
    def load_s(self) -> float:
        # a service measured as it already ran tells nothing about how long a start takes
        started = [t for t in self.knowledge.trials if t.load_s is not None and (t.launch is None or t.launch.started_s >= t.at_s - 1)]
        if started:
            return statistics.median(t.load_s or 0.0 for t in started)
        engine = self.knowledge.began.conditions.engine if self.knowledge.began is not None else ""
        return LOAD_GUESS_S.get(engine, OTHER_LOAD_GUESS_S)

    @property
    def start_s(self) -> float:
        """Seconds of a launch that are not blocks: loading, warming up, stopping, as seen so far."""
        ended = [t for t in self.knowledge.trials if t.served and t.down_s is not None]
        rest = [(t.down_s or 0.0) - (t.load_s or 0.0) - sum(block.duration_s for block in t.blocks) for t in ended]
        return self.load_s + (max(0.0, statistics.median(rest)) if rest else 0.0)

    @property
    def dear(self) -> bool:
        return self.load_s > DEAR_S

    def block_s(self, candidate: Candidate, level: Level) -> float:
        """Expected seconds of one block: as measured, else from the anchor's and the predicted throughput."""
        cell = self.board.cell(candidate, level)
        if cell:
            return sum(block.duration_s for _, block in cell) / len(cell)
        anchor = self.board.anchor(level)
        if anchor is None:
            return BLOCK_GUESS_S
        base = self.board.cell(anchor, level)
        seconds = sum(block.duration_s for _, block in base) / len(base)
        option = next((o for o in self.options if o.candidate == candidate), None)
        outlook = self.forecast.outlook(option, level) if option is not None else None
        here = self.board.log_tok_s(anchor, level)
        return seconds * math.exp(here - outlook.mean) if outlook is not None and here is not None else seconds

    def launch(
        self, candidate: Candidate, kind: str, why: str, *, levels: Sequence[Level] | None = None, blocks: int | None = None
    ) -> PlannedLaunch:
        chosen = self.levels if levels is None else tuple(levels)
        few = self.measure.confirm_blocks if self.dear else self.measure.explore_blocks
        n = few if blocks is None else blocks
        n = max(1, min(n, self.measure.max_blocks))
        seconds = self.start_s + n * sum(self.block_s(candidate, level) for level in chosen)
        return PlannedLaunch(candidate=candidate, why=why, levels=chosen, blocks=n, seconds=max(0.1, round(seconds, 1)), kind=kind)

    @property
    def limits(self) -> str:
        return f"{self.tune.max_minutes:g} minutes ({self.tune.max_down_minutes:g} of downtime)"

    def left_s(self, now_s: float | None) -> float:
        spent = sum(spent_s(trial) for trial in self.knowledge.trials)
        if now_s is not None and self.knowledge.trials:
            trials = self.knowledge.trials
            start = max((i + 1 for i, trial in enumerate(trials) if trial.abandoned is not None), default=0)
            earlier = sum(spent_s(trial) for trial in trials[:start])
            if start < len(trials):
                spent = max(spent, earlier + now_s - trials[start].at_s)
        down = self.tune.max_down_minutes * 60 - self.knowledge.down_s
        return min(self.tune.max_minutes * 60 - spent, down)

    def fit(self, launch: PlannedLaunch, now_s: float | None) -> PlannedLaunch | None:
        """The launch with as many blocks as the time left allows; None when not even one (two, if it is to be compared) fits."""
        left = self.left_s(now_s)
        if launch.kind not in ("recheck", "baseline", "control"):
            left -= self.reserve_s
        each = (launch.seconds - self.start_s) / launch.blocks
        least = min(launch.blocks, 1 if launch.kind == "recheck" else 2)
        blocks = min(launch.blocks, int((left - self.start_s) / each) if each > 0 else launch.blocks)
        if blocks < least:
            return None
        return msgspec.structs.replace(launch, blocks=blocks, seconds=max(0.1, round(self.start_s + blocks * each, 1)))

    @property
    def reserve_s(self) -> float:
        """Kept back so that the configuration as found can be looked at once more."""
        if self.tried(self.found) != 1 or self.found not in self.board.candidates:
            return 0.0
        return min(self.start_s + sum(self.block_s(self.found, level) for level in self.levels), 0.15 * self.tune.max_minutes * 60)

    # -- worth --------------------------------------------------------------------------------------------------------

    def hope(self, option: Option, level: Level) -> float:
        return self.forecast.hope(option, level, self.tune)

    def winners(self) -> list[tuple[Level, Candidate]]:
        """Leaders other than the configuration as found, where that was measured."""
        leaders = self.board.leaders()
        return [(level, top) for level, top in leaders.items() if top != self.found and self.board.anchor(level) == self.found]

    def contested(self, option: Option) -> tuple[Level, ...]:
        """Levels at which the option may still win something worth having and has not been played."""
        enough = self.tune.tie * (0.5 if self.dear else 0.25)
        open_ = [level for level in self.levels if not self.played(option.candidate, level)]
        return tuple(level for level in open_ if self.hope(option, level) > enough)

    def mean_gain(self, candidate: Candidate) -> float | None:
        """Mean log gain over the anchors of the levels it was measured at."""
        gains = [
            versus.mean
            for level in self.levels
            if (anchor := self.board.anchor(level)) is not None and (versus := self.board.contrast(candidate, anchor, level)) is not None
        ]
        return sum(gains) / len(gains) if gains else None

    def overall(self, candidate: Candidate, weights: Sequence[tuple[Level, float]]) -> tuple[float, float, tuple[Level, ...]]:
        """(mean log gain over the levels of the objective, its standard deviation, levels not measured); the rest is predicted."""
        mean = variance = 0.0
        missing = []
        option = next((o for o in self.options if o.candidate == candidate), None)
        for level, weight in weights:
            versus = self.board.contrast(candidate, self.found, level)
            base = self.board.log_tok_s(self.found, level)
            if versus is not None:
                mean, variance = mean + weight * versus.mean, variance + (weight * versus.sd) ** 2
                continue
            if self.played(candidate, level):
                return -math.inf, 1.0, ()
            missing.append(level)
            outlook = self.forecast.outlook(option, level) if option is not None else None
            if outlook is not None and base is not None:
                mean, variance = mean + weight * (outlook.mean - base), variance + (weight * outlook.sd) ** 2
        return mean, math.sqrt(variance), tuple(missing)

    def comparisons(self, level: Level) -> int:
        """Claims that may be made at once: every candidate of the level, at every level."""
        return LOOKS * max(1, len(self.board.measured(level)) - 1) * len(self.levels)

    def shown(self, candidate: Candidate, level: Level) -> bool | None:
        """Whether it differs from the configuration as found, whatever else was looked at; None when they do not pair."""
        versus = self.board.contrast(candidate, self.found, level)
        return versus.interval(self.tune.confidence, self.comparisons(level)).excludes_one if versus is not None else None


# -- rules, in order ---------------------------------------------------------------------------------------------------

_WHY_SHALLOW = "with depth {deep} it gives the cost of a draft token, and with that every depth between"


def _baseline(desk: _Desk) -> Iterator[PlannedLaunch]:
    if not desk.tried(desk.found) and desk.found not in desk.knowledge.refused:
        blocks = _control_blocks(desk)
        yield desk.launch(desk.found, "baseline", "the service as found: everything is compared with it", blocks=blocks)


def _control(desk: _Desk) -> Iterator[PlannedLaunch]:
    impossible = any(row.candidate == desk.off and row.starts is False for row in desk.knowledge.frontier)
    if desk.off != desk.found and not desk.tried(desk.off) and not impossible:
        blocks = _control_blocks(desk)
        yield desk.launch(desk.off, "control", "speculation off: what speculation has to beat, and no model predicts it", blocks=blocks)


def _control_blocks(desk: _Desk) -> int:
    """Everything is compared with it, so it is worth more blocks than one of many candidates."""
    few, many = desk.measure.explore_blocks, desk.measure.confirm_blocks
    return many if desk.dear else -(-(few + many) // 2)


def _asked(desk: _Desk) -> Iterator[PlannedLaunch]:
    for candidate, warning in space.asked(desk.knowledge, desk.all_axes, desk.tune):
        if not desk.knowledge.of(candidate):
            why = "asked for" + (f", although it should not start: {warning}" if warning else "")
            yield desk.launch(candidate, "asked", why)


def _deep(desk: _Desk) -> Iterator[PlannedLaunch]:
    for index, axis in desk.axes():
        mine = desk.of_axis(index)
        if not axis.modelled or not mine:
            continue
        if any(_deep_enough(option, mine) for option in mine if option.candidate in desk.board.candidates):
            continue
        crashed = [c.depth for c in desk.knowledge.refused if c.algorithm == axis.algorithm and not space.foretold(desk.knowledge, c)]
        below = [option for option in mine if not crashed or option.candidate.depth <= AFTER_CRASH * min(crashed)]
        option = (below or mine[:1])[-1]
        if desk.tried(option.candidate):
            continue
        why = "the deepest that starts: its acceptance at every position tells that of all shallower depths"
        if crashed:
            why = f"depth {min(crashed)} failed: a depth well below it, for acceptance at every position"
        yield from _first(desk, option, mine, why)


def _unmodelled(desk: _Desk) -> Iterator[PlannedLaunch]:
    """The deepest point of every axis without a model, where it may win at all."""
    for index, axis in desk.axes():
        mine = desk.of_axis(index)
        if axis.modelled or not mine or any(desk.tried(option.candidate) for option in mine):
            continue
        yield from _first(desk, mine[-1], mine, f"first point of {axis.algorithm}, which no model covers")


def _unmodelled_if_cheap(desk: _Desk) -> Iterator[PlannedLaunch]:
    """Where a start costs little, before the shallow depth: what wins elsewhere need not be measured there."""
    if not desk.dear:
        yield from _unmodelled(desk)


def _first(desk: _Desk, option: Option, mine: Sequence[Option], why: str) -> Iterator[PlannedLaunch]:
    levels = _worth(desk, mine)
    if levels:
        text = f"{why}; whether it starts is not known" if option.risky else why
        yield desk.launch(option.candidate, "deep", text, levels=levels)


def _deep_enough(option: Option, mine: Sequence[Option]) -> bool:
    """Whether a measured candidate does for the deepest of its axis."""
    return option.candidate.depth >= AFTER_CRASH * max(other.candidate.depth for other in mine)


def _shallow(desk: _Desk) -> Iterator[PlannedLaunch]:
    for index, axis in desk.axes():
        mine = desk.of_axis(index)
        seen = [option for option in mine if option.candidate in desk.board.candidates]
        if not axis.modelled or len(seen) != 1:
            continue
        deepest = seen[0].candidate.depth
        depth = space.middle([option.candidate.depth for option in mine], deepest)
        option = next((o for o in mine if o.candidate.depth == depth), None)
        levels = _worth(desk, mine)
        if option is not None and levels:
            yield desk.launch(option.candidate, "shallow", _WHY_SHALLOW.format(deep=deepest), levels=levels)


def _worth(desk: _Desk, options: Sequence[Option]) -> tuple[Level, ...]:
    """Levels at which any of these may win; all levels where the launch itself is what costs."""
    if not any(desk.board.anchor(level) for level in desk.levels):
        return desk.levels
    contested = {level for option in options for level in desk.contested(option)}
    return desk.levels if desk.dear and contested else tuple(level for level in desk.levels if level in contested)


_Ranked: TypeAlias = tuple[float, float, Option, tuple[Level, ...], PlannedLaunch]  # gain a second, gain, option, contested levels, launch


def _contest(desk: _Desk) -> Iterator[PlannedLaunch]:
    """Unmeasured candidates by expected gain per second."""
    ranked: list[_Ranked] = []
    for option in desk.options:
        levels = desk.contested(option)
        if not levels:
            continue
        played = [v for v in (desk.levels if desk.dear else levels) if not desk.played(option.candidate, v)]
        gain = sum(desk.hope(option, level) for level in played) / len(desk.levels)
        most = max((desk.hope(option, level) for level in played), default=0.0)
        if gain < desk.tune.tie * (WORTH_DEAR if desk.dear else WORTH) and most < desk.tune.tie * WORTH_SOMEWHERE:
            continue
        gain /= 1 + _nearer(desk, option)
        launch = desk.launch(option.candidate, "explore", "", levels=played)
        ranked.append((gain / launch.seconds, gain, option, levels, launch))
    ranked.sort(key=lambda row: (-row[0], row[2].candidate))
    for _, gain, option, levels, launch in _searched(desk, ranked):
        best_at = [level for level in levels if _predicted_best(desk, option, level)]
        if best_at:
            why = f"predicted best at {', '.join(level.label for level in best_at)}"
            yield msgspec.structs.replace(launch, kind="confirm", why=why)
        else:
            why = f"may still win at {', '.join(level.label for level in levels)}; worth {gain:.1%} on average, more than anything else a second"
            yield msgspec.structs.replace(launch, why=why)


def _nearer(desk: _Desk, option: Option) -> int:
    """Unmeasured depths between the option and the measured ones when it lies outside them: the nearer tells more of the way there."""
    mine = desk.of_axis(option.axis)
    measured = [o.candidate.depth for o in mine if o.candidate in desk.board.candidates]
    depth = option.candidate.depth
    if not measured or min(measured) <= depth <= max(measured):
        return 0
    edge = min(measured, key=lambda d: abs(d - depth))
    return sum(min(edge, depth) < o.candidate.depth < max(edge, depth) for o in mine)


def _searched(desk: _Desk, ranked: list[_Ranked]) -> list[_Ranked]:
    """Many points without a model: the one Optuna asks for goes first among them, if Optuna is installed."""
    blind = [row for row in ranked if not row[2].modelled]
    if len(blind) < SEARCH_FROM or blind[0] is not ranked[0] or not search.available():
        return ranked
    points = [option.candidate for option in desk.options if not option.modelled]
    told = {c: desk.mean_gain(c) if c in desk.board.candidates else None for c in desk.trials if c in points}
    wanted = search.ask([c for c in points if c in told or c in [row[2].candidate for row in blind]], told, seed=desk.measure.seed)
    return sorted(ranked, key=lambda row: row[2].candidate != wanted)


def _predicted_best(desk: _Desk, option: Option, level: Level) -> bool:
    mine, top = desk.forecast.outlook(option, level), desk.board.leader(level)
    if mine is None or top is None or mine.mean < top[1]:
        return False
    others = [desk.forecast.outlook(o, level) for o in desk.options if not desk.board.cell(o.candidate, level)]
    return all(other is None or other.mean <= mine.mean for other in others)


def _confirm(desk: _Desk) -> Iterator[PlannedLaunch]:
    """Winners that are not shown yet, again in a launch of their own; then the configuration they are compared with."""
    unsure: dict[Candidate, list[Level]] = {}
    gain = 0.0
    for level, top in desk.winners():
        versus = desk.board.contrast(top, desk.found, level)
        if versus is not None and versus.mean >= math.log1p(desk.tune.min_gain) and not desk.shown(top, level):
            unsure.setdefault(top, []).append(level)
            gain += versus.mean / len(desk.levels)
    if desk.dear and gain < desk.tune.tie:
        return  # another start costs more than settling so little is worth
    most = REPEATS + (not desk.dear)
    for candidate, levels in unsure.items():
        again = [level for level in levels if _launches_at(desk, candidate, level) < most]
        if again:
            text = f"leads at {', '.join(level.label for level in again)}, but that is not shown yet"
            yield desk.launch(candidate, "confirm", text, levels=again, blocks=_enough_blocks(desk, candidate, again))
    behind = [level for levels in unsure.values() for level in levels if _launches_at(desk, desk.found, level) < most]
    if behind:
        text = f"the winner at {', '.join(level.label for level in behind)} is not shown yet: the side it is compared with, once more"
        blocks = max(_enough_blocks(desk, candidate, levels) for candidate, levels in unsure.items())
        yield desk.launch(desk.found, "confirm", text, levels=behind, blocks=blocks)


def _final(desk: _Desk) -> Iterator[PlannedLaunch]:
    """Where a start costs little: the winners once more, so that no verdict rests on one launch."""
    if desk.dear:
        return
    final: dict[Candidate, list[Level]] = {}
    for level, top in desk.winners():
        if _launches_at(desk, top, level) < REPEATS:
            final.setdefault(top, []).append(level)
    for candidate, levels in final.items():
        text = f"won at {', '.join(level.label for level in levels)}: once more in a launch of its own"
        yield desk.launch(candidate, "confirm", text, levels=levels, blocks=desk.measure.confirm_blocks)


def _enough_blocks(desk: _Desk, candidate: Candidate, levels: Sequence[Level]) -> int:
    """Blocks that would show the gains seen so far, at least those of a confirmation."""
    needed = [desk.measure.confirm_blocks]
    for level in levels:
        versus = desk.board.contrast(candidate, desk.found, level)
        if versus is not None and versus.by == "block" and not desk.shown(candidate, level):
            confidence = 1 - (1 - desk.tune.confidence) / desk.comparisons(level)
            n = stats.required_n(math.exp(versus.mean), unit_sd=versus.unit_sd, launch=desk.board.launch, confidence=confidence)
            needed.append(n if n is not None else desk.measure.confirm_blocks)
    return max(needed)


def _whole(desk: _Desk) -> Iterator[PlannedLaunch]:
    """Candidates that may be the one configuration for the objective, at the levels of the objective they were not measured at."""
    weights = objective.weights(desk.tune, desk.levels)
    standing = {c: desk.overall(c, weights) for c in desk.board.candidates if c != desk.found}
    known = {c: mean for c, (mean, _, missing) in standing.items() if not missing}
    best = max((*known.values(), 0.0))
    matters = math.log1p(desk.tune.min_gain if best <= 0 else desk.tune.tie)
    ranked = []
    for candidate, (mean, sd, missing) in standing.items():
        hope = stats.expected_excess(mean - best - matters, sd)
        if missing and hope > desk.tune.tie * WORTH_SOMEWHERE:
            ranked.append((hope, candidate, missing))
    for _, candidate, missing in sorted(ranked, key=lambda row: (-row[0], row[1])):
        at = ", ".join(level.label for level in missing)
        why = f"it may be the best single configuration for {desk.tune.objective}; {at} is not measured yet"
        yield desk.launch(candidate, "confirm", why, levels=missing)


def _launches_at(desk: _Desk, candidate: Candidate, level: Level) -> int:
    return len({launch for launch, _ in desk.board.cell(candidate, level)})


def _schedule(desk: _Desk) -> Iterator[PlannedLaunch]:
    """The winners as the engine's own schedule, to be measured before anybody recommends it."""
    leaders = desk.board.leaders()
    mix = schedule.mix(desk.board, leaders)
    candidate, _ = mix.candidate(desk.board.engine, desk.board.version) if mix is not None else (None, "")
    if mix is None or candidate is None or desk.knowledge.of(candidate):
        return
    gain = schedule.mix_gain(desk.board, leaders, desk.levels)
    if gain >= math.log1p(desk.tune.min_gain):
        depths = ", ".join(f"{depth} at {concurrency}" for concurrency, depth in mix.depths)
        why = f"the winners in one launch by the engine's own schedule (depth {depths}): {math.expm1(gain):.1%} over the best single depth if it costs nothing"
        yield desk.launch(candidate, "confirm", why, blocks=desk.measure.confirm_blocks)


def _recheck(desk: _Desk) -> Iterator[PlannedLaunch]:
    others = [c for c in desk.board.candidates if c != desk.found]
    if desk.found in desk.board.candidates and others and desk.tried(desk.found) == 1:
        why = "the configuration as found once more: has the host drifted, and how far do two launches of one thing lie apart"
        yield desk.launch(desk.found, "recheck", why)


_Rule: TypeAlias = Callable[[_Desk], Iterator[PlannedLaunch]]
_PLAN: tuple[_Rule, ...] = (_baseline, _control, _asked, _deep, _unmodelled_if_cheap, _shallow, _unmodelled)
_RULES: tuple[_Rule, ...] = (*_PLAN, _contest, _confirm, _whole, _final, _schedule, _recheck)


# -- stopping ----------------------------------------------------------------------------------------------------------


class _Standing(Record, frozen=True):
    better: tuple[str, ...]
    unsure: tuple[str, ...]


def _finished(desk: _Desk) -> Stop:
    if not desk.board.candidates:
        return Stop(rule="exhausted", why="no configuration served: neither as found nor any candidate")
    left = [o for o in desk.options if any(not desk.played(o.candidate, level) for level in desk.levels)]
    standing = _standing(desk)
    if not standing.better:
        tail = f"; not shown either way: {', '.join(standing.unsure)}" if standing.unsure else ""
        if not left:
            return Stop(rule="exhausted", why=f"every candidate that starts was measured and none beats the configuration as found{tail}")
        why = f"nothing that is left can be expected to gain {desk.tune.min_gain:.0%} or more over the configuration as found{tail}"
        return Stop(rule="nothing_to_gain", why=why)
    tail = f"; still open: {', '.join(standing.unsure)}" if standing.unsure else ""
    if not left:
        return Stop(rule="exhausted", why=f"every candidate that starts was measured{tail}")
    return Stop(rule="resolved", why=f"no other candidate is expected to win more than {desk.tune.tie:.0%} anywhere{tail}")


def _standing(desk: _Desk) -> _Standing:
    better: list[str] = []
    unsure: list[str] = []
    for level in desk.levels:
        top = desk.board.leader(level)
        if top is None or top[0] == desk.found:
            continue
        versus = desk.board.contrast(top[0], desk.found, level)
        if versus is None or versus.mean < math.log1p(desk.tune.min_gain):
            continue
        (better if desk.shown(top[0], level) else unsure).append(level.label)
    return _Standing(better=tuple(better), unsure=tuple(unsure))
