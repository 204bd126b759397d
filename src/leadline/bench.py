"""``leadline bench``: measure a server as it stands, compare two results, hand them to other tools' plots.

A result is one JSON document (:class:`BenchResult`) with every block and every request in it; it is written anew after
every block, so that what was measured survives whatever ends the run.
"""

from __future__ import annotations

import itertools
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from . import __version__, endpoints, lengths, measure, stats, workload
from .config import Measure, levels
from .errors import BadLevels, BadWorkload, ConfigError, NotServing, OtherConditions
from .records import BlockResult, ClientHealth, Interval, Level, Outcome, Record, RequestResult
from .stream.plan import endpoint
from .target import cannot_write, check_writable, write_atomically

FORMAT = "leadline-bench-1"
"""History: 1 = first."""
LEAST_BLOCKS = 3
OWN_FIELDS = {
    **dict.fromkeys(("messages", "prompt", "stream", "stream_options"), "leave it out"),
    **dict.fromkeys(("max_tokens", "max_completion_tokens"), "give --max-tokens instead"),
    "model": "give --model instead",
}
"""Fields of a request that ``--extra-body`` cannot set, and what to do instead."""
STYLES = ("vllm", "sglang")
OWN_HEADERS = ("host", "content-length", "content-type", "accept", "accept-encoding", "transfer-encoding", "connection")
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A token (RFC 9110, 5.6.2)."""
HEADER_VALUE = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")
"""What RFC 9110, 5.5 allows, less the control characters of Latin-1."""


Spread: TypeAlias = tuple[float, float, float]
"""p50, p90, p99."""


class LevelResult(Record, frozen=True):
    """Everything measured at one level."""

    level: Level
    blocks: tuple[BlockResult, ...]
    stop: str = ""
    """``precision``, ``blocks`` (as many as were allowed), ``prompts`` (the file has no more), ``time``, ``nothing served`` (in the last
    block), or empty while it runs."""


class BenchResult(Record, frozen=True):
    """The file of one run."""

    format: str
    url: str
    model: str
    at_s: float
    """Start, seconds since the epoch."""
    writer: str
    workloads: str
    """Digest of the prompts and limits; results with different digests are never compared."""
    settings: Measure
    levels: tuple[LevelResult, ...]
    label: str = ""
    asked: str = ""
    """What requests asked for beyond the prompt and its limit (JSON); results that asked for different things are never compared."""
    complete: bool = False
    backgrounds: tuple[tuple[str, int], ...] = ()
    """Characters of text with the prompts of each workload, where so many input tokens were asked for (``settings.input_tokens``)."""
    round_trip_ms: float | None = None
    """To the server's host through the forward that was measured through: contained in every latency. ``None`` without a forward."""


class Figures(Record, frozen=True):
    """One level in numbers. Latencies in ms over the requests that were served; percentiles linear between neighbours, ``None`` where
    there is nothing to take them of: a step gap needs a second event, a time per token a second token."""

    level: Level
    requests: int
    failed: tuple[tuple[str, int], ...]
    """(kind, count) of everything that was not served."""
    output_tok_s: Interval | None
    """Over blocks, without the one that the limit cut where there are others; ``None`` when nothing was served."""
    requests_s: float
    """Of the same blocks."""
    ttft_ms: Spread | None
    """p50, p90, p99, from the actual send."""
    ttft_intended_ms: Spread | None
    """The same from the intended send: differs where the load could not keep its schedule."""
    step_gap_ms: Spread | None
    """Between two token-bearing events of a stream (other tools call it ITL)."""
    time_per_token_ms: Spread | None
    """(E2E - TTFT) / (tokens - tokens of the first event), a figure a request (other tools call it TPOT)."""
    tokens_per_step: float | None
    """Output tokens / token-bearing events."""
    e2e_ms: Spread | None
    input_tokens: Spread | None
    """Of a request, as the server counts them."""
    tokens_in: int
    tokens_out: int
    token_source: str
    acceptance_rate: float | None
    """Accepted / drafted tokens, where the server says it per request."""
    gaps_unsure: float
    """Share of the step gaps that have an uncertain end, because one read brought several events."""
    late_ms_p99: float
    """How late requests were sent, against the schedule (open loop) or a free connection (closed)."""
    blocks: int
    stop: str
    client: tuple[ClientHealth, ...]
    invalid: str
    """Why the level does not count, empty when it does."""


