"""The path left to right; the only module that joins hands and mind.

One campaign reads: inspect, plan, then per trial ``Intended`` (before the host is touched), ``Deployed``, ``Ready`` or
``Failed`` with findings, ``Measured`` per block, ``Observed``, ``Restored``; between trials ``Decided``; at the end
``Concluded``.  Everything known is in the journal: killed anywhere, the next run folds it and goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec

from . import endpoints, lengths, measure, objective, ready, roofline, traffic
from .config import OBSERVED, Settings, Tune, levels
from .decide import next_launch, plan
from .diagnose import diagnose
from .engines import Axis, Engine, Loading, Parsed
from .engines.declared import FACT as DECLARED
from .errors import LaunchFailed, LaunchHung, LeadlineError, NothingToTune, ServiceLost, TrafficUnknown, WrongServer
from .journal import Journal
from .predict import predict
from .recommend import recommend
from .records import (
    OFF,
    Abandoned,
    Acceptance,
    Began,
    BlockResult,
    Candidate,
    Command,
    Concluded,
    Conditions,
    Decided,
    Deployed,
    Exit,
    Failed,
    Finding,
    FrontierRow,
    Inspected,
    Intended,
    Launch,
    Level,
    Measured,
    Observed,
    Outcome,
    Planned,
    PlannedLaunch,
    Progress,
    Ready,
    Reported,
    Restored,
    Stop,
    Verdict,
)
from .state import Knowledge, Trial
from .stats import estimate
from .supervisor import Supervisor
from .survey import chart, model_config, model_head, sized

LOG_TAIL_BYTES = 4000
MIN_BLOCKS_FOR_PRECISION = 3
"""The block whose prompts warm up (no measurement gets so far), and how much is generated for each."""


class Hands(Protocol):
    """What a campaign does with a launch that runs. :class:`RealHands` is the real one; tests plant others."""

    def wait(self, launch: Launch, candidate: Candidate, base_url: str, *, notify: Callable[[Loading], None]) -> ready.Answer: ...

    def look(self, base_url: str) -> endpoints.Snapshot: ...

    def warm_up(self, base_url: str, level: Level, model: str) -> None: ...

    def play(
        self, launch: Launch, base_url: str, level: Level, block: int, model: str, cpu_s: Callable[[], float | None], limit_s: float
    ) -> BlockResult:
        """One block, cut after ``limit_s``."""
        ...


@dataclass(frozen=True, kw_only=True)
class RealHands:
    """Real sockets, real clocks."""

    supervisor: Supervisor
    engine: Engine
    parsed: Parsed
    settings: Settings
    traces: Path | None = None
    """Where raw traces are kept; ``None`` drops them once reduced."""
    backgrounds: dict[str, int] = field(default_factory=dict)
    """Characters of text with the prompts of each workload. Every candidate has the same: they follow from seed and tokenizer."""

    def wait(self, launch: Launch, candidate: Candidate, base_url: str, *, notify: Callable[[Loading], None]) -> ready.Answer:
        return ready.wait(
            self.supervisor,
            launch,
            self.engine,
            self.parsed,
            candidate,
            base_url,
            self.settings.ready,
            ask=lambda url: measure.ask(url, self.parsed.model),
            notify=notify,
        )

    def look(self, base_url: str) -> endpoints.Snapshot:
        return endpoints.snapshot(base_url, self.engine.info_paths, self.engine.metrics_path)

    def warm_up(self, base_url: str, level: Level, model: str) -> None:
        """Requests like those to be measured, so that what the engine compiles and sizes at first use is not measured; other prompts."""
        wanted = self.settings.measure
        prompts = measure.warm_up_prompts(level, wanted, background=self._background(base_url, level.workload, model))
        measure.rehearse(base_url, level, prompts, block=measure.WARM_UP_BLOCK, model=model, settings=wanted)

    def play(
        self, launch: Launch, base_url: str, level: Level, block: int, model: str, cpu_s: Callable[[], float | None], limit_s: float
    ) -> BlockResult:
        wanted = msgspec.structs.replace(self.settings.measure, level_limit_s=limit_s)
        background = self._background(base_url, level.workload, model)
        prompts = measure.prompts_of(level.workload, wanted, block=block, count=measure.block_size(level, wanted), background=background)
        options = measure.Options(keep=str(self.traces / launch.launch_id) if self.traces else "")
        return measure.play(base_url, level, prompts, block=block, model=model, settings=wanted, cpu_s=cpu_s, options=options)

    def _background(self, base_url: str, name: str, model: str) -> int:
        wanted = self.settings.measure
        if wanted.input_tokens and not self.backgrounds:
            self.backgrounds.update(lengths.backgrounds(base_url, model=model, settings=wanted))
        return self.backgrounds.get(name, 0)


@dataclass(kw_only=True)
class Campaign:
    """One campaign on one service. :meth:`run` goes on from wherever the journal stands."""

    supervisor: Supervisor
    engine: Engine
    parsed: Parsed
    settings: Settings
    journal: Journal
    command: Command
    conditions: Conditions
    frontier: tuple[FrontierRow, ...] = ()
    boot_id: str = ""
    facts: tuple[tuple[str, str], ...] = ()
    """Further circumstances to stand beside the settings in the report, ``section.name`` -> text."""
    hands: Hands | None = None
    show: Callable[[Progress, Knowledge], None] = lambda progress, knowledge: None
    confirm: Callable[[tuple[PlannedLaunch, ...], Knowledge], None] = lambda launches, knowledge: None
    """Shows the plan and returns when it is agreed to; raises :class:`~leadline.errors.Refused` otherwise."""
    now: Callable[[], float] = time.time
    _shown: Progress = field(default=Progress(phase="plan"), init=False)
    _began_s: float = field(default=0.0, init=False)
    _errors: dict[int, LeadlineError] = field(default_factory=dict, init=False)

    # -- the path ------------------------------------------------------------------------------------------------------

    def run(self) -> Verdict:
        """Play the campaign to its verdict. Once it has taken the service, that is restored whatever happens.

        Raises any LeadlineError; the journal then holds everything measured, and the same command goes on from there.
        """
        self._began_s = self.now()
        if self.known.verdict is None:
            self._open()
            self.supervisor.arm()  # before the baseline: nobody else may restart the service while it is measured
        try:
            return self.known.verdict or self._conclude(self._search())
        finally:
            self._tell("restore", "putting the service back")
            self.supervisor.restore()

    @property
    def known(self) -> Knowledge:
        return self.journal.knowledge

    @property
    def found(self) -> Candidate:
        return self.parsed.candidate

    @property
    def axes(self) -> tuple[Axis, ...]:
        return self.engine.axes(self.parsed, self.settings.tune.algorithms)

    @property
    def tune(self) -> Tune:
        """What is looked for, with the traffic that was observed in the place of ``observed``."""
        return objective.resolved(self.settings.tune, self.known.watched)

    @property
    def levels(self) -> tuple[Level, ...]:
        return levels(self.settings.measure)

    # -- stations ------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Begin, or pick up: write what is found, settle interrupted trials, agree on the plan."""
        if not self.axes:
            raise NothingToTune(
                why=f"this {self.engine.name} command offers no way to speculate",
                fix="name a draft model in the command (llama-server: -md FILE; vLLM, SGLang: a draft or MTP model), or allow n-gram speculation",
            )
        if self.known.began is None:
            self.journal.append(
                Began(
                    campaign_id=self.journal.folder.name,
                    at_s=self.now(),
                    target=self.supervisor.target_name,
                    command=self.command,
                    found=self.found,
                    levels=self.levels,
                    conditions=self.conditions,
                    settings=(*flat(self.settings), *self.facts),
                    boot_id=self.boot_id,
                )
            )
            self.journal.append(Inspected(at_s=self.now(), frontier=self.frontier))
        self._settle()
        self._watch()
        if not self.known.plan:
            self._tell("plan", "planning the launches")
            launches = plan(self.known, self.axes, self.tune, self.settings.measure, self.levels, self.found)
            self.confirm(launches, self.known)
            self.journal.append(Planned(at_s=self.now(), launches=launches))
        else:
            self.confirm(self.known.plan, self.known)

    def _watch(self) -> None:
        """The service's own traffic, where the objective asks for it; once, before anything is touched. Raises TrafficUnknown."""
        if self.settings.tune.objective.strip() != OBSERVED or self.known.watched is not None:
            return
        found = traffic.gather(
            self.supervisor,
            self.engine,
            self.parsed.port,
            self.settings.traffic,
            now=self.now,
            notify=lambda text: self._tell("plan", text),
        )
        concurrencies = self.settings.measure.concurrency
        seen = objective.watched(found.samples, concurrencies, source=found.source, at_s=self.now(), longest_s=found.longest_s)
        if not seen.mix:
            why = f"no request was in hand in {len(found.samples)} samples"
            raise TrafficUnknown(
                source=found.source, why=why, fix="look at a busier time, or write the mix by hand: --objective 1:0.7,4:0.3"
            )
        self.journal.append(seen)

    def _settle(self) -> None:
        """Close trials that an earlier leadline left open, and say whether their candidates may be tried again."""
        for trial in self.known.trials:
            if trial.open:
                retry, why = may_retry(trial, self.boot_id, self._ending(trial))
                self.journal.append(Abandoned(trial=trial.number, at_s=self.now(), retry=retry, why=why))

    def _ending(self, trial: Trial) -> Exit | None:
        return self.supervisor.status(trial.launch).exit if trial.launch is not None else None

    def _search(self) -> Stop:
        """Launch what the mind asks for until it stops."""
        while True:
            self._tell("decide", "deciding what to launch next")
            chosen = next_launch(self.known, self.axes, self.tune, self.settings.measure, self.levels, self.found, now_s=self.now())
            if isinstance(chosen, Stop):
                self.journal.append(Decided(at_s=self.now(), stop=chosen, next=None))
                return chosen
            predictions = predict(self.known, self.axes, self.levels, self.tune.confidence, found=self.found, tune=self.tune)
            self.journal.append(Decided(at_s=self.now(), stop=None, next=chosen, predictions=predictions))
            self._trial(chosen)
            self._nothing_serves()

    def _nothing_serves(self) -> None:
        """Raise LaunchFailed when neither the configuration as found nor speculation off came up: that is for the doctor, not for a search."""
        failed = {trial.candidate for trial in self.known.trials if trial.failed is not None and not trial.served}
        needed = {self.found, Candidate(algorithm=OFF, depth=0, settings=self.found.settings if self.found.off else ())}
        if any(trial.served for trial in self.known.trials) or not needed <= failed:
            return
        first = next(trial for trial in self.known.trials if trial.candidate == self.found)
        assert first.failed is not None
        if first.launch is None and first.number in self._errors:
            raise self._errors[first.number]  # it could not even be executed: that message says it best
        finding = first.failed.findings[0] if first.failed.findings else None
        raise LaunchFailed(
            candidate=f"{self.found.label} (as found)",
            how=first.failed.exit.text if first.failed.exit else "it never served",
            after_s=f"{first.failed.after_s:.1f}",
            line=_decisive(finding, self._errors.get(first.number)) or first.failed.log_tail.partition("\n")[0],
            fix="; ".join(filter(None, [finding.summary, finding.remedy]))
            if finding
            else "`leadline doctor` on the same target names the cause",
        )

    def _conclude(self, stop: Stop) -> Verdict:
        self._tell("verdict", stop.why)
        verdict = recommend(
            self.known,
            self.axes,
            self.tune,
            self.levels,
            self.found,
            lambda candidate: self.engine.render(self.parsed, candidate),
            stop,
        )
        self.journal.append(Concluded(at_s=self.now(), verdict=verdict))
        return verdict

    # -- one trial -----------------------------------------------------------------------------------------------------

    def _trial(self, chosen: PlannedLaunch) -> None:
        """One story: intended, deployed, ready or failed, measured, observed, restored."""
        number = max((trial.number for trial in self.known.trials), default=0) + 1
        done = already_played(self.known, chosen)
        argv = self.engine.render(self.parsed, chosen.candidate)
        self.journal.append(
            Intended(trial=number, at_s=self.now(), candidate=chosen.candidate, kind=chosen.kind, why=chosen.why, boot_id=self.boot_id)
        )
        began = self.now()
        self._tell("start", chosen.why, trial=number, candidate=chosen.candidate)
        launch: Launch | None = None
        try:
            launch = self._deploy(number, chosen, argv)
            with self.supervisor.target.forward(self.parsed.port) as port:
                self._serve(number, chosen, launch, f"http://127.0.0.1:{port}", done)
        except (LaunchFailed, LaunchHung, ServiceLost, WrongServer) as error:
            self._failed(number, chosen, launch, error, self.now() - began)
        finally:
            exit_ = None
            if launch is not None:
                self._tell("stop", f"stopping {chosen.candidate.label}")
                exit_ = self.supervisor.stop(launch, signal=self.engine.stop_first, grace_s=self.engine.stop_grace_s)
        self.journal.append(Restored(trial=number, at_s=self.now(), down_s=self.now() - began, exit=exit_))

    def _deploy(self, number: int, chosen: PlannedLaunch, argv: tuple[str, ...]) -> Launch:
        """Start the candidate; a service that already runs as found is measured without a restart."""
        service = self.supervisor.service()
        if chosen.kind == "baseline" and service.running and service.launch is not None:
            launch = service.launch
        else:
            launch = self.supervisor.start(argv, files=self.engine.files(chosen.candidate))
        self.journal.append(Deployed(trial=number, at_s=self.now(), launch=launch, argv=argv))
        return launch

    def _serve(self, number: int, chosen: PlannedLaunch, launch: Launch, base_url: str, done: frozenset[tuple[Level, int]]) -> None:
        hands = self._hands
        answer = hands.wait(launch, chosen.candidate, base_url, notify=self._loading)
        reported = self._sized(launch, chosen.candidate, answer.reported)
        self.journal.append(Ready(trial=number, at_s=self.now(), load_s=answer.load_s, reported=reported))
        self._tell("warm up", f"{chosen.candidate.label} is ready after {answer.load_s:.1f} s", fraction=None)
        self._chart(launch, base_url, reported)
        model = reported.model or self.parsed.model
        for level in sorted(chosen.levels, key=lambda level: -level.concurrency):
            hands.warm_up(base_url, level, model)  # each: on an H200 the first block of a level without it was a fifth slower
        gathered = _Gathered()
        for level, block in order_of_play(chosen, done):
            if gathered.over(level, block, self.settings):
                continue
            self._tell("measure", "", level=level, block=block + 1, blocks=chosen.blocks)
            self._play(number, launch, base_url, level, block, reported, gathered, chosen.candidate)
        self._observe(number, chosen, launch, base_url, reported, gathered)

    def _sized(self, launch: Launch, candidate: Candidate, reported: Reported) -> Reported:
        log = self.supervisor.log(launch).decode("utf-8", "replace")
        argv = self.engine.render(self.parsed, candidate)
        return sized(self.engine, self.parsed, reported, log=log, argv=argv, target=self.supervisor.target)

    def _chart(self, launch: Launch, base_url: str, reported: Reported) -> None:
        """The frontier, from the first launch that came up: what every depth would hold, and which do not start."""
        if any(row.exact for row in self.known.frontier):
            return
        infos = self._hands.look(base_url).infos
        config = model_config(self.supervisor.target, reported.model or self.parsed.model)
        log = self.supervisor.log(launch).decode("utf-8", "replace")
        head = model_head(self.supervisor.target, reported.model or self.parsed.model)
        told = roofline.model_facts(config) if config is not None else roofline.gguf_facts(head)
        told |= dict(self.engine.round_facts(log))
        known = dict(self.known.reported.facts) if self.known.reported is not None else {}
        reported = msgspec.structs.replace(reported, facts=tuple(sorted((dict(reported.facts) | told).items())))
        rows = chart(
            self.engine,
            self.parsed,
            self.axes,
            reported,
            log=log,
            infos=infos,
            model_config=config,
        )
        charted = any(row.starts is not None for row in rows)
        if charted or told.items() - known.items():
            self.journal.append(Inspected(at_s=self.now(), frontier=rows if charted else self.known.frontier, reported=reported))

    def _play(
        self,
        number: int,
        launch: Launch,
        base_url: str,
        level: Level,
        block: int,
        reported: Reported,
        gathered: _Gathered,
        candidate: Candidate,
    ) -> None:
        model = reported.model or self.parsed.model
        before = self._hands.look(base_url).metrics
        log_at = self.supervisor.status(launch).log_bytes
        left_s = gathered.left_s(level, self.settings)
        result = self._hands.play(launch, base_url, level, block, model, lambda: self.supervisor.status(launch).cpu_s, left_s)
        log = self.supervisor.log(launch, start=log_at).decode("utf-8", "replace")
        after = self._hands.look(base_url).metrics
        acceptance = self.engine.acceptance(candidate, before, after, result.requests, log)
        if acceptance is not None and dict(reported.facts).get(DECLARED):
            acceptance = msgspec.structs.replace(acceptance, simulated=True)
        result = msgspec.structs.replace(result, acceptance=acceptance)
        self.journal.append(Measured(trial=number, at_s=self.now(), result=result))
        gathered.add(result)
        self.supervisor.renew()
        self._still_ours(launch, level, result, cut=gathered.cut_short(result))

    def _still_ours(self, launch: Launch, level: Level, result: BlockResult, *, cut: bool) -> None:
        """A block with failed requests from a service that died is a lost service; from one that lives, a finding.

        ``cut``: too little of the level's time was left for it.
        """
        status = self.supervisor.status(launch)
        if not status.running:
            log = self.supervisor.log(launch, start=-LOG_TAIL_BYTES).decode("utf-8", "replace")
            how = status.exit.text if status.exit else "it ended"
            raise ServiceLost(how=how, line=ready.first_error(log), hint=f"its output is in {launch.log}")
        if result.failed == len(result.requests) and result.requests and not cut:
            kinds = sorted({request.outcome.value for request in result.requests if request.outcome is not Outcome.OK})
            raise ServiceLost(how=f"every request at {level.label} ended with {', '.join(kinds)}", line=result.requests[0].detail, hint="")

    def _observe(self, number: int, chosen: PlannedLaunch, launch: Launch, base_url: str, reported: Reported, gathered: _Gathered) -> None:
        log = self.supervisor.log(launch).decode("utf-8", "replace")
        self.journal.append(
            Observed(
                trial=number,
                at_s=self.now(),
                acceptance=tuple((level, total) for level in chosen.levels if (total := pooled(gathered.acceptance(level))) is not None),
                capacity=self.engine.capacity(reported, log),
                memory_bytes=self.supervisor.status(launch).memory_bytes,
                stops=tuple((level, gathered.stops.get(level, "blocks")) for level in chosen.levels),
            )
        )

    def _failed(self, number: int, chosen: PlannedLaunch, launch: Launch | None, error: LeadlineError, after_s: float) -> None:
        """An engine that crashes during a trial is a finding, not the end of the campaign."""
        self._errors[number] = error
        evidence = msgspec.structs.replace(
            self.supervisor.evidence(launch), engine=self.engine.name, candidate=chosen.candidate, symptom=error.message
        )
        log = self.supervisor.log(launch, start=-LOG_TAIL_BYTES).decode("utf-8", "replace") if launch is not None else ""
        status = self.supervisor.status(launch) if launch is not None else None
        self.journal.append(
            Failed(
                trial=number,
                at_s=self.now(),
                after_s=after_s,
                exit=status.exit if status else None,
                findings=diagnose(evidence),
                log_tail=error.message + "\n" + log,
            )
        )

    # -- telling -------------------------------------------------------------------------------------------------------

    @property
    def _hands(self) -> Hands:
        if self.hands is None:
            self.hands = RealHands(
                supervisor=self.supervisor,
                engine=self.engine,
                parsed=self.parsed,
                settings=self.settings,
                traces=self.journal.folder / "traces",
            )
        return self.hands

    def _loading(self, loading: Loading) -> None:
        self._tell("load", loading.phase, fraction=loading.fraction)

    def _tell(self, phase: str, message: str, **changes: object) -> None:
        elapsed = self.now() - self._began_s
        done = [trial for trial in self.known.trials if not trial.open]
        ahead = self.known.plan[len(done) :]
        expected = sum(launch.seconds for launch in self.known.plan[: len(done)])
        pace = sum(trial.down_s or 0.0 for trial in done) / expected if expected else 1.0
        self._shown = msgspec.structs.replace(
            self._shown,
            phase=phase,
            message=message,
            elapsed_s=elapsed,
            remaining_s=pace * sum(launch.seconds for launch in ahead) if self.known.plan else None,
            launches_planned=max(len(self.known.plan), len(done)),
            **changes,
        )
        self.show(self._shown, self.known)


