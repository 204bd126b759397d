"""Accepted drafts: what a deep run says about every shallower depth.

Notation (as reference tables print it): ``a_j`` is the share of rounds whose first j drafts were all accepted, ``h(L)`` the
share of rounds that accepted exactly L drafts, ``AL(k)`` the mean tokens of a round at depth k, **bonus token included**.

==============  ====================================================================  =================================
predictor       AL(k) from a run at depth K >= k                                      errs when
==============  ====================================================================  =================================
prefix          1 + sum of a_j for j <= k                                             difficulty comes in clusters
resegmented     cut each deep round of L + 1 tokens into rounds of k + 1              drafts get worse with their offset
geometric       (1 - α^(k+1)) / (1 - α) with α from AL(K)                             acceptance is not constant
==============  ====================================================================  =================================

Both of the first two err low on everything checked (published pairs of runs at two depths, and two-state simulations), so the
estimate is their maximum, with a model error of 6 % (90 %).  The independence form is due to Leviathan et al., arXiv 2211.17192.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from .records import Acceptance, Record

MODEL_ERROR = 0.06
"""Half width of AL(k) from a deeper run, as a ratio, at 90 %."""
GEOMETRIC_ERROR = 0.10
"""The same where only the mean length is known."""


def length(acceptance: Acceptance) -> float | None:
    """Acceptance length, bonus token included, or None when the record does not hold it."""
    if acceptance.rounds and acceptance.accepted is not None:
        return 1 + acceptance.accepted / acceptance.rounds
    if acceptance.per_position and acceptance.rounds:
        return 1 + sum(acceptance.per_position) / acceptance.rounds
    if sum(acceptance.histogram) > 0:
        return 1 + sum(j * n for j, n in enumerate(acceptance.histogram)) / sum(acceptance.histogram)
    return acceptance.length


def shares(acceptance: Acceptance) -> tuple[float, ...]:
    """a_1 .. a_K, or () when positions are not known."""
    if acceptance.per_position and acceptance.rounds:
        return tuple(n / acceptance.rounds for n in acceptance.per_position)
    total = sum(acceptance.histogram)
    if total > 0:
        return tuple(sum(acceptance.histogram[j:]) / total for j in range(1, len(acceptance.histogram)))
    return ()


def histogram(positions: Sequence[float]) -> tuple[float, ...]:
    """h(0) .. h(K) from a_1 .. a_K."""
    edges = (1.0, *positions, 0.0)
    return tuple(max(0.0, here - after) for here, after in itertools.pairwise(edges))


def prefix(positions: Sequence[float], depth: int) -> float:
    """AL at ``depth`` as the prefix sum of a deeper run's shares."""
    return 1 + sum(positions[:depth])


def resegmented(positions: Sequence[float], depth: int) -> float:
    """AL at ``depth`` when every deep round is cut into rounds of ``depth + 1`` tokens; a full round is censored at K + 1."""
    deepest = len(positions)
    tokens, rounds = 0.0, 0.0
    for accepted, share in enumerate(histogram(positions)):
        tokens += share * (accepted + 1)
        pieces = (deepest + 1) / (depth + 1) if accepted == deepest else math.ceil((accepted + 1) / (depth + 1))
        rounds += share * pieces
    return tokens / rounds


def geometric(alpha: float, depth: int) -> float:
    """AL at ``depth`` when every draft is accepted with probability ``alpha`` until the first that is not."""
    return depth + 1.0 if alpha >= 1 else (1 - alpha ** (depth + 1)) / (1 - alpha)


def alpha_of(mean_length: float, depth: int) -> float:
    """The constant acceptance that yields ``mean_length`` at ``depth`` (bisection; 0 and 1 where it is out of range)."""
    low, high = 0.0, 1.0
    if mean_length >= depth + 1:
        return 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if geometric(middle, depth) < mean_length else (low, middle)
    return (low + high) / 2