def discover(url: str, options: measure.Options = measure.PLAIN) -> str:
    """The id of the model a server offers. Raises :class:`~leadline.errors.NotServing`."""
    try:
        return endpoints.first_model(url.rstrip("/").removesuffix("/v1"), headers=options.headers, verify=options.verify)
    except ValueError as error:
        raise NotServing(url=url, why=str(error), fix="check that the server is up (`leadline doctor URL`), or give --model") from None


def run(
    url: str,
    settings: Measure,
    *,
    model: str = "",
    rates: Sequence[float] = (),
    options: measure.Options = measure.PLAIN,
    out: Path | None = None,
    label: str = "",
    round_trip_ms: float | None = None,
    show: Callable[[LevelResult, int], None] | None = None,
) -> BenchResult:
    """Measure every level of ``settings`` (or every rate of ``rates``) at ``url``.

    ``show`` is told the level so far and the number of ended requests of the block that plays. Raises BadTarget, NotServing,
    BadWorkload, BadLevels, MeasurementInvalid, and ConfigError or DiskFull when ``out`` can no longer be written.
    """
    endpoint(url)
    planned = planned_levels(settings, rates)
    at_s = time.time()
    if not options.salt:  # the server may still hold the prompts of the last run
        options = msgspec.structs.replace(options, salt=f"{at_s:.6f}")
    result = BenchResult(
        format=FORMAT,
        url=url,
        model=model or discover(url, options),
        at_s=at_s,
        writer=f"leadline {__version__}",
        workloads=measure.digest(settings),
        settings=settings,
        levels=(),
        label=label,
        asked=asked(options),
        round_trip_ms=round_trip_ms,
    )
    if settings.input_tokens:
        found = lengths.backgrounds(url, model=result.model, settings=settings, options=options)
        result = msgspec.structs.replace(result, backgrounds=tuple(found.items()))
    for level in planned:
        done = LevelResult(level=level, blocks=())
        began_s = time.monotonic()
        while not done.stop:
            done = _next_block(done, result, settings, options, show, began_s=began_s)
            replaced = msgspec.structs.replace(result, levels=(*result.levels, done))
            save(replaced, out)
        result = msgspec.structs.replace(result, levels=(*result.levels, done))
    result = msgspec.structs.replace(result, complete=True)
    save(result, out)
    return result


def planned_levels(settings: Measure, rates: Sequence[float] = ()) -> tuple[Level, ...]:
    """Every workload at every concurrency, or at every rate; a file with times at those alone.

    Raises BadLevels, and BadWorkload unless there are prompts for a block of each.
    """
    planned: list[Level] = []
    for name in settings.workloads:
        if measure.is_file(name) and measure.prompt_file(name).timed:
            if rates:
                why = "it has times of its own, and --rate asks for others"
                raise BadWorkload(workload=name, why=why, fix="leave --rate out, or take at_s and timestamp out of the file")
            last_s = max(prompt.due_s or 0.0 for prompt in measure.prompts_of(name, settings, block=0, count=1))
            if last_s > settings.level_limit_s:
                why = f"its last time is {last_s:.0f} s after its first, and a level ends after {settings.level_limit_s:g} s"
                raise BadWorkload(workload=name, why=why, fix="raise measure.level_limit_s in leadline.toml, or cut the file")
            planned.append(Level(workload=name, concurrency=0))
        elif rates:
            planned += [Level(workload=name, concurrency=0, rate_rps=rate) for rate in rates]
        else:
            planned += levels(msgspec.structs.replace(settings, workloads=(name,)))
    if not planned:
        raise BadWorkload(
            workload="(none)", why="no workload is named", fix="leave --workload out, or name one: see `leadline bench --help`"
        )
    twice = [level.label for level, count in Counter(planned).items() if count > 1]
    if twice:  # its prompts would be those of the first time, and a prefix cache would answer them
        raise BadLevels(levels=", ".join(level.label for level in planned), why=f"{twice[0]} stands there twice")
    measure.check_prompts(planned, settings, blocks=1)
    return tuple(planned)


