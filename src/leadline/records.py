"""The immutable nouns that travel between the stations of a campaign.

Notation (the field's words, one meaning each):

=====================  ===================================================================================
depth                  draft tokens per round: SGLang ``num_steps`` on a chain, vLLM ``num_speculative_tokens``,
                       llama.cpp ``--spec-draft-n-max`` or an n-gram method's ``size-m``; 0 = speculation off
round                  one draft-and-verify step of one request
acceptance length      mean tokens a round yields, **bonus token included** (1 .. depth + 1)
acceptance rate        accepted drafts / drafted tokens (bonus token not counted)
TTFT                   time to first token, from the actual send to the first token-bearing event
TPOT                   (E2E - TTFT) / (output tokens - tokens of the first event)
step gap               time between two token-bearing events of one stream (what peers call ITL)
level                  one workload at one concurrency
cell                   one candidate at one level
block                  a fixed set of prompts; every candidate plays the same blocks, so blocks pair
=====================  ===================================================================================

Every record is frozen and keyword-only.  Units are last in a name (``ttft_ms``, ``duration_s``, ``memory_bytes``).
"""

from __future__ import annotations

import enum

import msgspec


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every noun: immutable, keyword-only, comparable by value. (Subclasses repeat ``frozen=True`` for mypy.)"""


# -- what is tuned ---------------------------------------------------------------------------------------------------

OFF = "off"


class Candidate(Record, frozen=True, order=True):
    """One configuration of the service's speculation (and of the knobs the engine couples to it)."""

    algorithm: str
    """``"off"`` or the engine's own name of the method: ``draft-simple``, ``ngram-simple``, ``EAGLE``, ``mtp``, ..."""
    depth: int
    """Draft tokens per round; 0 exactly when the algorithm is ``off``."""
    settings: tuple[tuple[str, str], ...] = ()
    """Further knobs pinned by this candidate, sorted by name, e.g. ``(("max_running_requests", "20"),)``."""

    def __post_init__(self) -> None:
        if (self.algorithm == OFF) != (self.depth == 0):
            raise ValueError(f"depth 0 and algorithm 'off' go together, got {self.algorithm!r} at depth {self.depth}")
        if self.depth < 0:
            raise ValueError(f"depth is a count of draft tokens, got {self.depth}")
        if list(self.settings) != sorted(dict(self.settings).items()):
            raise ValueError(f"settings are sorted by name and unique, got {self.settings}")

    @property
    def off(self) -> bool:
        return self.algorithm == OFF

    @property
    def label(self) -> str:
        """Short name for tables and journals: ``off``, ``draft-simple 8``, ``EAGLE 10 max_running_requests=20``."""
        head = OFF if self.off else f"{self.algorithm} {self.depth}"
        return " ".join([head, *(f"{name}={value}" for name, value in self.settings)])


class Level(Record, frozen=True, order=True):
    """One workload played at one concurrency (closed loop) or one arrival rate (open loop), or a file at the times it was recorded at."""

    workload: str
    concurrency: int
    """Requests kept open by the client; 0 when the loop is open."""
    rate_rps: float | None = None
    """Scheduled arrivals a second; ``None`` when the loop is closed, or the file has times of its own."""

    @property
    def label(self) -> str:
        if self.rate_rps is not None:
            return f"{self.workload} {self.rate_rps:g}/s"
        return f"{self.workload} c={self.concurrency}" if self.concurrency else f"{self.workload} at its own times"


class Command(Record, frozen=True):
    """An argument vector with what surrounds it."""

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    cwd: str | None = None


# -- what runs -------------------------------------------------------------------------------------------------------


class LaunchFile(Record, frozen=True):
    """A small file that a launch reads. In its argument vector the name stands for the path, as a word or behind ``=``."""

    name: str
    text: str


class Listener(Record, frozen=True):
    """A process that owns a listening TCP socket."""

    port: int
    pid: int
    command: str
    started_s: float | None = None
    """Start of the process, seconds since the epoch on its host; ``None`` if it could not be read."""