def pooled(runs: Iterable[Acceptance]) -> Acceptance | None:
    """Counts of several stretches at **one** depth and workload added up; acceptance does not depend on the batch.

    Means without counts are averaged only when no run has counts. None when nothing is known.
    """
    known = [run for run in runs if length(run) is not None]
    simulated = any(run.simulated for run in known)
    counted = [run for run in known if run.rounds or run.histogram]
    if not counted:
        means = [m for m in (length(run) for run in known) if m is not None]
        return Acceptance(length=sum(means) / len(means), source=known[0].source, simulated=simulated) if means else None
    rounds = sum(run.rounds or sum(run.histogram) for run in counted)
    accepted = round(sum(((length(run) or 1.0) - 1) * (run.rounds or sum(run.histogram)) for run in counted))
    deepest = max(len(shares(run)) for run in counted)
    whole = [run for run in counted if len(shares(run)) == deepest]
    positions: tuple[int, ...] = ()
    if deepest and len(whole) == len(counted):
        positions = tuple(round(sum(shares(run)[j] * (run.rounds or sum(run.histogram)) for run in whole)) for j in range(deepest))
    return Acceptance(rounds=rounds, accepted=accepted, per_position=positions, source=counted[0].source, simulated=simulated)


class Curve(Record, frozen=True):
    """AL(k) for k = 0 .. K of one run, and what comes after K."""

    depth: int
    lengths: tuple[float, ...]
    method: str
    """``prefix``, ``resegmented`` (the larger at K/2 won) or ``geometric``."""
    error: float
    """Half width of a shallower length as a ratio, 90 %; 0 at ``depth`` itself."""
    clustered: float = 0.0
    """Largest gap between the two predictors, as a ratio: high when difficulty comes in clusters."""

    def at(self, depth: int) -> float:
        """AL at any depth; beyond the run the last two conditional acceptances go on."""
        if depth <= self.depth:
            return self.lengths[depth]
        gains = [b - a for a, b in zip(self.lengths, self.lengths[1:], strict=False)]
        tail = min(0.99, gains[-1] / gains[-2]) if len(gains) > 1 and gains[-2] > 0 else min(0.99, gains[-1])
        return self.lengths[-1] + sum(gains[-1] * tail**j for j in range(1, depth - self.depth + 1))


def curve(run: Acceptance | None, depth: int) -> Curve | None:
    """AL at every depth up to that of ``run`` (which speculated ``depth`` deep); None when its length is not known."""
    mean = length(run) if run is not None else None
    if run is None or mean is None or depth < 1:
        return None
    positions = shares(run)
    if len(positions) >= depth:
        both = [(prefix(positions, k), resegmented(positions[:depth], k)) for k in range(1, depth + 1)]
        middle = both[(depth - 1) // 2]
        return Curve(
            depth=depth,
            lengths=(1.0, *(max(pair) for pair in both)),
            method="prefix" if middle[0] >= middle[1] else "resegmented",
            error=MODEL_ERROR,
            clustered=max(abs(one / two - 1) for one, two in both),
        )
    alpha = alpha_of(mean, depth)
    return Curve(depth=depth, lengths=tuple(geometric(alpha, k) for k in range(depth + 1)), method="geometric", error=GEOMETRIC_ERROR)


def depends_on_batch(runs: Sequence[tuple[int, Acceptance]], *, factor: float = 2.0) -> str:
    """A sentence when acceptance falls with concurrency, which points to a defect of the engine; else empty.

    ``runs`` are (concurrency, acceptance) of one candidate and workload. Noise is taken as binomial, inflated two-fold because
    rounds of one request are correlated; ``factor`` more is asked before anything is said.
    """
    counted = [(c, (run.accepted or 0), (run.drafted or 0), run.rounds or 0) for c, run in runs if run.drafted and run.rounds]
    if len(counted) < 2:
        return ""
    (low_c, a, b, rounds_low), (high_c, c, d, rounds_high) = min(counted), max(counted)
    one, two = a / b, c / d
    noise = 2 * math.sqrt(one * (1 - one) / rounds_low + two * (1 - two) / rounds_high)
    if abs(one - two) <= max(0.05, 2 * factor * noise):
        return ""
    return (
        f"acceptance changes with the batch ({one:.2f} at concurrency {low_c}, {two:.2f} at {high_c}); "
        "it should depend on the text only, so suspect the engine and report it there"
    )
