"""Whole campaigns on the fake engine: in memory with a planted surface and a virtual clock, interrupted at every event."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from leadline import endpoints, ready
from leadline.campaign import Campaign, may_retry
from leadline.config import Measure, Settings, Tune
from leadline.engines import Loading
from leadline.engines.fake import FakeEngine, Surface, play, surface_of
from leadline.errors import LaunchFailed, PortTaken, Refused, ServiceLost
from leadline.fakes import FakeSupervisor
from leadline.journal import Journal
from leadline.records import (
    BlockResult,
    Candidate,
    Command,
    Conditions,
    Exit,
    Launch,
    Level,
    Listener,
    Measured,
    Outcome,
    Reported,
    Verdict,
)
from leadline.state import Trial

ARGV = ("python", "-m", "leadline.fakeserver", "--port", "8000")
SETTINGS = Settings(
    tune=Tune(max_launches=14, max_minutes=30),
    measure=Measure(concurrency=(1, 4), workloads=("chat", "copy"), explore_blocks=2, confirm_blocks=4, max_tokens=32),
)


GENEROUS = Settings(
    tune=Tune(max_launches=28, max_minutes=60),
    measure=Measure(concurrency=(1, 4), workloads=("chat", "copy"), explore_blocks=2, confirm_blocks=4, max_tokens=96),
)
SHORT = Settings(
    tune=Tune(max_launches=5, max_minutes=30),
    measure=Measure(concurrency=(1, 4), workloads=("chat",), explore_blocks=2, confirm_blocks=2, max_tokens=32),
)


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it, nothing is written after it."""


class Clock:
    def __init__(self) -> None:
        self.s = 1_000_000.0

    def __call__(self) -> float:
        return self.s


class PlantedHands:
    """Plays the planted surface in memory; time is virtual."""

    def __init__(self, supervisor: FakeSupervisor, surface: Surface, clock: Clock, seed: int, wanted: Measure) -> None:
        self.supervisor, self.surface, self.clock, self.seed, self.wanted = supervisor, surface, clock, seed, wanted
        self.played: list[tuple[str, Level, int]] = []
        self.crash_after: dict[int, int] = {}
        """Depth -> blocks after which the server dies."""

    def _candidate(self, launch: Launch) -> Candidate:
        number = int(launch.launch_id.removeprefix("fake-"))
        parsed = FakeEngine().parse(self.supervisor.started[number - 1])
        assert parsed is not None
        return parsed.candidate

    def wait(self, launch: Launch, candidate: Candidate, base_url: str, *, notify: Callable[[Loading], None]) -> ready.Answer:
        self.clock.s += 2.0
        ended = self.supervisor.status(launch).exit
        if ended is not None:
            raise LaunchFailed(candidate=candidate.label, how=ended.text, after_s=2, line="planted", fix="none")
        return ready.Answer(load_s=2.0, reported=Reported(engine="fake", model="planted"))

    def look(self, base_url: str) -> endpoints.Snapshot:
        return endpoints.Snapshot(infos={})

    def warm_up(self, base_url: str, level: Level, model: str) -> None:
        self.clock.s += 0.5

    def play(
        self, launch: Launch, base_url: str, level: Level, block: int, model: str, cpu_s: Callable[[], float | None], limit_s: float
    ) -> BlockResult:
        candidate = self._candidate(launch)
        requests = max(self.wanted.prompts, level.concurrency)
        result = limited(
            play(self.surface, candidate, level, block, self.seed, requests=requests, max_tokens=self.wanted.max_tokens), limit_s
        )
        self.clock.s += result.duration_s
        self.played.append((launch.launch_id, level, block))
        done = sum(1 for launch_id, _, _ in self.played if launch_id == launch.launch_id)
        if self.crash_after.get(candidate.depth) == done:
            self.supervisor.say(launch, "RuntimeError: planted crash under load\n")
            self.supervisor.end(launch, Exit(signal=11))
        return result


