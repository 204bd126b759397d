"""Play a workload at a level, keep every trace, and reduce it to figures.

A block at concurrency ``c`` keeps ``c`` requests open until its prompts are used up; its duration runs from the first send to
the last token.  Nothing is retried and nothing left out: a request that failed stands in the result with its kind.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from . import promptfile, stream, workload
from .config import Measure
from .errors import BadWorkload, NotServing
from .promptfile import PromptFile
from .records import BlockResult, ClientHealth, Level, Outcome, Record, RequestResult
from .stream import Plan, Shot
from .stream import plan as planning
from .workload import Prompt

if TYPE_CHECKING:  # numpy and what reads answers are loaded when there is something to read
    from .stream.reduce import Reading
    from .stream.trace import Trace

LAG_LIMIT_MS = 5.0
"""Client lag (p99) that is always tolerated; above it, it must stay below :data:`LAG_SHARE` of a request's duration."""
LAG_SHARE = 0.05
RATE_BLOCK_S = 5.0
"""A block of an open loop lasts at least so long."""
WARM_UP_BLOCK, WARM_UP_TOKENS = 1_000_000, 16
CORE_SHARE_LIMIT = 0.9
"""A load process that used more of its core than this was the bottleneck."""
USER_CLOCK_BUSY_LIMIT = 0.5
"""Without kernel stamps a process that is busy for half of the time cannot say when an event came."""


class Options(Record, frozen=True):
    """What a server is asked beside the prompt."""

    ignore_eos: bool = False
    extra: tuple[tuple[str, str], ...] = ()
    """Further fields of the request body, as JSON texts."""
    salt: str = ""
    """Goes into the nonces of ``cache = "cold"``: another salt makes other prompts of the same length."""
    count_chunks: bool = False
    """Ask for the token count in every chunk (``continuous_usage_stats``, ``timings_per_token``)."""
    path: str = "/v1/chat/completions"
    headers: tuple[tuple[str, str], ...] = ()
    processes: int = 0
    """Load processes; 0 = one for every 512 open requests, but no more than this process may use cores."""
    kernel_clock: bool = True
    verify: bool = True
    ca_file: str = ""
    keep: str = ""
    """Folder that keeps the raw traces of every block; empty = they are dropped once reduced."""
    keep_text: bool = True


PLAIN = Options()


def play(
    base_url: str,
    level: Level,
    prompts: Sequence[Prompt],
    *,
    block: int,
    model: str,
    settings: Measure,
    cpu_s: Callable[[], float | None] | None = None,
    options: Options = PLAIN,
    rehearsal: Sequence[Prompt] = (),
    tick: Callable[[int], None] | None = None,
) -> BlockResult:
    """Play ``prompts`` at ``level`` and reduce what happened.

    All of it, what is played beforehand included, ends after ``settings.level_limit_s``. ``cpu_s`` reads the server's CPU seconds so far; it
    is called just before and after. ``rehearsal`` is played first, on the same connections, and counts for nothing. ``tick`` is told the
    number of ended requests. Raises NotServing when no connection can be made at all or the whole rehearsal failed, BadTarget, DiskFull,
    MeasurementInvalid.
    """
    plan = plan_of(base_url, level, prompts, block=block, model=model, settings=settings, options=options, rehearsal=rehearsal)
    processes = options.processes or _load_processes(plan.connections)
    began_s = time.monotonic()
    if settings.cache == "warm":  # what a prefix cache can hold, it holds before the clock starts
        warm = plan._replace(open_loop=False, shots=tuple(Shot(shot.body) for shot in plan.shots), rehearsed=0)
        stream.play(warm, processes=processes, path=options.path)
        plan = plan._replace(limit_s=max(0.0, plan.limit_s - (time.monotonic() - began_s)))
    keep = Path(options.keep) / f"{workload.slug(level)}-block{block}" if options.keep else None
    used_s: list[float | None] = []

    def read() -> None:
        used_s.append(cpu_s() if cpu_s is not None else None)

    trace = stream.play(plan, processes=processes, keep=keep, path=options.path, begin=read, tick=tick)
    read()
    before, after = used_s
    _check_rehearsal(base_url, trace, rehearsal)
    readings = reduced(trace, prompts, options, first=len(rehearsal))
    return summary(readings, level, block, trace, server_cpu_s=after - before if before is not None and after is not None else None)


def _check_rehearsal(base_url: str, trace: Trace, prompts: Sequence[Prompt]) -> None:
    """Take what was rehearsed out of ``trace``. Raises NotServing when all of it failed by itself and not by the level's limit."""
    from .stream.trace import Trace

    rehearsed = Trace({number: trace.requests.pop(number) for number in range(len(prompts)) if number in trace.requests}, [])
    failed = ""
    for number, prompt in enumerate(prompts):  # the first that was served, or cut while it was, is enough
        (reading,) = reduced(rehearsed, [prompt], first=number)
        if reading.result.outcome in (Outcome.OK, Outcome.DEADLINE):
            return
        failed = failed or f"all {len(prompts)} warm-up requests failed: {reading.result.outcome.value} {reading.result.detail}"
    if failed:
        raise NotServing(url=base_url, why=failed, fix="run `leadline doctor` on it")


