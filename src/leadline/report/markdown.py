"""The same report as Markdown, for an issue or a chat."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from .. import words
from ..records import Candidate, FrontierRow
from .document import Document, FailedTrial
from .text import conditions, gain


def render(document: Document) -> str:
    """CommonMark with tables; text from logs stands in code fences, so that nothing in a log is read as markup."""
    parts = [f"# {escape(document.sentence)}", *_recommended(document)]
    if document.points:
        parts += ["## Best point at each level", _points(document)]
        parts += [
            f"- {escape(p.level.label)}: tied with {escape(words.one_of([c.label for c in p.tied]))}; {escape(p.why)}"
            for p in document.points
            if p.tied
        ]
    measured = [cell for cell in document.cells if cell.output_tok_s is not None or cell.predicted_tok_s is not None]
    if measured:
        parts += ["## Measured and predicted", _cells(document)]
    if document.failed:
        parts += ["## Failed trials", *(_failed(trial) for trial in document.failed)]
    if document.frontier:
        parts += ["## What fits", _frontier(document.frontier)]
    if document.trials:
        parts += ["## Timeline", _timeline(document)]
    for title, lines in (("What else the figures say", document.readings), ("Not shown", document.not_shown), ("Mind", document.warnings)):
        if lines:
            parts += [f"## {title}", "\n".join(f"- {escape(line)}" for line in lines)]
    parts += ["## Conditions", table(("condition", "value"), conditions(document))]
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Text that Markdown does not read as markup, on one line."""
    return "".join(f"\\{char}" if char in "\\`*_[]<>|#" else char for char in " ".join(text.split()))


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table; every cell is escaped."""
    names = [escape(name) for name in head]
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    lines += [f"| {' | '.join(escape(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines)


def _fence(text: str, language: str = "") -> str:
    ticks = "```"
    while ticks in text:
        ticks += "`"
    return f"{ticks}{language}\n{text}\n{ticks}"


def _recommended(document: Document) -> list[str]:
    if document.best is None or document.found is None:
        return []
    parts = [
        f"As found: **{escape(document.found_label)}**. Recommended: **{escape(document.best_label if document.change else 'change nothing')}**."
    ]
    if document.change and document.changes:
        parts.append(
            table(("flag", "as found", "recommended"), [(c.flag, c.found or "absent", c.best or "absent") for c in document.changes])
        )
    if document.command:
        parts.append(_fence(shlex.join(document.command), "sh"))
    if document.spelling:
        parts.append(f"{escape(document.spelling)}.")
    return parts


def _off(document: Document) -> Candidate | None:
    return next((cell.candidate for cell in document.cells if cell.candidate.off), None)


def _points(document: Document) -> str:
    off = _off(document)
    rows = [
        (
            point.level.label,
            point.candidate.label,
            words.interval(point.output_tok_s),
            gain(point.gain_vs_found, point.candidate, document.found),
            gain(point.gain_vs_off, point.candidate, off),
        )
        for point in document.points
    ]
    return table(("level", "best", "tok/s", "against as found", "against off"), rows)


def _cells(document: Document) -> str:
    off = _off(document)
    rows = [
        (
            cell.candidate.label,
            cell.level.label,
            words.interval(cell.output_tok_s),
            words.interval(cell.predicted_tok_s),
            words.interval(cell.tpot_ms),
            words.interval(cell.ttft_ms),
            words.number(cell.acceptance_length) if cell.acceptance_length is not None else "-",
            gain(cell.gain_vs_found, cell.candidate, document.found) if cell.blocks else "-",
            gain(cell.gain_vs_off, cell.candidate, off) if cell.blocks else "-",
        )
        for cell in document.cells
    ]
    head = ("setting", "level", "tok/s", "predicted tok/s", "TPOT ms", "TTFT ms", "acceptance length", "against as found", "against off")
    return table(head, rows)


def _failed(trial: FailedTrial) -> str:
    parts = [f"### Trial {trial.number}: {escape(trial.label)}, after {words.duration(trial.after_s)} ({trial.exit or 'exit not seen'})"]
    if not trial.findings:
        parts.append("Cause unknown: nothing in the evidence names one.")
    for finding in trial.findings:
        parts.append(f"**{escape(finding.summary)}** ({finding.confidence}; `{finding.cls}`)")
        if finding.quotes:
            parts.append(_fence("\n".join(f"{quote.source}:{quote.line}: {quote.text}" for quote in finding.quotes)))
        if finding.remedy:
            parts.append(f"Next: {escape(finding.remedy)}")
        parts += [f"Also: {escape(also)}" for also in finding.also]
    return "\n\n".join(parts)


def _frontier(rows: Iterable[FrontierRow]) -> str:
    said = {True: "starts", False: "does not start", None: "not known"}

    def count(value: int | None) -> str:
        return f"{value:,}" if value is not None else "-"

    return table(
        ("setting", "starts", "running requests", "KV tokens", "reason", "remedy"),
        [
            (
                row.candidate.label,
                said[row.starts],
                count(row.capacity.max_running_requests),
                count(row.capacity.max_total_num_tokens),
                row.reason,
                row.remedy,
            )
            for row in rows
        ],
    )


def _timeline(document: Document) -> str:
    rows = [
        (
            str(trial.number),
            words.duration(trial.start_s),
            trial.label,
            f"{trial.kind}: {trial.why}",
            trial.outcome,
            words.duration(trial.load_s) if trial.load_s is not None else "-",
            words.duration(trial.down_s) if trial.down_s is not None else "-",
        )
        for trial in document.trials
    ]
    return table(("trial", "at", "setting", "why", "outcome", "load", "down"), rows)
