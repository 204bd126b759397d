"""Whole campaigns as journals (lists of events), planted for tests of everything that reads one: report, watch, serve, diff.

Nothing here was measured by leadline.  Two campaigns follow real figures:

* :func:`crash_campaign`: SGLang 0.5.12.post1 on one H200.  Throughputs are those of the recorded servers (see the README of
  ``tests/data/report``); depth 4 was not recorded and is the midpoint of 3 and 5.  Capacities follow the engine's own formula, which the recorded
  servers met to the token.  The spread between blocks and the acceptance by position are planted.
* :func:`demo_campaign`: llama.cpp on two cores with the F32/Q4_1 pair of one small model: three winners on four levels.

:func:`large_campaign` is for size and speed: any number of trials.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from leadline.records import (
    OFF,
    Acceptance,
    AnyEvent,
    Began,
    BlockResult,
    Candidate,
    Capacity,
    ClientHealth,
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
    Interval,
    Launch,
    Level,
    Measured,
    Observed,
    OperatingPoint,
    Outcome,
    Planned,
    PlannedLaunch,
    Prediction,
    Quote,
    Ready,
    Reported,
    RequestResult,
    Restored,
    Stop,
    Verdict,
)
from leadline.report.cells import cells
from leadline.state import fold

SPREAD = (0.006, -0.011, 0.004, 0.012, -0.009, -0.002)
"""Deviation of each block from its cell's mean, the same prompts deviating alike everywhere (what pairing removes)."""
JITTER = (-0.003, 0.002, 0.004, -0.004, 0.001, 0.0)
"""What is left after pairing: deviation of a block that its neighbours do not share."""


def block(
    level: Level,
    index: int,
    tok_s: float,
    *,
    tokens: int,
    requests: int,
    ttft_ms: float,
    shift: int = 0,
    noise: float = 1.0,
    unpaired: float = 1.0,
    failed: int = 0,
    acceptance: Acceptance | None = None,
) -> BlockResult:
    """One block whose throughput is ``tok_s`` with the planted deviation; latencies follow from it."""
    at = tok_s * (1 + noise * SPREAD[index % len(SPREAD)] + unpaired * JITTER[(index + shift) % len(JITTER)])
    tpot = (1000 * level.concurrency * tokens / at - ttft_ms) / (tokens - 1)
    results = tuple(
        RequestResult(
            prompt_id=f"{level.workload}-{index}-{i}",
            outcome=Outcome.EARLY_EOF if i < failed else Outcome.OK,
            detail="connection closed before the end of the stream" if i < failed else "",
            sent_s=0.01 * i,
            ttft_ms=ttft_ms,
            tpot_ms=tpot,
            e2e_ms=ttft_ms + tpot * (tokens - 1),
            tokens_in=512,
            tokens_out=tokens,
            token_source="usage",
            events=tokens // 2,
        )
        for i in range(requests)
    )
    return BlockResult(
        level=level,
        block=index,
        duration_s=tokens * requests / at,
        output_tok_s=at,
        requests=results,
        client=ClientHealth(clock="kernel", lag_ms_p50=0.04, lag_ms_p99=0.3, merged_share=0.01, cpu_s=0.2),
        acceptance=acceptance,
    )


def accepted(depth: int, rounds: int, decay: float = 0.88, source: str = "response") -> Acceptance:
    """Acceptance with an unconditional share of ``decay ** j`` at position j."""
    per_position = tuple(round(rounds * decay**j) for j in range(1, depth + 1))
    return Acceptance(rounds=rounds, drafted=rounds * depth, accepted=sum(per_position), per_position=per_position, source=source)