def limited(whole: BlockResult, limit_s: float) -> BlockResult:
    """The block as a load that ends after ``limit_s`` leaves it."""
    if whole.duration_s <= limit_s:
        return whole
    ended = [request.sent_s + (request.e2e_ms or 0.0) / 1e3 for request in whole.requests]
    requests = tuple(
        request if at <= limit_s else msgspec.structs.replace(request, outcome=Outcome.DEADLINE)
        for at, request in zip(ended, whole.requests, strict=True)
    )
    return msgspec.structs.replace(whole, duration_s=0.99 * limit_s, requests=requests, stop="time")


class Stage:
    """A campaign on fakes that can be run again on the same journal."""

    def __init__(
        self, folder: Path, plant: str = "regimes", seed: int = 1, fate: Callable[[tuple[str, ...]], Exit | None] = lambda argv: None
    ):
        self.folder, self.plant, self.seed, self.fate = folder, plant, seed, fate
        self.clock = Clock()
        self.runs: list[FakeSupervisor] = []
        self.crash_after: dict[int, int] = {}
        self.foreign: list[Listener] = []

    def run(self, settings: Settings = SETTINGS, *, refuse: bool = False, kill_at: int = 0, found: tuple[str, ...] = ()) -> Verdict:
        command = Command(argv=(*ARGV, "--plant", self.plant, *found))
        supervisor = FakeSupervisor(command, now=self.clock, fate=self.fate)
        supervisor.foreign = list(self.foreign)
        self.runs.append(supervisor)
        engine = FakeEngine()
        parsed = engine.parse(command.argv)
        assert parsed is not None
        hands = PlantedHands(supervisor, surface_of(self.plant), self.clock, self.seed, settings.measure)
        hands.crash_after = dict(self.crash_after)

        def confirm(launches: object, known: object) -> None:
            if refuse:
                raise Refused()

        with dying(Journal(self.folder, write=True), kill_at) as book:
            return Campaign(
                supervisor=supervisor,
                engine=engine,
                parsed=parsed,
                settings=settings,
                journal=book,
                command=command,
                conditions=Conditions(target="process:fake", engine="fake"),
                boot_id="boot",
                hands=hands,
                confirm=confirm,
                now=self.clock,
            ).run()

    @property
    def trials(self) -> tuple[Trial, ...]:
        with Journal(self.folder, write=False) as book:
            return book.knowledge.trials

    @property
    def events(self) -> int:
        with Journal(self.folder, write=False) as book:
            return book.knowledge.events


class dying:  # noqa: N801  # reads like a verb: `with dying(journal, at)`
    """A journal whose owner is killed right after (positive) or right before (negative) writing one event."""

    def __init__(self, book: Journal, kill_at: int) -> None:
        self.book, self.kill_at, self.written = book, kill_at, 0
        append = book.append

        def counting(event: object) -> object:
            self.written += 1
            if self.written == -kill_at:
                raise Killed
            known = append(event)  # type: ignore[arg-type]
            if self.written == kill_at:
                raise Killed
            return known

        book.append = counting  # type: ignore[method-assign,assignment]

    def __enter__(self) -> Journal:
        return self.book

    def __exit__(self, *_: object) -> None:
        self.book.close()


def families(verdict: Verdict) -> dict[str, str]:
    return {point.level.label: point.candidate.algorithm for point in verdict.points}


def repeats(trials: tuple[Trial, ...]) -> Iterator[str]:
    """Blocks that an interrupted trial had finished and that its successor played again."""
    for index, trial in enumerate(trials):
        if trial.abandoned is not None:
            later = next((t for t in trials[index + 1 :] if (t.candidate, t.kind) == (trial.candidate, trial.kind)), None)
            done = {(b.level, b.block) for b in trial.blocks}
            yield from (f"{trial.number}: {b.level.label} {b.block}" for b in (later.blocks if later else ()) if (b.level, b.block) in done)


@functools.cache
def truth(plant: str, candidate: Candidate, level: Level) -> float:
    """Output tok/s over many prompts of the length the campaign plays, without noise."""
    quiet = msgspec.structs.replace(surface_of(plant), noise=0.0, spread=0.0)
    blocks = [play(quiet, candidate, level, block, 999, requests=2, max_tokens=GENEROUS.measure.max_tokens) for block in range(60)]
    return sum(b.output_tok_s * b.duration_s for b in blocks) / sum(b.duration_s for b in blocks)


