"""The report as one record: everything the text, Markdown, HTML and JSON show, computed once.

A renderer only formats; a figure that is not in :class:`Document` cannot appear in any of them, and ``msgspec.to_builtins`` of it is the JSON.
"""

from __future__ import annotations

import itertools
import re
import statistics
from typing import Any, TypeVar

import msgspec

from .. import __version__, words
from ..engines.sglang_facts import canonical
from ..mask import HIDDEN, mask
from ..records import (
    Candidate,
    Conditions,
    Exit,
    Finding,
    FrontierRow,
    Interval,
    Level,
    OperatingPoint,
    PlannedLaunch,
    Record,
    Stop,
)
from ..state import Knowledge, Trial
from .cells import BlockRow, Cell, cells

FORMAT = "leadline-report/1"
LOG_LINES = 60
"""Lines of a failed trial's log that travel with the report; the whole log stays where ``log`` says."""


class Change(Record, frozen=True):
    """One flag that differs between the command as found and the recommended one; ``None`` where it is absent."""

    flag: str
    found: str | None
    best: str | None


class ModelCheck(Record, frozen=True):
    """How the predictions that were made before a measurement fared."""

    cells: int
    error_median: float
    """Median of |predicted / measured - 1|."""
    error_worst: float
    """Signed error of the worst cell, predicted / measured - 1."""
    worst: str
    inside: int
    """Cells whose measured mean lies inside the predicted interval."""


class TrialRow(Record, frozen=True, omit_defaults=True):
    """One launch on the campaign's clock (seconds since the campaign began)."""

    number: int
    candidate: Candidate
    label: str
    kind: str
    why: str
    outcome: str
    """``measured``, ``failed``, ``written off``, ``stopped`` (ended without a measurement) or ``running``."""
    start_s: float
    ready_s: float | None
    end_s: float | None
    load_s: float | None
    down_s: float | None
    blocks: int
    memory_bytes: int | None
    max_running_requests: int | None
    max_total_num_tokens: int | None
    log: str
    argv: tuple[str, ...]
    exit: str = ""


class FailedTrial(Record, frozen=True):
    """A launch that came to nothing, with what is known about why."""

    number: int
    label: str
    why: str
    after_s: float
    exit: str
    findings: tuple[Finding, ...]
    log: str
    log_tail: tuple[str, ...]


class Document(Record, frozen=True):
    """A campaign as people read it."""

    format: str
    writer: str
    campaign_id: str
    target: str
    own_process: bool
    """The target is a process of leadline's own: no service was ever down."""
    began_at_s: float
    status: str
    """``concluded``, ``running`` (as far as the journal tells) or ``empty``."""
    sentence: str
    change: bool | None
    found: Candidate | None
    found_label: str
    best: Candidate | None
    """The recommended point; ``None`` without a verdict."""
    best_label: str
    objective: str
    points: tuple[OperatingPoint, ...]
    best_cells: tuple[Cell, ...]
    """What the recommended point does at every level asked for."""
    levels: tuple[Level, ...]
    cells: tuple[Cell, ...]
    frontier: tuple[FrontierRow, ...]
    plan: tuple[PlannedLaunch, ...]
    trials: tuple[TrialRow, ...]
    failed: tuple[FailedTrial, ...]
    stop: Stop | None
    model_check: ModelCheck | None
    noise_floor: Interval | None
    conditions: Conditions | None
    settings: tuple[tuple[str, str], ...]
    not_shown: tuple[str, ...]
    warnings: tuple[str, ...]
    readings: tuple[str, ...]
    """What else the figures say, a sentence each."""
    same_output: str
    schedule: str
    command_found: tuple[str, ...]
    command: tuple[str, ...]
    changes: tuple[Change, ...]
    spelling: str
    """Where the engine reports its algorithm under another name than the command has: that both are one; else empty."""
    applied: str
    launches: int
    blocks: int
    down_s: float
    elapsed_s: float


def builtins(made: Document) -> dict[str, Any]:
    """The document as JSON-ready builtins: figures with seven significant digits (:func:`leadline.words.raw`), lists for tuples."""
    built: dict[str, Any] = plain(msgspec.to_builtins(made))
    return built


def plain(value: Any) -> Any:
    """Builtins with figures rounded by :func:`leadline.words.raw` and lists for tuples."""
    match value:
        case float():
            return words.raw(value)
        case dict():
            return {key: plain(part) for key, part in value.items()}
        case list() | tuple():
            return [plain(part) for part in value]
        case _:
            return value