def check_places(planned: Sequence[Level], *, out: Path | None, exports: Sequence[tuple[str, Path]], traces: Path | None) -> None:
    """Refuse, before anything is measured, a file or folder of traces that a run could not write. Raises ConfigError, DiskFull."""
    if out is not None:
        check_writable(out, "--out")
    for style, place in exports:
        for path in export_paths(planned, style, place):
            check_writable(path, "--export")
    if traces is not None:
        check_writable(traces / "load-0.trace", "--traces")


def asked(options: measure.Options) -> str:
    """What requests ask for beyond the prompt and its limit, as JSON; empty when it is nothing."""
    fields: dict[str, object] = {name: msgspec.json.decode(text) for name, text in options.extra}
    if options.ignore_eos:
        fields["ignore_eos"] = True
    return msgspec.json.encode(fields, order="sorted").decode() if fields else ""


def extra_body(text: str) -> tuple[tuple[str, str], ...]:
    """``'{"top_k": 1}'`` -> pairs of a field and its JSON. Raises :class:`~leadline.errors.ConfigError`."""
    try:
        fields = msgspec.json.decode(text or "{}", type=dict[str, msgspec.Raw])
    except msgspec.DecodeError as error:
        raise ConfigError(
            place="--extra-body", what=f"not a JSON object: {error}", fix="write for example --extra-body '{\"top_k\": 1}'"
        ) from None
    own = sorted(fields.keys() & OWN_FIELDS.keys())
    if own:
        raise ConfigError(place="--extra-body", what=f"{own[0]} is what leadline itself asks with", fix=OWN_FIELDS[own[0]])
    return tuple((name, bytes(value).decode()) for name, value in fields.items())


def rates(text: str | None) -> tuple[float, ...]:
    """``"2,8.5"`` -> (2.0, 8.5). Raises :class:`~leadline.errors.BadLevels`."""
    if text is None:
        return ()
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = (-1.0,)
    if not all(0 < rate < 1e6 for rate in found):
        raise BadLevels(levels=text, why="a rate is a number of arrivals a second, above 0")
    return found


