"""From a reading to ranked findings: first causes before consequences, evidence before exit codes, silence before guessing."""

from __future__ import annotations

import re

from ..records import Finding
from . import life, performance
from .case import LOOP, Case, as_fields, in_trouble
from .cause import engine_cause
from .host import driver, gpu_kernel, host_oom, other_oom, shm_full
from .keepers import answers, cannot_start, died_natively, killed_loading, loop, masked, requested_stop, sandbox, silent, stalled, watchdog
from .lines import KERNEL
from .quoting import quotes
from .reading import Reading


def _unknown(case: Case) -> Finding:
    reading = case.reading
    shown = [s.line for s in case.fallouts[:2]] + [e.line for e in reading.events_of("exit", "stopped")][-1:]
    state = reading.prop("LoadState")
    if state in ("masked", "not-found", "bad-setting"):
        shown = [reading.props["LoadState"][1]]
    ruled = []
    ruled.append("no exception of the engine" if not case.causes else "")
    if any(line.channel == KERNEL and line.time_s is not None for line in reading.lines):
        ruled.append("no OOM kill and no GPU error in the kernel log" if not reading.kills and not reading.xids else "")
    ruled.append("no stop request" if case.stop is None else "")
    number = case.exit_signal
    summary = "the evidence does not show why"
    if state in ("masked", "not-found"):
        summary = f"the unit is {state}: it was never started"
    elif any(re.match(r"^GET \S+ -> 000", line.text) for line in reading.telling) and not reading.props:
        shown = [line for _, _, line in answers(reading)][:2]
        summary = "nothing answers at this address: the server is not started, still loading, or down"
    elif any(status == "503" for _, status, _ in answers(reading)) and not reading.props:
        shown = [line for _, _, line in answers(reading)][:2]
        summary = "the server answers 503: it is still loading, shutting down, or its engine is dead"
    elif reading.prop("ActiveState") == "inactive" and reading.prop("Result") == "success" and number is None:
        summary = "the unit is not running and its last run is recorded as success" if case.run.marks else "the unit was never started"
    elif number == 9:
        summary = "the process was killed by SIGKILL from outside and nothing says by whom (the signal alone proves nothing, least of all the OOM killer)"
    elif number is not None:
        summary = f"the process ended by signal {number} and nothing says why"
    collect = "the first 200 lines after the last start, the kernel log (`journalctl -k`), `systemctl show`, and `nvidia-smi`"
    if number == 9:
        collect = "the kernel log around the exit (`journalctl -k`), the unit's journal over all restarts, the cgroup's memory.events, and who could have sent it (audit, health checks, a person)"
    hidden = [source.name for source in reading.evidence.sources if source.text.startswith("(this account may not read")]
    if hidden:
        summary += f" (this account may not read the {' and the '.join(hidden)})"
        collect = f"the {' and the '.join(hidden)}: add the account to the group systemd-journal, or allow `sudo -n`; then {collect}"
    facts = "; ".join(r for r in ruled if r)
    return Finding(
        id="unknown", cls="unknown", failure=True, summary=f"{summary}. Ruled out: {facts or 'nothing'}", quotes=quotes(shown or case.ended[:2]), confidence="unknown",
        remedy=f"collect: {collect}", confirm=collect,
    )  # fmt: skip


def rank(reading: Reading) -> tuple[Finding, ...]:
    """Findings of a reading, the verdict first."""
    case = Case(reading)
    phase = case.phase
    found = _failures(case)
    if not found:
        stop = requested_stop(case)
        performance_findings = [] if in_trouble(case) and case.stop is None else performance.verdict(reading)
        first = {"config.speculation_inactive"} | (set() if case.symptom & {"failing", "noise"} else {"performance.low_acceptance"})
        inactive = [f for f in performance_findings if f.cls in first]
        corrupt = [f for f in performance_findings if f.failure]
        if stop is not None and not inactive and not corrupt:
            found = [stop]
        elif performance_findings and not (
            "failing" in case.symptom and performance_findings[0].cls == "healthy" and "noise" not in case.symptom and stop is None
        ):
            found = performance_findings
        elif any(status == "200" for _, status, _ in answers(reading)) and not in_trouble(case):
            found = [_answering(case)]
        elif _still_loading(case):
            found = [_loading(case)]
        else:
            found = [_unknown(case)]
    found = _with_loop(case, found)
    placed = [f if f.phase else _placed(f, phase) for f in found]
    return tuple(_limited(placed))