def rehearse(
    base_url: str, level: Level, prompts: Sequence[Prompt], *, block: int, model: str, settings: Measure, options: Options = PLAIN
) -> None:
    """Play ``prompts`` for their effect on the server only."""
    if not prompts:
        return
    plan = plan_of(base_url, level, prompts, block=block, model=model, settings=settings, options=options)
    stream.play(plan, processes=options.processes or _load_processes(plan.connections), path=options.path)


def plan_of(
    base_url: str,
    level: Level,
    prompts: Sequence[Prompt],
    *,
    block: int,
    model: str,
    settings: Measure,
    options: Options = PLAIN,
    rehearsal: Sequence[Prompt] = (),
) -> Plan:
    """What a load process plays for ``prompts`` at ``level``, after ``rehearsal``."""
    # another nonce at every level: they are played one after the other on one server, with the same prompts
    salted = msgspec.structs.replace(options, salt=f"{options.salt}/{level.concurrency}/{level.rate_rps}")
    write = functools.partial(body, model=model, settings=settings, options=salted)
    open_loop = level.rate_rps is not None
    dues = arrivals(level, len(prompts), seed=settings.seed, block=block)
    numbers = {prompt.prompt_id: number for number, prompt in enumerate(prompts, len(rehearsal))}
    return Plan(
        endpoint=planning.endpoint(base_url),
        shots=(
            *(Shot(write(prompt)) for prompt in rehearsal),
            *(
                Shot(
                    write(prompt),
                    due_s=due if prompt.due_s is None and not prompt.after else prompt.due_s,
                    after=numbers.get(prompt.after, -1),
                    delay_s=prompt.delay_s,
                )
                for prompt, due in zip(prompts, dues, strict=True)
            ),
        ),
        rehearsed=len(rehearsal),
        connections=min(len(prompts), level.concurrency or max(8, math.ceil(2 * (level.rate_rps or 0.0)))),
        open_loop=open_loop or any(prompt.due_s is not None for prompt in prompts),
        idle_s=settings.idle_timeout_s,
        limit_s=settings.level_limit_s,
        kernel_clock=options.kernel_clock,
        verify=options.verify,
        ca_file=options.ca_file,
        headers=options.headers,
    )


