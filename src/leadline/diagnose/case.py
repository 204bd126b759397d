"""A reading with the questions that several judges ask: the run's causes, how it ended, who asked for a stop, the phase."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..records import Finding
from . import life, performance, supervision
from .lines import FACT, Line
from .reading import Reading, Sign, before

LOOP = 3
"""Restarts from which a retried start is a loop."""


class Case:
    """A reading with the questions that several rules ask."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.run = reading.run
        self.causes = [s for s in reading.signs if s.cause and self.run.first <= s.line.index < self.run.last]
        self.fallouts = [s for s in reading.signs if s.rule.fallout and not s.survived and self.run.first <= s.line.index < self.run.last]
        self.first = _earliest(self.causes)
        self.stop = self._stop()
        self.symptom = performance.intents(reading.evidence.symptom)

    # -- facts --------------------------------------------------------------------------------------------------------

    @property
    def restarts(self) -> tuple[int, Line | None]:
        """How often the start was repeated, and the line that says so."""
        most, shown = 0, None
        for counted, event in enumerate(self.reading.events_of("restart", "start_limit"), 1):
            count = int(event.detail) if event.detail.isdigit() else counted
            if event.kind == "start_limit":
                count = max(count, LOOP)
            if count >= most:
                most, shown = count, event.line
        value, line = self.reading.props.get("NRestarts", ("0", None))
        if value.isdigit() and int(value) > most:
            most, shown = int(value), line
        return most, shown

    @property
    def success(self) -> Line | None:
        """The line in which the supervisor records success for a service that is gone."""
        reading = self.reading
        found = reading.evidence.exit
        if found is not None and found.code == 0 and found.by != "leadline":
            return self.run.marks[-1].line if self.run.marks else None
        gone = reading.prop("ActiveState") in ("inactive", "") and reading.prop("SubState") not in ("running",)
        for key, good in (("Result", "success"), ("ExecMainStatus", "0")):
            if (
                key in reading.props
                and reading.prop(key) == good
                and gone
                and (key == "Result" or reading.prop("ExecMainCode") in ("1", "exited"))
            ):
                return reading.props[key][1]
        for event in reading.events_of("exit"):
            if event.detail == "0":
                return event.line
        return None

    @property
    def exit_signal(self) -> int | None:
        """The signal that ended the main process, if the evidence says so."""
        found = self.reading.evidence.exit
        if found is not None and found.signal is not None:
            return found.signal
        if self.reading.prop("ExecMainCode") in ("2", "3", "killed", "dumped") and self.reading.prop("ExecMainStatus").isdigit():
            return int(self.reading.prop("ExecMainStatus"))
        for event in reversed(self.reading.events_of("exit")):
            match = re.search(r"code=(?:killed|dumped), status=(\d+)", event.line.text)
            if match:
                return int(match.group(1))
            if event.detail.lstrip("-").isdigit():
                value = int(event.detail)
                if value < 0:
                    return -value
                if value > 128:
                    return value - 128
        for line in reversed(self.reading.telling):
            match = re.search(r"(?:crashed with exit code|died unexpectedly \(exit code:|exit code:|returncode) -(\d+)", line.text)
            if match:
                return int(match.group(1))
        return None

    @property
    def ended(self) -> list[Line]:
        """Lines that say the server is gone, whatever the cause."""
        reading = self.reading
        lines = [e.line for e in reading.events_of("exit", "stopped", "start_limit") if e.line.index >= self.run.first]
        lines += [s.line for s in self.fallouts]
        for key, bad in (("ActiveState", ("failed", "inactive")), ("SubState", ("auto-restart", "failed", "dead"))):
            if reading.prop(key) in bad:
                lines.append(reading.props[key][1])
        return lines

    def _stop(self) -> supervision.Event | None:
        """The first request to stop in this run that no failure precedes."""
        for event in self.reading.stops:
            if not self.run.first <= event.line.index < self.run.last and event.line.channel != FACT:
                continue
            if event.kind == "soft" and (self.run.reached < life.READY or not _clean(self.reading, event.line)):
                continue
            earlier = [s for s in (*self.causes, *self.fallouts) if before(s.line, event.line)]
            if earlier or any(before(e.line, event.line) for e in self.reading.events_of("start_timeout", "watchdog", "oom", "probe_kill")):
                continue
            if any(s.line.index == event.line.index for s in self.causes):
                continue
            if any(event.line.index < e.line.index for e in self.reading.events_of("start_limit")):
                continue  # stopped on the way to a start that systemd refused
            return event
        return None

    @property
    def phase(self) -> str:
        """Where the server stands, before any cause is named."""
        reading = self.reading
        young = self.restarts[0] >= 1 and reading.prop("ActiveState") in ("active", "activating") and self.run.reached < life.READY
        if reading.prop("SubState") == "auto-restart" or reading.events_of("start_limit") or self.restarts[0] >= LOOP or young:
            return "restarting in a loop"
        if self.stop is not None:
            return "stopped" if self.ended else "stopping"
        bad_exit = any(e.kind == "start_timeout" or (e.kind == "exit" and e.detail not in ("0", "124")) for e in reading.events)
        if self.causes or self.fallouts or bad_exit or reading.prop("ActiveState") == "failed" or self.exit_signal is not None:
            return "crashed"
        if reading.prop("ActiveState") == "inactive":
            return "stopped" if self.run.marks else "not started"
        if self.run.reached >= life.READY:
            return life.NAMES[self.run.reached]
        return life.NAMES[self.run.reached]


def _clean(reading: Reading, line: Line) -> bool:
    return not any(s.cause and s.line.index < line.index for s in reading.signs if reading.run.first <= s.line.index)


def _earliest(signs: Sequence[Sign]) -> Sign | None:
    """The first failure: by clock where both lines have the same kind of clock and differ, by position otherwise."""
    first: Sign | None = None
    for sign in signs:
        if first is None or before(sign.line, first.line):
            first = sign
    if first is None or first.line.time_s is None:
        return first
    for sign in signs:
        same_clock = (
            sign.line.clock == first.line.clock
            and sign.line.form == first.line.form
            and sign.line.time_s is not None
            and first.line.time_s is not None
        )
        if same_clock and sign.line.stream != first.line.stream and sign.line.time_s < first.line.time_s - 0.5:  # type: ignore[operator]
            first = sign
    return first


def in_trouble(case: Case) -> bool:
    """Whether anything says that the server is gone or does not serve."""
    reading = case.reading
    if case.causes or case.fallouts or reading.prop("ActiveState") == "failed" or reading.prop("SubState") == "auto-restart":
        return True
    found = reading.evidence.exit
    if found is not None and (found.signal or found.code) and found.by != "leadline":
        return True
    if reading.prop("LoadState") in ("masked", "not-found") or reading.prop("ActiveState") == "inactive":
        return True
    bad_exit = [e for e in reading.events_of("exit") if e.line.index >= case.run.first and e.detail not in ("0", "124", "")]
    return bool(bad_exit or reading.events_of("start_limit", "restart"))


def as_fields(finding: Finding) -> dict[str, object]:
    return {name: getattr(finding, name) for name in finding.__struct_fields__}