def document(known: Knowledge) -> Document:
    """Knowledge to document. Pure: the same journal gives the same report, byte for byte."""
    began, verdict = known.began, known.verdict
    every = cells(known)
    start_s = began.at_s if began else 0.0
    found = began.found if began else None
    best = verdict.overall if verdict else None
    rows = tuple(_trial(trial, start_s) for trial in known.trials)
    return Document(
        format=FORMAT,
        writer=f"leadline {__version__}",
        campaign_id=began.campaign_id if began else "",
        target=mask(began.target) if began else "",
        own_process=bool(began and began.target.startswith("process:")),
        began_at_s=start_s,
        status="concluded" if verdict else ("running" if began else "empty"),
        sentence=verdict.sentence if verdict else _no_verdict(known),
        change=verdict.change if verdict else None,
        found=found,
        found_label=found.label if found else "",
        best=best,
        best_label=best.label if best else "",
        objective=verdict.objective if verdict else "",
        points=verdict.points if verdict else (),
        best_cells=tuple(cell for cell in every if cell.candidate == best and cell.blocks),
        levels=began.levels if began else (),
        cells=every,
        frontier=known.frontier,
        plan=known.plan,
        trials=rows,
        failed=tuple(masked(_failed(trial)) for trial in known.trials if trial.failed is not None),
        stop=next((decided.stop for decided in reversed(known.decided) if decided.stop is not None), None),
        model_check=_model_check(every),
        noise_floor=verdict.noise_floor if verdict else None,
        conditions=masked(began.conditions) if began else None,
        settings=began.settings if began else (),
        not_shown=verdict.not_shown if verdict else (),
        warnings=_warnings(known, every),
        readings=verdict.readings if verdict else (),
        same_output=verdict.same_output if verdict else "",
        schedule=verdict.schedule if verdict else "",
        command_found=masked_argv(began.command.argv) if began else (),
        command=masked_argv(verdict.command) if verdict else (),
        changes=changes(masked_argv(began.command.argv), masked_argv(verdict.command)) if began and verdict and verdict.command else (),
        spelling=_spelling(best, verdict.command) if best and verdict else "",
        applied=f"{known.applied.candidate.label}: {known.applied.what}" if known.applied else "",
        launches=known.launches,
        blocks=sum(len(trial.blocks) for trial in known.trials),
        down_s=known.down_s,
        elapsed_s=max((row.end_s or row.ready_s or row.start_s for row in rows), default=0.0),
    )


def _spelling(shown: Candidate, argv: tuple[str, ...]) -> str:
    named = _flags(argv).get("--speculative-algorithm", "")
    if named.upper() == shown.algorithm.upper() or canonical(named) != shown.algorithm:
        return ""
    return f"SGLang reports {named} as {shown.algorithm}: the command's {named} and the {shown.algorithm} named here are one algorithm"


def _model_check(every: tuple[Cell, ...]) -> ModelCheck | None:
    tested = [(c, c.predicted_tok_s, c.output_tok_s) for c in every if c.predicted_tok_s is not None and c.output_tok_s is not None]
    if not tested:
        return None
    errors = [(predicted.value / measured.value - 1, cell) for cell, predicted, measured in tested]
    error, cell = max(errors, key=lambda pair: abs(pair[0]))
    return ModelCheck(
        cells=len(tested),
        error_median=statistics.median(abs(error) for error, _ in errors),
        error_worst=error,
        worst=f"{cell.candidate.label}, {cell.level.label}",
        inside=sum(1 for _, predicted, measured in tested if predicted.low <= measured.value <= predicted.high),
    )


def _no_verdict(known: Knowledge) -> str:
    if known.began is None:
        return "nothing has been recorded yet"
    done = sum(1 for trial in known.trials if trial.ended or trial.failed is not None)
    return f"no verdict yet: {done} of {max(len(known.plan), len(known.trials))} launches are done"


def _warnings(known: Knowledge, every: tuple[Cell, ...]) -> tuple[str, ...]:
    told = list(known.verdict.warnings) if known.verdict else []
    if any(cell.simulated for cell in every) and not any("declared" in line or "simulated" in line for line in told):
        told.append("acceptance was simulated by the engine: throughputs with speculation are not those of real drafts")
    unused = [row for cell in every for row in cell.blocks if not row.used]
    if unused:
        reasons: dict[str, str] = {}  # reasons that differ in their figures only are told once
        for row in unused:
            reasons.setdefault(re.sub(r"[\d.]+", "#", row.why_unused), row.why_unused)
        told.append(f"{len(unused)} blocks were played but not counted: {'; '.join(itertools.islice(reasons.values(), 3))}")
    return tuple(told)


