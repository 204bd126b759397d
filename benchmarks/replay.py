"""Campaigns in memory: a surface with a planted truth, played with noise, journaled as events and folded as the real one is.

Used by the tests of the mind and by ``decide_bench``.  Nothing here is a model: a surface says what each candidate yields at each
level, and the player adds content (shared by all candidates of a block), the candidate's own liking of a block, launch and
measurement noise.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from leadline.config import Measure, Tune
from leadline.decide import next_launch
from leadline.engines import Axis
from leadline.records import (
    Acceptance,
    AnyEvent,
    Began,
    BlockResult,
    Candidate,
    Capacity,
    Command,
    Conditions,
    Decided,
    Exit,
    Failed,
    FrontierRow,
    Inspected,
    Intended,
    Level,
    Measured,
    Observed,
    Outcome,
    PlannedLaunch,
    Ready,
    Record,
    Reported,
    RequestResult,
    Restored,
    Stop,
)
from leadline.state import Knowledge, fold

OFF = Candidate(algorithm="off", depth=0)


class Noise(Record, frozen=True):
    """Standard deviations of logs."""

    block: float = 0.02
    """Measurement noise of one block."""
    launch: float = 0.01
    content: float = 0.15
    """Of a block, the same for every candidate."""
    liking: float = 0.01
    """Of a block for one candidate, the same in every launch."""


class Surface(Record, frozen=True):
    """A planted truth."""

    name: str
    axes: tuple[Axis, ...]
    levels: tuple[Level, ...]
    found: Candidate
    tok_s: Mapping[tuple[Candidate, Level], float]
    """Missing cells cannot be measured (the source did not publish them)."""
    acceptance: Mapping[tuple[Candidate, str], Acceptance] = {}
    frontier: tuple[FrontierRow, ...] = ()
    crashes: frozenset[Candidate] = frozenset()
    """Dies at the start although nothing announced it."""
    capacity: Mapping[Candidate, int] = {}
    load_s: float = 90.0
    tokens: int = 64
    prompts: int = 2
    engine: str = "fake"
    facts: tuple[tuple[str, str], ...] = ()

    def candidates(self) -> tuple[Candidate, ...]:
        """Everything that can be measured, in the order planted."""
        return tuple(dict.fromkeys(c for c, _ in self.tok_s))

    def best(self, level: Level) -> tuple[Candidate, float]:
        here = {c: x for (c, at), x in self.tok_s.items() if at == level and c not in self.crashes}
        top = max(here, key=lambda c: here[c])
        return top, here[top]

    def regret(self, candidate: Candidate, level: Level) -> float:
        """Share of the best throughput that is lost by running ``candidate``."""
        return 1 - self.tok_s.get((candidate, level), 0.0) / self.best(level)[1]


def _rng(*parts: object) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32("|".join(map(str, parts)).encode()))


class Player:
    """Plays launches on a surface and keeps the journal."""

    def __init__(self, surface: Surface, noise: Noise, seed: int) -> None:
        self.surface, self.noise, self.seed = surface, noise, seed
        conditions = Conditions(target="memory", engine=surface.engine)
        self.events: list[AnyEvent] = [
            Began(
                campaign_id=f"{surface.name}-{seed}",
                at_s=0.0,
                target="memory",
                command=Command(argv=("fake",)),
                found=surface.found,
                levels=surface.levels,
                conditions=conditions,
            ),
            Inspected(at_s=0.0, frontier=surface.frontier, reported=Reported(engine=surface.engine, facts=surface.facts)),
        ]
        self.knowledge = fold(self.events)
        self.clock_s = 0.0

    def play(self, launch: PlannedLaunch) -> None:
        """Start the candidate, measure it (or crash) and journal that."""
        number, candidate = len(self.knowledge.trials) + 1, launch.candidate
        start_s = self.clock_s
        new: list[AnyEvent] = [Decided(at_s=start_s, stop=None, next=launch)]
        new.append(Intended(trial=number, at_s=start_s, candidate=candidate, kind=launch.kind, why=launch.why))
        if candidate in self.surface.crashes or not any(c == candidate for c, _ in self.surface.tok_s):
            after_s = 0.4 * self.surface.load_s
            new.append(Failed(trial=number, at_s=start_s + after_s, after_s=after_s, exit=Exit(signal=9), findings=()))
            self.clock_s += after_s
        else:
            self.clock_s += self.surface.load_s
            new.append(Ready(trial=number, at_s=self.clock_s, load_s=self.surface.load_s, reported=Reported(engine=self.surface.engine)))
            for level in launch.levels:
                new += self._level(number, candidate, level, launch.blocks)
            capacity = Capacity(max_running_requests=self.surface.capacity.get(candidate))
            seen = [(level, self.surface.acceptance.get((candidate, level.workload))) for level in launch.levels]
            acceptance = tuple((level, run) for level, run in seen if run is not None)
            new.append(Observed(trial=number, at_s=self.clock_s, acceptance=acceptance, capacity=capacity))
            new.append(Restored(trial=number, at_s=self.clock_s, down_s=self.clock_s - start_s))
        self.events += new
        self.knowledge = fold(new, self.knowledge)

    def _level(self, number: int, candidate: Candidate, level: Level, blocks: int) -> list[AnyEvent]:
        truth = self.surface.tok_s.get((candidate, level))
        if truth is None:
            return []
        noise, key = self.noise, (self.surface.name, self.seed)
        launched = _rng(*key, "launch", number, level.label).normal(0, noise.launch * 0.5) + _rng(*key, "launch", number).normal(
            0, noise.launch * math.sqrt(0.75)
        )
        out: list[AnyEvent] = []
        for block in range(1, blocks + 1):
            crowd = 1.0 if level.concurrency == 1 else math.sqrt(self.surface.prompts / max(self.surface.prompts, level.concurrency))
            liking = crowd * _rng(*key, "liking", candidate.label, level.label, block).normal(0, noise.liking, self.surface.prompts)
            content = crowd * _rng(*key, "content", level.label, block).normal(0, noise.content, self.surface.prompts)
            luck = _rng(*key, "luck", number, level.label, block).normal(
                0, noise.block * math.sqrt(self.surface.prompts), self.surface.prompts
            )
            one = level.concurrency == 1
            speeds = truth * np.exp(launched + content + liking + luck)
            if not one:
                speeds = np.full(1, truth * math.exp(launched + content.mean() + liking.mean() + luck.mean()))
            seconds = self.surface.tokens / speeds if one else self.surface.tokens * level.concurrency / speeds
            requests = tuple(
                RequestResult(
                    prompt_id=f"{level.workload}-{level.concurrency}-{block}-{i}",
                    outcome=Outcome.OK,
                    ttft_ms=50.0,
                    e2e_ms=1e3 * float(s),
                    tpot_ms=1e3 * level.concurrency / float(x),
                    tokens_out=self.surface.tokens,
                )
                for i, (s, x) in enumerate(zip(seconds, speeds, strict=True))
            )
            duration = float(seconds.sum())
            tokens = self.surface.tokens * (len(requests) if one else level.concurrency)
            result = BlockResult(level=level, block=block, duration_s=duration, output_tok_s=tokens / duration, requests=requests)
            self.clock_s += duration
            out.append(Measured(trial=number, at_s=self.clock_s, result=result))
        return out


Decider = Callable[[Knowledge], "PlannedLaunch | Stop"]


def campaign(
    surface: Surface,
    *,
    noise: Noise | None = None,
    seed: int = 0,
    tune: Tune | None = None,
    measure: Measure | None = None,
    limit: int = 40,
) -> tuple[Player, Stop]:
    """Play leadline itself to its end."""
    player = Player(surface, noise or Noise(), seed)
    tune, measure = tune or Tune(), measure or Measure()
    for _ in range(limit):
        step = next_launch(player.knowledge, surface.axes, tune, measure, surface.levels, surface.found)
        if isinstance(step, Stop):
            return player, step
        player.play(step)
    raise AssertionError(f"{surface.name}: no stop within {limit} launches")


# -- surfaces ----------------------------------------------------------------------------------------------------------


def depth_curve(c: Sequence[float]) -> tuple[float, ...]:
    """AL(0), AL(1), .. from conditional acceptances c_1, c_2, .."""
    out, product = [1.0], 1.0
    for value in c:
        product *= value
        out.append(out[-1] + product)
    return tuple(out)


def counts(lengths: Sequence[float], depth: int, rounds: int = 4000) -> Acceptance:
    """What an engine would report at ``depth``, without noise."""
    shares = [lengths[j] - lengths[j - 1] for j in range(1, depth + 1)]
    per_position = tuple(round(rounds * a) for a in shares)
    return Acceptance(rounds=rounds, drafted=rounds * depth, accepted=sum(per_position), per_position=per_position, source="planted")


def llamacpp_demo(seed: int = 0) -> Surface:
    """The measured surface of the demo on two cores: chat and copy at concurrency 1 and 4 (docs of the engine's reference table)."""
    levels = tuple(Level(workload=w, concurrency=c) for w in ("chat", "copy") for c in (1, 4))
    chat1, chat4, copy1, copy4 = levels
    draft = {d: Candidate(algorithm="draft-simple", depth=d) for d in (1, 2, 3, 4, 6, 8, 12, 16)}
    gram = {m: Candidate(algorithm="ngram-simple", depth=m, settings=(("ngram_n", "4"),)) for m in (8, 16)}
    wide = Candidate(algorithm="ngram-simple", depth=48, settings=(("ngram_n", "12"),))
    tok_s = {(OFF, chat1): 16.0, (OFF, chat4): 48.0, (OFF, copy1): 15.5, (OFF, copy4): 40.3}
    # accepted / drafted falls from 0.98 at one draft to 0.88 at sixteen
    lengths = (1.0, *(1 + n * (0.98 - 0.10 * (n - 1) / 15) for n in range(1, 17)))
    for depth, one, four, copy, copies in (
        (1, 17.9, 31.0, 18.5, 28.0),
        (2, 20.2, 32.0, 20.5, 29.0),
        (3, 21.1, 33.0, 21.7, 30.0),
        (4, 21.4, 34.0, 22.6, 31.0),
        (6, 22.5, 34.0, 23.8, 31.0),
        (8, 23.5, 34.5, 24.6, 31.5),
        (12, 23.7, 33.0, 25.0, 31.0),
        (16, 23.7, 32.0, 25.0, 30.5),
    ):
        tok_s |= {(draft[depth], chat1): one, (draft[depth], chat4): four, (draft[depth], copy1): copy, (draft[depth], copy4): copies}
    for candidate, row in ((gram[8], (16.0, 45.5, 43.0, 59.0)), (gram[16], (16.0, 44.5, 48.0, 73.0)), (wide, (16.1, 46.0, 38.0, 56.0))):
        tok_s |= dict(zip([(candidate, level) for level in levels], row, strict=True))
    acceptance = {(c, w): counts(lengths, d) for d, c in draft.items() for w in ("chat", "copy")}
    axes = (
        Axis(algorithm="draft-simple", depths=tuple(draft)),
        Axis(algorithm="ngram-simple", depths=(8, 16), settings=(("ngram_n", "4"),), modelled=False),
        Axis(algorithm="ngram-simple", depths=(48,), settings=(("ngram_n", "12"),), modelled=False),
    )
    return Surface(
        name="llamacpp-demo",
        axes=axes,
        levels=levels,
        found=OFF,
        tok_s=tok_s,
        acceptance=acceptance,
        load_s=2.0,
        tokens=64,
        engine="llamacpp",
    )


def rename(surface: Surface, **changes: object) -> Surface:
    """A copy with some fields changed."""
    return msgspec.structs.replace(surface, **changes)
