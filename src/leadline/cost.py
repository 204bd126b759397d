"""What a round costs, how many requests run at once, and what waiting adds.

``R(B, k)`` is seconds per round at batch B and depth k, as served.  At a fixed batch it is close to linear in k for dense
models (checked on published tables: interior depths within 2 % on average, 9 % at worst) and closer to linear in the number of
expert weights read for mixtures of experts (MoESD, arXiv 2505.19645).  **Speculation off is not on that line**: the scaffold
costs a share of a plain step even with few drafts, so depth 0 is always measured on its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from .records import Record

SCAFFOLD = 1.45
"""R(B, 0) on the depth line over R(B, 0) measured without speculation: 1.8, 1.6, 1.6 on a GPU server, 1.3 on a CPU one."""
SCAFFOLD_SD = 0.20
"""Standard deviation of the log of that factor; used only while a single depth of an axis has been measured."""
SATURATED = 0.05
"""Share of all experts by which two depths must differ before their number rules the cost."""
LINE_SD = 0.022
"""Standard deviation of log R half way between two measured depths."""
EXTRAPOLATED_SD = 0.04
"""The same one depth ratio of two outside the measured depths."""
STEP = 1.09
"""What a round costs more once its tokens need the engine's other kernel: 8 to 10 % on an H200 (SGLang 0.5.12, 128 experts, untuned)."""
STEP_SD = 0.04
"""Standard deviation of the log of that factor."""


class Experts(Record, frozen=True):
    """A mixture of experts: how many there are in a layer and how many a token uses."""

    total: int
    active: int


def experts_of(config: Mapping[str, object]) -> Experts | None:
    """From a model's ``config.json`` (or its ``text_config``), under the names the field's families use; None for a dense model."""
    inner = config.get("text_config")
    for part in (config, inner if isinstance(inner, Mapping) else {}):
        total = next((n for key in ("num_experts", "n_routed_experts", "num_local_experts") if isinstance(n := part.get(key), int)), 0)
        active = part.get("num_experts_per_tok")
        if isinstance(active, int) and 0 < active < total:
            return Experts(total=total, active=active)
    return None


def experts_read(tokens: float, experts: Experts) -> float:
    """Expected number of distinct experts that ``tokens`` tokens touch under uniform routing."""
    untouched = math.pow(1 - experts.active / experts.total, tokens)
    return experts.total * (1 - untouched)


def round_s(
    rounds: Sequence[tuple[int, float]], depth: int, batch: float, experts: Experts | None = None, step_tokens: int | None = None
) -> float:
    """Seconds per round at ``depth`` from (depth, seconds) measured at the same batch, shallow to deep.

    Between two measured depths linear in depth; for a mixture of experts linear in the experts read by ``batch * (depth + 1)``
    tokens, as far as their number still grows there (once all are read a draft costs what it costs in a dense model).  Outside
    the measured depths always linear in depth: a law that saturates cannot be continued.  Rounds of more than ``step_tokens``
    tokens lie on a line of their own, :data:`STEP` times as high.
    """
    if step_tokens is not None:
        level = [(k, r / _step(k, batch, step_tokens)) for k, r in rounds]
        return round_s(level, depth, batch, experts) * _step(depth, batch, step_tokens)
    plain = interpolate([(float(k), r) for k, r in rounds], float(depth))
    around = [pair for pair in itertools.pairwise(rounds) if pair[0][0] <= depth <= pair[1][0]]
    if experts is None or not around:
        return plain
    (low, low_s), (high, high_s) = around[0]
    first, here, last = (experts_read(batch * (k + 1), experts) for k in (low, depth, high))
    span = (last - first) / experts.total
    if span <= 0:
        return plain
    weight = min(1.0, span / SATURATED)
    return weight * (low_s + (high_s - low_s) * (here - first) / (last - first)) + (1 - weight) * plain


def _step(depth: int, batch: float, step_tokens: int) -> float:
    return STEP if batch * (depth + 1) > step_tokens else 1.0


def step_sd(depths: Sequence[int], depth: int, batch: float, step_tokens: int | None) -> float:
    """Error of log R that the unknown height of the step leaves: all of it across the step, none between depths of one side."""
    if step_tokens is None or depth in depths:
        return 0.0
    below = max((d for d in depths if d < depth), default=None)
    above = min((d for d in depths if d > depth), default=None)
    here = _step(depth, batch, step_tokens)
    if below is None or above is None:
        near = below if below is not None else above
        return STEP_SD if near is not None and _step(near, batch, step_tokens) != here else 0.0
    if _step(below, batch, step_tokens) == _step(above, batch, step_tokens):
        return 0.0
    u = (depth - below) / (above - below)
    return STEP_SD * (u if here == 1.0 else 1 - u)


def interpolate(points: Sequence[tuple[float, float]], x: float) -> float:
    """Piecewise linear through ``points`` (sorted by x, at least one), continued with the outer slopes, never below a tenth."""
    if len(points) == 1:
        return points[0][1]
    index = next((i for i in range(1, len(points) - 1) if x <= points[i][0]), len(points) - 1)
    (x0, y0), (x1, y1) = points[index - 1], points[index]
    value = y0 if x1 == x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return max(value, min(y for _, y in points) / 10)


def place(depths: Sequence[int], depth: int) -> tuple[float, bool]:
    """How far ``depth`` is from the measured depths: (0 at one of them .. 1 half way between neighbours or a factor 2 outside, inside)."""
    if depth in depths:
        return 0.0, True
    below = [d for d in depths if d < depth]
    above = [d for d in depths if d > depth]
    if below and above:
        u = (depth - max(below)) / (min(above) - max(below))
        return math.sqrt(4 * u * (1 - u)), True
    return abs(math.log2(depth / (max(below) if below else min(above)))), False


class Waiting(Record, frozen=True):
    """A closed loop of ``clients`` against ``running`` slots."""

    batch: int
    """Requests that decode at once."""
    waits: float
    """Mean wait of a request in units of its own running time (Little 1961); it adds to TTFT."""


def closed_loop(clients: int, running: int | None) -> Waiting:
    """Throughput stays at that of a full server above its capacity; the rest waits."""
    if running is None or running >= clients:
        return Waiting(batch=clients, waits=0.0)
    slots = max(1, running)
    return Waiting(batch=slots, waits=(clients - slots) / slots)