class _Gathered:
    """Blocks of the running trial, and why each level ended."""

    def __init__(self) -> None:
        self.results: dict[Level, list[BlockResult]] = {}
        self.stops: dict[Level, str] = {}

    def add(self, result: BlockResult) -> None:
        self.results.setdefault(result.level, []).append(result)

    def left_s(self, level: Level, settings: Settings) -> float:
        """Of the level's time; a block that served nothing has no duration: it took all the time there was."""
        limit_s = settings.measure.level_limit_s
        return max(0.0, limit_s - sum(result.duration_s or limit_s for result in self.results.get(level, [])))

    def cut_short(self, result: BlockResult) -> bool:
        """Whether a block that came after others of its level was ended by the level's limit alone."""
        limited = all(request.outcome in (Outcome.OK, Outcome.DEADLINE) for request in result.requests)
        return result.stop == "time" and limited and len(self.results[result.level]) > 1

    def over(self, level: Level, block: int, settings: Settings) -> bool:
        """Whether this level needs no further block: precise enough, or its time is spent."""
        if level in self.stops:
            return True
        played = self.results.get(level, [])
        if not self.left_s(level, settings) or any(result.stop == "time" for result in played):
            self.stops[level] = "time"
        elif len(played) >= max(MIN_BLOCKS_FOR_PRECISION, settings.measure.confirm_blocks):
            found = estimate([result.output_tok_s for result in played], unit="tok/s", confidence=settings.tune.confidence)
            if (found.high - found.low) / 2 <= settings.measure.precision * found.value:
                self.stops[level] = "precision"
        return level in self.stops

    def acceptance(self, level: Level) -> list[Acceptance]:
        return [result.acceptance for result in self.results.get(level, []) if result.acceptance is not None]


