"""What fits before launching: every depth's capacity from one boot log, the model's config and the release's own rules.

:func:`predict_frontier` is pure: texts and parsed JSON in, rows out.  ``sglang`` and ``vllm`` hold the rules of an engine,
``sglang_pools`` SGLang's arithmetic forwards and backwards, ``shapes`` reads a model's ``config.json``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..engines import Parsed
from ..records import OFF, Candidate, FrontierRow
from . import sglang, vllm

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
    draft_config: Mapping[str, object] | None = None,
) -> tuple[FrontierRow, ...]:
    """One row a depth (0 = speculation off), then one for each further candidate.

    ``log`` is the output of at least one start, best one that reached readiness; ``server_info`` the decoded ``/server_info``;
    ``model_config`` the model's ``config.json``; ``metrics`` the text of ``/metrics`` and ``draft_config`` the draft's ``config.json`` (vLLM).  ``algorithm`` is drafted with where
    speculation is off.  Settings pinned by the found candidate stay pinned in every row.  An engine without a capacity
    model gives rows with ``starts=None``.
    """
    drafted = algorithm or _drafted_with(engine, model_config or {}, draft_config)
    rows = [_at(parsed.candidate, depth, algorithm, drafted) for depth in sorted(set(depths))] + list(candidates)
    if engine == "sglang":
        inputs = sglang.gather(version, parsed, log, server_info, model_config)
        found = sglang.readings(inputs)
        return tuple(sglang.row(inputs, found, candidate) for candidate in rows)
    if engine == "vllm":
        return vllm.rows(vllm.gather(parsed, log, metrics, model_config, draft_config), rows)
    why = f"leadline has no capacity model for {engine}"
    return tuple(FrontierRow(candidate=candidate, starts=None, reason=why, remedy="launch it to see") for candidate in rows)


def _drafted_with(engine: str, model_config: Mapping[str, object], draft_config: Mapping[str, object] | None) -> str:
    """The method a service without speculation would take: the target's own prediction layers, else a draft, else n-grams."""
    inner = model_config.get("text_config")
    text = inner if isinstance(inner, Mapping) else model_config
    own = any(text.get(key) for key in ("num_nextn_predict_layers", "mtp_num_hidden_layers"))
    if engine == "sglang":
        return "NEXTN" if own else "EAGLE"
    if draft_config is not None:
        return "draft_model"
    return "mtp" if own else "ngram"


def _at(found: Candidate, depth: int, algorithm: str, drafted: str) -> Candidate:
    """The found candidate at another depth; a chain keeps D = depth + 1, a tree keeps its shape."""
    keep = tuple((name, value) for name, value in found.settings if name == "max_running_requests")
    if depth == 0:
        return Candidate(algorithm=OFF, depth=0, settings=keep)
    if found.off:
        return Candidate(algorithm=drafted, depth=depth, settings=keep)
    return Candidate(algorithm=algorithm or found.algorithm, depth=depth, settings=found.settings if depth == found.depth else keep)