class Launch(Record, frozen=True):
    """One start of the service under one configuration."""

    launch_id: str
    """Unique in the campaign; for systemd the unit's invocation id."""
    pid: int
    started_s: float
    """Seconds since the epoch on the service's host."""
    log: str
    """Where the output of this launch is kept (a path or a journal cursor)."""


class Exit(Record, frozen=True):
    """How a process ended. Codes support no cause by themselves (vLLM exits 0 when its engine dies)."""

    code: int | None = None
    signal: int | None = None
    by: str = "itself"
    """``itself``, ``leadline`` (we stopped it), ``keeper`` (leadline went away and the keeper cleaned up), ``systemd``."""
    at_s: float | None = None

    @property
    def text(self) -> str:
        if self.signal is not None:
            return f"signal {self.signal}"
        return f"exit status {self.code}" if self.code is not None else "exit not seen"


class Status(Record, frozen=True):
    """What the supervisor knows about a launch now."""

    running: bool
    exit: Exit | None = None
    cpu_s: float | None = None
    """CPU seconds (user + system) used by all processes of the launch."""
    memory_bytes: int | None = None
    """Resident memory of all processes of the launch."""
    log_bytes: int = 0


class Reported(Record, frozen=True):
    """What a running engine says about itself; compared with the candidate before anything is measured."""

    engine: str
    version: str | None = None
    model: str | None = None
    algorithm: str | None = None
    depth: int | None = None
    max_running_requests: int | None = None
    """Effective, not requested (SGLang reports both; slots for llama.cpp)."""
    max_total_num_tokens: int | None = None
    context_tokens: int | None = None
    facts: tuple[tuple[str, str], ...] = ()


# -- one streamed request --------------------------------------------------------------------------------------------


class Outcome(enum.Enum):
    """How one request ended. Only ``OK`` counts as served; nothing is dropped silently, nothing retried."""

    OK = "ok"
    REFUSED = "refused"  # connection refused or not established
    HTTP_429 = "http_429"
    HTTP_503 = "http_503"
    HTTP_ERROR = "http_error"  # any other status
    ERROR_EVENT = "error_event"  # error chunk inside HTTP 200
    RESET = "reset"
    EARLY_EOF = "early_eof"  # closed before the end of the stream
    STALL = "stall"  # idle timeout
    MALFORMED_HTTP = "malformed_http"
    MALFORMED_SSE = "malformed_sse"  # event that is no JSON, or bad framing
    NO_TOKENS = "no_tokens"  # ended properly with nothing generated
    EARLY_STOP = "early_stop"  # fewer tokens than asked for although the end of sequence was to be ignored
    DEADLINE = "deadline"  # cut by the level's own time limit
    ABORTED = "aborted"  # leadline stopped


class RequestResult(Record, frozen=True):
    """One request, reduced. Times in ms; ``sent_s`` on the client's monotonic clock relative to the level's start."""

    prompt_id: str
    outcome: Outcome
    detail: str = ""
    intended_s: float = 0.0
    sent_s: float = 0.0
    ttft_ms: float | None = None
    e2e_ms: float | None = None
    tpot_ms: float | None = None
    tokens_in: int | None = None
    tokens_out: int = 0
    token_source: str = "none"
    """Where ``tokens_out`` comes from: ``usage``, ``timings``, ``continuous_usage``, ``retokenised``, ``chunks`` or ``none``."""
    events: int = 0
    """Token-bearing events (chunks) of the stream."""
    tokens_first: int = 1
    """Tokens of the first event; 1 (what prefill yields) where the server does not say."""
    step_tokens: tuple[int, ...] = ()
    """Tokens of each event, where the server counts them per chunk."""
    step_gap_ms: tuple[float, ...] = ()
    gaps_unsure: int = 0
    """Gaps with an uncertain end: its event shared a read with the next one, and it cannot be said that they came in one burst."""
    tokens_cached: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    text_sha256: str = ""
    text: str = ""