def _decisive(finding: Finding | None, error: LeadlineError | None) -> str:
    """The line to quote: what the engine itself printed, as the diagnosis chose it, else the first that reads like an error."""
    printed = [quote.text for quote in finding.quotes if quote.source in ("log", "journal")] if finding else []
    return printed[0] if printed else (error.fields.get("line", "") if error else "")


# -- rules -------------------------------------------------------------------------------------------------------------


def may_retry(trial: Trial, boot_id: str, ending: Exit | None) -> tuple[bool, str]:
    """Whether a candidate whose trial was cut short may be tried again unasked, and why.

    Only where somebody saw that the launch did not bring the host or leadline down: it had become ready, it was never
    started, or the keeper testifies that it ended the launch because leadline went away. After a reboot of the host, no.
    """
    if trial.boot_id and boot_id and trial.boot_id != boot_id and not trial.served:
        return False, "the host was restarted while this candidate was starting"
    if trial.served:
        return True, "leadline was ended while it measured; what was measured is kept"
    if trial.launch is None:
        return True, "leadline was ended before the launch was known"
    if ending is not None and ending.by in ("keeper", "leadline", "systemd"):
        return True, "leadline was ended while this candidate loaded; the launch was ended in good order afterwards"
    return False, "leadline was ended while this candidate loaded and nobody saw how the launch ended"