def _trial(trial: Trial, start_s: float) -> TrialRow:
    capacity, reported = trial.capacity, trial.reported
    running, tokens = capacity.max_running_requests, capacity.max_total_num_tokens
    if reported is not None:
        running = running if running is not None else reported.max_running_requests
        tokens = tokens if tokens is not None else reported.max_total_num_tokens
    ready = trial.ready_at_s - start_s if trial.ready_at_s is not None else None
    return TrialRow(
        number=trial.number,
        candidate=trial.candidate,
        label=trial.candidate.label,
        kind=trial.kind,
        why=trial.why,
        outcome=outcome(trial),
        start_s=trial.at_s - start_s,
        ready_s=ready,
        end_s=trial.ended_at_s - start_s if trial.ended_at_s is not None else None,
        load_s=trial.load_s,
        down_s=trial.down_s,
        blocks=len(trial.blocks),
        memory_bytes=trial.observed.memory_bytes if trial.observed else None,
        max_running_requests=running,
        max_total_num_tokens=tokens,
        log=trial.launch.log if trial.launch else "",
        argv=masked_argv(trial.argv),
        exit=_exit(trial.exit),
    )


def outcome(trial: Trial) -> str:
    """How a trial ended, in one word or two that need no colour."""
    if trial.failed is not None:
        return "failed"
    if trial.abandoned is not None:
        return "written off"
    if not trial.ended:
        return "running"
    return "measured" if trial.blocks else "stopped"


def _failed(trial: Trial) -> FailedTrial:
    assert trial.failed is not None
    lines = trial.failed.log_tail.splitlines()
    return FailedTrial(
        number=trial.number,
        label=trial.candidate.label,
        why=trial.why,
        after_s=trial.failed.after_s,
        exit=_exit(trial.failed.exit),
        findings=trial.failed.findings,
        log=trial.launch.log if trial.launch else "",
        log_tail=tuple(lines[-LOG_LINES:]),
    )


def _exit(seen: Exit | None) -> str:
    if seen is None:
        return ""
    return seen.text if seen.by == "itself" else f"{seen.text}, ended by {seen.by}"


R = TypeVar("R", bound=Record)


def masked(record: R) -> R:
    """The record with the secrets in its texts masked: a report is made to be forwarded."""

    def walk(value: Any) -> Any:
        match value:
            case str():
                return mask(value)
            case dict():
                return {key: walk(part) for key, part in value.items()}
            case list() | tuple():
                return [walk(part) for part in value]
            case _:
                return value

    return msgspec.convert(walk(msgspec.to_builtins(record)), type(record))


def masked_argv(argv: tuple[str, ...]) -> tuple[str, ...]:
    """An argument vector with secret values masked, whether they stand behind their flag or joined to it."""
    out = []
    for before, token in zip(("", *argv), argv, strict=False):
        pair = f"{before} {token}"
        out.append(HIDDEN if mask(token) == token and before.startswith("-") and mask(pair) == f"{before} {HIDDEN}" else mask(token))
    return tuple(out)


def changes(found: tuple[str, ...], best: tuple[str, ...]) -> tuple[Change, ...]:
    """Flags that differ, in the order of the recommended command and then of the one found. Repeated flags are compared as a whole."""
    before, after = _flags(found), _flags(best)
    names = dict.fromkeys([*after, *before])
    return tuple(Change(flag=name, found=before.get(name), best=after.get(name)) for name in names if before.get(name) != after.get(name))


def _flags(argv: tuple[str, ...]) -> dict[str, str]:
    flags: dict[str, list[str]] = {}
    name = ""
    for token in argv:
        if token.startswith("-") and not _is_number(token):
            name, _, value = token.partition("=")
            flags.setdefault(name, [])
            if value:
                flags[name].append(value)
        elif name:
            flags[name].append(token)
    return {name: " ".join(values) for name, values in flags.items()}


def _is_number(token: str) -> bool:
    try:
        float(token)
    except ValueError:
        return False
    return True


__all__ = [
    "BlockRow",
    "Cell",
    "Change",
    "Document",
    "FailedTrial",
    "ModelCheck",
    "TrialRow",
    "builtins",
    "changes",
    "document",
    "outcome",
    "plain",
]