class ClientHealth(Record, frozen=True):
    """The load generator's own figures; a level in which the client was the bottleneck is not a measurement."""

    clock: str = "user"
    """``kernel`` (SO_TIMESTAMPNS) or ``user``."""
    lag_ms_p50: float = 0.0
    lag_ms_p99: float = 0.0
    merged_share: float = 0.0
    """Share of reads that carried more than one event."""
    cpu_s: float = 0.0
    reconnects: int = 0
    """Requests that went out again on a new connection, because the server had closed the kept one without a byte of answer."""
    valid: bool = True
    why: str = ""


# -- measured --------------------------------------------------------------------------------------------------------


class Acceptance(Record, frozen=True):
    """Draft tokens over a stretch of load. ``AL = 1 + accepted / rounds``; share j = per_position[j-1] / rounds."""

    rounds: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    per_position: tuple[int, ...] = ()
    """Rounds whose first j drafts were all accepted, j = 1 .. depth (unconditional counts)."""
    histogram: tuple[int, ...] = ()
    """Rounds that accepted exactly j drafts, j = 0 .. depth."""
    length: float | None = None
    """Acceptance length, bonus token included, where only the mean is known."""
    source: str = ""
    simulated: bool = False


class BlockResult(Record, frozen=True):
    """One block of prompts played at one level: the unit that pairs between candidates."""

    level: Level
    block: int
    duration_s: float
    """From the first send to the last token of the block."""
    output_tok_s: float
    """Output tokens of served requests / duration."""
    requests: tuple[RequestResult, ...]
    client: ClientHealth = ClientHealth()
    server_cpu_s: float | None = None
    acceptance: Acceptance | None = None
    stop: str = "complete"
    """``complete``, ``time`` (cut by the level's time limit) or ``aborted``."""

    @property
    def failed(self) -> int:
        return sum(1 for r in self.requests if r.outcome is not Outcome.OK)


class Interval(Record, frozen=True):
    """An estimate that travels with its interval, n and the way it was made."""

    value: float
    low: float
    high: float
    n: int
    unit: str
    confidence: float = 0.90
    method: str = ""

    @property
    def excludes_one(self) -> bool:
        return self.low > 1.0 or self.high < 1.0


class TrafficSample(Record, frozen=True):
    """Requests that a service had in hand at one moment."""

    at_s: float
    running: float
    waiting: float


# -- capacity --------------------------------------------------------------------------------------------------------


class Capacity(Record, frozen=True):
    """What fits: tokens in the KV pool and requests running at once (effective)."""

    max_total_num_tokens: int | None = None
    max_running_requests: int | None = None
    state_slots: int | None = None
    free_memory_bytes: int | None = None
    context_tokens: int | None = None


class FrontierRow(Record, frozen=True):
    """One depth (with its coupled knobs) before launching: what it would hold and whether it starts."""

    candidate: Candidate
    starts: bool | None
    """``None`` = the formula is not known; then ``reason`` says what is missing."""
    capacity: Capacity = Capacity()
    reason: str = ""
    remedy: str = ""
    exact: bool = False
    """True when the version's own formula was used with exact inputs; False for bounds and estimates."""
    feasible_as: Candidate | None = None
    """The nearest candidate with coupled knobs changed (``max_running_requests`` pinned, ...) that starts where this one does not, or that
    runs more requests at once than this one."""


# -- diagnosis -------------------------------------------------------------------------------------------------------


class Source(Record, frozen=True):
    """One layer of evidence, verbatim."""

    name: str
    """``unit``, ``journal``, ``kernel``, ``log``, ``cgroup``, ``exit``, ``sockets``, ``gpu``, ``disk``, ``http``, ..."""
    text: str
    truncated: bool = False
    first_line: int = 1
    """1-based number of the text's first line in the original."""


