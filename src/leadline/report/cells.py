"""Blocks to cells: what every candidate did at every level, with the intervals of :mod:`leadline.stats`.

Intervals and gains come from the same :class:`leadline.compare.Board` that the verdict was made with, and where the verdict names a cell its own
figures are shown, so that the report cannot contradict it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import msgspec

from .. import objective, stats
from ..compare import Board
from ..config import Tune
from ..records import Acceptance, Candidate, Interval, Level, Outcome, Prediction, Record
from ..state import Knowledge

CONFIDENCE = 0.90
"""Of every interval where no verdict names another."""


class BlockRow(Record, frozen=True, omit_defaults=True):
    """One played block, reduced: the raw data of the report. (Single requests stay in the journal.)"""

    trial: int
    block: int
    duration_s: float
    output_tok_s: float
    requests: int
    tokens_out: int
    failed: int = 0
    ttft_ms_p50: float | None = None
    tpot_ms_p50: float | None = None
    used: bool = True
    """False where a request failed, the block was cut short or the client was the bottleneck: shown, never counted."""
    why_unused: str = ""


class Cell(Record, frozen=True, omit_defaults=True):
    """One candidate at one level."""

    candidate: Candidate
    level: Level
    output_tok_s: Interval | None = None
    tpot_ms: Interval | None = None
    ttft_ms: Interval | None = None
    gain_vs_found: Interval | None = None
    gain_vs_off: Interval | None = None
    predicted_tok_s: Interval | None = None
    """The last prediction made **before** this cell was first measured: the honest test of the model. ``None`` if there was none."""
    predicted_tpot_ms: Interval | None = None
    model_tok_s: Interval | None = None
    """What the model says at the end, fitted to everything measured."""
    model_tpot_ms: Interval | None = None
    acceptance_length: float | None = None
    acceptance_rate: float | None = None
    positions: tuple[float, ...] = ()
    """Share of rounds whose first j drafts were all accepted, j = 1 .. depth."""
    rounds: int | None = None
    simulated: bool = False
    blocks: tuple[BlockRow, ...] = ()


def cells(known: Knowledge) -> tuple[Cell, ...]:
    """Every cell that was measured or predicted: off first, then by method and depth; levels as asked."""
    if known.began is None:
        return ()
    predicted = _predictions(known)
    candidates = sorted({*known.candidates, *(candidate for candidate, _ in predicted)}, key=lambda c: (not c.off, c))
    levels = dict.fromkeys([*known.began.levels, *(block.level for trial in known.trials for block in trial.blocks)])
    confidence = (
        next((p.output_tok_s.confidence for p in known.verdict.points if p.output_tok_s), CONFIDENCE) if known.verdict else CONFIDENCE
    )
    tune = _asked(known)
    goodput = tune.objective == "goodput"
    scored = objective.within_limits(known, tune) if goodput else known
    board = Board(scored, tuple(levels), known.began.found, prompts=not goodput)
    made = []
    for candidate in candidates:
        for level in levels:
            rows = rows_of(known, candidate, level)
            foretold = predicted.get((candidate, level), Foretold())
            if rows or foretold.made:
                made.append(_as_concluded(known, _cell(board, candidate, level, rows, foretold, confidence)))
    return tuple(made)


def _as_concluded(known: Knowledge, cell: Cell) -> Cell:
    """Where the verdict speaks of this very cell its figures hold: a later leadline must not contradict what was concluded."""
    points = known.verdict.points if known.verdict is not None else ()
    point = next((p for p in points if (p.candidate, p.level) == (cell.candidate, cell.level)), None)
    if point is None:
        return cell
    return msgspec.structs.replace(
        cell,
        output_tok_s=point.output_tok_s or cell.output_tok_s,
        gain_vs_found=point.gain_vs_found or cell.gain_vs_found,
        gain_vs_off=point.gain_vs_off or cell.gain_vs_off,
    )


def _asked(known: Knowledge) -> Tune:
    """The objective and its limits as the campaign's settings name them: with ``goodput`` a rate counts only what kept the limits."""
    settings = dict(known.began.settings) if known.began is not None else {}

    def limit(name: str) -> float | None:
        value = settings.get(f"tune.{name}", "None")
        return None if value in ("", "None") else float(value)

    ttft_ms, tpot_ms = limit("ttft_ms"), limit("tpot_ms")
    named = settings.get("tune.objective", "balanced") if ttft_ms is not None or tpot_ms is not None else "balanced"
    return Tune(objective=named, ttft_ms=ttft_ms, tpot_ms=tpot_ms)


