"""The candidates that may be launched, shaped by what would not start and by what crashed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .config import Tune
from .engines import Axis
from .errors import ConfigError
from .records import OFF, Candidate, FrontierRow, Record
from .state import Knowledge


class Option(Record, frozen=True):
    """A candidate with what is known of it before a launch."""

    candidate: Candidate
    axis: int
    """Index into the axes."""
    modelled: bool
    running: int | None = None
    """Requests it can run at once; None = not known to be limited."""
    risky: bool = False
    """The frontier could not say whether it starts."""
    note: str = ""


def off_of(found: Candidate) -> Candidate:
    """Speculation off: the configuration as found if it is off already, else off with nothing pinned."""
    return found if found.off else Candidate(algorithm=OFF, depth=0)


def options(knowledge: Knowledge, axes: Sequence[Axis], tune: Tune) -> tuple[Option, ...]:
    """Every candidate of the axes that may start and did not fail, shallow to deep within an axis.

    A depth the frontier rules out is replaced by the nearest candidate that starts (``feasible_as``) or left out.  A depth that would
    run fewer requests than are to be measured is replaced by the one that runs more; what was launched as it is stays beside it.
    """
    rows = {row.candidate: row for row in knowledge.frontier}
    most = max((level.concurrency for level in knowledge.began.levels), default=0) if knowledge.began is not None else 0
    out: list[Option | None] = []
    for index, axis in enumerate(axes):
        if tune.algorithms and axis.algorithm not in tune.algorithms:
            continue
        for candidate in axis.candidates():
            if tune.depths and candidate.depth not in tune.depths:
                continue
            roomier = _roomier(candidate, rows, index, axis.modelled, most)
            if roomier is None or any(trial.served for trial in knowledge.of(candidate)):
                out.append(_feasible(candidate, rows, index, axis.modelled))
            out.append(roomier)
    return tuple(o for o in out if o is not None and not _suspect(o.candidate, knowledge, axes[o.axis]))


def running(knowledge: Knowledge, candidate: Candidate) -> int | None:
    """Requests the candidate can run at once: seen, else predicted, else pinned by its own settings."""
    for trial in reversed(knowledge.of(candidate)):
        if trial.capacity.max_running_requests is not None:
            return trial.capacity.max_running_requests
    for row in knowledge.frontier:
        if row.candidate == candidate and row.capacity.max_running_requests is not None:
            return row.capacity.max_running_requests
    pinned = dict(candidate.settings).get("max_running_requests", "")
    return int(pinned) if pinned.isdigit() else None


def asked(knowledge: Knowledge, axes: Sequence[Axis], tune: Tune) -> tuple[tuple[Candidate, str], ...]:
    """Candidates the user wants launched in any case, each with a warning when the frontier says it does not start.

    Raises :class:`~leadline.errors.ConfigError` for a label that names no candidate.
    """
    known = {candidate.label: candidate for axis in axes for candidate in axis.candidates()}
    rows = {row.candidate: row for row in knowledge.frontier}
    known |= {row.candidate.label: row.candidate for row in knowledge.frontier}
    out = []
    for label in tune.ask:
        try:
            candidate = known.get(" ".join(label.split())) or parse(label, axes)
        except ValueError as error:
            what, _, fix = str(error).partition(": ")
            raise ConfigError(place="[tune] ask", what=what, fix=fix or "give labels such as 'EAGLE 10'") from None
        row = rows.get(candidate)
        out.append((candidate, row.reason if row is not None and row.starts is False else ""))
    return tuple(out)


def parse(label: str, axes: Sequence[Axis] = ()) -> Candidate:
    """Read a label such as ``EAGLE 10 max_running_requests=20``; raises ValueError when it is none.

    Settings that every candidate of the algorithm's only axis carries are filled in.
    """
    words = label.split()
    settings = dict(word.split("=", 1) for word in words if "=" in word)
    head = [word for word in words if "=" not in word]
    if head == [OFF]:
        return Candidate(algorithm=OFF, depth=0, settings=tuple(sorted(settings.items())))
    if len(head) != 2 or not head[1].isdigit():
        raise ValueError(f"{label!r} is no candidate: write 'off', or an algorithm and a depth such as 'EAGLE 10'")
    mine = [axis for axis in axes if axis.algorithm == head[0]]
    if len(mine) == 1:
        settings = dict(mine[0].settings) | settings
    return Candidate(algorithm=head[0], depth=int(head[1]), settings=tuple(sorted(settings.items())))


def foretold(knowledge: Knowledge, candidate: Candidate) -> bool:
    """Whether the frontier had said that it would not start: its failure then tells nothing about depths that should."""
    return any(row.candidate == candidate and row.starts is False for row in knowledge.frontier)


def middle(depths: Sequence[int], deepest: int) -> int | None:
    """The depth nearest to the square root of ``deepest`` on a log scale: one launch there serves both ends of the curve."""
    below = [depth for depth in depths if 0 < depth < deepest]
    return min(below, key=lambda d: (abs(math.log(d) - math.log(deepest) / 2), d)) if below else None


def _feasible(candidate: Candidate, rows: dict[Candidate, FrontierRow], axis: int, modelled: bool) -> Option | None:
    row = rows.get(candidate)
    if row is None:
        return Option(candidate=candidate, axis=axis, modelled=modelled)
    if row.starts is not False:
        return Option(
            candidate=candidate,
            axis=axis,
            modelled=modelled,
            running=row.capacity.max_running_requests,
            risky=row.starts is None,
            note=row.reason if row.starts is None else "",
        )
    other = row.feasible_as
    if other is None or (other in rows and rows[other].starts is False):
        return None
    pinned = dict(other.settings).get("max_running_requests", "")
    held = rows[other].capacity.max_running_requests if other in rows else (int(pinned) if pinned.isdigit() else None)
    return Option(candidate=other, axis=axis, modelled=modelled, running=held, note=f"{candidate.label} itself would not start")


def _roomier(candidate: Candidate, rows: dict[Candidate, FrontierRow], axis: int, modelled: bool, most: int) -> Option | None:
    """The same depth with the coupled knobs at which it runs more requests, where fewer than ``most`` would run as it is."""
    row = rows.get(candidate)
    if row is None or row.starts is not True or row.feasible_as is None:
        return None
    other = rows.get(row.feasible_as)
    here, there = row.capacity.max_running_requests, other.capacity.max_running_requests if other is not None else None
    if other is None or other.starts is not True or here is None or there is None or not here < min(most, there):
        return None
    note = f"{candidate.label} itself runs {here} requests at once"
    return Option(candidate=other.candidate, axis=axis, modelled=modelled, running=there, note=note)


def _suspect(candidate: Candidate, knowledge: Knowledge, axis: Axis) -> bool:
    """It failed, or a shallower one of its kind did, or three of its axis were tried and none served."""
    kind = (candidate.algorithm, candidate.settings)
    failed = [other for other in knowledge.refused if other.algorithm == candidate.algorithm]
    if any((other.algorithm, other.settings) == kind and other.depth <= candidate.depth for other in failed):
        return True
    pinned = set(axis.settings)
    tried = [t for t in knowledge.trials if t.candidate.algorithm == axis.algorithm and pinned <= set(t.candidate.settings)]
    return len({trial.candidate for trial in tried if trial.failed}) >= 3 and not any(trial.served for trial in tried)
