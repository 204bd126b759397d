"""A fake engine whose truth is planted: acceptance per position, round cost, slots.

With it ships

* an adapter for its real server process (``python -m leadline.fakeserver``, real sockets, scaled time), and
* :func:`play`, the same surface played in memory, for tests of the mind: no clock, no process, every draw a hash.

Cost model (per round, all active requests together; reference for a planted optimum, not for a real engine):
``round_ms + row_ms * rows + draft_ms * depth * (1 + draft_batch * (batch - 1))`` with ``rows = batch * (depth + 1)``.
"""

from __future__ import annotations

import hashlib
import math
import re
import statistics
from collections.abc import Mapping, Sequence

import msgspec

from ..errors import ConfigError, UnknownKnob
from ..records import (
    OFF,
    Acceptance,
    BlockResult,
    Candidate,
    Capacity,
    ClientHealth,
    LaunchFile,
    Level,
    Outcome,
    Record,
    Reported,
    RequestResult,
)
from . import Axis, Footprint, Loading, Parsed, Underway
from .arguments import Flag, read, without, write
from .prometheus import underway

MODULE = "leadline.fakeserver"
DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16)
FEW_DEPTHS = (4, 8, 16)
DEFAULT_PORT = 8080
CONTEXT_TOKENS = 4096


class Method(Record, frozen=True):
    """One way to speculate."""

    accept: dict[str, tuple[float, ...]]
    """Workload -> probability that draft j is accepted once those before it were; the last value goes on for deeper drafts.
    The workload ``""`` stands for every other one."""
    draft_ms: float = 0.0
    """Cost of one draft position for a batch of one."""
    draft_batch: float = 1.0
    """Share of that cost that each further request adds."""
    modelled: bool = True

    def chance(self, workload: str, position: int) -> float:
        """Conditional acceptance of draft ``position`` (from 1)."""
        chances = self.accept.get(workload, self.accept.get("", (0.0,)))
        return chances[min(position, len(chances)) - 1]


class Surface(Record, frozen=True):
    """The planted truth."""

    methods: dict[str, Method]
    round_ms: float = 10.0
    row_ms: float = 4.0
    prefill_ms: float = 20.0
    slots: int = 8
    noise: float = 0.01
    """Relative deviation of one round's cost."""
    spread: float = 0.02
    """Relative deviation between blocks, shared by all candidates."""
    words: dict[str, str] = msgspec.field(default_factory=dict)
    """Workload -> a word that stands in each of its prompts and in no other's: how the server knows it."""

    def cost_ms(self, candidate: Candidate, batch: int) -> float:
        """One round of ``batch`` active requests."""
        plain = self.round_ms + self.row_ms * batch * (candidate.depth + 1)
        if candidate.off:
            return plain
        method = self.methods[candidate.algorithm]
        return plain + method.draft_ms * candidate.depth * (1 + method.draft_batch * (batch - 1))

    def length(self, candidate: Candidate, workload: str) -> float:
        """Expected acceptance length, bonus token included."""
        total, running = 1.0, 1.0
        for position in range(1, candidate.depth + 1):
            running *= self.methods[candidate.algorithm].chance(workload, position)
            total += running
        return total

    def output_tok_s(self, candidate: Candidate, level: Level) -> float:
        """Decode throughput of a full batch: the planted truth that a campaign should find."""
        batch = min(level.concurrency, self.slots)
        return 1000 * batch * self.length(candidate, level.workload) / self.cost_ms(candidate, batch)

    def accepted(self, candidate: Candidate, workload: str, prompt: str, position: int) -> int:
        """Drafts accepted in the round that starts at output token ``position`` of a prompt; the same for every depth that reaches so far."""
        taken = 0
        while taken < candidate.depth:
            if uniform(prompt, position + taken) >= self.methods[candidate.algorithm].chance(workload, taken + 1):
                break
            taken += 1
        return taken

    def workload_of(self, text: str) -> str:
        return next((workload for workload, word in self.words.items() if word in text), "")


