"""What is known: a pure fold of the journal's events.

The journal is the only memory of a campaign.  :func:`fold` turns its events into :class:`Knowledge`, which is all that the
mind ever sees, so that a resumed campaign thinks exactly what an uninterrupted one would.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import msgspec

from .records import (
    Abandoned,
    Acceptance,
    AnyEvent,
    Applied,
    Began,
    BlockResult,
    Candidate,
    Capacity,
    Concluded,
    Decided,
    Deployed,
    Exit,
    Failed,
    FrontierRow,
    Inspected,
    Intended,
    Launch,
    Level,
    Measured,
    Observed,
    Planned,
    PlannedLaunch,
    Ready,
    Record,
    Reported,
    Restored,
    Verdict,
    Watched,
)


class Trial(Record, frozen=True):
    """One launch of one candidate, as far as it came."""

    number: int
    candidate: Candidate
    kind: str
    why: str
    at_s: float
    boot_id: str = ""
    launch: Launch | None = None
    argv: tuple[str, ...] = ()
    load_s: float | None = None
    ready_at_s: float | None = None
    reported: Reported | None = None
    blocks: tuple[BlockResult, ...] = ()
    observed: Observed | None = None
    failed: Failed | None = None
    abandoned: Abandoned | None = None
    down_s: float | None = None
    exit: Exit | None = None
    ended: bool = False
    ended_at_s: float | None = None
    """When the trial was restored, failed or written off, whichever the journal says last."""

    @property
    def open(self) -> bool:
        """Begun and neither restored, failed nor written off: the campaign was interrupted here."""
        return not self.ended and self.failed is None and self.abandoned is None

    @property
    def served(self) -> bool:
        return self.load_s is not None

    def at(self, level: Level) -> tuple[BlockResult, ...]:
        return tuple(block for block in self.blocks if block.level == level)

    def acceptance(self, level: Level) -> Acceptance | None:
        if self.observed is None:
            return None
        return next((acceptance for at, acceptance in self.observed.acceptance if at == level), None)

    @property
    def capacity(self) -> Capacity:
        return self.observed.capacity if self.observed is not None else Capacity()


class Knowledge(Record, frozen=True):
    """Everything the journal says, in order of trials."""

    began: Began | None = None
    frontier: tuple[FrontierRow, ...] = ()
    reported: Reported | None = None
    watched: Watched | None = None
    plan: tuple[PlannedLaunch, ...] = ()
    trials: tuple[Trial, ...] = ()
    decided: tuple[Decided, ...] = ()
    concluded: Concluded | None = None
    applied: Applied | None = None
    events: int = 0

    @property
    def verdict(self) -> Verdict | None:
        return self.concluded.verdict if self.concluded else None

    def of(self, candidate: Candidate) -> tuple[Trial, ...]:
        return tuple(trial for trial in self.trials if trial.candidate == candidate)

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """Candidates with at least one complete block, in order of first launch."""
        seen = {trial.candidate: None for trial in self.trials if trial.blocks}
        return tuple(seen)

    @property
    def refused(self) -> frozenset[Candidate]:
        """Candidates that are not tried again unasked: they failed, or leadline vanished while they started."""
        return frozenset(
            trial.candidate
            for trial in self.trials
            if trial.failed is not None or (trial.abandoned is not None and not trial.abandoned.retry)
        )

    def blocks(self, candidate: Candidate, level: Level) -> tuple[tuple[int, BlockResult], ...]:
        """Valid blocks of a cell as (trial number, block): no failed request, not cut short, client not the bottleneck."""
        return tuple(
            (trial.number, block)
            for trial in self.of(candidate)
            for block in trial.at(level)
            if block.failed == 0 and block.stop == "complete" and block.client.valid
        )

    @property
    def load_s(self) -> float | None:
        """Median load time seen so far, seconds."""
        seen = [trial.load_s for trial in self.trials if trial.load_s is not None]
        return statistics.median(seen) if seen else None

    @property
    def down_s(self) -> float:
        return sum(trial.down_s or 0.0 for trial in self.trials)

    @property
    def launches(self) -> int:
        return sum(1 for trial in self.trials if trial.abandoned is None)

    @property
    def elapsed_s(self) -> float:
        """Seconds spent in trials that ended (a pause between two runs of a campaign is not spent)."""
        return sum(trial.down_s or 0.0 for trial in self.trials)


def fold(events: Iterable[AnyEvent], knowledge: Knowledge | None = None) -> Knowledge:
    """Fold events, in the order of the journal, onto ``knowledge``. Raises ValueError on an event out of order."""
    known = knowledge or Knowledge()
    for event in events:
        known = msgspec.structs.replace(_step(known, event), events=known.events + 1)
    return known


def _step(known: Knowledge, event: AnyEvent) -> Knowledge:
    replace = msgspec.structs.replace
    match event:
        case Began():
            if known.began is not None:
                raise ValueError("a campaign begins once")
            return replace(known, began=event)
        case Inspected():
            return replace(known, frontier=event.frontier, reported=event.reported)
        case Watched():
            return replace(known, watched=event)
        case Planned():
            return replace(known, plan=event.launches)
        case Intended():
            trial = Trial(
                number=event.trial, candidate=event.candidate, kind=event.kind, why=event.why, at_s=event.at_s, boot_id=event.boot_id
            )
            if any(t.number == trial.number for t in known.trials):
                raise ValueError(f"trial {trial.number} was intended twice")
            return replace(known, trials=(*known.trials, trial))
        case Decided():
            return replace(known, decided=(*known.decided, event))
        case Concluded():
            return replace(known, concluded=event)
        case Applied():
            return replace(known, applied=event)
        case _:
            return replace(known, trials=_on_trial(known.trials, event))


def _on_trial(
    trials: tuple[Trial, ...], event: Deployed | Ready | Failed | Abandoned | Measured | Observed | Restored
) -> tuple[Trial, ...]:
    index = next((i for i, trial in enumerate(trials) if trial.number == event.trial), None)
    if index is None:
        raise ValueError(f"{type(event).__name__} of trial {event.trial}, which was never intended")
    trial, replace = trials[index], msgspec.structs.replace
    match event:
        case Deployed():
            trial = replace(trial, launch=event.launch, argv=event.argv)
        case Ready():
            trial = replace(trial, load_s=event.load_s, ready_at_s=event.at_s, reported=event.reported)
        case Failed():
            trial = replace(trial, failed=event, ended_at_s=event.at_s)
        case Abandoned():
            trial = replace(trial, abandoned=event, ended_at_s=event.at_s)
        case Measured():
            trial = replace(trial, blocks=(*trial.blocks, event.result))
        case Observed():
            trial = replace(trial, observed=event)
        case Restored():
            trial = replace(trial, down_s=event.down_s, exit=event.exit, ended=True, ended_at_s=event.at_s)
    return (*trials[:index], trial, *trials[index + 1 :])
