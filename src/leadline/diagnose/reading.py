"""Everything the evidence says, read once: lines, runs, failures, events, figures. The rules look at this, never at text."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from ..records import Evidence
from . import kernel, life, lines, rules, supervision, tracebacks
from . import samples as figures
from .lines import ENGINE, FACT, KERNEL, SYSTEMD, Line
from .rules import Rule


class Sign(msgspec.Struct):
    """A line that says something failed."""

    line: Line
    rule: Rule
    cls: str
    stage: int
    failure: tracebacks.Failure | None = None
    fatal: bool = False
    """Headed by words with which this engine announces that a process ends."""
    survived: bool = False
    """The same run went on afterwards: noise."""
    text: str = ""
    more: tuple[Line, ...] = ()

    @property
    def cause(self) -> bool:
        return not self.survived and not self.rule.fallout


class Reading(msgspec.Struct):
    evidence: Evidence
    lines: list[Line]
    telling: list[Line]
    """The lines that are not dull, for everything that looks for words."""
    engine: str | None
    runs: list[life.Run]
    run: life.Run
    """The run that is diagnosed: the last one that failed, else the last one."""
    signs: list[Sign]
    events: list[supervision.Event]
    stops: list[supervision.Event]
    props: dict[str, tuple[str, Line]]
    kills: list[kernel.OomKill]
    xids: list[kernel.Xid]
    samples: list[figures.Sample]
    settings: figures.Settings

    def prop(self, key: str) -> str:
        return self.props.get(key, ("", None))[0]

    def events_of(self, *kinds: str) -> list[supervision.Event]:
        return [event for event in self.events if event.kind in kinds]


_FATAL_HEADER = re.compile(
    r"hit an exception|failed to start|encountered a fatal error|graph failed|Initialization failed|Exception in worker|Error executing method|raised an exception|WorkerProc|terminate called|Uncaught exception|exiting|Engine core proc|crashed",
)
_NOISE_HEADER = re.compile(
    r"[Ii]gnor|[Cc]an ?not initialize|[Ff]ailed to load generation config|[Ff]alling back|[Ff]allback|[Ss]kip|[Ww]arning|optional|not available|Failed to (?:import|get|load) .*(?:using|default|proceed)|leaked|Exception ignored in"
)
GENERIC = Rule(
    id="engine.exception",
    cls="engine.internal_error",
    summary="the engine raised an exception that memory, devices and arguments do not explain",
    known=False,
)


def before(a: Line, b: Line) -> bool:
    """Whether ``a`` happened before ``b``: by position in one text, by wall clock between texts, by position otherwise."""
    if (
        (a.source, a.section) != (b.source, b.section)
        and a.time_s is not None
        and b.time_s is not None
        and a.clock == b.clock
        and a.clock in ("wall", "epoch")
    ):
        return a.time_s < b.time_s or (a.time_s == b.time_s and a.index < b.index)
    return a.index < b.index


def read(evidence: Evidence) -> Reading:
    parsed = lines.parse(evidence.sources)
    telling = [line for line in parsed if not line.dull]
    failures = tracebacks.failures(parsed)
    events = supervision.events(telling)
    ends = sorted(
        [event.line.index for event in events if event.kind in ("exit", "restart", "stopped")]
        + [line.index for line in telling if line.channel == ENGINE and _ENDS.search(line.text)]
    )
    all_runs = life.runs(parsed, ends)
    signs = _signs(parsed, failures, all_runs)
    props = supervision.properties(telling)
    run = _run_to_diagnose(evidence, all_runs, signs, props)
    taken = [sample for sample in figures.samples(parsed) if run.first <= sample.line.index < run.last] or figures.samples(parsed)
    return Reading(
        evidence=evidence,
        lines=parsed,
        telling=telling,
        engine=evidence.engine or life.engine_of(all_runs, parsed),
        runs=all_runs,
        run=run,
        signs=signs,
        events=events,
        stops=supervision.stop_requests(telling),
        props=props,
        kills=kernel.oom_kills(telling),
        xids=kernel.xids(telling),
        samples=taken,
        settings=figures.settings(telling),
    )


def _run_to_diagnose(
    evidence: Evidence, all_runs: Sequence[life.Run], signs: Sequence[Sign], props: dict[str, tuple[str, Line]]
) -> life.Run:
    """The last run that failed, unless a later one has proved itself: it serves, or it is ready and its unit is up and not in a loop."""
    last = all_runs[-1]
    failed = next((run for run in reversed(all_runs) if any(s.cause and run.first <= s.line.index < run.last for s in signs)), last)
    if failed is last or _ASKS_WHY.search(evidence.symptom):
        return failed
    up = props.get("ActiveState", ("", None))[0] == "active"
    restarts = props.get("NRestarts", ("0", None))[0]
    settled = last.reached >= life.SERVING or (last.reached >= life.READY and up and restarts in ("0", "1", "2"))
    return last if settled else failed


_ASKS_WHY = re.compile(r"(?i)\bdie[sd]?\b|crash|exit|kill|restart|loop|down\b|gone|abort|fail")


_ENDS = re.compile(
    r"^Received sigquit from a child|^SIGQUIT received|^Killed$|Engine core initialization failed|^(?:\S+ )?exited with code|^Application shutdown complete|^Finished server process|exiting due to|cleaning up before exit"
)


def _signs(parsed: Sequence[Line], failures: Sequence[tracebacks.Failure], all_runs: Sequence[life.Run]) -> list[Sign]:
    signs: list[Sign] = []
    taken: set[int] = set()
    for group in _groups(failures):
        sign = _of_group(group, all_runs)
        if sign is not None:
            signs.append(sign)
        for failure in group:
            taken.update(range(failure.line.index, failure.line.index + 1 + failure.body.count("\n")))
    for line in parsed:
        if line.dull or line.channel not in (ENGINE, SYSTEMD, FACT) or line.index in taken or line.text.startswith(("  File ", "    ")):
            continue
        if line.level in ("WARNING", "W", "DEBUG", "D") and not _SERIOUS_WARNING.search(line.text):
            continue
        rule = rules.match_flat(line.text)
        if rule is None or (line.channel == FACT and rule.cls not in _FROM_FACTS):
            continue
        run = _run_of(all_runs, line.index)
        stage = run.stage_at(line.index)
        if not rule.since <= stage < rule.before:
            continue
        signs.append(
            _sign(line, rule, stage, run, None, fatal=rule.id in ("hang.watchdog", "collective.watchdog", "native.assert", "native.segv"))
        )
    signs.sort(key=lambda sign: sign.line.index)
    _mark_hint_lines(signs)
    return signs


_FROM_FACTS = {"gpu.driver_unavailable", "gpu.hardware_fault", "network.port_in_use", "host.shared_memory_exhausted"}
_SERIOUS_WARNING = re.compile(r"shared memory broadcast block|NCCL WARN|exited unexpectedly|died unexpectedly|requested but model doesn't")


def _mark_hint_lines(signs: list[Sign]) -> None:
    """An engine that asserts hundreds of times is one sign: later equal rules of one stream are dropped."""
    seen: dict[tuple[str, str], int] = {}
    kept: list[Sign] = []
    for sign in signs:
        key = (sign.rule.id, sign.line.stream)
        seen[key] = seen.get(key, 0) + 1
        if seen[key] <= 20:
            kept.append(sign)
    signs[:] = kept


def _groups(failures: Sequence[tracebacks.Failure]) -> list[list[tracebacks.Failure]]:
    groups: list[list[tracebacks.Failure]] = []
    latest: dict[str, list[tracebacks.Failure]] = {}
    for failure in failures:
        stream = failure.line.stream
        if failure.chained and stream in latest:
            latest[stream].append(failure)
        else:
            latest[stream] = [failure]
            groups.append(latest[stream])
    return groups


def _run_of(all_runs: Sequence[life.Run], index: int) -> life.Run:
    return next((run for run in all_runs if run.first <= index < run.last), all_runs[-1])


def _of_group(group: Sequence[tracebacks.Failure], all_runs: Sequence[life.Run]) -> Sign | None:
    """The first exception of a chain that a narrow rule knows; the first of all when none does."""
    first = group[0]
    run = _run_of(all_runs, first.line.index)
    stage = run.stage_at(first.line.index)
    header = " ".join(failure.header for failure in group)
    fatal = bool(_FATAL_HEADER.search(header)) and not _NOISE_HEADER.search(first.header)
    chosen: tuple[tracebacks.Failure, Rule] | None = None
    for failure in group:
        rule = rules.match_exception(failure.short_type, failure.body, failure.frames, stage)
        if rule is not None and (chosen is None or (chosen[1].fallout and not rule.fallout)):
            chosen = (failure, rule)
            if not rule.fallout and rule.id != "toolchain.subprocess":
                break
            continue
        if rule is not None and chosen is not None and chosen[1].id == "toolchain.subprocess" and rule.cls == chosen[1].cls:
            chosen = (failure, rule)  # the build's own output says which file or tool; the failed command does not
            break
    failure, rule = chosen or (first, GENERIC)
    more = tuple(other.line for other in group if other is not failure)
    sign = _sign(failure.line, rule, stage, run, failure, fatal=fatal, more=more)
    if _NOISE_HEADER.search(first.header) and not fatal and run.progressed_after(first.line.index, stage + 1):
        sign.survived = True
    return sign


def _sign(
    line: Line, rule: Rule, stage: int, run: life.Run, failure: tracebacks.Failure | None, *, fatal: bool, more: tuple[Line, ...] = ()
) -> Sign:
    cls = rule.cls
    if cls == "memory.gpu_oom":
        cls = "memory.gpu_oom_runtime" if stage >= life.READY else "memory.gpu_oom_startup"
    went_on = any(
        mark.stage >= life.READY and mark.line.index > line.index and (mark.line.source, mark.line.section) == (line.source, line.section)
        for mark in run.marks
    )
    return Sign(
        line=line, rule=rule, cls=cls, stage=stage, failure=failure, fatal=fatal, survived=went_on and not fatal, text=line.text, more=more
    )


def in_kernel(line: Line) -> bool:
    return line.channel == KERNEL
