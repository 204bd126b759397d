"""The engine's own schedule of depths by batch size, where a mix of depths beats every single one.

==========  =====================================================================================================
vLLM        ``num_speculative_tokens_per_batch_size``: ``[[first, last, depth], ...]``, inclusive, inside the arguments
SGLang      the file of ``--speculative-adaptive-config`` with one candidate a slot, from 0.5.13 on (off in a slot from 0.5.14):
            EAGLE and EAGLE3 at topk 1 only; the file goes with the launch (:class:`~leadline.records.LaunchFile`)
==========  =====================================================================================================

A schedule costs something that no static point shows (other graphs, flapping at a threshold), so it is only ever recommended
after it was measured itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from .compare import Board
from .engines import sglang, sglang_facts, vllm
from .errors import CannotRewrite
from .records import Candidate, Level, Record

VLLM_KNOB = "num_speculative_tokens_per_batch_size"
LAST = 1024
"""End of vLLM's last range; beyond it the engine carries the depth on."""


class Mix(Record, frozen=True):
    """Depths by concurrency, of one algorithm."""

    algorithm: str
    settings: tuple[tuple[str, str], ...]
    depths: tuple[tuple[int, int], ...]
    """(concurrency, depth), rising; depth 0 = off there."""

    @property
    def ranges(self) -> tuple[tuple[int, int, int], ...]:
        """(first batch, last batch, depth): cut half way between two concurrencies on a log scale; equal neighbours merged."""
        out: list[tuple[int, int, int]] = []
        first = 1
        for i, (concurrency, depth) in enumerate(self.depths):
            following = self.depths[i + 1][0] if i + 1 < len(self.depths) else None
            last = LAST if following is None else max(concurrency, math.isqrt(concurrency * following))
            if out and out[-1][2] == depth:
                out[-1] = (out[-1][0], last, depth)
            else:
                out.append((first, last, depth))
            first = last + 1
        return tuple(out)

    def text(self, engine: str) -> str:
        """As the engine reads it; empty for an engine, or a method, without schedules."""
        firsts = {first: depth for first, _, depth in self.ranges}
        if engine == "vllm":
            return vllm.schedule(firsts, LAST)
        chain = dict(self.settings).get("topk", "1") == "1"
        if engine == "sglang" and chain and sglang_facts.canonical(self.algorithm) in ("EAGLE", "EAGLE3"):
            return sglang.schedule(firsts)
        return ""

    def candidate(self, engine: str, version: str | None = None) -> tuple[Candidate | None, str]:
        """(the candidate that runs it, or None; why there is none)."""
        text = self.text(engine)
        if not text:
            return None, ""
        pins = {VLLM_KNOB: text}
        if engine == "sglang":
            try:
                sglang.schedule({first: depth for first, _, depth in self.ranges}, version)
            except CannotRewrite as error:
                return None, error.fields["why"]
            pins = {sglang.ADAPTIVE_KNOB: text, "speculative_adaptive": "true"}
        settings = tuple(sorted((dict(self.settings) | pins).items()))
        # the deepest is what the engine sizes its buffers for, so it stands as the depth
        return Candidate(algorithm=self.algorithm, depth=max(d for _, d in self.depths), settings=settings), ""


def scheduled(candidate: Candidate) -> str:
    """The schedule a candidate runs, or empty."""
    settings = dict(candidate.settings)
    table = settings.get(sglang.ADAPTIVE_KNOB, "")
    return settings.get(VLLM_KNOB, "") or (table if table.startswith("{") else "")


def mix(board: Board, leaders: Mapping[Level, Candidate]) -> Mix | None:
    """The winners as one schedule; None when one depth wins everywhere, when they cannot be mixed or when workloads disagree."""
    single = {level: c for level, c in leaders.items() if level.rate_rps is None and not scheduled(c)}
    speculating = [c for c in single.values() if not c.off]
    if not speculating or len({(c.algorithm, c.settings) for c in speculating}) > 1:
        return None
    depths: dict[int, int] = {}
    for level, candidate in single.items():
        if depths.setdefault(level.concurrency, candidate.depth) != candidate.depth:
            return None
    if len(set(depths.values())) < 2:
        return None
    return Mix(algorithm=speculating[0].algorithm, settings=speculating[0].settings, depths=tuple(sorted(depths.items())))


def mix_gain(board: Board, leaders: Mapping[Level, Candidate], levels: Sequence[Level]) -> float:
    """Mean log gain of the winners level by level over the best single candidate measured at all of them."""
    here = [level for level in levels if level in leaders]
    best = sum(board.log_tok_s(leaders[level], level) or 0.0 for level in here)
    singles = [[board.log_tok_s(c, level) for level in here] for c in board.candidates if not scheduled(c)]
    totals = [sum(v for v in row if v is not None) for row in singles if all(v is not None for v in row)]
    return (best - max(totals)) / len(here) if totals and here else 0.0
