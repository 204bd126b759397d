"""The surfaces leadline's choosers are judged on: published and recorded tables, and generated families.

Tables lie in ``tests/data/surfaces`` (its README names every source).  Recorded cells are taken as the truth; noise is planted by
the player.  Where a source has no speculation-off row, the frontier says so and nobody can launch it.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from leadline.acceptance import geometric
from leadline.engines import Axis
from leadline.records import Acceptance, Candidate, Capacity, FrontierRow, Level
from replay import OFF, Surface, counts, depth_curve, llamacpp_demo

DATA = Path(__file__).resolve().parent.parent / "tests" / "data"
NO_OFF = FrontierRow(candidate=OFF, starts=False, reason="the source has no speculation-off row")


def recorded() -> tuple[Surface, ...]:
    """Every recorded or published surface."""
    return (
        sglang_22246("qwen3-235b", range(1, 7)),
        sglang_22246("glm-4.7-fp8-partial", range(1, 6)),
        h200_end_to_end(),
        h200_decode_windows(),
        h200_grid(),
        llamacpp_demo(),
    )


def _rows(name: str) -> list[dict[str, str]]:
    with (DATA / "surfaces" / name).open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


def eagle(depth: int, **settings: str) -> Candidate:
    return Candidate(algorithm="EAGLE", depth=depth, settings=tuple(sorted(settings.items())))


def sglang_22246(model: str, depths: range) -> Surface:
    """A published grid of depth by batch; its acceptance is not published."""
    rows = [r for r in _rows(f"sglang-22246-{model}.csv") if r["mode"] == "static"]
    at = {batch: Level(workload="published", concurrency=batch) for batch in sorted({int(r["batch_size"]) for r in rows})}
    tok_s = {(eagle(int(r["num_steps"])), at[int(r["batch_size"])]): float(r["throughput_tok_s"]) for r in rows}
    axis = Axis(algorithm="EAGLE", depths=tuple(depths))
    return Surface(
        name=f"sglang-22246 {model}",
        axes=(axis,),
        levels=tuple(at.values()),
        found=eagle(3),
        tok_s=tok_s,
        frontier=(NO_OFF,),
        engine="sglang",
    )


def h200_end_to_end() -> Surface:
    """Recorded servers, end to end, with the fall of capacity with depth; depth 10 starts only when pinned to 20 requests."""
    table = json.loads((DATA / "surfaces" / "h200-end-to-end.json").read_text(encoding="utf-8"))
    at = {c: Level(workload="recorded", concurrency=c) for c in (1, 4, 16, 32, 64)}
    pinned = eagle(10, max_running_requests="20")
    candidates = {"0": OFF, "10": pinned} | {str(k): eagle(k) for k in (1, 2, 3, 5)}
    tok_s = {(candidates[k], at[int(c)]): float(x) for k, row in table["tok_s"].items() for c, x in row.items()}
    capacity = {candidates[k]: int(n) for k, n in table["running"].items()}
    acceptance = {
        (candidate, "recorded"): Acceptance(length=geometric(0.88, int(k)), source="declared")
        for k, candidate in candidates.items()
        if k != "0"
    }
    frontier = (
        FrontierRow(candidate=eagle(10), starts=False, reason="state reservation exceeds the pool", feasible_as=pinned),
        *(FrontierRow(candidate=c, starts=True, capacity=Capacity(max_running_requests=n), exact=True) for c, n in capacity.items()),
    )
    axis = Axis(algorithm="EAGLE", depths=(1, 2, 3, 5, 10))
    return Surface(
        name="h200 recordings, end to end",
        axes=(axis,),
        levels=tuple(at.values()),
        found=OFF,
        tok_s=tok_s,
        acceptance=acceptance,
        capacity=capacity,
        frontier=frontier,
        load_s=75.0,
        engine="sglang",
        facts=(("num_experts", "128"), ("num_experts_per_tok", "10")),
    )


def h200_decode_windows() -> Surface:
    """The same servers by decode windows without prefill: throughput = batch * declared acceptance length / round time."""
    rows = [
        r for r in _rows("sglang-0.5.12.post1-h200-round-time.csv") if int(r["running_requests"]) in (1, 16) and int(r["num_steps"]) <= 3
    ]
    at = {b: Level(workload="decode", concurrency=b) for b in (1, 16)}
    tok_s, acceptance = {}, {}
    for row in rows:
        k, b = int(row["num_steps"]), int(row["running_requests"])
        candidate = eagle(k) if k else OFF
        tok_s[candidate, at[b]] = b * geometric(0.88, k) / float(row["round_ms_median"]) * 1e3
        if k:
            acceptance[candidate, "decode"] = Acceptance(length=geometric(0.88, k), source="declared")
    axis = Axis(algorithm="EAGLE", depths=(1, 2, 3))
    return Surface(
        name="h200 recordings, decode windows",
        axes=(axis,),
        levels=tuple(at.values()),
        found=OFF,
        tok_s=tok_s,
        acceptance=acceptance,
        load_s=75.0,
        engine="sglang",
        facts=(("num_experts", "128"), ("num_experts_per_tok", "10")),
    )


def h200_grid() -> Surface:
    """Every depth at the most running requests it starts with, measured within 21 minutes; as found 3 steps, nothing pinned."""
    rows = _rows("sglang-0.5.12.post1-h200-grid.csv")
    at = {c: Level(workload="recorded", concurrency=c) for c in (1, 16, 64)}
    tok_s, capacity = {}, {}
    for row in rows:
        depth, pinned = int(row["num_steps"]), row["max_running_requests"]
        candidate = OFF if not depth else eagle(depth, max_running_requests=pinned) if pinned else eagle(depth)
        tok_s[candidate, at[int(row["concurrency"])]] = float(row["output_tok_s"])
        capacity[candidate] = int(row["running"])
    frontier = [FrontierRow(candidate=c, starts=True, capacity=Capacity(max_running_requests=n), exact=True) for c, n in capacity.items()]
    for candidate in capacity:
        if candidate.settings and eagle(candidate.depth) not in capacity:
            plain = eagle(candidate.depth)
            frontier.append(FrontierRow(candidate=plain, starts=False, reason="measured with its limit only", feasible_as=candidate))
    acceptance = {(c, "recorded"): Acceptance(length=geometric(0.88, c.depth), source="declared") for c in capacity if c.depth}
    return Surface(
        name="h200 grid",
        axes=(Axis(algorithm="EAGLE", depths=tuple(range(1, 11))),),
        levels=tuple(at.values()),
        found=eagle(3),
        tok_s=tok_s,
        acceptance=acceptance,
        capacity=capacity,
        frontier=tuple(frontier),
        load_s=55.0,
        tokens=640,
        prompts=3,
        engine="sglang",
        facts=(("kernel_step_tokens", "128"), ("num_experts", "128"), ("num_experts_per_tok", "10")),
    )


FAMILIES = ("smooth", "plateau", "cliff", "crash", "capacity", "collapse", "null", "hurts")


def generated(family: str, seed: int) -> Surface:
    """A random surface of a family, from physics with its own acceptance and cost laws.

    ``smooth``; ``plateau`` (several depths within 1 %); ``cliff`` (rounds jump by 12-25 % above a number of tokens); ``crash`` (the
    deepest die unannounced); ``capacity`` (fewer requests fit with depth); ``collapse`` (a block drafter past its block);
    ``null`` (nothing differs); ``hurts`` (speculation loses everywhere).
    """
    rng = np.random.default_rng([FAMILIES.index(family), seed])
    depths = tuple(range(1, int(rng.choice([6, 8, 10])) + 1))
    levels = tuple(Level(workload="chat", concurrency=c) for c in (1, 4, 16, 64))
    start, slope = rng.uniform(0.55, 0.92), rng.uniform(-0.02, 0.015)
    c = [float(np.clip(start + slope * j, 0.2, 0.97)) for j in range(depths[-1])]
    block = int(rng.integers(3, depths[-1])) if family == "collapse" else depths[-1]
    if family == "hurts":
        c = [0.35 * x for x in c]
    lengths = depth_curve(c)
    base = rng.uniform(4, 30) * 1e-3
    growth, draft, verify = rng.uniform(0.08, 0.3), rng.uniform(0.03, 0.14), rng.uniform(0.002, 0.012)
    if family == "plateau":
        # a draft costs what it yields around depth 4, so depths 3 to 5 lie within about 1 %
        draft = (lengths[5] - lengths[3]) / (2 * lengths[4]) / max(0.3, 1 - 4 * (lengths[5] - lengths[3]) / (2 * lengths[4]))
        verify = 0.0
    scaffold, bend = rng.uniform(1.1, 1.7), rng.uniform(-0.3, 0.3)
    edge = int(rng.choice([32, 64, 96])) if family == "cliff" else 10**9
    jump = rng.uniform(1.12, 1.25)
    tok_s: dict[tuple[Candidate, Level], float] = {}
    acceptance, capacity = {}, {}
    for depth in (0, *depths):
        candidate = eagle(depth) if depth else OFF
        held = max(4, int(80 - depth * rng.uniform(4, 10))) if family == "capacity" else None
        if held is not None:
            capacity[candidate] = held
        al = lengths[depth]
        if family == "collapse" and depth > block:
            al = min(al, 1 + (lengths[min(3, depths[-1])] - 1) * 0.5)
        for level in levels:
            batch = min(level.concurrency, held or level.concurrency)
            plain = base * batch**growth
            tokens = batch * (depth + 1)
            drafting = draft * depth ** (1 + 0.3 * bend) * plain if depth else 0.0
            round_s = plain * (scaffold if depth else 1.0) + drafting + verify * tokens * base * 0.5
            if depth and tokens > edge:
                round_s *= jump
            tok_s[candidate, level] = batch * al / round_s
        if depth:
            # what a run reports differs from the law it follows: deep rounds start on harder tokens
            bias = 1 - rng.uniform(0, 0.04) * (depth / depths[-1])
            seen = depth_curve([x * (bias if j == 0 else 1.0) for j, x in enumerate(c[:depth])])
            scale = (al - 1) / (seen[depth] - 1)
            shown = tuple(1 + (x - 1) * scale for x in seen)
            acceptance[candidate, "chat"] = counts(shown, depth)
    if family == "null":
        tok_s = {(candidate, level): tok_s[OFF, level] for candidate, level in tok_s}
        acceptance = {key: counts([1.0] * (depths[-1] + 1), key[0].depth) for key in acceptance}
    deepest = depths[-1] if family != "crash" else int(rng.integers(max(2, depths[-1] // 2), depths[-1]))
    return Surface(
        name=f"{family} {seed}",
        axes=(Axis(algorithm="EAGLE", depths=depths),),
        levels=levels,
        found=OFF if rng.random() < 0.5 or family == "null" else eagle(min(3, deepest)),
        tok_s=tok_s,
        acceptance=acceptance,
        capacity=capacity,
        frontier=tuple(FrontierRow(candidate=c, starts=True, capacity=Capacity(max_running_requests=n)) for c, n in capacity.items()),
        crashes=frozenset(eagle(d) for d in depths if d > deepest),
    )


def every(count: int) -> Iterator[tuple[str, Surface]]:
    for family in FAMILIES:
        for seed in range(count):
            yield family, generated(family, seed)


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(math.log(v) for v in values) / len(values))