@functools.lru_cache(16)
def _load_processes(connections: int) -> int:
    """One for every 512 connections; more than there are cores to use would only share them and wake each other's streams."""
    return max(1, min(-(-connections // 512), len(os.sched_getaffinity(0))))


def prompt_file(name: str) -> PromptFile:
    """Read a file of prompts; ``!`` in front forces one that looks like random tokens. Raises :class:`~leadline.errors.BadWorkload`."""
    path = Path(name.removeprefix("!")).absolute()
    try:
        stat = path.stat()
        return _parsed_file(path, stat.st_mtime_ns, stat.st_size, name.startswith("!"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadWorkload(
            workload=name, why=f"it cannot be read: {error}", fix="give the path of a readable UTF-8 .jsonl or .json file"
        ) from None


@functools.lru_cache(8)
def _parsed_file(path: Path, mtime_ns: int, size_bytes: int, force: bool) -> PromptFile:
    """The file as it was at ``mtime_ns``: every block asks for it."""
    return promptfile.parse(path.name, path.read_text("utf-8"), force=force)


def is_file(name: str) -> bool:
    """Whether a workload's name means a file."""
    return name.endswith((".jsonl", ".json")) or "/" in name


def prompts_of(
    name: str, settings: Measure, *, block: int, count: int, max_tokens: int | None = None, timed: bool = True, background: int = 0
) -> tuple[Prompt, ...]:
    """The prompts of a block, of a built-in workload (with ``background`` characters of text) or a file (without its times unless ``timed``).

    Raises :class:`~leadline.errors.BadWorkload`.
    """
    most = max_tokens or settings.max_tokens
    if is_file(name):
        if settings.input_tokens:
            why = f"its prompts are sent as they are, and {settings.input_tokens} input tokens were asked for"
            raise BadWorkload(workload=name, why=why, fix="leave --input-tokens (measure.input_tokens) out, or take a built-in workload")
        source = prompt_file(name) if timed else promptfile.untimed(prompt_file(name))
        cold = settings.cache == "cold"
        return workload.from_file(source, seed=settings.seed, block=block, count=count, max_tokens=most, repeat=cold)
    return workload.blocks(name, seed=settings.seed, block=block, count=count, max_tokens=most, background=background)


def block_size(level: Level, settings: Measure) -> int:
    """Requests of a block; a file with times is one block. Raises :class:`~leadline.errors.BadWorkload`.

    A session has one request open at a time: where the file has some, a block holds that many requests for each that is to be kept open.
    """
    source = prompt_file(level.workload) if is_file(level.workload) else None
    if source is not None and source.timed:
        return source.requests
    if level.rate_rps is not None:
        return max(settings.prompts, round(level.rate_rps * RATE_BLOCK_S))
    turns = math.ceil(source.requests / len(source.sessions)) if source is not None else 1
    return max(settings.prompts, max(1, level.concurrency) * settings.waves * turns)


def warm_up_prompts(level: Level, settings: Measure, *, background: int = 0) -> tuple[Prompt, ...]:
    """Short requests like those to be measured, so that what a server sizes and compiles at first use is not measured.

    They are never among those that are measured. Where a prefix cache would answer the prompts of the user's file a second time, they are of
    a built-in workload.
    """
    count = max(1, level.concurrency) * settings.warmup_requests
    if not count:
        return ()
    name = level.workload if not is_file(level.workload) or settings.cache == "cold" else "chat"
    most = min(WARM_UP_TOKENS, settings.max_tokens)
    return prompts_of(name, settings, block=WARM_UP_BLOCK, count=count, max_tokens=most, timed=False, background=background)


def check_prompts(planned: Iterable[Level], settings: Measure, *, blocks: int) -> None:
    """Raises :class:`~leadline.errors.BadWorkload` unless there are prompts for so many blocks of every level."""
    for level in planned:
        prompts_of(level.workload, settings, block=blocks - 1, count=block_size(level, settings))


def digest(settings: Measure) -> str:
    """Fingerprint of the workloads of ``settings``, files by their content."""
    return workload.digest(settings.workloads, settings, {name: prompt_file(name) for name in settings.workloads if is_file(name)})


def body(prompt: Prompt, *, model: str, settings: Measure, options: Options = PLAIN) -> bytes:
    """The JSON of one request."""
    cold = settings.cache == "cold"
    mark = f"[{nonce(prompt.prompt_id, options.salt)}] " if cold and prompt.messages else ""
    request: dict[str, object] = {"model": model}
    if options.path.endswith("/chat/completions"):
        request["messages"] = _messages(prompt, mark)
    else:
        request["prompt"] = mark + "\n\n".join(text for _, text in prompt.messages)
    usage: dict[str, bool] = {"include_usage": True}
    if options.count_chunks:
        usage["continuous_usage_stats"] = True
        request["timings_per_token"] = True
    request |= {
        "max_tokens": prompt.max_tokens,
        "temperature": settings.temperature,
        "stream": True,
        "stream_options": usage,
        "cache_prompt": not cold,
    }
    if options.ignore_eos or prompt.ignore_eos:
        request["ignore_eos"] = True
    if prompt.tools:
        request["tools"] = json.loads(prompt.tools)
    request |= {name: json.loads(text) for name, text in options.extra}
    return msgspec.json.encode(request)


def _messages(prompt: Prompt, mark: str) -> list[dict[str, object]]:
    """The messages of one request, ``mark`` in front of everything: a prefix cache ends at the first difference."""
    messages: list[dict[str, object]] = (
        json.loads(prompt.recorded) if prompt.recorded else [{"role": role, "content": text} for role, text in prompt.messages]
    )
    if mark:
        messages[0] = {**messages[0], "content": _marked(messages[0].get("content"), mark)}
    return messages


def _marked(content: object, mark: str) -> object:
    """A message's content, which is a text, a list of parts or none, with ``mark`` in front."""
    if not isinstance(content, list):
        return f"{mark}{content or ''}"
    if content and isinstance(content[0], dict) and isinstance(content[0].get("text"), str):
        return [{**content[0], "text": mark + content[0]["text"]}, *content[1:]]
    return [{"type": "text", "text": mark}, *content]


def nonce(prompt_id: str, salt: str) -> str:
    """Eight letters that differ for every prompt; equal for every candidate, so that pairs stay pairs."""
    digest = hashlib.blake2b(f"{salt}/{prompt_id}".encode(), digest_size=8).digest()
    return "".join(chr(ord("a") + byte % 26) for byte in digest)


def arrivals(level: Level, count: int, *, seed: int, block: int) -> tuple[float | None, ...]:
    """Scheduled sends, seconds after the start: exponential gaps for a rate (a Poisson process), ``None`` in a closed loop."""
    if level.rate_rps is None:
        return (None,) * count
    at, dues = 0.0, []
    for number in range(count):
        digest = hashlib.blake2b(f"arrival/{seed}/{block}/{number}".encode(), digest_size=8).digest()
        at += -math.log(1.0 - int.from_bytes(digest, "little") / 2**64) / level.rate_rps
        dues.append(at)
    return tuple(dues)


def reduced(trace: Trace, prompts: Sequence[Prompt], options: Options = PLAIN, *, first: int = 0) -> list[Reading]:
    """Every request that was asked for, in order, from number ``first`` on; one without a trace (the load was killed before) counts as
    aborted."""
    from .stream import reduce as reducing
    from .stream.trace import RequestTrace

    start = min((request.sent_ns for request in trace.requests.values() if request.sent_ns), default=0)
    requests = [trace.requests.get(number) or RequestTrace(number, detail="not sent") for number in range(first, first + len(prompts))]
    ignore, keep = options.ignore_eos, options.keep_text
    asked = [reducing.Asked(prompt.prompt_id, prompt.max_tokens, ignore or prompt.ignore_eos, keep) for prompt in prompts]
    return reducing.reduce(requests, asked, start_ns=start)


def summary(readings: Sequence[Reading], level: Level, block: int, trace: Trace, *, server_cpu_s: float | None = None) -> BlockResult:
    """A block's figures from its requests."""
    results = tuple(reading.result for reading in readings)
    sent = [reading.sent_ns for reading in readings if reading.sent_ns]
    last = [reading.last_ns for reading in readings if reading.last_ns]
    duration_s = (max(last) - min(sent)) / 1e9 if sent and last else 0.0
    tokens = sum(result.tokens_out for result in results if result.outcome is Outcome.OK)
    outcomes = {result.outcome for result in results}
    stop = "aborted" if Outcome.ABORTED in outcomes else "time" if Outcome.DEADLINE in outcomes else "complete"
    return BlockResult(
        level=level,
        block=block,
        duration_s=duration_s,
        output_tok_s=tokens / duration_s if duration_s > 0 else 0.0,
        requests=results,
        client=client_health(readings, trace),
        server_cpu_s=server_cpu_s,
        stop=stop,
    )


def client_health(readings: Sequence[Reading], trace: Trace) -> ClientHealth:
    """The load generator's own figures, and whether they allow the level to count."""
    import numpy as np

    lags = np.concatenate([reading.lags_ns for reading in readings]) if readings else np.empty(0)
    reads = sum(reading.reads for reading in readings)
    merged = sum(reading.merged for reading in readings)
    total_reads = sum(reading.total for reading in readings)
    kernel = len(lags) > 0 and len(lags) >= 0.99 * total_reads
    p50, p99 = (np.quantile(lags, (0.5, 0.99)) / 1e6).tolist() if len(lags) else (0.0, 0.0)
    durations = [reading.result.e2e_ms for reading in readings if reading.result.e2e_ms is not None]
    typical_ms = float(np.median(durations)) if durations else 0.0
    busiest = max((_busy(health) for health in trace.healths), default=0.0)
    why = ""
    if kernel and p99 > max(LAG_LIMIT_MS, LAG_SHARE * typical_ms):
        why = f"it read 1 % of the data more than {p99:.1f} ms after the kernel had it"
    elif busiest > (CORE_SHARE_LIMIT if kernel else USER_CLOCK_BUSY_LIMIT):
        why = f"a load process was busy {busiest:.0%} of the time"
    return ClientHealth(
        clock="kernel" if kernel else "user",
        lag_ms_p50=p50,
        lag_ms_p99=p99,
        merged_share=merged / reads if reads else 0.0,
        cpu_s=sum(cast(float, health["cpu_s"]) for health in trace.healths),
        reconnects=sum(cast(int, health["reconnects"]) for health in trace.healths),
        valid=not why,
        why=why,
    )


def _busy(health: Mapping[str, object]) -> float:
    wall = cast(float, health["wall_s"])
    return cast(float, health["hot_cpu_s"]) / wall if wall > 0.2 else 0.0


def percentile(ordered: Sequence[float], share: float) -> float:
    """Linear between the neighbours of an ordered sample; 0 when it is empty."""
    if not ordered:
        return 0.0
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def ask(
    base_url: str,
    model: str,
    *,
    prompt: str = "Say hello.",
    max_tokens: int = 1,
    timeout_s: float = 60.0,
    options: Options = PLAIN,
) -> RequestResult:
    """One real request: whether the server generates. Never raises for what the server does; the outcome says it."""
    settings = Measure(idle_timeout_s=timeout_s, level_limit_s=timeout_s, cache="production")
    prompts = (Prompt(prompt_id="ask", messages=(("user", prompt),), max_tokens=max_tokens),)
    level = Level(workload="ask", concurrency=1)
    return play(base_url, level, prompts, block=0, model=model, settings=settings, options=options).requests[0]
