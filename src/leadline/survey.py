"""What a running service says about itself, turned into the frontier of everything that could be launched in its place."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import cast

from .engines import Axis, Engine, Parsed
from .errors import NeedsRights
from .frontier import predict_frontier
from .records import OFF, Candidate, FrontierRow, Reported
from .target import Target


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


def model_config(target: Target, model: str) -> Mapping[str, object] | None:
    """``config.json`` of a model that lies in a folder of the service's host; ``None`` where it does not."""
    if not model.startswith("/"):
        return None
    try:
        found = json.loads(target.read(f"{model.rstrip('/')}/config.json", limit_bytes=1 << 20))
    except (FileNotFoundError, NotADirectoryError, NeedsRights, json.JSONDecodeError):
        return None
    return found if isinstance(found, dict) else None