SURFACES: dict[str, Surface] = {
    # three regimes, as a small model on two cores shows them: a draft for one user, nothing for four, copying at any concurrency
    "regimes": Surface(
        methods={
            "draft": Method(accept={"": (0.9,)}, draft_ms=1.5, draft_batch=2.0),
            "copy": Method(accept={"": (0.1,), "copy": (0.95,)}, draft_ms=0.05, modelled=False),
        },
        words={"copy": "You repeat documents exactly"},
    ),
    # speculation is neither gain nor loss, within rounding, at any depth and batch
    "null": Surface(methods={"draft": Method(accept={"": (0.0,)}, draft_ms=0.0)}, row_ms=0.0),
    # deep drafts win everywhere, and the winner lies at the deep end
    "deep": Surface(methods={"draft": Method(accept={"": (0.97,)}, draft_ms=0.4, draft_batch=0.0)}, round_ms=30.0, row_ms=0.2),
}


def surface_of(text: str) -> Surface:
    """A planted surface by name, or as JSON. Raises ConfigError."""
    if text in SURFACES:
        return SURFACES[text]
    try:
        return msgspec.json.decode(text.encode(), type=Surface)
    except msgspec.DecodeError as error:
        raise ConfigError(
            place="the command, at --plant", what=str(error), fix=f"name one of {', '.join(SURFACES)} or write its JSON"
        ) from None


