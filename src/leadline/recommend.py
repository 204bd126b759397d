"""The verdict: an operating point for every level, ties, one point over all for the objective, and what was not shown.

A change is recommended only where its gain over the configuration as found is at least ``min_gain`` **and** its interval, wide
enough for every comparison that was made, excludes 1.0.  Where no difference is shown the configuration as found stays, then
speculation off; among depths within ``tie`` of the best the smallest wins: more capacity, less memory, less risk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from . import objective, roofline, schedule, stats
from .compare import LOOKS, Board
from .config import Tune
from .engines import Axis
from .predict import Forecast
from .records import Candidate, Interval, Level, OperatingPoint, Outcome, Stop, Verdict
from .space import off_of, options
from .state import Knowledge


def recommend(
    knowledge: Knowledge,
    axes: Sequence[Axis],
    tune: Tune,
    levels: Sequence[Level],
    found: Candidate,
    render: Callable[[Candidate], tuple[str, ...]],
    stop: Stop,
) -> Verdict:
    """What the campaign says at its end. ``render`` gives the argument vector of a candidate.

    Raises :class:`~leadline.errors.ConfigError` when the objective cannot be read or names levels that are not measured.
    """
    plain = Board(knowledge, levels, found)
    goodput = tune.objective.strip() == "goodput"
    board = Board(objective.within_limits(knowledge, tune), levels, found, prompts=False) if goodput else plain
    forecast = Forecast(plain, options(knowledge, axes, tune))
    points = tuple(_point(board, level, tune) for level in levels if board.measured(level))
    if not goodput:  # what is predicted is throughput
        points = tuple(_settled(point, forecast, tune) for point in points)
    overall, gain, not_overall = _overall(board, tune, levels)
    scheduled = schedule.scheduled(overall)
    drift, drift_warning = _drift(plain, tune.confidence)
    warnings = (*drift_warning, *plain.alarms(), *_simulated(plain, points), *_bad_outputs(plain))
    mix, unmeasured = _mix(board, points, scheduled, tune)
    memory, no_memory = roofline.readings(plain, points, tune)
    return Verdict(
        sentence=_sentence(points, overall, gain, found, tune, objective.named(tune, knowledge.watched)),
        change=overall != found,
        overall=overall,
        found=found,
        points=points,
        objective=objective.named(tune, knowledge.watched),
        noise_floor=board.noise_floor,
        not_shown=(
            *_not_shown(board, axes, tune, points, stop),
            *_uncovered(knowledge, tune, levels),
            *not_overall,
            *unmeasured,
            *no_memory,
            *drift,
        ),
        same_output=_same_output(board, points),
        command=render(overall),
        schedule=scheduled,
        readings=(*_traffic(knowledge, tune), *mix, *memory, *_by_cpu_time(plain, tune)),
        warnings=warnings,
    )


# -- one level ---------------------------------------------------------------------------------------------------------


def _point(board: Board, level: Level, tune: Tune) -> OperatingPoint:
    here = board.measured(level)
    anchor = board.anchor(level)
    assert anchor is not None  # something was measured
    value = {c: board.log_tok_s(c, level) or 0.0 for c in here}
    best = max(here, key=lambda c: (value[c], c == board.found, -c.depth))
    # every candidate at every level might have been the one we speak of
    looks = LOOKS * max(1, len(here) - 1) * len(board.levels)
    chosen, resolved, why = _choose(board, level, tune, value, best, looks)
    tied = tuple(c for c in here if c != chosen and _tied(board, c, chosen, level, tune, len(here) - 1))
    return OperatingPoint(
        level=level,
        candidate=chosen,
        tied=tied,
        output_tok_s=board.throughput(chosen, level, tune.confidence),
        gain_vs_found=_gain(board, chosen, board.found, level, tune, len(here) - 1),
        gain_vs_off=_gain(board, chosen, board.off, level, tune, len(here) - 1),
        resolved=resolved,
        why=why,
    )


def _gain(board: Board, candidate: Candidate, base: Candidate, level: Level, tune: Tune, comparisons: int) -> Interval | None:
    versus = board.contrast(candidate, base, level)
    return versus.interval(tune.confidence, comparisons) if versus is not None else None


def _choose(
    board: Board, level: Level, tune: Tune, value: dict[Candidate, float], best: Candidate, looks: int
) -> tuple[Candidate, bool, str]:
    """(operating point, whether it is settled, why)."""
    found, off = board.found, board.off
    smallest = min((c for c in value if value[c] >= value[best] - math.log1p(tune.tie)), key=lambda c: (c.depth, c != found, c))
    if found not in value:
        return smallest, False, "the configuration as found was not measured here, so no gain over it is known"
    if best == found or smallest == found:
        return found, True, "nothing measured is better" if best == found else f"within {tune.tie:.0%} of the best, {best.label}"
    versus = board.contrast(best, found, level)
    if versus is None:
        return found, False, f"{best.label} shares no block with the configuration as found"
    gain = versus.interval(tune.confidence, looks)
    if gain.low <= 1.0:
        open_ = gain.high >= 1 + tune.min_gain
        return (
            found,
            not open_,
            f"no difference shown: best other is {best.label} at {_times(gain)}{_needed(versus, tune) if open_ else ''}",
        )
    if gain.value < 1 + tune.min_gain:
        return found, True, f"{best.label} gains {gain.value - 1:.1%}, less than the {tune.min_gain:.0%} asked for"
    over_off = board.contrast(best, off, level) if off != found else None
    if over_off is not None and over_off.interval(tune.confidence, looks).low <= 1.0:
        switch = board.contrast(off, found, level)
        if switch is not None and switch.interval(tune.confidence, looks).low > 1.0:
            return (
                off,
                True,
                f"speculation off gains {_times(switch.interval(tune.confidence, looks))}; {best.label} is not shown to be better than off",
            )
    final = board.contrast(smallest, found, level)
    if smallest != best and final is not None and final.interval(tune.confidence, looks).low > 1.0:
        return smallest, True, f"within {tune.tie:.0%} of {best.label} at a smaller depth"
    return best, True, "best measured"


def _needed(versus: stats.Contrast, tune: Tune) -> str:
    """How many blocks would show a gain of ``min_gain`` at this noise."""
    n = stats.required_n(1 + tune.min_gain, unit_sd=versus.unit_sd, confidence=tune.confidence)
    if n is None:
        return f"; launches differ by more than {tune.min_gain:.0%}, so only more launches could show it"
    return f"; about {n} paired {versus.by}s would show a gain of {tune.min_gain:.0%}"


def _tied(board: Board, candidate: Candidate, chosen: Candidate, level: Level, tune: Tune, comparisons: int) -> bool:
    versus = board.contrast(candidate, chosen, level)
    if versus is None:
        return False
    interval = versus.interval(tune.confidence, max(1, comparisons))
    return abs(versus.mean) <= math.log1p(tune.tie) or interval.low <= 1.0 <= interval.high


def _settled(point: OperatingPoint, forecast: Forecast, tune: Tune) -> OperatingPoint:
    """The point, marked as open when a candidate that was not measured there may well beat it by more than ``min_gain``."""
    if not point.resolved:
        return point
    best: tuple[float, str] = (0.0, "")
    for option in forecast.options:
        if forecast.board.cell(option.candidate, point.level):
            continue
        outlook, here = forecast.outlook(option, point.level), forecast.board.log_tok_s(point.candidate, point.level)
        if outlook is not None and here is not None:
            hope = stats.expected_excess(outlook.mean - here - math.log1p(tune.min_gain), outlook.sd)
            text = f"{option.candidate.label} is predicted at {math.exp(outlook.mean - here):.2f}x of it and was not measured here"
            best = max(best, (hope, text))
    if best[0] <= tune.tie:
        return point
    return msgspec.structs.replace(point, resolved=False, why=f"{point.why}, but {best[1]}")


# -- all levels --------------------------------------------------------------------------------------------------------


def _overall(board: Board, tune: Tune, levels: Sequence[Level]) -> tuple[Candidate, stats.Contrast | None, tuple[str, ...]]:
    """(one candidate for the objective, its contrast with the configuration as found, what could not be compared)."""
    weights = objective.weights(tune, levels)
    served = board.candidates
    # a configuration as found that does not serve cannot be kept: then off, or whatever serves
    base = board.found
    if base in board.knowledge.refused and served:
        base = board.off if board.off in served else served[0]
    scores: dict[Candidate, stats.Contrast] = {}
    partial = []
    for candidate in board.candidates:
        if candidate == base:
            continue
        parts = [(w, versus) for level, w in weights if (versus := board.contrast(candidate, base, level)) is not None]
        if len(parts) == len(weights):
            scores[candidate] = stats.combined(parts)
        else:
            partial.append(candidate.label)
    missing = (
        (f"over all levels of the objective: {', '.join(partial)} (not measured at all of them)",) if partial and len(weights) > 1 else ()
    )
    if not scores:
        return base, None, missing
    best = max(scores, key=lambda c: (scores[c].mean, -c.depth))
    near = [c for c in scores if scores[c].mean >= scores[best].mean - math.log1p(tune.tie)]
    gain = scores[best].interval(tune.confidence, LOOKS * len(scores))
    if gain.low <= 1.0 or gain.value < 1 + tune.min_gain:
        return base, None, missing
    chosen = min(near, key=lambda c: (c.depth, c))
    if scores[chosen].interval(tune.confidence, len(scores)).low <= 1.0:
        chosen = best
    return chosen, scores[chosen], missing


def _sentence(
    points: Sequence[OperatingPoint], overall: Candidate, gain: stats.Contrast | None, found: Candidate, tune: Tune, goal: str
) -> str:
    better = [point for point in points if point.candidate != found]
    if not points:
        return "Change nothing: nothing could be measured."
    if not better and overall == found:
        return f"Change nothing: no candidate is shown to gain {tune.min_gain:.0%} or more over {found.label} at any level measured."
    parts = []
    for candidate in dict.fromkeys(point.candidate for point in better):
        mine = [point for point in better if point.candidate == candidate]
        where = ", ".join(f"{p.level.label}{_against(p, found)}" for p in mine)
        parts.append(f"{candidate.label} for {where}")
    kept = [point.level.label for point in points if point.candidate == found]
    text = f"Use {'; '.join(parts)}" if parts else ""
    text += f"; keep {found.label} for {', '.join(kept)}" if kept and parts else ""
    if overall != found and all(point.gain_vs_found is None for point in points):
        one = f"One configuration for {goal}: {overall.label}; {found.label} as found did not serve, so no gain over it is known."
    elif overall != found and gain is not None:
        one = f"One configuration for {goal}: {overall.label}, {_times(gain.interval(tune.confidence))} against {found.label} as found."
    else:
        one = f"One configuration for {goal}: keep {found.label}; no gain of {tune.min_gain:.0%} over all levels together is shown."
    return f"{text}. {one}" if text else one


def _against(point: OperatingPoint, found: Candidate) -> str:
    """The gain over the configuration as found and, where that is another reference, over speculation off."""
    gain, off = point.gain_vs_found, point.gain_vs_off
    if gain is None:
        return ""
    text = f"{gain.value:.2f}x as found, {gain.low:.2f}-{gain.high:.2f}"
    if off is not None and not found.off and not point.candidate.off:
        text += f"; {off.value:.2f}x off" if off.excludes_one else "; no difference to off shown"
    return f" ({text})"


def _times(interval: Interval | None) -> str:
    return f"{interval.value:.2f}x, {interval.low:.2f}-{interval.high:.2f}" if interval is not None else "no interval"


# -- beyond one candidate ----------------------------------------------------------------------------------------------


def _mix(board: Board, points: Sequence[OperatingPoint], scheduled: str, tune: Tune) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(what a schedule of depths does or would do, what was not measured about it)."""
    winners = {point.level: point.candidate for point in points}
    mix = schedule.mix(board, winners)
    if scheduled:
        place = " (in the file that the command names)" if board.engine == "sglang" else ""
        return (f"the schedule was measured as one launch at every level: {scheduled}{place}",), ()
    if mix is None:
        return (), ()
    gain = schedule.mix_gain(board, winners, board.levels)
    tried = [c for c in board.candidates if schedule.scheduled(c)]
    depths = ", ".join(f"{depth} at concurrency {concurrency}" for concurrency, depth in mix.depths)
    if tried:
        return (f"the winners as the engine's own schedule ({depths}) were measured and are not shown to be better",), ()
    text = mix.text(board.engine)
    if gain < math.log1p(tune.min_gain) or not text:
        return (), ()
    candidate, why = mix.candidate(board.engine, board.version)
    if candidate in board.knowledge.refused:
        why = "it did not serve"
    missed = f"but {why}" if why else "but it was not measured"
    return (), (f"the engine's own schedule {text} ({depths}): it would gain {math.expm1(gain):.1%} if it cost nothing, {missed}",)


