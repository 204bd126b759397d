"""What to say when nothing failed: healthy, or why it is not as fast as hoped. The symptom is part of the evidence here."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from statistics import fmean

from ..records import Finding
from . import life
from .lines import Line
from .quoting import quotes
from .reading import Reading
from .samples import Sample

_INTENTS = {
    "output": r"gibberish|garbage|garbled|nonsense|wrong (?:answer|output|result)|corrupt(?:ed)? (?:output|text|answer)|output .*(?:corrupt|wrong|differ)|!!!!|repeat(?:s|ing|ed)? (?:the same|itself|forever|one|endless)|same (?:token|word|character) (?:again|over)|incoherent|unreadable|random (?:characters|tokens)|different (?:answers?|outputs?|text)|answers? (?:are|is) (?:wrong|bad|broken)|makes no sense|quality|random unicode|(?:answers?|output|text) (?:turns?|becomes?|degrades?|gets?) |not the same (?:answer|text|output)",
    "metric": r"\bITL\b|\bTPOT\b|inter-token|impossible|contradict|does(?:n't| not) (?:add up|match)|cannot be|can that be|which (?:number|figure|one)|too good|unreal|the benchmark (?:says|shows|reports)|benchmark .*(?:wrong|lie|differ)|(?:log|server|metrics?|metric|prometheus|counter)\b.{0,60}\b(?:but|while|yet)\b.{0,60}\b(?:benchmark|log|says|shows|reports)|reported",
    "capacity": r"concurren|queue|scal(?:e|es|ing)|max_total_num_tokens|max_running|KV (?:cache|pool|size|space)|capacity|fewer (?:requests|tokens|slots)|waiting|plateau|how many (?:requests|users)|only \d+ (?:requests|users|run)|users|parallel requests|(?:tokens|cache) (?:falls|fell|shr[aiu]nk|drop)|context (?:length|window)|slots",
    "slower": r"slow|worse|(?:lower|less|half the|drop\w* in) (?:throughput|speed|tok)|tok(?:en)?s?(?:/| per )s|latency|time to first|TTFT|regress|than without|without (?:it|the draft|speculation|draft)|no (?:gain|speed|benefit|improvement)|not faster|faster without|fell from|rose from|dropp?ed|degrad|used to|speedup",
    "inactive": r"exactly nothing|no (?:effect|difference|draft)|nothing (?:changes|changed|happens)|same (?:speed|as (?:before|without|the baseline))|is speculation (?:on|active|running|used)|not (?:active|used|running|enabled)|never drafts?|ignored",
    "failing": r"\bdie[sd]?\b|crash|exit(?:s|ed)?\b|\bdown\b|kill|hang|hung|stuck|no(?:thing)? (?:answer|respon|reply|moves)|does not (?:start|come|answer|respond)|doesn't (?:start|come|answer|respond)|unreachable|refuse|503|500|time(?:s|d)? ?out|restart|abort|fail(?:s|ed|ing)? to|gone|silent|dead|freez|loop",
    "noise": r"is (?:any|some)thing wrong|scary|is (?:this|that|it) (?:normal|bad|a problem|an error|serious|failing|broken|ok|fine|harmless)|should I (?:worry|be)|harmless|is the server (?:failing|broken|dying)|broken\?|warnings?|did it crash|is my|\bOK\?",
}
_COMPILED = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in _INTENTS.items()}

_CLAMPED = re.compile(
    r"Max running requests is reset to \d+|max_running_requests is capped to|Overriding max_num_active_seqs|max_num_seqs .*(?:reduced|lowered|capped|overrid)|reduced (?:max_model_len|max_num_seqs)|Auto-fit max_model_len: reduced|[Rr]educing max(?:imum)? (?:model len|batch|num)"
)
_CAPACITY_LINE = re.compile(
    r"^max_total_num_tokens=|KV cache size: |Maximum concurrency for |# (?:GPU|CUDA) blocks|(?:full|swa)_layer_tokens=|Memory pool end|n_slots = \d+|n_parallel"
)
_INACTIVE = re.compile(
    r"no implementations specified for speculative decoding|draft model vocab type must match|vocabs? (?:are|is) not compatible|draft-\w+ requires a draft context|[Ss]peculative decoding (?:is )?(?:not supported|disabled|will be disabled|unavailable|ignored|cannot be used)|[Dd]isabl(?:e|ed|ing) speculative|[Ss]peculative decoding (?:is )?(?:turned off|off|not active|not enabled)|draft model .*(?:rejected|ignored|not compatible)|failed to (?:initiali[sz]e|create|load) (?:the )?(?:speculative|draft)|speculation (?:is )?(?:disabled|off)|ignoring (?:the )?(?:draft|speculative)"
)
_BENCH = re.compile(
    r"Serving Benchmark Result|Mean ITL \(ms\)|Benchmark duration|Output token throughput|bench_serving|Successful requests|benchmark",
    re.IGNORECASE,
)
_RETRACT = re.compile(r"^KV cache pool is full\. Retract requests|\bis preempted\b|[Pp]reempted \d|Preemptions: [1-9]")


def intents(symptom: str) -> set[str]:
    return {name for name, pattern in _COMPILED.items() if pattern.search(symptom)}


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _finding(id: str, cls: str, summary: str, lines: Sequence[Line], *, failure: bool = False, **rest: object) -> Finding:  # noqa: A002
    fields: dict[str, object] = {"confidence": "likely", "phase": "serving", **rest}
    return Finding(id=id, cls=cls, failure=failure, summary=summary, quotes=quotes(lines), **fields)  # type: ignore[arg-type]


def _accept(samples: Sequence[Sample]) -> tuple[list[Sample], float | None, float | None]:
    """Samples that carry acceptance, and the mean length (bonus included) and rate of their later half: the first ones ramp up."""
    carrying = [s for s in samples if s.accept_length is not None or s.accept_rate is not None]
    later = carrying[len(carrying) // 2 :]
    lengths = [s.accept_length for s in later if s.accept_length is not None]
    rates = [s.accept_rate for s in later if s.accept_rate is not None]
    return carrying, _mean(lengths), _mean(rates)


def _low(length: float | None, rate: float | None, depth: int | None) -> bool:
    """Next to nothing accepted: less than a sixth of a draft token a round, or a tenth of what was drafted."""
    if length is not None:
        return length <= 1.17 or (depth is not None and depth > 0 and (length - 1) / depth <= 0.10)
    return rate is not None and rate <= 0.12


def _pinned(reading: Reading) -> list[Sample]:
    """Load lines in which requests wait while the number running stands at its maximum."""
    loaded = [s for s in reading.samples if s.running is not None and s.waiting is not None and not s.prefill]
    if not loaded:
        return []
    most = reading.settings.max_running or max(s.running or 0 for s in loaded)
    return [s for s in loaded if (s.waiting or 0) > 0 and (s.running or 0) >= 0.95 * most and (s.running or 0) > 0]


def verdict(reading: Reading) -> list[Finding]:
    """Findings of a reading in which nothing failed, the verdict first; empty when the evidence does not even show a server."""
    wanted = intents(reading.evidence.symptom)
    found: list[Finding] = []
    for judge in (_inactive, _output, _misread, _acceptance, _capacity, _slower):
        finding = judge(reading, wanted)
        if finding is not None:
            found.append(finding)
    well = _healthy(reading, wanted)
    if found and found[0].cls == "performance.capacity_clamped" and not reading.evidence.symptom and well:
        return [well[0], *found]  # nobody asked: a queue at full load is a remark, not the verdict
    return found or well


def _inactive(reading: Reading, wanted: set[str]) -> Finding | None:
    said = [line for line in reading.telling if _INACTIVE.search(line.text)]
    served = [s for s in reading.samples if s.tok_s]
    drafts = [s for s in reading.samples if s.accept_length is not None or s.accept_rate is not None]
    if drafts:
        return None
    serving = reading.run.last_mark(life.SERVING) or reading.run.last_mark(life.READY)
    remedy = "give a draft that fits (same vocabulary) and name the method (--spec-type draft-simple with -md); check `/slots` says speculative: true"
    if said and serving is not None:
        return _finding(
            "speculation.inactive_said",
            "config.speculation_inactive",
            f"the server is healthy and serves without speculation: {said[0].text.strip()[:160]}",
            [*said[:2], serving],
            confidence="certain",
            remedy=remedy,
        )
    asked = reading.settings
    if (
        asked.untyped is not None
        and asked.draft_loaded
        and serving is not None
        and any("common_speculative_init_result" in line.text for line in reading.telling)
    ):
        lines = [asked.untyped, *([asked.line] if asked.line else []), serving]
        return _finding(
            "speculation.inactive_untyped", "config.speculation_inactive",
            "a draft model is loaded and no --spec-type says how to use it: this build does not draft then", lines, remedy="add --spec-type draft-simple", confirm="`/slots` says speculative: false",
        )  # fmt: skip
    silent = reading.settings.asked and len(served) >= (1 if asked.draft_loaded else 2) and reading.engine in ("sglang", "llamacpp")
    if reading.engine == "vllm" and reading.settings.asked and len(served) >= 2 and "inactive" in wanted:
        silent = True
    if silent and reading.settings.line is not None:
        lines = [reading.settings.line, *[s.line for s in served[-2:]]]
        return _finding(
            "speculation.inactive_silent",
            "config.speculation_inactive",
            "speculation was asked for, and no line of the load shows a draft: it is not running",
            lines,
            remedy=remedy,
            confirm="draft counters stay 0 under load",
        )
    return None


def _output(reading: Reading, wanted: set[str]) -> Finding | None:
    if "output" not in wanted:
        return None
    carrying, _, _ = _accept(reading.samples)
    lengths = [s for s in carrying if s.accept_length is not None]
    fallen = [s for s in lengths if s.accept_length is not None and s.accept_length <= 1.1]
    lines = [s.line for s in (fallen or lengths)[:3]] or [
        line for line in (reading.run.last_mark(life.SERVING), reading.run.last_mark(life.READY)) if line
    ]
    summary = "the server answers and the output is reported to be corrupt; nothing failed and the cause is not known"
    if lengths and fallen and lengths[0] not in fallen:
        summary += (
            ": acceptance collapses after a good start, which fits a state that is not restored between rounds or requests (a hypothesis)"
        )
    return _finding(
        "output.corrupt", "engine.wrong_output", summary, lines, failure=True, confidence="possible",
        remedy="serve with speculation off until it is understood; compare greedy output on and off, then with the prefix cache or graphs off",
        confirm="greedy output with speculation differs from greedy output without, on the same prompt",
    )  # fmt: skip


def _figure(reading: Reading, pattern: str) -> tuple[float, Line] | None:
    compiled = re.compile(pattern)
    for line in reading.telling:
        match = compiled.search(line.text)
        if match:
            with contextlib.suppress(ValueError):  # of a torn line the point alone may be left
                return float(match.group(1).replace(",", "")), line
    return None


def _misread(reading: Reading, wanted: set[str]) -> Finding | None:
    bench = [line for line in reading.telling if _BENCH.search(line.text)]
    if not bench and "metric" not in wanted:
        return None
    tpot, itl = _figure(reading, r"Mean TPOT \(ms\):\s+([\d.,]+)"), _figure(reading, r"Mean ITL \(ms\):\s+([\d.,]+)")
    if tpot and itl and tpot[0] > 0 and itl[0] > 1.5 * tpot[0]:
        peak = _figure(reading, r"Peak output token throughput[^:]*:\s+([\d.,]+)")
        lines = [tpot[1], itl[1], *([peak[1]] if peak else [])]
        return _finding(
            "benchmark.itl_per_chunk",
            "performance.benchmark_misread",
            f"ITL counts chunks and one chunk carries several tokens ({itl[0] / tpot[0]:.1f} here): read TPOT, not ITL",
            lines,
            confidence="certain",
            remedy="compare TPOT (or end-to-end latency) with and without speculation",
        )
    done, failed = (
        _figure(reading, r"(?:Successful requests|completed)\W+([\d,]+)"),
        _figure(reading, r"(?:Failed requests|failed)\W+([\d,]+)"),
    )
    if done and (done[0] == 0 or (failed and failed[0] > done[0])):
        return _finding(
            "benchmark.nothing_served",
            "performance.benchmark_misread",
            "the benchmark measured a server that did not serve: its figures mean nothing",
            [done[1], *([failed[1]] if failed else [])],
            confidence="certain",
            remedy="check completed and failed before any other figure",
        )
    if "metric" in wanted and not (wanted & {"failing"}) and (bench or reading.samples):
        carrying, _, _ = _accept(reading.samples)
        figures = [line for line in bench if re.search(r"\d", line.text)]
        lines = [*figures[:3], *[s.line for s in carrying[:2]]][:4]
        return _finding(
            "benchmark.misread",
            "performance.benchmark_misread",
            "the figures are plausible and do not mean what they seem to: they differ in what they count (chunks or tokens, lifetime average or window, drafted or verified, random or real prompts)",
            lines,
            confidence="possible",
            remedy="compare TPOT and end-to-end throughput on the same prompts; flush caches and counters before each level",
        )
    return None


def _acceptance(reading: Reading, wanted: set[str]) -> Finding | None:
    carrying, length, rate = _accept(reading.samples)
    if not carrying or not _low(length, rate, reading.settings.depth):
        return None
    said = f"acceptance length {length:.2f} with the bonus token" if length is not None else f"{100 * (rate or 0):.1f} % of the drafts"
    lines = [*([reading.settings.line] if reading.settings.line else []), *[s.line for s in carrying[-3:]]]
    return _finding(
        "performance.low_acceptance",
        "performance.low_acceptance",
        f"speculation runs and next to nothing is accepted ({said}): the draft does not predict this target, or the algorithm does not fit the draft",
        lines,
        remedy="check that the draft was trained for this target and algorithm (an EAGLE3 head needs EAGLE3); else turn speculation off",
        confirm="acceptance on real text, not on random tokens",
    )


def _capacity(reading: Reading, wanted: set[str]) -> Finding | None:
    clamped = [line for line in reading.telling if _CLAMPED.search(line.text)]
    capacity = [line for line in reading.telling if _CAPACITY_LINE.search(line.text)]
    pinned = _pinned(reading)
    asked = "capacity" in wanted
    if not (asked or (pinned and not wanted)):
        return None
    figure = bool(re.search(r"max_total_num_tokens|max_running|KV (?:cache|pool|size)|capacity|context", reading.evidence.symptom))
    if not (pinned or clamped or (figure and capacity)):
        return None
    if "noise" in wanted and not clamped and any(_RETRACT.search(line.text) for line in reading.lines):
        return None
    lines = [*clamped[-1:], *capacity[-2:], *[s.line for s in pinned[-2:]]][:4]
    running = pinned[-1].running if pinned else reading.settings.max_running
    if pinned:
        summary = f"{running} requests run at once and the others wait in the queue: capacity is the limit, not the speed of speculation"
        remedy = f"raise the limit (--max-running-requests {int((running or 1) * 1.5)} or --max-num-seqs) if memory allows, or choose a smaller depth for this concurrency"
    else:
        summary = "fewer requests or tokens fit than without speculation: the draft, its cache and its reservations take their share before the pool is sized"
        remedy = (
            "compare the pool with speculation off; a smaller depth, fewer running requests, or a larger memory fraction gives tokens back"
        )
    return _finding(
        "performance.capacity",
        "performance.capacity_clamped",
        summary,
        lines,
        remedy=remedy,
        confidence="certain" if pinned or clamped else "likely",
    )


def _slower(reading: Reading, wanted: set[str]) -> Finding | None:
    if "slower" not in wanted or ("failing" in wanted and not reading.samples):
        return None
    carrying, length, rate = _accept(reading.samples)
    lines = [
        line
        for line in reading.lines
        if re.search(r"downgraded|cudagraph mode|Async(?:hronous)? scheduling (?:is )?(?:not supported|disabled)", line.text)
    ][:1]
    prefill = [s for s in reading.samples if s.prefill]
    decode = [s for s in reading.samples if not s.prefill and (s.tok_s or s.accept_length is not None or s.accept_rate is not None)]
    lines += [s.line for s in prefill[-2:]] if re.search(r"first token|TTFT|prefix|prefill|cache", reading.evidence.symptom) else []
    busiest = sorted(decode, key=lambda s: (-(s.running or 0), -s.line.index))
    lines += [s.line for s in busiest[:2]] + [s.line for s in carrying[-1:]]
    if not lines:
        return None
    said = f" (acceptance length {length:.2f})" if length is not None else f" ({100 * rate:.0f} % accepted)" if rate is not None else ""
    unique = list({line.index: line for line in lines}.values())[:4]
    return _finding(
        "performance.slower", "performance.speculation_slower",
        f"speculation runs{' and drafts are accepted' if said else ''}{said}, and it is reported to be slower than without or than a simpler setting; the log does not establish why",
        unique, confidence="possible",
        remedy="measure speculation off and a smaller depth on the same prompts and concurrency, in turn; use the smaller depth where the intervals overlap",
        confirm="paired blocks at the concurrency of the complaint",
    )  # fmt: skip


def _healthy(reading: Reading, wanted: set[str]) -> list[Finding]:
    run = reading.run
    ready, serving = run.last_mark(life.READY), run.last_mark(life.SERVING)
    shown = [line for line in (ready, serving) if line is not None]
    retract = [line for line in reading.telling if _RETRACT.search(line.text)]
    if retract and serving is not None:
        ok = next((line for line in reversed(reading.lines) if '" 200' in line.text), serving)
        return [
            _finding(
                "healthy.back_pressure",
                "healthy",
                "the server is healthy: the KV pool fills under load, some requests are put back and finish later",
                [*retract[:2], ok],
                confidence="certain",
                remedy="nothing must be repaired; fewer running requests or more KV memory would avoid the repeated work",
            )
        ]
    if not shown:
        return []
    noise = [sign.line for sign in reading.signs if sign.survived][:2]
    summary = "the server became ready and serves; nothing in the evidence failed"
    if noise:
        summary += f" ({len([s for s in reading.signs if s.survived])} frightening lines were survived)"
    return [
        _finding(
            "healthy.ready",
            "healthy",
            summary,
            [*shown[-2:]],
            confidence="certain" if serving else "likely",
            phase="serving" if serving else "ready",
        )
    ]
