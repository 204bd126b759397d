"""The live view: what is known and what happens now, as one renderable. Shared by the running campaign and ``leadline watch``.

Pure: :func:`view` takes the fold of the journal and a :class:`~leadline.records.Progress`; :func:`progress_of` makes a Progress out of the journal
alone, for a reader beside the campaign, who is told the time.
"""

from __future__ import annotations

import statistics

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from . import words
from .records import Candidate, Level, Progress
from .state import Knowledge, Trial

MOST_LEVELS = 6
"""Columns of the table of results; further levels are left to the report."""


def view(known: Knowledge, progress: Progress) -> RenderableType:
    """Phase, bars, results so far and what failed. Best results carry a star as well as a colour."""
    parts: list[RenderableType] = [_title(known), _now(progress), _bars(known, progress)]
    if any(trial.blocks or trial.failed for trial in known.trials):
        parts += [Text(""), _results(known)]
    if known.verdict is not None:
        parts += [Text(""), Text(known.verdict.sentence, style="bold green")]
    return Group(*parts)


def line(known: Knowledge, progress: Progress) -> str:
    """The same on one line: for logs, for a terminal that is none, for the page's status."""
    if known.verdict is not None:
        return f"done: {known.verdict.sentence}"
    said = _phase(progress)
    best = _best(known)
    done, planned = launches(known, progress)
    if progress.phase == "load":  # its message counts seconds: a line of its own for each would say nothing new
        said = f"{progress.candidate.label}: load" if progress.candidate is not None else "load"
    return f"launch {min(done + 1, planned)} of about {planned}: {said}" + (f"; best so far {best}" if best else "")


def progress_of(known: Knowledge, now_s: float, alive: bool = True) -> Progress:
    """What the journal alone tells about a campaign in progress; ``alive`` says whether its writer still runs."""
    began = known.began
    elapsed = now_s - began.at_s if began is not None else 0.0
    if known.concluded is not None and began is not None:
        return Progress(phase="verdict", message="the campaign is done", elapsed_s=known.concluded.at_s - began.at_s)
    ahead = known.plan[sum(1 for trial in known.trials if not trial.open) :]
    planned = max(len(known.plan), len(known.trials))
    remaining = sum(launch.seconds for launch in ahead) if known.plan else None
    trial = known.trials[-1] if known.trials else None
    if not alive:
        phase, message = "interrupted", "no leadline runs this campaign now; the same tune command goes on from here"
    elif trial is None or not trial.open:
        phase, message = "plan", "choosing the next launch"
    elif trial.served:
        phase, message = "measure", "playing the workload"
    else:
        phase, message = "load", f"starting since {words.duration(max(0.0, now_s - trial.at_s))}"
    block = trial.blocks[-1] if trial is not None and trial.open and trial.blocks else None
    return Progress(
        phase=phase,
        message=message,
        trial=trial.number if trial else 0,
        launches_planned=planned,
        candidate=trial.candidate if trial is not None and trial.open else None,
        level=block.level if block else None,
        block=block.block + 1 if block else 0,
        elapsed_s=max(0.0, elapsed),
        remaining_s=remaining if alive else None,
    )


def launches(known: Knowledge, progress: Progress) -> tuple[int, int]:
    """(launches that are over, launches planned at least)."""
    done = sum(1 for trial in known.trials if not trial.open)
    return done, max(progress.launches_planned, len(known.plan), len(known.trials), 1)


def _title(known: Knowledge) -> RenderableType:
    if known.began is None:
        return Text("leadline", style="bold")
    return Text.assemble(
        ("leadline ", "bold"), known.began.campaign_id, (" on ", "dim"), known.began.target, overflow="ellipsis", no_wrap=True
    )