@pytest.mark.parametrize("seed", range(20))
def test_a_planted_optimum_is_found(tmp_path: Path, seed: int) -> None:
    verdict = Stage(tmp_path, "regimes", seed).run(GENEROUS)
    assert families(verdict) == {"chat c=1": "draft", "chat c=4": "off", "copy c=1": "copy", "copy c=4": "copy"}
    for point in verdict.points:
        best = max(truth("regimes", c, point.level) for c in everything("regimes"))
        assert truth("regimes", point.candidate, point.level) > 0.95 * best, point.candidate.label


def everything(plant: str) -> list[Candidate]:
    engine = FakeEngine()
    parsed = engine.parse((*ARGV, "--plant", plant))
    assert parsed is not None
    return [parsed.candidate, *(c for axis in engine.axes(parsed) for c in axis.candidates())]


def test_a_null_engine_is_left_alone(tmp_path: Path) -> None:
    unchanged = 0
    for seed in range(100):
        unchanged += not Stage(tmp_path / str(seed), "null", seed).run(SHORT).change
    assert unchanged >= 95, f"changed something in {100 - unchanged} of 100 campaigns on an engine without differences"


def test_a_crash_while_loading_is_a_finding_not_the_end(tmp_path: Path) -> None:
    def fate(argv: tuple[str, ...]) -> Exit | None:
        return Exit(signal=9) if "--spec-depth" in argv and int(argv[argv.index("--spec-depth") + 1]) >= 12 else None

    stage = Stage(tmp_path, "deep", fate=fate)
    verdict = stage.run()
    failed = [trial for trial in stage.trials if trial.failed is not None]
    assert failed
    assert all(trial.candidate.depth >= 12 and not trial.blocks for trial in failed)
    assert all(trial.failed is not None and trial.failed.findings for trial in failed)
    assert verdict.change
    assert 0 < verdict.overall.depth < 12
    assert len({trial.candidate for trial in failed}) == len(failed), "a crashed candidate was tried again unasked"


def test_a_crash_under_load_keeps_what_was_measured(tmp_path: Path) -> None:
    stage = Stage(tmp_path, "deep")
    stage.crash_after = {16: 3}
    verdict = stage.run()
    crashed = next(trial for trial in stage.trials if trial.candidate.depth == 16)
    assert crashed.failed is not None
    assert crashed.failed.exit == Exit(signal=11, at_s=crashed.failed.exit.at_s if crashed.failed.exit else None)
    assert len(crashed.blocks) == 3
    assert verdict.overall.depth != 16


def test_what_never_serves_is_for_the_doctor(tmp_path: Path) -> None:
    stage = Stage(tmp_path, fate=lambda argv: Exit(code=1))
    with pytest.raises(LaunchFailed) as caught:
        stage.run()
    assert "as found" in caught.value.message
    assert len(stage.runs[0].started) == 1


def test_every_request_failing_is_a_lost_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = PlantedHands.play

    def broken(self: PlantedHands, launch: Launch, *arguments: object) -> BlockResult:
        result = real(self, launch, *arguments)  # type: ignore[arg-type]
        if self._candidate(launch).algorithm != "draft":
            return result
        replace = msgspec.structs.replace
        return replace(result, requests=tuple(replace(r, outcome=Outcome.ERROR_EVENT, detail="boom") for r in result.requests))

    monkeypatch.setattr(PlantedHands, "play", broken)
    stage = Stage(tmp_path)
    verdict = stage.run()
    drafts = [trial for trial in stage.trials if trial.candidate.algorithm == "draft"]
    assert drafts
    assert all(trial.failed is not None and "error_event" in trial.failed.log_tail for trial in drafts)
    assert "draft" not in families(verdict).values()
    assert ServiceLost.exit_code == 35


