"""What a running service says about itself, turned into the frontier of everything that could be launched in its place."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from .engines import Axis, Engine, Parsed
from .errors import NeedsRights
from .frontier import predict_frontier
from .records import OFF, Candidate, FrontierRow, Reported
from .target import Target

HEAD_BYTES = 1 << 16
"""Enough of a GGUF file for what it says about its architecture."""


def chart(
    engine: Engine,
    parsed: Parsed,
    axes: Sequence[Axis],
    reported: Reported,
    *,
    log: str,
    infos: Mapping[str, object],
    model_config: Mapping[str, object] | None,
) -> tuple[FrontierRow, ...]:
    """One row for speculation off and every candidate of the axes, then one for each better setting of coupled knobs they name."""
    info = next((infos[path] for path in engine.info_paths if isinstance(infos.get(path), Mapping)), None)
    pinned = parsed.candidate.settings if parsed.candidate.off else ()
    wanted = [Candidate(algorithm=OFF, depth=0, settings=pinned), *(candidate for axis in axes for candidate in axis.candidates())]
    asked = list(dict.fromkeys([*wanted, parsed.candidate]))

    def rows(candidates: Sequence[Candidate]) -> tuple[FrontierRow, ...]:
        return predict_frontier(
            engine.name,
            reported.version,
            parsed,
            log=log,
            server_info=cast("Mapping[str, object] | None", info),
            model_config=model_config,
            depths=(),
            candidates=candidates,
        )

    first = rows(asked)
    return first + rows([row.feasible_as for row in first if row.feasible_as is not None])


def sized(engine: Engine, parsed: Parsed, reported: Reported, *, log: str, argv: Sequence[str], target: Target) -> Reported:
    """``reported`` with what this launch holds: ``weight_bytes`` (log, else model files), ``kv_bytes_per_token``, and over how many GPUs."""
    found = engine.footprint(log)
    weights = found.weight_bytes if found.weight_bytes is not None else _file_bytes(target, engine.weight_files(argv))
    knobs = dict(parsed.knobs)
    told: dict[str, str] = {name: knobs[name] for name in ("tp_size", "pp_size") if name in knobs}
    if weights:
        told["weight_bytes"] = str(weights)
    if found.kv_bytes_per_token:
        told["kv_bytes_per_token"] = f"{found.kv_bytes_per_token:g}"
    return msgspec.structs.replace(reported, facts=tuple(sorted((told | dict(reported.facts)).items())))


def _file_bytes(target: Target, paths: Sequence[str]) -> int | None:
    """Size of all files together; ``None`` when one of them cannot be seen, or none is named."""
    if not paths:
        return None
    said = target.run(["stat", "-L", "-c", "%s", "--", *paths])
    sizes = said.text.split()
    return sum(int(size) for size in sizes) if said.status == 0 and len(sizes) == len(paths) else None


def model_head(target: Target, model: str) -> bytes:
    """The beginning of a GGUF file on the service's host; empty where the model is none, or cannot be seen."""
    if not model.endswith(".gguf"):
        return b""
    try:
        return target.read(model, limit_bytes=HEAD_BYTES)
    except (FileNotFoundError, NotADirectoryError, NeedsRights):
        return b""


def model_config(target: Target, model: str) -> Mapping[str, object] | None:
    """``config.json`` of a model that lies in a folder of the service's host; ``None`` where it does not."""
    if not model.startswith("/"):
        return None
    try:
        found = json.loads(target.read(f"{model.rstrip('/')}/config.json", limit_bytes=1 << 20))
    except (FileNotFoundError, NotADirectoryError, NeedsRights, json.JSONDecodeError):
        return None
    return found if isinstance(found, dict) else None