class Evidence(Record, frozen=True):
    """Everything gathered about a service at one moment, in layers, kept verbatim."""

    sources: tuple[Source, ...] = ()
    symptom: str = ""
    engine: str | None = None
    taken_s: float | None = None
    exit: Exit | None = None
    candidate: Candidate | None = None

    def get(self, name: str) -> str:
        return "\n".join(s.text for s in self.sources if s.name == name)


class Quote(Record, frozen=True):
    """A decisive line, with where it stands."""

    source: str
    line: int
    text: str


class Finding(Record, frozen=True):
    """A cause with its evidence. ``cls`` is the class of the taxonomy in tests/data/cases/README.md."""

    id: str
    """Stable rule id, e.g. ``sglang.pool_reservation``."""
    cls: str
    """``memory.kv_pool_too_small``, ``healthy``, ``unknown``, ..."""
    failure: bool
    summary: str
    """The sentence a colleague would say."""
    phase: str = ""
    quotes: tuple[Quote, ...] = ()
    confidence: str = "likely"
    """``certain``, ``likely``, ``possible`` or ``unknown``."""
    confirm: str = ""
    """What would confirm it."""
    remedy: str = ""
    """A concrete next step or value."""
    doomed: bool | None = None
    """True: trying the same again cannot help; False: worth a retry; None: not known."""
    also: tuple[str, ...] = ()


# -- thought ---------------------------------------------------------------------------------------------------------


class Prediction(Record, frozen=True):
    """What a candidate is expected to do at a level, before it is launched."""

    candidate: Candidate
    level: Level
    output_tok_s: Interval
    tpot_ms: Interval | None = None
    ttft_ms: Interval | None = None
    acceptance_length: Interval | None = None
    method: str = ""


class PlannedLaunch(Record, frozen=True):
    """One line of the plan: what is started and why."""

    candidate: Candidate
    why: str
    levels: tuple[Level, ...]
    blocks: int
    seconds: float
    """Expected downtime plus measuring time."""
    kind: str = "explore"
    """``baseline``, ``control``, ``deep``, ``shallow``, ``explore``, ``confirm``, ``recheck`` (drift) or ``asked``."""


class Stop(Record, frozen=True):
    """The decision to launch nothing more."""

    rule: str
    """``resolved``, ``budget``, ``nothing_to_gain``, ``exhausted`` or ``asked``."""
    why: str


class OperatingPoint(Record, frozen=True):
    """The verdict for one level."""

    level: Level
    candidate: Candidate
    tied: tuple[Candidate, ...] = ()
    output_tok_s: Interval | None = None
    gain_vs_found: Interval | None = None
    """Ratio of output throughput, this candidate / configuration as found."""
    gain_vs_off: Interval | None = None
    resolved: bool = True
    why: str = ""


class Verdict(Record, frozen=True):
    """What the campaign says at its end."""

    sentence: str
    change: bool
    """False: "change nothing"."""
    overall: Candidate
    found: Candidate
    points: tuple[OperatingPoint, ...]
    objective: str
    noise_floor: Interval | None = None
    not_shown: tuple[str, ...] = ()
    same_output: str = ""
    command: tuple[str, ...] = ()
    """The full argument vector of the recommended configuration."""
    schedule: str = ""
    """The engine's native per-batch-size schedule, where it has one and a mix of depths wins."""
    readings: tuple[str, ...] = ()
    """What the figures say beyond the choice: how far from the memory's limit, which depths a mix would use."""
    warnings: tuple[str, ...] = ()


class Progress(Record, frozen=True):
    """What a running campaign is doing right now; shown, never journaled."""

    phase: str
    """``plan``, ``start``, ``load``, ``warm up``, ``measure``, ``stop``, ``decide``, ``verdict``, ``restore``."""
    message: str = ""
    trial: int = 0
    launches_planned: int = 0
    candidate: Candidate | None = None
    level: Level | None = None
    block: int = 0
    blocks: int = 0
    fraction: float | None = None
    """Of the load, where the engine's log tells it."""
    elapsed_s: float = 0.0
    remaining_s: float | None = None


