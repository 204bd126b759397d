"""What fits before launching: every depth's capacity from one boot log, the model's config and the release's own rules.

:func:`predict_frontier` is pure: texts and parsed JSON in, rows out.  ``sglang`` and ``vllm`` hold the rules of an engine,
``sglang_pools`` SGLang's arithmetic forwards and backwards, ``shapes`` reads a model's ``config.json``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..engines import Parsed
from ..records import OFF, Candidate, FrontierRow
from . import sglang

DEPTHS = tuple(range(11))
"""Depths shown when none are asked for."""


def predict_frontier(
    engine: str,
    version: str | None,
    parsed: Parsed,
    *,
    log: str = "",
    server_info: Mapping[str, object] | None = None,
    model_config: Mapping[str, object] | None = None,
    depths: Sequence[int] = DEPTHS,
    algorithm: str = "",
    candidates: Sequence[Candidate] = (),
    metrics: str = "",
) -> tuple[FrontierRow, ...]:
    """One row a depth (0 = speculation off), then one for each further candidate.

    ``log`` is the output of at least one start, best one that reached readiness; ``server_info`` the decoded ``/server_info``;
    ``model_config`` the model's ``config.json``; ``metrics`` the text of ``/metrics`` (vLLM).  ``algorithm`` is drafted with where
    speculation is off.  Settings pinned by the found candidate stay pinned in every row.  An engine without a capacity
    model gives rows with ``starts=None``.
    """
    rows = [_at(parsed.candidate, depth, algorithm) for depth in sorted(set(depths))] + list(candidates)
    if engine == "sglang":
        inputs = sglang.gather(version, parsed, log, server_info, model_config)
        found = sglang.readings(inputs)
        return tuple(sglang.row(inputs, found, candidate) for candidate in rows)
    why = f"leadline has no capacity model for {engine}"
    return tuple(FrontierRow(candidate=candidate, starts=None, reason=why, remedy="launch it to see") for candidate in rows)


def _at(found: Candidate, depth: int, algorithm: str) -> Candidate:
    """The found candidate at another depth; a chain keeps D = depth + 1, a tree keeps its shape."""
    keep = tuple((name, value) for name, value in found.settings if name == "max_running_requests")
    if depth == 0:
        return Candidate(algorithm=OFF, depth=0, settings=keep)
    if found.off:
        return Candidate(algorithm=algorithm or "EAGLE", depth=depth, settings=keep)
    return Candidate(algorithm=algorithm or found.algorithm, depth=depth, settings=found.settings if depth == found.depth else keep)
