"""What the user wants, as weights over the levels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import msgspec

from .config import OBSERVED, Tune
from .errors import ConfigError
from .records import BlockResult, Level, Outcome, RequestResult, TrafficSample, Watched
from .state import Knowledge
from .words import duration
from .words import share as words_share

NAMES = ("single", "peak", "balanced", "goodput", OBSERVED)
BEYOND, MUCH = 1.5, 0.05
"""Traffic counts as not covered where more than ``MUCH`` of the busy time has ``BEYOND`` times the highest level in hand."""


def weights(tune: Tune, levels: Sequence[Level]) -> tuple[tuple[Level, float], ...]:
    """Weight of every level that counts for the objective; they add up to 1.

    ``single``: lowest concurrency of every workload; ``peak``: the highest; ``balanced`` and ``goodput``: all alike; a mix such as
    ``1:0.7,4:0.3``: share of the time at each concurrency, workloads alike (:func:`resolved` makes one of ``observed``).  Raises :class:`~leadline.errors.ConfigError`.
    """
    objective = tune.objective.strip()
    if objective == "goodput" and tune.ttft_ms is None and tune.tpot_ms is None:
        raise _bad(objective, "goodput needs a limit", "set ttft_ms or tpot_ms (or both) in [tune]")
    if objective == OBSERVED:
        raise _bad(objective, "no traffic was observed", "run the campaign with --observe-traffic 10m or --prometheus URL")
    if objective in ("single", "peak"):
        pick = min if objective == "single" else max
        by_workload = {w: [level for level in levels if level.workload == w] for w in dict.fromkeys(level.workload for level in levels)}
        chosen = [pick(mine, key=_load) for mine in by_workload.values()]
        return tuple((level, 1 / len(chosen)) for level in chosen)
    if objective in ("balanced", "goodput"):
        return tuple((level, 1 / len(levels)) for level in levels)
    return _mix(objective, levels)


def within_limits(knowledge: Knowledge, tune: Tune) -> Knowledge:
    """The same knowledge with every block's throughput replaced by its goodput: tokens of requests within both limits, a second.

    A request without a TTFT or TPOT is outside a limit on it. A block of which nothing is within keeps a thousandth of its
    throughput, so that ratios exist; read such a ratio as "far worse", not as a number.
    """
    replace = msgspec.structs.replace
    trials = tuple(replace(t, blocks=tuple(replace(b, output_tok_s=_goodput(b, tune)) for b in t.blocks)) for t in knowledge.trials)
    return replace(knowledge, trials=trials)


def by_cpu_time(knowledge: Knowledge) -> Knowledge:
    """The same knowledge with every block's throughput replaced by output tokens per second of the **server's** CPU time.

    On a host that others use, wall time measures them as well; the CPU time of an engine that computes on the CPU does not. Blocks
    without it are left out.
    """
    replace = msgspec.structs.replace

    def block(b: BlockResult) -> BlockResult | None:
        tokens = sum(r.tokens_out for r in b.requests if r.outcome is Outcome.OK)
        return replace(b, output_tok_s=tokens / b.server_cpu_s) if b.server_cpu_s and tokens else None

    trials = tuple(replace(t, blocks=tuple(x for b in t.blocks if (x := block(b)) is not None)) for t in knowledge.trials)
    return replace(knowledge, trials=trials)


def _goodput(block: BlockResult, tune: Tune) -> float:
    good = sum(r.tokens_out for r in block.requests if r.outcome is Outcome.OK and _within(r, tune))
    every = sum(r.tokens_out for r in block.requests)
    return block.output_tok_s * max(good / every if every else 0.0, 1e-3)


def _within(request: RequestResult, tune: Tune) -> bool:
    pairs = ((request.ttft_ms, tune.ttft_ms), (request.tpot_ms, tune.tpot_ms))
    return all(limit is None or (value is not None and value <= limit) for value, limit in pairs)


def parse_mix(text: str) -> tuple[tuple[int, float], ...]:
    """``1:0.7,4:0.3`` as ((1, 0.7), (4, 0.3)), scaled to add up to 1. Raises :class:`~leadline.errors.ConfigError`."""
    out: dict[int, float] = {}
    for part in text.split(","):
        concurrency, colon, share = part.strip().partition(":")
        try:
            value = float(share)
        except ValueError:
            value = -1.0
        if not colon or not concurrency.strip().isdigit() or not value > 0 or int(concurrency) in out:
            names = ", ".join(NAMES)
            raise _bad(
                text, f"{part.strip()!r} is no concurrency:share", f"write one of {names}, or a traffic mix such as 1:0.7,4:0.2,16:0.1"
            )
        out[int(concurrency)] = value
    total = sum(out.values())
    return tuple((concurrency, share / total) for concurrency, share in sorted(out.items()))


def watched(
    samples: Sequence[TrafficSample], concurrencies: Sequence[int], *, source: str, at_s: float, longest_s: float = math.inf
) -> Watched:
    """What samples of the requests in hand (running and waiting: a closed loop of so many clients) say about the traffic.

    Each sample holds until the next, and for ``longest_s`` at most.
    """
    seconds: dict[int, float] = {}
    for here, after in itertools.pairwise(samples):
        requests = round(here.running + here.waiting)
        seconds[requests] = seconds.get(requests, 0.0) + min(after.at_s - here.at_s, longest_s)
    times = tuple(sorted((requests, held) for requests, held in seconds.items() if held > 0))
    span_s = samples[-1].at_s - samples[0].at_s if samples else 0.0
    mix = observed_mix(times, concurrencies)
    return Watched(at_s=at_s, source=source, samples=len(samples), span_s=span_s, seconds=times, mix=mix)


def observed_mix(seconds: Iterable[tuple[int, float]], concurrencies: Sequence[int]) -> tuple[tuple[int, float], ...]:
    """A traffic mix from (requests in hand, seconds for which that was so).

    Idle time does not count: nobody waits then. The rest goes to the nearest of ``concurrencies`` on a log scale. () when the
    service was idle.
    """
    shares = dict.fromkeys(sorted(concurrencies), 0.0)
    for requests, held in seconds:
        if requests > 0:
            shares[min(shares, key=lambda c: (_ratio(requests, c), c))] += held
    total = sum(shares.values())
    return tuple((c, share / total) for c, share in shares.items() if share > 0) if total else ()


def resolved(tune: Tune, seen: Watched | None) -> Tune:
    """The same wishes with ``observed`` replaced by the mix that was seen."""
    if tune.objective.strip() != OBSERVED or seen is None:
        return tune
    return msgspec.structs.replace(tune, objective=mix_text(seen.mix))


def named(tune: Tune, seen: Watched | None) -> str:
    """The objective as people read it."""
    if seen is not None and tune.objective == mix_text(seen.mix):
        return f"the traffic observed ({tune.objective})"
    return tune.objective


def mix_text(mix: Sequence[tuple[int, float]]) -> str:
    """
    >>> mix_text(((1, 0.7125), (4, 0.2875)))
    '1:0.713,4:0.287'
    """
    return ",".join(f"{concurrency}:{max(share, 0.001):.3f}" for concurrency, share in mix)


def traffic(seen: Watched) -> str:
    """The traffic that was seen, in one line with its conditions."""
    busy = sum(held for requests, held in seen.seconds if requests > 0)
    known = sum(held for _, held in seen.seconds)
    head = f"{seen.samples} samples over {duration(seen.span_s)} of {seen.source}"
    if not busy:
        return f"{head}: idle"
    mean = sum(requests * held for requests, held in seen.seconds) / busy
    most = max(requests for requests, _ in seen.seconds)
    return f"{head}: busy {words_share(busy / known)} of it, then {mean:.1f} requests in hand on average, at most {most}; as a mix {mix_text(seen.mix)}"


def beyond(seen: Watched, concurrencies: Sequence[int]) -> str:
    """What the levels do not cover of the traffic that was seen; empty when that is little."""
    busy = sum(held for requests, held in seen.seconds if requests > 0)
    most = max(concurrencies)
    over = sum(held for requests, held in seen.seconds if requests > BEYOND * most)
    if not busy or over / busy < MUCH:
        return ""
    return (
        f"the traffic beyond {most} requests at once: {words_share(over / busy)} of the busy time had more than {BEYOND * most:g} in hand and "
        f"counts as {most} here; measure a level for it, for example --concurrency {','.join(str(c) for c in (*sorted(concurrencies), 4 * most))}"
    )


def _ratio(requests: float, concurrency: int) -> float:
    return max(requests / concurrency, concurrency / requests)


def _load(level: Level) -> float:
    return level.rate_rps if level.rate_rps is not None else float(level.concurrency)


def _mix(objective: str, levels: Sequence[Level]) -> tuple[tuple[Level, float], ...]:
    out = []
    for concurrency, share in parse_mix(objective):
        mine = [level for level in levels if level.concurrency == concurrency and level.rate_rps is None]
        if not mine:
            have = ",".join(str(c) for c in sorted({level.concurrency for level in levels}))
            raise _bad(
                objective,
                f"the mix names concurrency {concurrency}, which is not measured (levels: {have})",
                f"add {concurrency} to the concurrencies or leave it out of the mix",
            )
        out += [(level, share / len(mine)) for level in mine]
    return tuple(out)


def _bad(objective: str, what: str, fix: str) -> ConfigError:
    return ConfigError(place=f"[tune] objective = {objective!r}", what=what, fix=fix)
