"""Two campaigns side by side: what changed in conditions, in the verdict and at every level.

Nothing is pooled: where the workloads differ nothing is compared; where another condition differs it is said first, and the ratios are named indicative.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from .. import words
from ..records import Candidate, Conditions, Interval, Level, Record
from . import markdown
from .document import Document, plain


class ConditionRow(Record, frozen=True):
    """A condition that differs."""

    name: str
    before: str
    after: str


class LevelRow(Record, frozen=True):
    """The recommended (else the found) setting of both campaigns at one level."""

    level: Level
    before: Candidate
    after: Candidate
    before_tok_s: Interval
    after_tok_s: Interval
    ratio: Interval
    """After / before; the campaigns share no block, so the intervals of both are joined (independent errors of logs)."""


class Diff(Record, frozen=True):
    """What two campaigns say differently."""

    format: str
    before: str
    after: str
    sentence: str
    like: bool
    """Whether all conditions are equal, so that the ratios compare like with like."""
    conditions: tuple[ConditionRow, ...]
    levels: tuple[LevelRow, ...]
    same_setting: tuple[LevelRow, ...]
    """Settings that both measured, at each level: how far the host itself moved."""
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]


FORMAT = "leadline-diff/1"


def diff(before: Document, after: Document) -> Diff:
    """Compare two documents. Pure; order matters (ratios are after / before)."""
    rows = _conditions(before.conditions, after.conditions)
    ours, theirs = _cells(before), _cells(after)
    if any(row.name == "workloads" for row in rows):
        theirs = {}
    shown_before, shown_after = before.best or before.found, after.best or after.found
    levels = [level for level in dict.fromkeys(level for _, level in ours) if any(at == level for _, at in theirs)]
    pairs = [
        _row(level, shown_before, shown_after, ours[shown_before, level], theirs[shown_after, level])
        for level in levels
        if shown_before is not None and shown_after is not None and (shown_before, level) in ours and (shown_after, level) in theirs
    ]
    same = [
        _row(level, candidate, candidate, ours[candidate, level], theirs[candidate, level])
        for candidate, level in ours
        if (candidate, level) in theirs
    ]
    measured_before, measured_after = (
        {cell.candidate: None for cell in side.cells if cell.output_tok_s is not None} for side in (before, after)
    )
    only_before = [candidate.label for candidate in measured_before if candidate not in measured_after]
    only_after = [candidate.label for candidate in measured_after if candidate not in measured_before]
    return Diff(
        format=FORMAT,
        before=before.campaign_id,
        after=after.campaign_id,
        sentence=_sentence(before, after, rows, pairs),
        like=not rows,
        conditions=rows,
        levels=tuple(pairs),
        same_setting=tuple(same),
        only_before=tuple(only_before),
        only_after=tuple(only_after),
    )


def _cells(document: Document) -> dict[tuple[Candidate, Level], Interval]:
    return {(cell.candidate, cell.level): cell.output_tok_s for cell in document.cells if cell.output_tok_s is not None}


def _conditions(before: Conditions | None, after: Conditions | None) -> tuple[ConditionRow, ...]:
    left = msgspec.to_builtins(before) if before is not None else {}
    right = msgspec.to_builtins(after) if after is not None else {}
    names = dict.fromkeys([*left, *right])
    return tuple(
        ConditionRow(name=name, before=str(left.get(name, "")), after=str(right.get(name, "")))
        for name in names
        if left.get(name, "") != right.get(name, "")
    )


def _row(level: Level, before: Candidate, after: Candidate, left: Interval, right: Interval) -> LevelRow:
    spread = math.hypot(*(math.log(side.high / side.low) / 2 for side in (left, right)))
    centre = math.log(right.value / left.value)
    ratio = Interval(
        value=math.exp(centre),
        low=math.exp(centre - spread),
        high=math.exp(centre + spread),
        n=min(left.n, right.n),
        unit="ratio",
        confidence=min(left.confidence, right.confidence),
        method="two campaigns, unpaired: half widths of logs joined",
    )
    return LevelRow(level=level, before=before, after=after, before_tok_s=left, after_tok_s=right, ratio=ratio)


def _sentence(before: Document, after: Document, rows: tuple[ConditionRow, ...], pairs: list[LevelRow]) -> str:
    verdicts = f"{before.best_label or 'no verdict'} → {after.best_label or 'no verdict'}"
    if before.best == after.best and before.best is not None:
        verdicts = f"both recommend {before.best_label}"
    if any(row.name == "workloads" for row in rows):
        return f"{verdicts}: the workloads differ, so no figure is compared"
    moved = [f"{row.level.label} {words.interval(row.ratio)} {words.reading(row.ratio)}" for row in pairs]
    unlike = f"; conditions differ in {words.one_of([row.name for row in rows])}, so the ratios are indicative only" if rows else ""
    return verdicts + (f": {'; '.join(moved)}" if moved else ": no level in common") + unlike


def as_json(made: Diff) -> dict[str, Any]:
    """The diff as JSON-ready builtins."""
    built: dict[str, Any] = plain(msgspec.to_builtins(made))
    return built


def render(made: Diff) -> str:
    """The diff as Markdown, which is also what a terminal shows."""
    parts = [f"# {markdown.escape(made.sentence)}"]
    if made.conditions:
        parts += [
            "## Conditions that differ",
            markdown.table(("condition", made.before, made.after), [(r.name, r.before, r.after) for r in made.conditions]),
        ]
    head = ("level", f"before: {made.before}", f"after: {made.after}", "tok/s before", "tok/s after", "after / before", "reads")
    if made.levels:
        parts += ["## Recommended settings", markdown.table(head, [_cells_of(row) for row in made.levels])]
    if made.same_setting:
        parts += ["## The same setting in both", markdown.table(head, [_cells_of(row) for row in made.same_setting])]
    for title, labels in ((made.before, made.only_before), (made.after, made.only_after)):
        if labels:
            parts.append(f"Measured only in {markdown.escape(title)}: {markdown.escape(words.one_of(list(labels)))}.")
    return "\n\n".join(parts) + "\n"


def _cells_of(row: LevelRow) -> tuple[str, ...]:
    figures = (words.interval(row.before_tok_s), words.interval(row.after_tok_s), words.interval(row.ratio), words.reading(row.ratio))
    return (row.level.label, row.before.label, row.after.label, *figures)