class Story:
    """Writes the events of a campaign with a clock of its own."""

    def __init__(self, start_s: float) -> None:
        self.now_s = start_s
        self.events: list[AnyEvent] = []
        self.trial = -1

    def add(self, event: AnyEvent) -> None:
        self.events.append(event)

    def launch(self, candidate: Candidate, kind: str, why: str, argv: tuple[str, ...], load_s: float, reported: Reported | None) -> None:
        """Intended and Deployed, and Ready unless ``reported`` is None."""
        self.trial += 1
        self.add(Intended(trial=self.trial, at_s=self.now_s, candidate=candidate, kind=kind, why=why, boot_id="b007"))
        launch = Launch(launch_id=f"launch-{self.trial}", pid=4100 + self.trial, started_s=self.now_s + 1, log=f"logs/{self.trial:03d}.log")
        self.now_s += 1
        self.add(Deployed(trial=self.trial, at_s=self.now_s, launch=launch, argv=argv))
        self.now_s += load_s
        if reported is not None:
            self.add(Ready(trial=self.trial, at_s=self.now_s, load_s=load_s, reported=reported))

    def fail(self, after_s: float, ended: Exit | None, findings: tuple[Finding, ...], log_tail: str) -> None:
        self.add(Failed(trial=self.trial, at_s=self.now_s, after_s=after_s, exit=ended, findings=findings, log_tail=log_tail))

    def measure(self, blocks: Iterable[BlockResult]) -> None:
        for result in blocks:
            self.now_s += result.duration_s + 0.4
            self.add(Measured(trial=self.trial, at_s=self.now_s, result=result))

    def restore(self, down_s: float, ended: Exit | None) -> None:
        self.now_s += 2
        self.add(Restored(trial=self.trial, at_s=self.now_s, down_s=down_s, exit=ended))


# -- SGLang on one H200: a crash, an infeasible depth, a tie -----------------------------------------------------------

CHAT = tuple(Level(workload="chat", concurrency=c) for c in (1, 16, 64))
PINNED = (("max_running_requests", "20"),)
H200_OFF = Candidate(algorithm=OFF, depth=0)
H200_FOUND = Candidate(algorithm="EAGLE", depth=4)
H200_BEST = Candidate(algorithm="EAGLE", depth=10, settings=PINNED)
H200_ASKED = Candidate(algorithm="EAGLE", depth=10)
H200_TOK_S: Mapping[Candidate, tuple[float, float, float]] = {
    H200_OFF: (166.8, 954.5, 2178.0),
    Candidate(algorithm="EAGLE", depth=1): (164.1, 1141.5, 1667.4),
    Candidate(algorithm="EAGLE", depth=3): (243.5, 1498.8, 2338.5),
    H200_FOUND: (264.2, 1628.4, 2246.0),
    Candidate(algorithm="EAGLE", depth=5): (284.8, 1758.0, 2153.4),
    H200_BEST: (295.9, 1875.8, 2207.6),
}
POOL_ERROR = "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
H200_TAIL = f"""[2026-11-29 17:51:15] Load weight begin. avail mem=139.11 GB
[2026-11-29 17:51:15] Load weight end. elapsed=0.20 s, type=Qwen3NextForCausalLM, avail mem=98.77 GB, mem usage=40.33 GB.
  File "/opt/venv/lib/python3.12/site-packages/sglang/srt/model_executor/pool_configurator.py", line 56, in __post_init__
    raise RuntimeError(msg)
{POOL_ERROR}

[2026-11-29 17:51:15] Received sigquit from a child process. It usually means the child failed."""
POOL_FINDING = Finding(
    id="sglang.pool_reservation",
    cls="memory.kv_pool_too_small",
    failure=True,
    phase="pool sizing",
    summary="SGLang set aside draft state for 48 running requests at depth 10, which is more than its memory pool holds, and gave up before it allocated anything; "
    "the GPU was not full (98.77 GB free) and no OOM killer was involved",
    quotes=(
        Quote(source="log", line=65, text=POOL_ERROR),
        Quote(
            source="log",
            line=31,
            text="Load weight end. elapsed=0.20 s, type=Qwen3NextForCausalLM, avail mem=98.77 GB, mem usage=40.33 GB.",
        ),
    ),
    confidence="certain",
    confirm="start the same depth with --max-running-requests 20: it starts and holds 468,061 tokens",
    remedy="pin --max-running-requests to 23 or less (20 was launched and measured); raising --mem-fraction-static is the wrong first move",
    doomed=True,
    also=("signal 9 is how SGLang ends itself when a child dies; it is no sign of the OOM killer",),
)