def rows_of(known: Knowledge, candidate: Candidate, level: Level) -> tuple[BlockRow, ...]:
    rows = []
    for trial in known.of(candidate):
        for block in trial.at(level):
            served = [request for request in block.requests if request.outcome is Outcome.OK]
            ttft = [request.ttft_ms for request in served if request.ttft_ms is not None]
            tpot = [request.tpot_ms for request in served if request.tpot_ms is not None]
            why = ""
            if block.failed:
                first = next(request for request in block.requests if request.outcome is not Outcome.OK)
                why = f"{block.failed} of {len(block.requests)} requests failed: {first.outcome.value}"
            elif block.stop != "complete":
                why = f"cut short ({block.stop})"
            elif not block.client.valid:
                why = f"the client was the bottleneck: {block.client.why}"
            rows.append(
                BlockRow(
                    trial=trial.number,
                    block=block.block,
                    duration_s=block.duration_s,
                    output_tok_s=block.output_tok_s,
                    requests=len(block.requests),
                    failed=block.failed,
                    tokens_out=sum(request.tokens_out for request in served),
                    ttft_ms_p50=statistics.median(ttft) if ttft else None,
                    tpot_ms_p50=statistics.median(tpot) if tpot else None,
                    used=not why,
                    why_unused=why,
                )
            )
    return tuple(rows)


class Foretold(Record, frozen=True):
    """Predictions of one cell in the order in which they were journaled, each with its time."""

    made: tuple[tuple[float, Prediction], ...] = ()

    @property
    def last(self) -> Prediction | None:
        return self.made[-1][1] if self.made else None

    def before(self, at_s: float | None) -> Prediction | None:
        """The last one made before ``at_s``; any if the cell was never measured."""
        return next((prediction for when, prediction in reversed(self.made) if at_s is None or when <= at_s), None)


def _predictions(known: Knowledge) -> dict[tuple[Candidate, Level], Foretold]:
    made: dict[tuple[Candidate, Level], list[tuple[float, Prediction]]] = {}
    for decided in known.decided:
        for prediction in decided.predictions:
            made.setdefault((prediction.candidate, prediction.level), []).append((decided.at_s, prediction))
    return {key: Foretold(made=tuple(values)) for key, values in made.items()}


def _gain(board: Board, candidate: Candidate, reference: Candidate, level: Level, confidence: float) -> Interval | None:
    """Against a reference, as the verdict counts it: wide enough for every comparison made at the level."""
    versus = board.contrast(candidate, reference, level)
    return versus.interval(confidence, max(1, len(board.measured(level)) - 1)) if versus is not None else None


def _cell(board: Board, candidate: Candidate, level: Level, rows: tuple[BlockRow, ...], foretold: Foretold, confidence: float) -> Cell:
    known = board.knowledge
    used = [row for row in rows if row.used]
    rates = [block.output_tok_s for _, block in known.blocks(candidate, level) if block.output_tok_s > 0]

    def estimate(values: Sequence[float], unit: str, launch: stats.Spread | None = None) -> Interval | None:
        return stats.estimate(values, confidence=confidence, unit=unit, launch=launch) if values else None

    acceptance = next((seen for trial in reversed(known.of(candidate)) if (seen := trial.acceptance(level)) is not None), None)
    first_s = next((trial.at_s for trial in known.of(candidate) if trial.at(level)), None)
    model, prediction = foretold.last, foretold.before(first_s)
    return Cell(
        candidate=candidate,
        level=level,
        output_tok_s=estimate(rates, "tok/s", board.launch),
        tpot_ms=estimate([row.tpot_ms_p50 for row in used if row.tpot_ms_p50], "ms", board.launch),
        ttft_ms=estimate([row.ttft_ms_p50 for row in used if row.ttft_ms_p50], "ms", board.launch),
        gain_vs_found=_gain(board, candidate, board.found, level, confidence),
        gain_vs_off=_gain(board, candidate, board.off, level, confidence),
        predicted_tok_s=prediction.output_tok_s if prediction else None,
        predicted_tpot_ms=prediction.tpot_ms if prediction else None,
        model_tok_s=model.output_tok_s if model else None,
        model_tpot_ms=model.tpot_ms if model else None,
        acceptance_length=_length(acceptance),
        acceptance_rate=acceptance.accepted / acceptance.drafted
        if acceptance and acceptance.drafted and acceptance.accepted is not None
        else None,
        positions=_positions(acceptance),
        rounds=acceptance.rounds if acceptance else None,
        simulated=acceptance.simulated if acceptance else False,
        blocks=rows,
    )


def _positions(acceptance: Acceptance | None) -> tuple[float, ...]:
    if acceptance is None or not acceptance.rounds:
        return ()
    counts: Sequence[int] = acceptance.per_position
    if not counts and len(acceptance.histogram) > 1:
        counts = [sum(acceptance.histogram[j:]) for j in range(1, len(acceptance.histogram))]
    return tuple(count / acceptance.rounds for count in counts)


def _length(acceptance: Acceptance | None) -> float | None:
    if acceptance is None:
        return None
    if acceptance.length is not None:
        return acceptance.length
    return 1 + acceptance.accepted / acceptance.rounds if acceptance.rounds and acceptance.accepted is not None else None