def _failures(case: Case) -> list[Finding]:
    found: list[Finding] = []
    if case.stop is not None and not host_oom(case):
        return []
    hardware = gpu_kernel(case)
    if hardware is not None and hardware.cls == "gpu.hardware_fault":
        found.append(hardware)
    oom = host_oom(case)
    if oom is not None:
        found.append(oom)
    for judge in (cannot_start, killed_loading, sandbox):
        finding = judge(case)
        if finding is not None and not found:
            found.append(finding)
    if hardware is not None and hardware not in found:
        found.append(hardware)
    found += [finding for finding in (masked(case), driver(case)) if finding is not None]
    cause = engine_cause(case)
    if cause is not None and all(f.cls != cause.cls for f in found):
        found.append(cause)
    if not found:
        for judge in (watchdog, other_oom, stalled, silent, shm_full, died_natively, loop):
            finding = judge(case)
            if finding is not None:
                found.append(finding)
                break
    else:
        other = other_oom(case)
        if (
            other is not None
            and found[0].cls in ("engine.hang", "engine.internal_error", "engine.collective_stall")
            and not (case.first and case.first.rule.known)
        ):
            found.insert(0, other)
    return found


def _still_loading(case: Case) -> bool:
    gone = bool(case.ended) or case.reading.evidence.exit is not None
    up = case.reading.prop("ActiveState") in ("active", "activating") and case.reading.prop("SubState") != "auto-restart"
    return (
        (up or 0 < case.run.reached < life.READY)
        and not gone
        and not in_trouble(case)
        and not _COMPLAINT.search(case.reading.evidence.symptom)
    )


_COMPLAINT = re.compile(
    r"(?i)\bdie[sd]?\b|crash|exit|kill|down\b|gone|abort|fail|refus|(?:does not|doesn't|will not|won't|never) (?:start|come|load|finish|get)"
)


def _loading(case: Case) -> Finding:
    shown = [case.run.marks[-1].line] if case.run.marks else [case.reading.props["ActiveState"][1]]
    phase = life.NAMES[case.run.reached] if case.run.marks else "loading"
    return Finding(
        id="healthy.loading",
        cls="healthy",
        failure=False,
        summary="the server is still starting and nothing failed so far"
        if case.run.marks
        else "the unit runs and nothing failed; no line of its log says how far it has come",
        quotes=quotes(shown),
        confidence="likely",
        phase=phase,
        remedy="wait, and look again; a minute without a line is normal while kernels compile",
    )


def _answering(case: Case) -> Finding:
    shown = [line for _, status, line in answers(case.reading) if status == "200"]
    return Finding(
        id="healthy.answers",
        cls="healthy",
        failure=False,
        summary="the server answers its own endpoints; nothing in the evidence failed",
        quotes=quotes(shown[:2]),
        confidence="likely",
        phase="ready",
        confirm="a generated token: /health may answer while the engine stands still",
    )


def _with_loop(case: Case, found: list[Finding]) -> list[Finding]:
    count, line = case.restarts
    head = found[0]
    if count >= LOOP and line is not None and head.failure and head.cls not in ("supervisor.restart_loop", "unknown"):
        head = Finding(**{**as_fields(head), "also": (*head.also, "supervisor.restart_loop")})  # type: ignore[arg-type]
    if (
        head.failure
        and case.success is not None
        and head.cls not in ("supervisor.crash_masked", "unknown")
        and case.stop is None
        and case.run.reached >= life.READY
    ):
        head = Finding(**{**as_fields(head), "also": (*head.also, "supervisor.crash_masked")})  # type: ignore[arg-type]
    return [head, *found[1:]]


def _placed(finding: Finding, phase: str) -> Finding:
    return Finding(**{**as_fields(finding), "phase": phase})  # type: ignore[arg-type]


def _limited(found: list[Finding]) -> list[Finding]:
    """Five quoted lines over all: the verdict keeps its own, the others share what is left."""
    left = 5
    limited: list[Finding] = []
    for finding in found[:4]:
        kept = finding.quotes[: max(0, left)]
        left -= len(kept)
        limited.append(Finding(**{**as_fields(finding), "quotes": kept}))  # type: ignore[arg-type]
    return limited