def test_the_time_of_a_level_is_shared_by_its_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks take a second and more; the one that too little was left for is no sign of a service that is lost."""
    given: dict[tuple[str, Level], list[float]] = {}
    real = PlantedHands.play

    def play(self: PlantedHands, launch: Launch, base_url: str, level: Level, *arguments: object) -> BlockResult:
        given.setdefault((launch.launch_id, level), []).append(float(arguments[-1]))  # type: ignore[arg-type]
        return real(self, launch, base_url, level, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(PlantedHands, "play", play)
    stage = Stage(tmp_path)
    measured = msgspec.structs.replace(SHORT.measure, concurrency=(1,), explore_blocks=4, confirm_blocks=4, level_limit_s=1.0)
    stage.run(msgspec.structs.replace(SHORT, tune=Tune(max_launches=5, algorithms=("draft",)), measure=measured))
    cut = 0
    for trial in stage.trials:
        assert trial.failed is None
        assert trial.launch is not None
        assert trial.observed is not None
        for level in {block.level for block in trial.blocks}:
            spent_s = 0.0
            for left_s, block in zip(given[trial.launch.launch_id, level], trial.at(level), strict=True):
                assert left_s == pytest.approx(1.0 - spent_s)
                spent_s += block.duration_s
            assert spent_s <= 1.0
            assert dict(trial.observed.stops)[level] == "time"
            cut += trial.at(level)[-1].failed == len(trial.at(level)[-1].requests)
    assert cut, "no block lost all of its requests to the limit"


def test_a_foreign_listener_is_refused_and_nothing_is_measured(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.foreign = [Listener(port=8000, pid=4711, command="someone else's server")]
    with pytest.raises(PortTaken) as caught:
        stage.run()
    assert "4711" in caught.value.message
    assert "someone else's server" in caught.value.message
    assert not any(trial.blocks for trial in stage.trials)
    stage.foreign = []
    assert families(stage.run())["chat c=1"] == "draft", "the same command goes on once the port is free"


def test_an_unconfirmed_plan_touches_nothing(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    with pytest.raises(Refused):
        stage.run(refuse=True)
    assert stage.runs[0].started == []
    assert stage.trials == ()


@pytest.mark.parametrize("side", [1, -1], ids=["after", "before"])
def test_killed_at_any_event_it_resumes_and_repeats_nothing(tmp_path: Path, side: int) -> None:
    whole = Stage(tmp_path / "whole")
    expected = families(whole.run(SHORT))
    for at in range(1, whole.events + 1):
        stage = Stage(tmp_path / str(at))
        with pytest.raises(Killed):
            stage.run(SHORT, kill_at=side * at)
        verdict = stage.run(SHORT)
        assert families(verdict) == expected, f"killed at event {at}"
        assert list(repeats(stage.trials)) == []
        assert not any(trial.open for trial in stage.trials)


def test_a_finished_campaign_only_tells_its_verdict(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    first = stage.run()
    events = stage.events
    assert stage.run() == first
    assert stage.runs[1].started == []
    assert stage.events == events


def test_found_configuration_with_speculation_gets_an_honest_control(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    verdict = stage.run(found=("--spec-method", "draft", "--spec-depth", "3"))
    assert {trial.candidate.label for trial in stage.trials} >= {"draft 3", "off"}
    assert all(point.gain_vs_off is not None for point in verdict.points if not point.candidate.off)
    assert families(verdict)["chat c=4"] == "off"


@pytest.mark.parametrize(
    ("boot", "served", "launched", "ending", "retry"),
    [
        ("boot", True, True, None, True),
        ("boot", False, True, Exit(by="keeper"), True),
        ("boot", False, True, Exit(signal=9), False),
        ("boot", False, True, None, False),
        ("boot", False, False, None, True),
        ("other", False, True, Exit(by="keeper"), False),
        ("other", True, True, None, True),
    ],
)
def test_who_may_be_tried_again(boot: str, served: bool, launched: bool, ending: Exit | None, retry: bool) -> None:
    launch = Launch(launch_id="l", pid=1, started_s=1.0, log="") if launched else None
    trial = Trial(
        number=1,
        candidate=Candidate(algorithm="draft", depth=3),
        kind="deep",
        why="",
        at_s=1.0,
        boot_id=boot,
        launch=launch,
        load_s=1.0 if served else None,
    )
    said, why = may_retry(trial, "boot", ending)
    assert said is retry
    assert why


def test_every_measured_block_is_in_the_journal(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.run()
    with Journal(tmp_path, write=False) as book:
        measured = [event for event in book.events() if isinstance(event, Measured)]
    assert len(measured) == sum(len(trial.blocks) for trial in stage.trials)
    assert all(trial.observed is not None for trial in stage.trials)