def h200_argv(candidate: Candidate) -> tuple[str, ...]:
    argv = ["python3", "-m", "sglang.launch_server", "--model-path", "/models/q3n", "--port", "30000", "--mem-fraction-static", "0.55"]
    if not candidate.off:
        argv += ["--speculative-algorithm", "NEXTN", "--speculative-num-steps", str(candidate.depth)]
        argv += ["--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", str(candidate.depth + 1)]
    for name, value in candidate.settings:
        argv += [f"--{name.replace('_', '-')}", value]
    return tuple(argv)


def h200_capacity(depth: int, running: int) -> tuple[int, int, int]:
    """(state slots, running requests, tokens) of SGLang <= 0.5.12.post1 on this model; all in units of one KV cell."""
    pool, state = 1_577_893, 3144
    left = pool - (running * (depth + 1) * state if depth else 0)
    slots = math.floor(left * 0.9 / 1.9 / state)
    return slots, min(running, slots // 5), left - slots * state


def h200_frontier() -> tuple[FrontierRow, ...]:
    rows = []
    for depth in (0, 1, 2, 3, 4, 5, 8, 9, 10):
        slots, running, tokens = h200_capacity(depth, 48)
        point = Candidate(algorithm="EAGLE", depth=depth) if depth else H200_OFF
        if tokens > 0 and running > 0:
            capacity = Capacity(max_total_num_tokens=tokens, max_running_requests=running, state_slots=slots)
            rows.append(FrontierRow(candidate=point, starts=True, exact=True, capacity=capacity))
        else:
            rows.append(
                FrontierRow(
                    candidate=point,
                    starts=False,
                    exact=True,
                    reason=f"draft state reserved for 48 requests exceeds the memory pool: {tokens:,} tokens would be left",
                    remedy="pin max_running_requests to 23 or less",
                    feasible_as=H200_BEST,
                )
            )
    slots, running, tokens = h200_capacity(10, 20)
    rows.append(
        FrontierRow(
            candidate=H200_BEST,
            starts=True,
            exact=True,
            capacity=Capacity(max_total_num_tokens=tokens, max_running_requests=running, state_slots=slots),
        )
    )
    return tuple(rows)


def h200_ttft_ms(level: Level) -> float:
    """Prefill of one prompt, or of a whole wave, as the client waits for it."""
    return 55.0 if level.concurrency == 1 else 40.0 * level.concurrency


def h200_blocks(candidate: Candidate, shift: int, count: int = 6) -> list[BlockResult]:
    blocks = []
    for level, tok_s in zip(CHAT, H200_TOK_S[candidate], strict=True):
        for index in range(count):
            # at 64 requests queue for a slot and the two waves of a block differ: a noisier level
            noise = 4.0 if level.concurrency == 64 else 1.0
            blocks.append(
                block(
                    level,
                    index,
                    tok_s,
                    tokens=192,
                    requests=max(3, level.concurrency),
                    ttft_ms=h200_ttft_ms(level),
                    shift=shift,
                    noise=noise,
                    unpaired=22.0 if noise > 1 else 1.0,
                )
            )
    return blocks


def h200_predictions() -> tuple[Prediction, ...]:
    """Depths 1 to 5 as they are and 6 to 10 with 20 running requests, a few percent off the planted truth."""
    shown = []
    depths = sorted(H200_TOK_S, key=lambda candidate: candidate.depth)
    for depth in range(1, 11):
        candidate = Candidate(algorithm="EAGLE", depth=depth, settings=PINNED if depth > 5 else ())
        for index, level in enumerate(CHAT):
            truth = float(np.interp(depth, [c.depth for c in depths], [H200_TOK_S[c][index] for c in depths]))
            value = truth * (1.0 + 0.03 * ((depth * 7 + index) % 3 - 1))
            tok_s = Interval(value=value, low=value * 0.94, high=value * 1.06, n=2, unit="tok/s", method="round model")
            low, mid, high = (
                (1000 * level.concurrency * 192 / at - h200_ttft_ms(level)) / 191 for at in (tok_s.high, tok_s.value, tok_s.low)
            )
            tpot = Interval(value=mid, low=low, high=high, n=2, unit="ms", method="round model")
            method = "acceptance of the deep run, cost between two measured depths"
            shown.append(Prediction(candidate=candidate, level=level, output_tok_s=tok_s, tpot_ms=tpot, method=method))
    return tuple(shown)


def crash_campaign(*, asked: bool = True) -> list[AnyEvent]:
    """As found 4 steps; 10 was asked for and died; 10 with 20 running requests wins at 1 and 16; all tie at 64."""
    story = Story(1_795_974_000.0)
    story.add(
        Began(
            campaign_id="sglang-h200-7f3a",
            at_s=story.now_s,
            target="ssh://gpu-7/sglang.service",
            command=Command(argv=h200_argv(H200_FOUND)),
            found=H200_FOUND,
            levels=CHAT,
            conditions=Conditions(
                target="ssh://gpu-7/sglang.service",
                engine="sglang",
                model="/models/q3n",
                version="0.5.12.post1",
                host="gpu-7",
                hardware="1x NVIDIA H200, driver 580.82",
                workloads="chat:9b1f33",
                client="leadline 0.1.0, kernel clock",
            ),
            settings=(("blocks", "6"), ("objective", "throughput")),
            boot_id="b007",
        )
    )
    story.now_s += 9
    story.add(
        Inspected(
            at_s=story.now_s,
            frontier=h200_frontier(),
            reported=Reported(engine="sglang", version="0.5.12.post1", model="q3n", algorithm="EAGLE", depth=4, max_running_requests=24),
        )
    )
    launches = tuple(
        PlannedLaunch(candidate=candidate, why=why, levels=CHAT, blocks=6, seconds=seconds, kind=kind)
        for candidate, why, kind, seconds in (
            (H200_FOUND, "as it stands, without a restart", "baseline", 140.0),
            (H200_BEST, "deepest that starts: acceptance at every position", "deep", 220.0),
            (Candidate(algorithm="EAGLE", depth=1), "cost slope", "shallow", 230.0),
            (H200_OFF, "the honest control", "control", 240.0),
        )
    )
    story.add(Planned(at_s=story.now_s, launches=launches))
    steps: list[tuple[Candidate, str, str, float]] = [
        (H200_FOUND, "baseline", "as it stands, without a restart", 0.0),
        (H200_BEST, "deep", "deepest that starts: acceptance at every position", 67.1),
        (Candidate(algorithm="EAGLE", depth=1), "shallow", "cost slope", 79.6),
        (H200_OFF, "control", "the honest control", 96.3),
        (Candidate(algorithm="EAGLE", depth=3), "confirm", "may win at 64 at once", 69.1),
        (Candidate(algorithm="EAGLE", depth=5), "confirm", "next best at 1 and 16 at once", 64.6),
    ]
    for shift, (candidate, kind, why, load_s) in enumerate(steps):
        if asked and shift == 1:
            _asked_for_ten(story)
        if shift == 4:
            planned = PlannedLaunch(candidate=candidate, why=why, levels=CHAT, blocks=6, seconds=210.0, kind=kind)
            story.add(Decided(at_s=story.now_s, stop=None, next=planned, predictions=h200_predictions()))
        _h200_trial(story, candidate, kind, why, load_s, shift)
    story.add(
        Decided(
            at_s=story.now_s,
            stop=Stop(rule="resolved", why="at 1 and 16 at once the intervals name one winner; at 64 nothing left is worth a restart"),
            next=None,
            predictions=h200_predictions(),
        )
    )
    story.now_s += 1
    story.add(Concluded(at_s=story.now_s, verdict=_h200_verdict(story.events)))
    return story.events


def _asked_for_ten(story: Story) -> None:
    story.launch(H200_ASKED, "asked", "asked for with --depth 10 although predicted not to start", h200_argv(H200_ASKED), 41.6, None)
    story.fail(41.6, Exit(signal=9, by="itself"), (POOL_FINDING,), H200_TAIL)
    story.restore(44.0, Exit(signal=9, by="itself"))


def _h200_trial(story: Story, candidate: Candidate, kind: str, why: str, load_s: float, shift: int) -> None:
    running = int(dict(candidate.settings).get("max_running_requests", "48"))
    slots, effective, tokens = h200_capacity(candidate.depth, running)
    reported = Reported(
        engine="sglang",
        version="0.5.12.post1",
        model="q3n",
        algorithm=candidate.algorithm,
        depth=candidate.depth,
        max_running_requests=effective,
        max_total_num_tokens=tokens,
    )
    story.launch(candidate, kind, why, h200_argv(candidate), load_s, reported)
    story.measure(h200_blocks(candidate, shift))
    seen = tuple((level, accepted(candidate.depth, 60 * level.concurrency)) for level in CHAT) if candidate.depth else ()
    capacity = Capacity(max_total_num_tokens=tokens, max_running_requests=effective, state_slots=slots)
    story.add(Observed(trial=story.trial, at_s=story.now_s, acceptance=seen, capacity=capacity, memory_bytes=11 * 2**30))
    story.restore(0.0 if kind == "baseline" else load_s + 3, Exit(signal=9, by="systemd"))


def point(events: list[AnyEvent], level: Level, winner: Candidate, why: str, tied: tuple[Candidate, ...] = ()) -> OperatingPoint:
    """An operating point whose figures are those of the planted blocks."""
    cell = next(cell for cell in cells(fold(events)) if (cell.candidate, cell.level) == (winner, level))
    return OperatingPoint(
        level=level,
        candidate=winner,
        tied=tied,
        output_tok_s=cell.output_tok_s,
        gain_vs_found=cell.gain_vs_found,
        gain_vs_off=cell.gain_vs_off,
        resolved=not tied,
        why=why,
    )


def _h200_verdict(events: list[AnyEvent]) -> Verdict:
    tie = (Candidate(algorithm="EAGLE", depth=3), H200_FOUND, Candidate(algorithm="EAGLE", depth=5), H200_BEST)
    why = "no setting is shown to be better here; the smallest of the five tied ones is named"
    return Verdict(
        sentence="4 → 10 steps with max_running_requests 20: 1.12× as found at 1, 1.15× at 16, no difference shown at 64 "
        "(1.77×, 1.97× and no difference against speculation off)",
        change=True,
        overall=H200_BEST,
        found=H200_FOUND,
        points=(
            point(events, CHAT[0], H200_BEST, "its interval lies above every other"),
            point(events, CHAT[1], H200_BEST, "its interval lies above every other"),
            point(events, CHAT[2], H200_OFF, why, tie),
        ),
        objective="output throughput, levels weighted equally",
        noise_floor=Interval(value=1.02, low=1.015, high=1.03, n=3, unit="ratio", method="three starts of one depth"),
        not_shown=(
            "which depth is best at 64 at once: only 20 requests run at a time there, and the waves of one block differ by more than the depths do",
            "prompts longer than 512 tokens: every prompt measured had 512",
            "depths 6, 7, 8 and 9 were predicted, not launched",
        ),
        same_output="greedy output equal to speculation off on 6 of 6 prompts",
        command=h200_argv(H200_BEST),
        warnings=("one campaign on one machine: the gain was not repeated on another day",),
    )


# -- llama.cpp on two cores: three winners on four levels ---------------------------------------------------------------

DEMO_LEVELS = tuple(Level(workload=w, concurrency=c) for w in ("chat", "copy") for c in (1, 4))
DEMO_OFF = Candidate(algorithm=OFF, depth=0)
DRAFT_3, DRAFT_8, DRAFT_16 = (Candidate(algorithm="draft-simple", depth=d) for d in (3, 8, 16))
NGRAM_16 = Candidate(algorithm="ngram-simple", depth=16)
DEMO_TOK_S: Mapping[Candidate, tuple[float, float, float, float]] = {
    DEMO_OFF: (16.0, 47.6, 15.8, 40.3),
    DRAFT_3: (21.1, 31.5, 21.4, 33.0),
    DRAFT_8: (23.5, 32.4, 24.6, 35.1),
    DRAFT_16: (23.4, 31.0, 24.9, 34.2),
    NGRAM_16: (16.1, 45.0, 44.8, 73.0),
}


def demo_argv(candidate: Candidate) -> tuple[str, ...]:
    argv = ["llama-server", "-m", "smollm2-135m-f32.gguf", "-t", "1", "-np", "4", "-c", "8192", "--port", "8088"]
    if candidate.algorithm == "draft-simple":
        argv += ["--spec-type", "draft-simple", "-md", "smollm2-135m-q4_1.gguf", "--spec-draft-n-max", str(candidate.depth)]
    elif candidate.algorithm == "ngram-simple":
        argv += ["--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "4", "--spec-ngram-simple-size-m", str(candidate.depth)]
    return tuple(argv)


def demo_campaign(*, upto: int | None = None) -> list[AnyEvent]:
    """The campaign behind `leadline demo`; ``upto`` cuts the journal after that many events (a campaign still running)."""
    story = Story(1_795_980_000.0)
    command = Command(argv=demo_argv(DEMO_OFF))
    conditions = Conditions(
        target="process:" + " ".join(command.argv),
        engine="llamacpp",
        model="smollm2-135m-f32.gguf",
        version="b11549",
        host="this machine",
        hardware="2 CPU cores",
        workloads="chat:51aa copy:77c2",
        client="leadline 0.1.0, kernel clock",
    )
    story.add(
        Began(
            campaign_id="demo-1c9d",
            at_s=story.now_s,
            target=conditions.target,
            command=command,
            found=DEMO_OFF,
            levels=DEMO_LEVELS,
            conditions=conditions,
            boot_id="b001",
        )
    )
    story.now_s += 1
    rows = tuple(FrontierRow(candidate=c, starts=True, capacity=Capacity(max_running_requests=4, context_tokens=2048)) for c in DEMO_TOK_S)
    story.add(Inspected(at_s=story.now_s, frontier=rows))
    whys = {
        DEMO_OFF: ("baseline", "as found: speculation off"),
        DRAFT_3: ("shallow", "cost slope"),
        DRAFT_8: ("confirm", "predicted best for chat"),
        DRAFT_16: ("deep", "acceptance at every position"),
        NGRAM_16: ("explore", "copying pays without a draft model"),
    }
    order = (DEMO_OFF, DRAFT_16, DRAFT_3, NGRAM_16, DRAFT_8)
    launches = tuple(
        PlannedLaunch(candidate=c, why=whys[c][1], levels=DEMO_LEVELS, blocks=4, seconds=45.0, kind=whys[c][0]) for c in order[:4]
    )
    story.add(Planned(at_s=story.now_s, launches=launches))
    for shift, candidate in enumerate(order):
        reported = Reported(
            engine="llamacpp", version="b11549", algorithm=candidate.algorithm, depth=candidate.depth, max_running_requests=4
        )
        story.launch(candidate, *whys[candidate], demo_argv(candidate), 0.9, reported)
        for level, tok_s in zip(DEMO_LEVELS, DEMO_TOK_S[candidate], strict=True):
            story.measure(
                block(level, i, tok_s, tokens=64, requests=4, ttft_ms=90.0 * level.concurrency, shift=shift, noise=0.8) for i in range(4)
            )
        decay = 0.985 if candidate.algorithm == "draft-simple" else 0.99
        seen = tuple((level, accepted(candidate.depth, 120, decay, "timings")) for level in DEMO_LEVELS) if candidate.depth else ()
        story.add(
            Observed(
                trial=story.trial, at_s=story.now_s, acceptance=seen, capacity=Capacity(max_running_requests=4), memory_bytes=700 * 2**20
            )
        )
        story.restore(2.0, Exit(code=0, by="leadline"))
        if shift < len(order) - 1:
            story.add(Decided(at_s=story.now_s, stop=None, next=launches[min(shift + 1, 3)]))
    story.add(Decided(at_s=story.now_s, stop=Stop(rule="resolved", why="every level has one winner"), next=None))
    story.add(Concluded(at_s=story.now_s + 1, verdict=_demo_verdict(story.events)))
    return story.events[:upto]


def _demo_verdict(events: list[AnyEvent]) -> Verdict:
    winners = (DRAFT_8, DEMO_OFF, NGRAM_16, NGRAM_16)
    points = []
    for level, winner in zip(DEMO_LEVELS, winners, strict=True):
        tie = winner == DRAFT_8
        why = "within 1 % of each other; the smaller depth wins a tie" if tie else "its interval lies above every other"
        points.append(point(events, level, winner, why, (DRAFT_16,) if tie else ()))
    return Verdict(
        sentence="it depends on the traffic: draft-simple 8 for one chatting user (1.47×), off for four, ngram-simple 16 for copying (2.83× and 1.81×)",
        change=True,
        overall=NGRAM_16,
        found=DEMO_OFF,
        points=tuple(points),
        objective="output throughput, levels weighted equally",
        noise_floor=Interval(value=1.012, low=1.01, high=1.02, n=4, unit="ratio", method="two launches of one setting"),
        not_shown=("more than four at once: the server has four slots", "prompts other than the two built-in workloads"),
        same_output="greedy output equal to speculation off on 8 of 8 prompts",
        command=demo_argv(NGRAM_16),
    )


# -- many trials ----------------------------------------------------------------------------------------------------------


def large_campaign(trials: int = 200) -> list[AnyEvent]:
    """A campaign of ``trials`` launches at four levels, every seventh of them failed."""
    story = Story(1_795_990_000.0)
    command = Command(argv=demo_argv(DEMO_OFF))
    story.add(
        Began(
            campaign_id="large",
            at_s=story.now_s,
            target="process:llama-server",
            command=command,
            found=DEMO_OFF,
            levels=DEMO_LEVELS,
            conditions=Conditions(target="process:llama-server", engine="llamacpp"),
        )
    )
    for number in range(trials):
        candidate = (
            Candidate(algorithm="draft-simple", depth=number % 24 + 1, settings=(("draft_p_min", f"0.{number // 24}"),))
            if number
            else DEMO_OFF
        )
        argv = demo_argv(candidate)
        if number % 7 == 6:
            story.launch(candidate, "explore", "grid", argv, 1.0, None)
            story.fail(1.0, Exit(code=1), (_start_failed(number),), "error: failed to load draft model\n" * 12)
        else:
            story.launch(candidate, "explore", "grid", argv, 1.0, Reported(engine="llamacpp"))
            tok_s = 20 + 6 * math.sin(candidate.depth / 6) if candidate.depth else 16.0
            for level in DEMO_LEVELS:
                story.measure(
                    block(level, i, tok_s * level.concurrency**0.7, tokens=64, requests=4, ttft_ms=80, shift=number) for i in range(4)
                )
        story.restore(3.0, Exit(code=0, by="leadline"))
    return story.events


def _start_failed(number: int) -> Finding:
    return Finding(
        id="llamacpp.draft_model",
        cls="config.model_or_draft_unusable",
        failure=True,
        summary="the draft model could not be loaded",
        quotes=(Quote(source="log", line=12 + number, text="error: failed to load draft model"),),
        confidence="certain",
        remedy="give a draft model with the target's vocabulary",
        doomed=True,
    )
