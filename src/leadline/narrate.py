"""What a person sees while a campaign runs: the plan before it, the live view during it, lines when nobody watches.

Everything goes to standard error; standard output belongs to the result.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.prompt import Confirm
from rich.table import Table

from . import live, objective
from .errors import Refused
from .records import PlannedLaunch, Progress
from .state import Knowledge
from .words import duration

console = Console(stderr=True, highlight=False)


def plan_table(launches: tuple[PlannedLaunch, ...]) -> Table:
    """The plan: which launches, why each, for how long."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("#", justify="right")
    table.add_column("launch", no_wrap=True)
    table.add_column("why")
    table.add_column("about", justify="right", no_wrap=True)
    for number, launch in enumerate(launches, 1):
        table.add_row(str(number), escape(launch.candidate.label), escape(launch.why), duration(launch.seconds))
    return table


class Narrator:
    """Shows progress: a live view on a terminal, one line a step elsewhere, nothing when quiet."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._live: Live | None = None
        self._quiet = quiet
        self._last = ""

    def __enter__(self) -> Narrator:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show(self, progress: Progress, known: Knowledge) -> None:
        """One step of the campaign. The live view begins with the first step after the plan, so that it never writes over a question."""
        if self._live is None and console.is_terminal and not self._quiet and progress.phase != "plan":
            self._live = Live(console=console, refresh_per_second=8, transient=True)
            self._live.start()
        if self._live is not None:
            self._live.update(live.view(known, progress))
            return
        line = self._line(progress)
        if line and line != self._last and not self._quiet:
            self._last = line
            print(line, file=sys.stderr, flush=True)

    def _line(self, progress: Progress) -> str:
        clock = f"[{int(progress.elapsed_s // 60):3d}:{int(progress.elapsed_s % 60):02d}]"
        if progress.phase == "load":
            return ""
        if progress.phase == "measure" and progress.level is not None and progress.candidate is not None:
            return f"{clock} {progress.candidate.label}: {progress.level.label}, block {progress.block} of {progress.blocks}"
        who = f" {progress.candidate.label}" if progress.candidate is not None and progress.phase == "start" else ""
        return f"{clock} {progress.phase}{who}: {progress.message}"

    def note(self, notes: Sequence[str]) -> None:
        """Traps that the adapter saw in the service's arguments, before the plan."""
        if not self._quiet:
            for text in notes:
                console.print(f"note: {text}", markup=False, soft_wrap=True)

    def ask(self, launches: tuple[PlannedLaunch, ...], known: Knowledge, *, yes: bool, change: str) -> None:
        """Print the plan (and ``change``, what it writes on the host first) and get consent. Raises :class:`~leadline.errors.Refused`."""
        if not self._quiet:
            self._print_plan(launches, known, change)
        if not yes and (not sys.stdin.isatty() or not Confirm.ask("go ahead?", console=console, default=False)):
            raise Refused()

    def agree(self, change: str, *, yes: bool) -> None:
        """Show one change and get consent. Raises :class:`~leadline.errors.Refused`."""
        console.print(change, markup=False)
        if not yes and (not sys.stdin.isatty() or not Confirm.ask("go ahead?", console=console, default=False)):
            raise Refused()

    def _print_plan(self, launches: tuple[PlannedLaunch, ...], known: Knowledge, change: str) -> None:
        began = known.began
        assert began is not None
        console.print(f"[bold]plan[/bold] for {escape(began.target)}", soft_wrap=True)
        console.print(f"found: {began.found.label}; levels: {', '.join(level.label for level in began.levels)}")
        if known.watched is not None:
            console.print(f"traffic: {objective.traffic(known.watched)}", markup=False, soft_wrap=True)
        console.print(plan_table(launches))
        total = sum(launch.seconds for launch in launches)
        down = "the service is down or under test for that time" if change else "nothing else on this machine is touched"
        console.print(
            f"about {duration(total)} in {len(launches)} launches; further launches only while they can still change the verdict; {down}"
        )
        if change:
            console.print("the first of these launches writes on the host (each further one the same with its own values):")
            console.print(change, markup=False)
        done = sum(1 for trial in known.trials if not trial.open)
        if known.trials:
            console.print(f"this campaign was interrupted: {done} trials are in its journal and are not repeated")
