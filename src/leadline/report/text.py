"""The verdict as printed at the end of a campaign: rich where there is a terminal, the same words in plain text elsewhere."""

from __future__ import annotations

import io
import shlex
from typing import Literal

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .. import words
from ..records import Candidate, Interval, Level
from .cells import Cell
from .document import Document, FailedTrial

WIDTH = 100


def render(document: Document, width: int = WIDTH, colour: bool = False) -> str:
    """Text in lines of at most ``width`` columns, except for the command; without ``colour`` no control character is in it."""
    out = io.StringIO()
    system: Literal["standard"] | None = "standard" if colour else None
    console = Console(file=out, width=width, color_system=system, force_terminal=colour, highlight=False, emoji=False, markup=False)
    console.print(renderable(document))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def renderable(document: Document) -> RenderableType:
    """What ``Console().print`` shows; meaning never hangs on the colours."""
    parts: list[RenderableType] = [Text(document.sentence, style="bold"), *_heading(document)]
    if document.points:
        parts += [_head("Best point at each level"), _points(document), *_ties(document)]
    if document.best_cells and _differs(document):
        parts += [
            _head(f"What {words.candidate(document.best_cells[0].candidate)} does at every level"),
            _cells(document, document.best_cells),
        ]
    measured = tuple(cell for cell in document.cells if cell.output_tok_s is not None)
    if measured:
        parts += [_head("Everything measured"), _measured(document, measured)]
    if document.readings:
        parts += [_head("What else the figures say"), *(_bullet(line) for line in document.readings)]
    if document.failed:
        parts += [_head("Failed trials"), *(_failed(trial) for trial in document.failed)]
    infeasible = [row for row in document.frontier if row.starts is False]
    if infeasible:
        parts.append(_head("Predicted not to start"))
        parts += [_bullet(f"{row.candidate.label}: {row.reason}" + (f"; {row.remedy}" if row.remedy else "")) for row in infeasible]
    if document.not_shown:
        parts += [_head("Not shown"), *(_bullet(line) for line in document.not_shown)]
    if document.warnings:
        parts += [_head("Mind"), *(_bullet(line) for line in document.warnings)]
    parts += [_head("Conditions"), _conditions(document)]
    if document.command and document.change:
        parts += [_head("Run"), *_command(document)]
    return Group(*parts)


def _head(title: str) -> RenderableType:
    return Padding(Text(title, style="bold cyan"), (1, 0, 0, 0))


def _bullet(line: str) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    table.add_row(" -", Text(line))
    return table


def _heading(document: Document) -> list[RenderableType]:
    if document.best is None or document.found is None:
        return []
    lines = [f"as found     {words.candidate(document.found)}"]
    if document.change:
        lines.append(f"recommended  {words.candidate(document.best)}")
        lines += [f"             {_change(change.flag, change.found, change.best)}" for change in document.changes]
    else:
        lines.append("recommended  change nothing")
    lines.append(f"objective    {document.objective}")
    return [Padding(Text("\n".join(lines)), (1, 0, 0, 0))]


def _change(flag: str, found: str | None, best: str | None) -> str:
    if found is None:
        return f"add {flag} {best}".rstrip()
    if best is None:
        return f"remove {flag} {found}".rstrip()
    return f"{flag} {found} → {best}"


def _differs(document: Document) -> bool:
    """Whether one recommended point is not simply the best point of every level."""
    return any(point.candidate != document.best for point in document.points)


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("  " + columns[0], overflow="fold")
    for name in columns[1:]:
        table.add_column(name, overflow="fold")
    return table


def gain(ratio: Interval | None, candidate: Candidate, reference: Candidate | None) -> str:
    """A gain in words: ``1.77× (1.76–1.78)``, ``1.01× (0.97–1.05), no difference shown``, ``the same setting``."""
    if candidate == reference:
        return "the same setting"
    if ratio is None:
        return "not measured"
    shown = words.interval(ratio)
    return shown if ratio.excludes_one else f"{shown}, no difference shown"


def _references(document: Document) -> tuple[list[str], list[Candidate | None]]:
    """Columns of gains: against the configuration as found and, where that is another, against off."""
    off = next((cell.candidate for cell in document.cells if cell.candidate.off), None)
    names, references = ["against as found"], [document.found]
    if off is not None and off != document.found:
        names, references = [*names, "against off"], [*references, off]
    return names, references


def _points(document: Document) -> Table:
    names, references = _references(document)
    table = _table("level", "best", "tok/s", *names)
    for point in document.points:
        gains = [gain(r, point.candidate, ref) for r, ref in zip((point.gain_vs_found, point.gain_vs_off), references, strict=False)]
        tie = " *" if point.tied or not point.resolved else ""
        table.add_row(f"  {point.level.label}", words.candidate(point.candidate) + tie, words.interval(point.output_tok_s), *gains)
    return table


def _ties(document: Document) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for point in document.points:
        if point.tied:
            tied = words.one_of([candidate.label for candidate in point.tied])
            why = point.why or "the smaller depth is named"
            lines.append(Padding(Text(f"* {point.level.label}: tied with {tied}; {why}"), (0, 0, 0, 2)))
        elif not point.resolved:
            lines.append(Padding(Text(f"* {point.level.label}: not resolved; {point.why}"), (0, 0, 0, 2)))
    return lines


