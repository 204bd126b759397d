"""Knobs without a model: Optuna's ask and tell over the same journal.

The study is rebuilt from what was measured each time it is asked, so a resumed campaign asks for what an uninterrupted one would
have asked for; nothing but the journal remembers anything.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence

from .records import Candidate

STARTUP = 3
"""Points taken at random before the sampler learns."""


def available() -> bool:
    """Whether the extra ``optuna`` is installed."""
    return importlib.util.find_spec("optuna") is not None


def ask(space: Sequence[Candidate], measured: Mapping[Candidate, float | None], *, seed: int) -> Candidate | None:
    """The next candidate of ``space`` to measure, by a tree-structured Parzen estimator; None when all were.

    ``measured`` maps candidates to their objective (higher is better) in the order measured; None marks one that failed.
    Raises ModuleNotFoundError without Optuna.
    """
    import optuna

    left = [candidate for candidate in space if candidate not in measured]
    if not left:
        return None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    shapes = sorted({_shape(candidate) for candidate in space})
    distributions: dict[str, optuna.distributions.BaseDistribution] = {
        "shape": optuna.distributions.CategoricalDistribution(shapes),
        "depth": optuna.distributions.IntDistribution(min(c.depth for c in space), max(c.depth for c in space)),
    }
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP))
    worst = min((value for value in measured.values() if value is not None), default=0.0)
    for candidate, value in measured.items():
        if candidate in space:
            params = {"shape": _shape(candidate), "depth": candidate.depth}
            told = worst - 1.0 if value is None else value
            study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=told))
    wanted = study.ask(distributions).params
    # the sampler knows a box, the space has holes: the nearest point that was not measured
    return min(left, key=lambda c: (_shape(c) != wanted["shape"], abs(c.depth - int(wanted["depth"])), c))


def _shape(candidate: Candidate) -> str:
    return " ".join([candidate.algorithm, *(f"{name}={value}" for name, value in candidate.settings)])