def headers(lines: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """``["Name: value"]`` -> pairs. Raises :class:`~leadline.errors.ConfigError`."""
    pairs = tuple((name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in lines))
    for name, value in pairs:
        why = _header_fault(name, value)
        if why:
            raise ConfigError(place="--header", what=why, fix="write for example --header 'Authorization: Bearer KEY'")
    return pairs


def _header_fault(name: str, value: str) -> str:
    """Why a header cannot be sent, without its value: it may be a key."""
    if not name or not value:
        return "a header without name or value"
    if not HEADER_NAME.fullmatch(name):
        return f"{name!r} is no name of a header: letters, digits and !#$%&'*+-.^_`|~"
    if name.lower() in OWN_HEADERS:
        return f"{name} is what leadline itself sends"
    if not HEADER_VALUE.fullmatch(value):
        return f"the value of {name} has a character that no header can carry: a line break, a control character, or one outside Latin-1"
    return ""


def _next_block(
    done: LevelResult,
    result: BenchResult,
    settings: Measure,
    options: measure.Options,
    show: Callable[[LevelResult, int], None] | None,
    *,
    began_s: float,
) -> LevelResult:
    level, number = done.level, len(done.blocks)
    background = dict(result.backgrounds).get(level.workload, 0)
    try:
        size = measure.block_size(level, settings)
        prompts = measure.prompts_of(level.workload, settings, block=number, count=size, background=background)
    except BadWorkload:
        if not number:
            raise
        return msgspec.structs.replace(done, stop="prompts")
    tick = (lambda ended: show(done, ended)) if show is not None else None
    first = measure.warm_up_prompts(level, settings, background=background) if number == 0 else ()
    left_s = max(0.0, settings.level_limit_s - (time.monotonic() - began_s))  # the limit is the level's, whatever the number of its blocks
    limited = msgspec.structs.replace(settings, level_limit_s=left_s)
    block = measure.play(
        result.url, level, prompts, block=number, model=result.model, settings=limited, options=options, rehearsal=first, tick=tick
    )
    blocks = (*done.blocks, block)
    done = LevelResult(level=level, blocks=blocks, stop=_stop(blocks, settings, time.monotonic() - began_s))
    if show is not None:
        show(done, 0)
    return done


def _stop(blocks: Sequence[BlockResult], settings: Measure, wall_s: float) -> str:
    """Why a level is done: out of time, nothing served, as many blocks as allowed, or precise enough.

    Its time is that on the wall: the durations of blocks end with the last token, and a server that stalls sends none.
    """
    last = blocks[-1]
    if last.stop != "complete" or wall_s >= settings.level_limit_s:
        return "time"
    if last.failed == len(last.requests):
        return "nothing served"
    if len(blocks) >= settings.max_blocks:
        return "blocks"
    rates = [block.output_tok_s for block in blocks if block.output_tok_s > 0]
    if len(rates) >= LEAST_BLOCKS:
        found = stats.estimate(rates)
        if (found.high - found.low) / 2 <= settings.precision * found.value:
            return "precision"
    return ""


def check_served(result: BenchResult) -> None:
    """Raises :class:`~leadline.errors.NotServing` when no request of any level was served."""
    outcomes = Counter(request.outcome for done in result.levels for block in done.blocks for request in block.requests)
    if not outcomes[Outcome.OK]:
        counted = ", ".join(f"{count} {outcome.value}" for outcome, count in outcomes.most_common())
        raise NotServing(
            url=result.url, why=f"not one of {outcomes.total()} requests was served: {counted}", fix="run `leadline doctor` on it"
        )


def show_line(done: LevelResult, ended: int) -> None:
    """One line a block on standard error; the count of a running block only on a terminal."""
    if ended and sys.stderr.isatty():
        sys.stderr.write(f"\r{done.level.label}: block {len(done.blocks) + 1}, {ended} requests ended ")
    elif not ended:
        block = done.blocks[-1]
        failed = f", {block.failed} failed" if block.failed else ""
        end = f"; done by {done.stop}" if done.stop else ""
        start = "\r" if sys.stderr.isatty() else ""
        sys.stderr.write(f"{start}{done.level.label}: block {len(done.blocks)}: {block.output_tok_s:.1f} tok/s{failed}{end}\n")


def save(result: BenchResult, out: Path | None) -> None:
    """Write the file of a run, if it has one. Raises ConfigError, DiskFull."""
    if out is not None:
        _write(out, msgspec.json.encode(result), "--out")


def _write(path: Path, data: bytes, option: str) -> None:
    """Replace the file that ``option`` named. Raises ConfigError, DiskFull."""
    try:
        write_atomically(path, data)
    except OSError as error:
        raise cannot_write(error, path, option) from error


def load(path: Path) -> BenchResult:
    """Read a result file. Raises :class:`~leadline.errors.ConfigError`."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=BenchResult)
    except FileNotFoundError:
        raise ConfigError(place=path, what="no such file", fix="give the file that `leadline bench --out FILE` wrote") from None
    except OSError as error:
        raise ConfigError(place=path, what=f"it cannot be read: {error.strerror}", fix="give a file that you may read") from None
    except msgspec.DecodeError as error:
        raise ConfigError(
            place=path, what=f"not a result of leadline bench: {error}", fix=f"files of format {FORMAT} can be read"
        ) from None


# -- figures -----------------------------------------------------------------------------------------------------------


def figures(done: LevelResult) -> Figures:
    """A level in numbers."""
    requests = [request for block in done.blocks for request in block.requests]
    served = [request for request in requests if request.outcome is Outcome.OK]
    whole = [block for block in done.blocks if block.stop == "complete"] or done.blocks
    rates = [block.output_tok_s for block in whole if block.output_tok_s > 0]
    duration_s = sum(block.duration_s for block in whole)
    drafted = sum(request.drafted or 0 for request in served)
    events = sum(request.events for request in served)
    tokens_out = sum(request.tokens_out for request in served)
    late = sorted((request.sent_s - request.intended_s) * 1e3 for request in requests if request.ttft_ms is not None)
    whys = [block.client.why for block in done.blocks if not block.client.valid]
    return Figures(
        level=done.level,
        requests=len(requests),
        failed=tuple(sorted(Counter(r.outcome.value for r in requests if r.outcome is not Outcome.OK).items())),
        output_tok_s=stats.estimate(rates) if rates else None,
        requests_s=sum(len(block.requests) - block.failed for block in whole) / duration_s if duration_s else 0.0,
        ttft_ms=_spread([r.ttft_ms for r in served if r.ttft_ms is not None]),
        ttft_intended_ms=_spread([r.ttft_ms + (r.sent_s - r.intended_s) * 1e3 for r in served if r.ttft_ms is not None]),
        step_gap_ms=_spread([gap for r in served for gap in r.step_gap_ms]),
        time_per_token_ms=_spread([r.tpot_ms for r in served if r.tpot_ms is not None]),
        tokens_per_step=tokens_out / events if events else None,
        e2e_ms=_spread([r.e2e_ms for r in served if r.e2e_ms is not None]),
        input_tokens=_spread([r.tokens_in for r in served if r.tokens_in is not None]),
        tokens_in=sum(r.tokens_in or 0 for r in served),
        tokens_out=tokens_out,
        token_source="+".join(sorted({r.token_source for r in served})),
        acceptance_rate=sum(r.accepted or 0 for r in served) / drafted if drafted else None,
        gaps_unsure=sum(r.gaps_unsure for r in served) / max(1, sum(len(r.step_gap_ms) for r in served)),
        late_ms_p99=measure.percentile(late, 0.99),
        blocks=len(done.blocks),
        stop=done.stop,
        client=tuple(block.client for block in done.blocks),
        invalid=f"the client was the bottleneck in {len(whys)} of {len(done.blocks)} blocks: {whys[0]}" if whys else "",
    )


def _spread(values: Sequence[float]) -> Spread | None:
    ordered = sorted(values)
    return (measure.percentile(ordered, 0.5), measure.percentile(ordered, 0.9), measure.percentile(ordered, 0.99)) if ordered else None


def _ends(spread: Spread | None, digits: int) -> str:
    return f"{spread[0]:.{digits}f}/{spread[2]:.{digits}f} ms" if spread else "none"


def text(result: BenchResult) -> str:
    """The table of a result."""
    rows = [
        (
            "level",
            "output tok/s (90 %)",
            "TTFT p50/p99",
            "step gap p50/p99",
            "per token p50/p99",
            "tok/step",
            "E2E p50",
            "requests",
            "failed",
        )
    ]
    notes = []
    for done in result.levels:
        f = figures(done)
        rate = f.output_tok_s
        rows.append(
            (
                f.level.label,
                f"{rate.value:.1f} ({rate.low:.1f}-{rate.high:.1f}, n={rate.n})" if rate else "none",
                _ends(f.ttft_ms, 1),
                _ends(f.step_gap_ms, 2),
                _ends(f.time_per_token_ms, 2),
                (f"{f.tokens_per_step:.2f}" if f.tokens_per_step is not None else "none")
                + (f" (accepted {f.acceptance_rate:.0%})" if f.acceptance_rate is not None else ""),
                f"{f.e2e_ms[0]:.0f} ms" if f.e2e_ms else "none",
                str(f.requests),
                ", ".join(f"{count} {kind}" for kind, count in f.failed) or "0",
            )
        )
        lag = max((client.lag_ms_p99 for client in f.client), default=0.0)
        merged = max((client.merged_share for client in f.client), default=0.0)
        clocks = "/".join(sorted({client.clock for client in f.client}))
        notes.append(
            f"{f.level.label}: tokens from {f.token_source or 'nothing'}"
            + (f", in p50/p99 {f.input_tokens[0]:.0f}/{f.input_tokens[2]:.0f}" if f.input_tokens else "")
            + f"; clock {clocks}, "
            + (f"lag p99 {lag:.2f} ms, " if "user" not in clocks else "lag unknown, ")
            + f"merged reads {merged:.1%}, gaps unsure {f.gaps_unsure:.1%}, "
            f"late p99 {f.late_ms_p99:.2f} ms, client CPU {sum(c.cpu_s for c in f.client):.2f} s; stopped by {f.stop or 'interruption'}"
            + (f"; INVALID: {f.invalid}" if f.invalid else "")
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    head = f"{result.model} at {result.url}; prefix cache {result.settings.cache}, at most {result.settings.max_tokens} tokens a request"
    if result.round_trip_ms is not None:
        head += f"\nround trip to its host {result.round_trip_ms:.1f} ms, contained in every latency below"
    return "\n".join([head, "", *lines, "", *notes, ""])


# -- comparison --------------------------------------------------------------------------------------------------------


class Compared(Record, frozen=True):
    """One level in two results."""

    level: Level
    ratio: Interval | None
    """Output throughput, second result / first result, over the blocks both have."""
    why: str = ""


def check_conditions(found: BenchResult, *, workloads: str, asked: str) -> None:
    """Refuse a result of other prompts, limits or fields than the digest and the JSON say. Raises OtherConditions."""
    if found.workloads != workloads:
        raise OtherConditions(
            result=found.label or found.url,
            what=f"workloads {found.workloads}, not {workloads}",
            fix="measure both with the same --workload, --max-tokens and --seed",
        )
    if found.asked != asked:
        raise OtherConditions(
            result=found.label or found.url,
            what=f"its requests asked for {found.asked or 'nothing more'}, not {asked or 'nothing more'}",
            fix="measure both with the same --extra-body and --ignore-eos",
        )


def compare(first: BenchResult, second: BenchResult) -> tuple[Compared, ...]:
    """Throughput of ``second`` over ``first``, paired by block. Raises :class:`~leadline.errors.OtherConditions`.

    The digest holds a file's content and not its name, so that workloads correspond by their place in the settings.
    """
    check_conditions(second, workloads=first.workloads, asked=first.asked)
    names = dict(zip(second.settings.workloads, first.settings.workloads, strict=False))
    others = {b.level: b for b in (_renamed(b, names) for b in second.levels)}
    found = []
    for a in first.levels:
        b = others.get(a.level)
        left = {_prompts(block): (1, block) for block in a.blocks if counts(block)}
        right = {_prompts(block): (2, block) for block in b.blocks if counts(block)} if b is not None else {}
        shared = [prompts for prompts in left if prompts in right]
        if not shared:
            found.append(Compared(level=a.level, ratio=None, why="no block of this level counts in both results with the same prompts"))
            continue
        ratio = stats.paired_ratio([right[prompts] for prompts in shared], [left[prompts] for prompts in shared])
        found.append(Compared(level=a.level, ratio=ratio))
    return tuple(found)


def _prompts(block: BlockResult) -> tuple[int | str, ...]:
    """What two blocks must share to pair. A release may deal other prompts to a block than the one before did."""
    return (block.block, *sorted(request.prompt_id for request in block.requests))


def _renamed(done: LevelResult, names: Mapping[str, str]) -> LevelResult:
    """The same level with its workload called as ``names`` says."""
    level = msgspec.structs.replace(done.level, workload=names.get(done.level.workload, done.level.workload))
    blocks = tuple(msgspec.structs.replace(block, level=level) for block in done.blocks)
    return msgspec.structs.replace(done, level=level, blocks=blocks)


def counts(block: BlockResult) -> bool:
    """Whether a block may enter a comparison: all served, not cut short, and the client was not the bottleneck."""
    return block.failed == 0 and block.stop == "complete" and block.client.valid


def comparison_text(compared: Sequence[Compared]) -> str:
    lines = []
    for row in compared:
        if row.ratio is None:
            lines.append(f"{row.level.label}: {row.why}")
            continue
        r = row.ratio
        verdict = "no difference shown" if not r.excludes_one else "faster" if r.value > 1 else "slower"
        lines.append(f"{row.level.label}: x{r.value:.3f} ({r.low:.3f}-{r.high:.3f}, {r.confidence:.0%}, n={r.n}): {verdict}")
    return "\n".join(lines) + "\n"


# -- other tools' formats ----------------------------------------------------------------------------------------------


def _moments(name: str, values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    mean = sum(ordered) / len(ordered) if ordered else 0.0
    return {
        f"mean_{name}": mean,
        f"median_{name}": measure.percentile(ordered, 0.5),
        f"std_{name}": (sum((v - mean) ** 2 for v in ordered) / len(ordered)) ** 0.5 if ordered else 0.0,
        **{f"p{share}_{name}": measure.percentile(ordered, share / 100) for share in (90, 95, 99)},
    }


def exported(result: BenchResult, done: LevelResult, style: str) -> dict[str, object]:
    """One level as ``vllm bench serve --save-result`` (``vllm``) or ``sglang.bench_serving`` (``sglang``) writes it.

    Lists hold one entry a request, seconds as there; what leadline does not count is left out rather than invented. Blocks stand one behind
    the other, as ``duration`` counts them, and a failed request has put out no tokens: both tools' own totals and plots add these lists up.
    """
    requests = [request for block in done.blocks for request in block.requests]
    starts = itertools.accumulate((block.duration_s for block in done.blocks), initial=0.0)
    served = [request for request in requests if request.outcome is Outcome.OK]
    duration = sum(block.duration_s for block in done.blocks) or 1e-9
    tokens_in, tokens_out = sum(r.tokens_in or 0 for r in served), sum(r.tokens_out for r in served)
    e2e = "e2el_ms" if style == "vllm" else "e2e_latency_ms"
    document: dict[str, object] = {
        "date": time.strftime("%Y%m%d-%H%M%S", time.gmtime(result.at_s)),
        "backend": "openai-chat" if style == "vllm" else "sglang-oai-chat",
        "model_id": result.model,
        "dataset_name": done.level.workload,
        "num_prompts": len(requests),
        "request_rate": done.level.rate_rps or ("inf" if done.level.concurrency else "trace"),
        "max_concurrency": done.level.concurrency or None,
        "duration": duration,
        "completed": len(served),
        "failed": len(requests) - len(served),
        "total_input_tokens": tokens_in,
        "total_output_tokens": tokens_out,
        "request_throughput": len(served) / duration,
        "input_throughput": tokens_in / duration,
        "output_throughput": tokens_out / duration,
        "total_token_throughput": (tokens_in + tokens_out) / duration,
        "input_lens": [r.tokens_in or 0 for r in requests],
        "output_lens": [r.tokens_out if r.outcome is Outcome.OK else 0 for r in requests],
        "ttfts": [_seconds(r.ttft_ms) for r in requests],
        "itls": [[gap / 1e3 for gap in r.step_gap_ms] for r in requests],
        "start_times": [start + r.sent_s for start, block in zip(starts, done.blocks, strict=False) for r in block.requests],
        "latencies": [_seconds(r.e2e_ms) for r in requests],
        "generated_texts": [r.text for r in requests],
        "errors": [_error(r) for r in requests],
        **_moments("ttft_ms", [r.ttft_ms for r in served if r.ttft_ms is not None]),
        **_moments("tpot_ms", [r.tpot_ms for r in served if r.tpot_ms is not None]),
        **_moments("itl_ms", [gap for r in served for gap in r.step_gap_ms]),
        **_moments(e2e, [r.e2e_ms for r in served if r.e2e_ms is not None]),
    }
    if style == "sglang":
        document["concurrency"] = sum((r.e2e_ms or 0.0) / 1e3 for r in served) / duration
        document["total_throughput"] = document["total_token_throughput"]
        document["max_itl_ms"] = max((gap for r in served for gap in r.step_gap_ms), default=0.0)
    return document


def _seconds(value_ms: float | None) -> float:
    return (value_ms or 0.0) / 1e3


def _error(request: RequestResult) -> str:
    return "" if request.outcome is Outcome.OK else f"{request.outcome.value}: {request.detail}"


def exports(wishes: Sequence[str]) -> tuple[tuple[str, Path], ...]:
    """``["vllm=FILE"]`` -> pairs of a style and its file. Raises :class:`~leadline.errors.ConfigError`."""
    pairs = tuple((style, Path(place or f"leadline-{style}.json")) for style, _, place in (wish.partition("=") for wish in wishes))
    for style, _ in pairs:
        if style not in STYLES:
            raise ConfigError(place="--export", what=f"unknown format {style!r}", fix="write vllm=FILE or sglang=FILE")
    return pairs


def export_paths(planned: Sequence[Level], style: str, out: Path) -> list[Path]:
    """The files of an export: ``vllm`` = one a level, ``sglang`` = one."""
    if style == "sglang" or len(planned) == 1:
        return [out]
    paths: list[Path] = []
    for number, level in enumerate(planned, 1):
        path = out.with_name(f"{out.stem}-{workload.slug(level)}{out.suffix or '.json'}")
        paths.append(path.with_stem(f"{path.stem}-{number}") if path in paths else path)  # two files of one name in two folders
    return paths


def export(result: BenchResult, style: str, out: Path) -> list[Path]:
    """Write ``result`` in one of :data:`STYLES`: ``vllm`` = one JSON file a level, ``sglang`` = one JSON line a level.

    Returns what was written. Raises ConfigError, DiskFull.
    """
    texts = [msgspec.json.encode(exported(result, done, style)) for done in result.levels]
    if style == "sglang":
        texts = [b"".join(text + b"\n" for text in texts)]
    paths = export_paths([done.level for done in result.levels], style, out)
    for path, text in zip(paths, texts, strict=True):
        _write(path, text, "--export")
    return paths