def already_played(known: Knowledge, chosen: PlannedLaunch) -> frozenset[tuple[Level, int]]:
    """(level, block) pairs that interrupted trials of the same purpose have measured; they are not measured again."""
    done: set[tuple[Level, int]] = set()
    for trial in reversed(known.trials):
        if trial.candidate != chosen.candidate or trial.kind != chosen.kind:
            continue
        if trial.abandoned is None or not trial.abandoned.retry:
            break
        done |= {(block.level, block.block) for block in trial.blocks if block.stop == "complete"}
    return frozenset(done)


def order_of_play(chosen: PlannedLaunch, done: frozenset[tuple[Level, int]]) -> Iterator[tuple[Level, int]]:
    """Blocks in the outer loop, levels in the inner one, rotated by one each block so that no level is always first."""
    for block in range(chosen.blocks):
        turn = block % len(chosen.levels)
        for level in (*chosen.levels[turn:], *chosen.levels[:turn]):
            if (level, block) not in done:
                yield level, block


def pooled(parts: Sequence[Acceptance]) -> Acceptance | None:
    """Counts of several blocks of one launch and level added up; ``None`` for no part."""
    if not parts:
        return None

    def total(values: Sequence[int | None]) -> int | None:
        known = [value for value in values if value is not None]
        return sum(known) if known else None

    def columns(rows: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        width = max((len(row) for row in rows), default=0)
        return tuple(sum(row[i] for row in rows if i < len(row)) for i in range(width))

    lengths = [part.length for part in parts if part.length is not None]
    return Acceptance(
        rounds=total([part.rounds for part in parts]),
        drafted=total([part.drafted for part in parts]),
        accepted=total([part.accepted for part in parts]),
        per_position=columns([part.per_position for part in parts]),
        histogram=columns([part.histogram for part in parts]),
        length=sum(lengths) / len(lengths) if lengths else None,
        source=parts[0].source,
        simulated=any(part.simulated for part in parts),
    )


def flat(settings: Settings) -> tuple[tuple[str, str], ...]:
    """Settings as sorted (``section.key``, value) pairs for the journal."""
    pairs: list[tuple[str, str]] = []
    for section, values in msgspec.to_builtins(settings).items():
        if section == "traffic" and settings.tune.objective.strip() != OBSERVED:
            continue
        if isinstance(values, dict):
            pairs += [(f"{section}.{key}", str(value)) for key, value in values.items()]
        else:
            pairs.append((section, str(values)))
    return tuple(sorted(pairs))