def _cells(document: Document, shown: tuple[Cell, ...]) -> Table:
    names, references = _references(document)
    table = _table("level", "tok/s", "ms/token", *names)
    for cell in shown:
        gains = [gain(r, cell.candidate, ref) for r, ref in zip((cell.gain_vs_found, cell.gain_vs_off), references, strict=False)]
        table.add_row(f"  {cell.level.label}", words.interval(cell.output_tok_s), words.interval(cell.tpot_ms), *gains)
    return table


def _measured(document: Document, shown: tuple[Cell, ...]) -> Table:
    """tok/s of every candidate, one column a level."""
    at: dict[tuple[Candidate, Level], Cell] = {(cell.candidate, cell.level): cell for cell in shown}
    levels = list(dict.fromkeys(cell.level for cell in shown))
    table = _table("tok/s", *(level.label for level in levels))
    for candidate in dict.fromkeys(cell.candidate for cell in shown):
        name = candidate.label + (" (as found)" if candidate == document.found else "")
        row = [words.interval(at[candidate, level].output_tok_s) if (candidate, level) in at else "-" for level in levels]
        table.add_row(f"  {name}", *row)
    return table


def _failed(trial: FailedTrial) -> RenderableType:
    after = words.duration(trial.after_s)
    head = f"trial {trial.number}: {trial.label} failed after {after} ({trial.exit or 'exit not seen'}); {trial.why}"
    lines: list[tuple[str, str]] = []
    if not trial.findings:
        lines.append(("cause", "unknown: nothing in the evidence names one"))
    for finding in trial.findings:
        lines.append(("cause", f"{finding.summary} ({finding.confidence}; {finding.cls})"))
        lines += [(f"{quote.source}:{quote.line}", quote.text) for quote in finding.quotes]
        lines += [("next", finding.remedy)] if finding.remedy else []
        lines += [("also", also) for also in finding.also]
    if trial.log:
        lines.append(("whole log", trial.log))
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in lines:
        table.add_row(f"    {name}", Text(value))
    return Group(Padding(Text(head), (0, 0, 0, 2)), table)


def _conditions(document: Document) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in conditions(document):
        table.add_row(f"  {name}", value)
    return table


def conditions(document: Document) -> list[tuple[str, str]]:
    """Name and value of everything a second measurement must share to be comparable, and what this one took."""
    held = document.conditions
    pairs = [("campaign", document.campaign_id), ("target", document.target)]
    if held is not None:
        pairs += [("engine", " ".join(filter(None, [held.engine, held.version]))), ("model", held.model), ("host", held.host)]
        pairs += [("hardware", held.hardware), ("workloads", held.workloads), ("client", held.client)]
    pairs += settings_in_groups(document.settings)
    if document.noise_floor is not None:
        floor = document.noise_floor
        pairs.append(("noise floor", f"{words.beyond_one(floor)} (n = {floor.n}; {floor.method}); a plain relaunch differs by as much"))
    if document.same_output:
        pairs.append(("same output", document.same_output))
    if document.stop is not None:
        pairs.append(("stopped", f"{document.stop.rule}: {document.stop.why}"))
    launches, blocks = words.count(document.launches, "launch", "launches"), words.count(document.blocks, "block", "blocks")
    spent = f"{launches}, {blocks}, {words.duration(document.elapsed_s)}"
    down = "no service was down: the server was leadline's own process"
    pairs.append(
        ("spent", f"{spent}; {down if document.own_process else f'the service was down for {words.duration(document.down_s)} of it'}")
    )
    pairs.append(("intervals", "gains from the same prompts, launch noise included, wide enough for all comparisons of a level at once"))
    return [(name, value) for name, value in pairs if value]


def settings_in_groups(settings: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
    """One row for each section of the settings that shapes figures; those of deploying and waiting, and empty ones, stand in the JSON only."""
    groups: dict[str, list[str]] = {}
    for name, value in settings:
        section, _, key = name.rpartition(".")
        if section not in ("deploy", "ready") and value not in ("", "None", "()"):
            groups.setdefault(section or "settings", []).append(f"{key} {value}")
    return [(section, ", ".join(parts)) for section, parts in groups.items()]


def _command(document: Document) -> list[RenderableType]:
    lines: list[RenderableType] = [Text(line, no_wrap=True, overflow="ignore") for line in command_lines(document.command)]
    if document.schedule:
        lines.append(Text(f"  schedule by batch size: {document.schedule}"))
    if document.applied:
        lines.append(Text(f"  applied: {document.applied}"))
    elif document.change:
        lines.append(Text(f"  or let leadline do it: leadline apply {document.campaign_id}"))
    if document.spelling:
        lines.append(Text(f"  {document.spelling}"))
    return lines


def command_lines(argv: tuple[str, ...], width: int = WIDTH) -> list[str]:
    """The command, quoted for a shell, on lines that end in a backslash: broken before flags, ready to be pasted."""
    groups: list[str] = []
    for token in argv:
        if groups and not token.startswith("-"):
            groups[-1] += f" {shlex.quote(token)}"
        else:
            groups.append(shlex.quote(token))
    lines = ["  "]
    for group in groups:
        if lines[-1].strip() and len(lines[-1]) + len(group) > width - 2:
            lines[-1] += "\\"
            lines.append("    ")
        lines[-1] += f"{group} "
    lines[-1] = lines[-1].rstrip()
    return lines
