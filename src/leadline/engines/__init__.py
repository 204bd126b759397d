"""What differs between engines, as data and pure functions.

An adapter knows one engine: how its command line spells speculation, what it prints, serves and reports.  It never does
I/O: text and parsed JSON come in, records go out.  ``ENGINES`` is the registry; :func:`recognise` finds the adapter of
an argument vector.  Adding an engine is a module with one class and one line here (docs/engines.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ..errors import NotAnEngine
from ..records import Acceptance, Candidate, Capacity, LaunchFile, Record, Reported, RequestResult


class Parsed(Record, frozen=True):
    """An engine's argument vector, read.

    ``argv[:start]`` starts the engine (interpreter, module, sub-command), ``argv[start:]`` are its arguments.
    """

    engine: str
    argv: tuple[str, ...]
    start: int
    candidate: Candidate
    """The speculation the arguments ask for (what is found)."""
    host: str = "127.0.0.1"
    port: int = 8000
    model: str = ""
    version: str | None = None
    knobs: tuple[tuple[str, str], ...] = ()
    """Every knob the adapter knows that stands on the command line, canonical name -> value."""
    notes: tuple[str, ...] = ()
    """Traps seen in the arguments, each a sentence that says what to do."""


class Underway(Record, frozen=True):
    """Requests that a server has in hand at one moment."""

    running: float
    waiting: float


class Footprint(Record, frozen=True):
    """What a launch holds on one GPU (or in the host's memory), as its own log tells."""

    weight_bytes: int | None = None
    """All weights that were loaded, those of a draft included."""
    kv_bytes_per_token: float | None = None


class Loading(Record, frozen=True):
    """How far a start has come, read from the log."""

    phase: str
    """``starting``, ``loading weights``, ``allocating``, ``capturing graphs``, ``warming up``, ``serving``."""
    fraction: float | None = None
    line: str = ""


class Axis(Record, frozen=True):
    """One way to speculate with this service: an algorithm and the depths worth asking for, shallow to deep."""

    algorithm: str
    depths: tuple[int, ...]
    settings: tuple[tuple[str, str], ...] = ()
    """Settings that every candidate of this axis carries (``ngram_n=4``)."""
    why: str = ""
    modelled: bool = True
    """False where cost and acceptance follow no depth model (each point must be measured or searched)."""

    def candidates(self) -> tuple[Candidate, ...]:
        return tuple(Candidate(algorithm=self.algorithm, depth=depth, settings=self.settings) for depth in self.depths)


class Engine(Protocol):
    """The port every adapter implements. All methods are pure."""

    name: str
    health_path: str
    info_paths: tuple[str, ...]
    """GET paths whose JSON :meth:`reported` reads, tried in order, all that answer are passed."""
    metrics_path: str
    load_paths: tuple[str, ...]
    """GET paths whose JSON :meth:`underway` reads beside the metrics."""
    gauges: tuple[str, str]
    """Prometheus names of the gauges of running and of waiting requests."""
    metrics_flag: str
    """What makes the server export its metrics; empty where it always does."""
    stop_first: str
    """Signal that asks for a clean stop: ``TERM`` or ``INT``."""
    stop_grace_s: float
    """Seconds to wait after ``stop_first`` before ``KILL``."""

    def parse(self, argv: Sequence[str]) -> Parsed | None:
        """Read an argument vector; ``None`` when it does not start this engine. Raises ConfigError, CannotRewrite."""
        ...

    def render(self, parsed: Parsed, candidate: Candidate) -> tuple[str, ...]:
        """The argument vector of ``candidate``: changed in place, in the style found, all else byte for byte.

        Raises :class:`~leadline.errors.UnknownKnob` for a setting the engine does not have.
        """
        ...

    def files(self, candidate: Candidate) -> tuple[LaunchFile, ...]:
        """Files that the arguments of ``candidate`` name; ``render`` writes their names, the supervisor knows the paths."""
        ...

    def axes(self, parsed: Parsed, asked: Sequence[str] = ()) -> tuple[Axis, ...]:
        """The space this service can be tuned in; empty when nothing can (no draft model and no draft-free method)."""
        ...

    def loading(self, log_tail: str) -> Loading:
        """Load progress from the last lines of the log."""
        ...

    def reported(self, parsed: Parsed, infos: Mapping[str, object]) -> Reported:
        """What the running engine says about itself; ``infos`` maps path -> decoded JSON."""
        ...

    def mismatch(self, candidate: Candidate, reported: Reported, log: str) -> str:
        """Why ``reported`` is not ``candidate``; empty when it is. ``log`` is this launch's output so far."""
        ...

    def capacity(self, reported: Reported, log: str) -> Capacity:
        """Capacity of the running server."""
        ...

    def round_facts(self, log: str) -> tuple[tuple[str, str], ...]:
        """What a boot log tells of the cost of a round, as facts for :class:`~leadline.records.Reported`; empty when it tells nothing.

        ``kernel_step_tokens``: rounds of more tokens than this run another kernel.
        """
        ...

    def footprint(self, log: str) -> Footprint:
        """Bytes of weights and of a cached token, from this launch's log."""
        ...

    def weight_files(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Files on the service's host that the command loads whole as weights for its rounds; () where there are none, or they are not named."""
        ...

    def underway(self, metrics: str, infos: Mapping[str, object]) -> Underway | None:
        """How many requests run and wait now, from metrics text and the JSON of ``load_paths``; ``None`` where neither tells."""
        ...

    def acceptance(self, candidate: Candidate, before: str, after: str, requests: Sequence[RequestResult], log: str) -> Acceptance | None:
        """Acceptance over a stretch of load, from metrics text before and after, the requests and the log between."""
        ...


def engines() -> tuple[Engine, ...]:
    """Every adapter, most specific first."""
    from .fake import FakeEngine
    from .llamacpp import LlamaCpp
    from .sglang import SGLang
    from .vllm import VLLM

    found: list[Engine] = [  # one line an adapter, alphabetical
        FakeEngine(),
        LlamaCpp(),
        SGLang(),
        VLLM(),
    ]
    return tuple(found)


def named(name: str) -> Engine:
    for engine in engines():
        if engine.name == name:
            return engine
    raise NotAnEngine(command=name, hint="the name must be one of " + ", ".join(e.name for e in engines()))


def recognise(argv: Sequence[str]) -> tuple[Engine, Parsed]:
    """The adapter whose engine ``argv`` starts. Raises :class:`~leadline.errors.NotAnEngine`."""
    for engine in engines():
        parsed = engine.parse(argv)
        if parsed is not None:
            return engine, parsed
    shown = " ".join(argv)
    raise NotAnEngine(command=shown if len(shown) < 200 else shown[:200] + "...", hint="give the whole command that starts the server")