def _traffic(knowledge: Knowledge, tune: Tune) -> tuple[str, ...]:
    """What the objective rests on, where it was observed."""
    seen = knowledge.watched
    return (f"the traffic: {objective.traffic(seen)}",) if seen is not None and tune.objective == objective.mix_text(seen.mix) else ()


def _uncovered(knowledge: Knowledge, tune: Tune, levels: Sequence[Level]) -> tuple[str, ...]:
    seen = knowledge.watched
    said = (
        objective.beyond(seen, [level.concurrency for level in levels if level.rate_rps is None])
        if _traffic(knowledge, tune) and seen
        else ""
    )
    return (said,) if said else ()


BUSY = 1.05
"""Noise floor from which a host counts as busy: then the server's own CPU time is read beside the wall clock."""
CPU_BOUND = 0.5
"""CPU seconds a second from which an engine counts as computing on the CPU."""


def _by_cpu_time(board: Board, tune: Tune) -> tuple[str, ...]:
    """On a busy host, what the server's CPU time a token says; a reading beside the verdict, which goes by the clock."""
    blocks = [block for trial in board.knowledge.trials for block in trial.blocks]
    used = [block.server_cpu_s / block.duration_s for block in blocks if block.server_cpu_s and block.duration_s > 0]
    floor = board.noise_floor
    if floor is None or floor.value < BUSY or not used or sorted(used)[len(used) // 2] < CPU_BOUND:
        return ()
    cpu = Board(objective.by_cpu_time(board.knowledge), board.levels, board.found, prompts=False)
    out = []
    for level, best in cpu.leaders().items():
        versus = cpu.contrast(best, board.found, level)
        if versus is None:
            out.append(f"{level.label}: by the server's CPU time a token nothing beats {board.found.label}")
            continue
        gain = versus.interval(tune.confidence, max(1, len(cpu.measured(level)) - 1))
        word = "" if gain.excludes_one else "; no difference shown"
        out.append(f"{level.label}: by the server's CPU time a token best is {best.label}, {_times(gain)} of {board.found.label}{word}")
    return (f"the host is busy (two launches differ by {floor.value - 1:.0%}), so CPU time is read as well", *out) if out else ()


# -- honesty -----------------------------------------------------------------------------------------------------------


def _drift(board: Board, confidence: float) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(what is not known, what is wrong) from the configuration as found at the start and at the end."""
    shifts = []
    for level in board.levels:
        cell = board.cell(board.found, level)
        launches = sorted({launch for launch, _ in cell})
        if len(launches) < 2:
            continue
        first = [pair for pair in cell if pair[0] == launches[0]]
        last = [pair for pair in cell if pair[0] == launches[-1]]
        if {b.block for _, b in first} & {b.block for _, b in last}:
            shifts.append(stats.drift(first, last))
    if not shifts:
        return ("drift of the host and the noise of a launch: the configuration as found was measured in one launch only",), ()
    whole = stats.combined([(1.0, shift) for shift in shifts]).interval(confidence)
    if not whole.excludes_one:
        return (), ()
    text = f"the host drifted: the configuration as found ran at {_times(whole)} of its first speed at the end; early and late launches compare badly"
    return (), (text,)


def _simulated(board: Board, points: Sequence[OperatingPoint]) -> tuple[str, ...]:
    wrong = [
        point.candidate.label
        for point in points
        if (run := board.acceptance(point.candidate, point.level.workload)) is not None and run.simulated
    ]
    return (
        (
            f"acceptance of {', '.join(dict.fromkeys(wrong))} is declared to the engine, not measured: its throughput holds only where real drafts are accepted as often",
        )
        if wrong
        else ()
    )


def _not_shown(board: Board, axes: Sequence[Axis], tune: Tune, points: Sequence[OperatingPoint], stop: Stop) -> tuple[str, ...]:
    out = [f"{point.level.label}: {point.why}" for point in points if not point.resolved]
    out += [f"{level.label}: nothing was measured" for level in board.levels if not board.measured(level)]
    rows = [row for row in board.knowledge.frontier if row.starts is False]
    if rows:
        text = ", ".join(f"{row.candidate.label} ({row.reason})" if row.reason else row.candidate.label for row in rows)
        out.append(f"not launched because they would not start: {text}")
    crashed = sorted(board.knowledge.refused)
    if crashed:
        out.append(f"failed and not tried again: {', '.join(c.label for c in crashed)}")
    never = [o.candidate.label for o in options(board.knowledge, axes, tune) if o.candidate not in board.candidates]
    if never:
        out.append(f"predicted only, never launched: {', '.join(never)}")
    if off_of(board.found) not in board.candidates:
        out.append("gain against speculation off: it was not measured")
    if stop.rule == "budget":
        out.append(f"the budget ended the search: {stop.why}")
    return tuple(out)


def _same_output(board: Board, points: Sequence[OperatingPoint]) -> str:
    """Text of the winners against speculation off on the prompts both answered, by digest."""
    out = []
    for candidate in dict.fromkeys(point.candidate for point in points if not point.candidate.off):
        same = total = 0
        for level in board.levels:
            plain = _texts(board, board.off, level)
            for key, digest in _texts(board, candidate, level).items():
                if key in plain:
                    total += 1
                    same += digest == plain[key]
        if total:
            out.append(f"{candidate.label}: {same} of {total} answers identical to speculation off" + _parting(board, candidate))
    return "; ".join(out)


def _parting(board: Board, candidate: Candidate) -> str:
    """Where the first of the differing answers parts, both continuations shown."""
    compared = board.outputs.get(candidate)
    if compared is None or not compared.differences:
        return ""
    first = compared.differences[0]
    more = f", and {len(compared.differences) - 1} more" if len(compared.differences) > 1 else ""
    return f" ({first.prompt_id}: after {first.common[-30:]!r} off says {first.off[:30]!r}, it says {first.candidate[:30]!r}{more})"


def _bad_outputs(board: Board) -> tuple[str, ...]:
    """Candidates whose answers are none, or are not explained by near ties.

    An engine that pretends what was accepted writes what no model said: that its texts differ tells nothing.
    """
    workloads = tuple(dict.fromkeys(level.workload for level in board.levels))

    def pretended(candidate: Candidate) -> bool:
        return any((run := board.acceptance(candidate, workload)) is not None and run.simulated for workload in workloads)

    return tuple(
        f"{candidate.label}: {text}"
        for candidate, compared in board.outputs.items()
        if (text := compared.failed or ("" if pretended(candidate) else compared.suspicious))
    )


def _texts(board: Board, candidate: Candidate, level: Level) -> dict[tuple[int, str], str]:
    return {
        (block.block, request.prompt_id): request.text_sha256
        for _, block in board.cell(candidate, level)
        for request in block.requests
        if request.outcome is Outcome.OK and request.text_sha256
    }