def uniform(*parts: object) -> float:
    """A number in (0, 1) that follows from ``parts`` alone."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") + 0.5) / 2**64


def normal(*parts: object) -> float:
    """A standard normal deviate that follows from ``parts`` alone."""
    return statistics.NormalDist().inv_cdf(uniform(*parts))


def word(prompt: str, position: int) -> str:
    """Output token ``position`` of a prompt: what is generated does not depend on how."""
    return f" w{int(1000 * uniform('text', prompt, position)):03d}"


# -- played in memory ------------------------------------------------------------------------------------------------


class _Tally:
    """Counts of one block."""

    def __init__(self, depth: int) -> None:
        self.rounds = self.drafted = self.accepted = 0
        self.positions = [0] * depth

    def add(self, depth: int, taken: int) -> None:
        self.rounds += 1
        self.drafted += depth
        self.accepted += taken
        for position in range(taken):
            self.positions[position] += 1


class _Running:
    """One request in play."""

    def __init__(self, prompt_id: str, sent_ms: float) -> None:
        self.prompt_id, self.sent_ms = prompt_id, sent_ms
        self.done = 0
        self.first_ms = 0.0
        self.first_tokens = 0
        self.drafted = self.accepted = self.events = 0


def play(
    surface: Surface, candidate: Candidate, level: Level, block: int, seed: int, *, requests: int = 0, max_tokens: int = 64
) -> BlockResult:
    """One block at one level: ``requests`` (at least the concurrency) requests of ``max_tokens``, closed loop.

    Deterministic; blocks of one seed share their prompts and their deviation between candidates, as real blocks do.
    """
    waiting = [f"{level.workload}-{seed}-{block}-{n}" for n in range(max(requests, level.concurrency))]
    factor = math.exp(surface.spread * normal("block", seed, level.label, block))
    active: list[_Running] = []
    results: list[RequestResult] = []
    tally = _Tally(candidate.depth)
    now_ms, turn = 0.0, 0
    batch_limit = min(level.concurrency, surface.slots)
    while waiting or active:
        admitted = waiting[: batch_limit - len(active)]
        del waiting[: len(admitted)]
        active.extend(_Running(prompt_id, now_ms) for prompt_id in admitted)
        noise = 1 + surface.noise * normal("round", seed, candidate.label, level.label, block, turn)
        now_ms += factor * noise * (surface.cost_ms(candidate, len(active)) + surface.prefill_ms * len(admitted))
        turn += 1
        for one in active:
            _advance(surface, candidate, level.workload, one, max_tokens, tally, now_ms)
        results.extend(_result(one, now_ms) for one in active if one.done >= max_tokens)
        active = [one for one in active if one.done < max_tokens]
    tokens = sum(one.tokens_out for one in results)
    acceptance = None
    if not candidate.off:
        acceptance = Acceptance(
            rounds=tally.rounds, drafted=tally.drafted, accepted=tally.accepted, per_position=tuple(tally.positions), source="planted"
        )
    return BlockResult(
        level=level,
        block=block,
        duration_s=now_ms / 1000,
        output_tok_s=1000 * tokens / now_ms,
        requests=tuple(results),
        client=ClientHealth(),
        acceptance=acceptance,
    )


def _advance(surface: Surface, candidate: Candidate, workload: str, one: _Running, max_tokens: int, tally: _Tally, now_ms: float) -> None:
    taken = surface.accepted(candidate, workload, one.prompt_id, one.done) if not candidate.off else 0
    taken = min(taken, max_tokens - one.done - 1)
    if not candidate.off:
        tally.add(candidate.depth, taken)
    one.drafted += candidate.depth
    one.accepted += taken
    one.events += 1
    one.done += taken + 1
    if one.events == 1:
        one.first_ms, one.first_tokens = now_ms, one.done


def _result(one: _Running, now_ms: float) -> RequestResult:
    later = one.done - one.first_tokens
    return RequestResult(
        prompt_id=one.prompt_id,
        outcome=Outcome.OK,
        sent_s=one.sent_ms / 1000,
        ttft_ms=one.first_ms - one.sent_ms,
        e2e_ms=now_ms - one.sent_ms,
        tpot_ms=(now_ms - one.first_ms) / later if later else None,
        tokens_out=one.done,
        token_source="usage",
        events=one.events,
        drafted=one.drafted or None,
        accepted=one.accepted if one.drafted else None,
        text_sha256=hashlib.sha256("".join(word(one.prompt_id, n) for n in range(one.done)).encode()).hexdigest(),
    )


# -- the adapter -----------------------------------------------------------------------------------------------------

_METHOD = Flag(names=("--spec-method",))
_DEPTH = Flag(names=("--spec-depth",))
_SLOTS = Flag(names=("--slots",))
_PLANT = Flag(names=("--plant",))
_PORT = Flag(names=("--port",))
_HOST = Flag(names=("--host",))


class FakeEngine:
    """Adapter of ``python -m leadline.fakeserver``."""

    name = "fake"
    health_path = "/health"
    info_paths: tuple[str, ...] = ("/info",)
    metrics_path = "/metrics"
    load_paths: tuple[str, ...] = ()
    gauges = ("fake:active", "fake:waiting")
    metrics_flag = ""
    stop_first = "TERM"
    stop_grace_s = 2.0

    def parse(self, argv: Sequence[str]) -> Parsed | None:
        at = next((index for index in range(1, len(argv)) if tuple(argv[index - 1 : index + 1]) == ("-m", MODULE)), None)
        if at is None:
            return None
        start = at + 1
        method, depth = read(argv, _METHOD, start), _count(argv, _DEPTH, start, 1)
        plant = read(argv, _PLANT, start) or "regimes"
        surface = surface_of(plant)
        if method is not None and method not in surface.methods:
            raise UnknownKnob(engine="the fake engine", knob=method, known=", ".join(surface.methods))
        return Parsed(
            engine=self.name,
            argv=tuple(argv),
            start=start,
            candidate=Candidate(algorithm=method, depth=depth) if method else Candidate(algorithm=OFF, depth=0),
            host=read(argv, _HOST, start) or "127.0.0.1",
            port=_count(argv, _PORT, start, DEFAULT_PORT),
            model="planted",
            knobs=(("plant", plant), ("slots", str(_count(argv, _SLOTS, start, surface.slots)))),
        )

    def render(self, parsed: Parsed, candidate: Candidate) -> tuple[str, ...]:
        if candidate == parsed.candidate:
            return parsed.argv
        argv, start = parsed.argv, parsed.start
        for name, value in candidate.settings:
            if name != "slots":
                raise UnknownKnob(engine="the fake engine", knob=name, known="slots")
            argv = write(argv, _SLOTS, value, start)
        if candidate.off:
            return without(without(argv, _METHOD, start), _DEPTH, start)
        known = surface_of(dict(parsed.knobs)["plant"]).methods
        if candidate.algorithm not in known:
            raise UnknownKnob(engine="the fake engine", knob=candidate.algorithm, known=", ".join(known))
        return write(write(argv, _METHOD, candidate.algorithm, start), _DEPTH, str(candidate.depth), start, (_METHOD,))

    def files(self, candidate: Candidate) -> tuple[LaunchFile, ...]:
        return ()

    def axes(self, parsed: Parsed, asked: Sequence[str] = ()) -> tuple[Axis, ...]:
        methods = surface_of(dict(parsed.knobs)["plant"]).methods
        unknown = [name for name in asked if name not in methods]
        if unknown:
            raise UnknownKnob(engine="the fake engine", knob=unknown[0], known=", ".join(methods))
        return tuple(
            Axis(algorithm=name, depths=DEPTHS if method.modelled else FEW_DEPTHS, why="planted", modelled=method.modelled)
            for name, method in methods.items()
            if not asked or name in asked
        )

    def loading(self, log_tail: str) -> Loading:
        found = re.findall(r"^(loading (\d+) %|serving on .*)$", log_tail, re.MULTILINE)
        if not found:
            return Loading(phase="starting")
        line, percent = found[-1]
        if percent:
            return Loading(phase="loading weights", fraction=int(percent) / 100, line=line)
        return Loading(phase="serving", fraction=1.0, line=line)

    def reported(self, parsed: Parsed, infos: Mapping[str, object]) -> Reported:
        info = infos.get("/info")
        said: Mapping[str, object] = info if isinstance(info, dict) else {}
        method, depth, slots = said.get("method"), said.get("depth"), said.get("slots")
        return Reported(
            engine=self.name,
            version="1" if said else None,
            model="planted" if said else None,
            algorithm=method if isinstance(method, str) else None,
            depth=depth if isinstance(depth, int) else None,
            max_running_requests=slots if isinstance(slots, int) else None,
            context_tokens=CONTEXT_TOKENS if said else None,
        )

    def mismatch(self, candidate: Candidate, reported: Reported, log: str) -> str:
        if (reported.algorithm, reported.depth) == (candidate.algorithm, candidate.depth):
            return ""
        return f"it reports {reported.algorithm} at depth {reported.depth}, not {candidate.label}"

    def capacity(self, reported: Reported, log: str) -> Capacity:
        slots = reported.max_running_requests
        return Capacity(
            max_running_requests=slots, max_total_num_tokens=slots * CONTEXT_TOKENS if slots else None, context_tokens=CONTEXT_TOKENS
        )

    def round_facts(self, log: str) -> tuple[tuple[str, str], ...]:
        return ()

    def footprint(self, log: str) -> Footprint:
        return Footprint()

    def weight_files(self, argv: Sequence[str]) -> tuple[str, ...]:
        return ()

    def underway(self, metrics: str, infos: Mapping[str, object]) -> Underway | None:
        return underway(metrics, *self.gauges)

    def acceptance(self, candidate: Candidate, before: str, after: str, requests: Sequence[RequestResult], log: str) -> Acceptance | None:
        old, new = _counters(before), _counters(after)
        delta = {name: value - old.get(name, 0) for name, value in new.items()}
        if candidate.off or delta.get("rounds", 0) <= 0:
            return None
        positions = sorted((int(name.split("/")[1]), value) for name, value in delta.items() if "/" in name)
        return Acceptance(
            rounds=delta["rounds"],
            drafted=delta["drafted"],
            accepted=delta["accepted"],
            per_position=tuple(value for _, value in positions),
            source="metrics",
        )


def _count(argv: Sequence[str], flag: Flag, start: int, default: int) -> int:
    text = read(argv, flag, start)
    if text is None:
        return default
    if not text.isdigit():
        raise ConfigError(place=f"the command, at {flag.names[0]}", what=f"{text!r} is not a count", fix=f"write {flag.names[0]} N")
    return int(text)


def _counters(text: str) -> dict[str, int]:
    pattern = re.compile(r'^fake:(\w+?)_total(?:\{position="(\d+)"\})? (\d+)$', re.MULTILINE)
    return {name + (f"/{position}" if position else ""): int(value) for name, position, value in pattern.findall(text)}