# -- events of the journal -------------------------------------------------------------------------------------------


class Event(Record, frozen=True, tag_field="event"):
    """Base of everything the journal holds; ``state.fold`` reads them in order."""


class Conditions(Record, frozen=True):
    """What must be equal before two measurements may be compared."""

    target: str
    engine: str
    model: str = ""
    version: str = ""
    host: str = ""
    hardware: str = ""
    workloads: str = ""
    """Digest of the workloads' prompts and limits."""
    client: str = ""


class Began(Event, frozen=True, tag="began"):
    campaign_id: str
    at_s: float
    target: str
    command: Command
    found: Candidate
    levels: tuple[Level, ...]
    conditions: Conditions
    settings: tuple[tuple[str, str], ...] = ()
    boot_id: str = ""


class Inspected(Event, frozen=True, tag="inspected"):
    at_s: float
    frontier: tuple[FrontierRow, ...]
    reported: Reported | None = None


class Watched(Event, frozen=True, tag="watched"):
    """The service's own traffic, before anything was touched: what the objective ``observed`` weighs the levels by."""

    at_s: float
    source: str
    """Where the samples come from, in words."""
    samples: int
    span_s: float
    seconds: tuple[tuple[int, float], ...]
    """(requests in hand, running and waiting; seconds for which that was so), rising; 0 = idle."""
    mix: tuple[tuple[int, float], ...]
    """(concurrency measured, share of the busy time), rising."""


class Planned(Event, frozen=True, tag="planned"):
    at_s: float
    launches: tuple[PlannedLaunch, ...]


class Intended(Event, frozen=True, tag="intended"):
    """Written before the host is touched."""

    trial: int
    at_s: float
    candidate: Candidate
    kind: str
    why: str
    boot_id: str = ""


class Deployed(Event, frozen=True, tag="deployed"):
    trial: int
    at_s: float
    launch: Launch
    argv: tuple[str, ...]


class Ready(Event, frozen=True, tag="ready"):
    trial: int
    at_s: float
    load_s: float
    reported: Reported


class Failed(Event, frozen=True, tag="failed"):
    trial: int
    at_s: float
    after_s: float
    exit: Exit | None
    findings: tuple[Finding, ...]
    log_tail: str = ""


class Abandoned(Event, frozen=True, tag="abandoned"):
    """leadline itself went away during this trial; ``retry`` tells whether the candidate may be tried again."""

    trial: int
    at_s: float
    retry: bool
    why: str


class Measured(Event, frozen=True, tag="measured"):
    trial: int
    at_s: float
    result: BlockResult


class Observed(Event, frozen=True, tag="observed"):
    trial: int
    at_s: float
    acceptance: tuple[tuple[Level, Acceptance], ...]
    capacity: Capacity
    counters: tuple[tuple[str, float], ...] = ()
    memory_bytes: int | None = None
    stops: tuple[tuple[Level, str], ...] = ()
    """Why each level ended: ``precision``, ``blocks`` (as many as planned) or ``time``."""


class Restored(Event, frozen=True, tag="restored"):
    trial: int
    at_s: float
    down_s: float
    exit: Exit | None = None


class Decided(Event, frozen=True, tag="decided"):
    at_s: float
    stop: Stop | None
    next: PlannedLaunch | None
    predictions: tuple[Prediction, ...] = ()


class Concluded(Event, frozen=True, tag="concluded"):
    at_s: float
    verdict: Verdict


class Applied(Event, frozen=True, tag="applied"):
    at_s: float
    candidate: Candidate
    what: str


AnyEvent = (
    Began
    | Inspected
    | Watched
    | Planned
    | Intended
    | Deployed
    | Ready
    | Failed
    | Abandoned
    | Measured
    | Observed
    | Restored
    | Decided
    | Concluded
    | Applied
)