def _phase(progress: Progress) -> str:
    who = f"{progress.candidate.label}: " if progress.candidate is not None else ""
    where = ""
    if progress.level is not None and progress.phase in ("measure", "warm up"):
        of = f" of {progress.blocks}" if progress.blocks else ""
        where = f" {words.level(progress.level)}" + (f", block {progress.block}{of}" if progress.block else "")
    message = f" ({progress.message})" if progress.message else ""
    return f"{who}{progress.phase}{where}{message}"


def _now(progress: Progress) -> RenderableType:
    left = f", about {words.duration(progress.remaining_s)} left" if progress.remaining_s is not None else ""
    return Text.assemble((_phase(progress), "bold cyan"), (f"   {words.duration(progress.elapsed_s)}{left}", "dim"))


def _bars(known: Knowledge, progress: Progress) -> RenderableType:
    done, planned = launches(known, progress)
    table = Table.grid(padding=(0, 1))
    table.add_row("launches", ProgressBar(total=planned, completed=done, width=30), f"{done} of about {planned}")
    if progress.phase == "load" and progress.fraction is not None:
        table.add_row("loading", ProgressBar(total=1.0, completed=progress.fraction, width=30), words.share(progress.fraction))
    elif progress.phase == "measure" and progress.blocks:
        table.add_row(
            "blocks", ProgressBar(total=progress.blocks, completed=progress.block, width=30), f"{progress.block} of {progress.blocks}"
        )
    return table


def _means(known: Knowledge) -> dict[tuple[Candidate, Level], tuple[float, int]]:
    """(mean output tok/s, blocks) of every cell with a valid block."""
    levels = dict.fromkeys(
        [*(known.began.levels if known.began else ()), *(block.level for trial in known.trials for block in trial.blocks)]
    )
    found = {}
    for candidate in known.candidates:
        for level in levels:
            rates = [block.output_tok_s for _, block in known.blocks(candidate, level)]
            if rates:
                found[candidate, level] = (statistics.fmean(rates), len(rates))
    return found


def _best(known: Knowledge) -> str:
    """The best candidate of every level so far, in words; empty before there is a choice."""
    means = _means(known)
    if len(known.candidates) < 2:
        return ""
    said = []
    for level in dict.fromkeys(level for _, level in means):
        candidate = max((c for c, at in means if at == level), key=lambda c: means[c, level][0])
        said.append(f"{level.label}: {candidate.label} {words.number(means[candidate, level][0])} tok/s")
    return "; ".join(said)


def _results(known: Knowledge) -> RenderableType:
    means = _means(known)
    levels = list(dict.fromkeys(level for _, level in means))
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("tok/s so far", overflow="fold")
    for level in levels[:MOST_LEVELS]:
        table.add_column(level.label, justify="right", no_wrap=True)
    best = {level: max(mean for (_, at), (mean, _) in means.items() if at == level) for level in levels}
    for candidate in dict.fromkeys(trial.candidate for trial in known.trials):
        trials = known.of(candidate)
        mark = " (as found)" if known.began is not None and candidate == known.began.found else ""
        if not any((candidate, level) in means for level in levels):
            table.add_row(candidate.label + mark, Text(_ending(trials[-1]), style="red" if trials[-1].failed else "dim"))
            continue
        cells = []
        for level in levels[:MOST_LEVELS]:
            mean, n = means.get((candidate, level), (0.0, 0))
            star = n and mean == best[level] and len(known.candidates) > 1
            cells.append(Text(f"{'★ ' if star else ''}{words.number(mean)} ({n})" if n else "-", style="bold green" if star else ""))
        table.add_row(candidate.label + mark, *cells)
    if len(levels) > MOST_LEVELS:
        table.caption = f"and {len(levels) - MOST_LEVELS} more levels, in the report"
    return table


def _ending(trial: Trial) -> str:
    if trial.failed is not None:
        cause = trial.failed.findings[0].cls if trial.failed.findings else "cause unknown"
        return f"✕ failed: {cause}"
    if trial.abandoned is not None:
        return "written off"
    return "loading" if not trial.served else "no result yet"
