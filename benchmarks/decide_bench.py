"""``make decide-bench``: leadline's launches against grid, random, Optuna TPE, a GP and successive halving.

Every method gets the configuration as found for free (it runs already), the same candidates (those that the frontier lets start),
the same blocks a launch, and after each launch names, per concurrency, the best candidate it has measured.  Printed per surface:
launches until that is within 2 % of the exhaustive best at **every** concurrency, and the mean regret after 4 launches.  For
leadline also: launches until it stops, and claims that were confident and wrong.  ``--check`` fails when a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import ndtr

import published
from leadline.compare import Board
from leadline.config import Measure, Tune
from leadline.recommend import recommend
from leadline.records import Candidate, Level, PlannedLaunch, Verdict
from leadline.space import options
from leadline.state import Knowledge
from replay import Noise, Player, Surface, campaign
from surface_coverage import Hit, all_hits, print_coverage
from surfaces import FAMILIES, generated, recorded

WITHIN = 0.02
TUNE = Tune(min_gain=0.01)
"""As it is used here: whoever asks for the best within 2 % may not be told that 3 % are not worth a change."""
LAUNCHES = 4
HORIZON = 12
BLOCKS = Measure().confirm_blocks

Chooser = Callable[[Surface, Player, list[Candidate], np.random.Generator], Iterator[Candidate]]


# -- what is known after each launch -----------------------------------------------------------------------------------


def incumbents(surface: Surface, knowledge: Knowledge) -> dict[Level, Candidate]:
    """Best measured candidate of every level, by paired contrasts with the configuration as found."""
    board = Board(knowledge, surface.levels, surface.found)
    out = {}
    for level in surface.levels:
        means = {c: value for c in board.measured(level) if (value := board.log_tok_s(c, level)) is not None}
        if means:
            out[level] = max(means, key=lambda c: means[c])
    return out


def regrets(surface: Surface, chosen: dict[Level, Candidate]) -> list[float]:
    return [surface.regret(chosen[level], level) if level in chosen else 1.0 for level in surface.levels]


def after_each(surface: Surface, player: Player) -> list[list[float]]:
    """Regrets by level after launch 0 (as found), 1, 2, ...; rechecks and repeats of the configuration as found are free for nobody."""
    out = []
    known = player.knowledge
    for n in range(1, len(known.trials) + 1):
        part = Knowledge(began=known.began, frontier=known.frontier, trials=known.trials[:n])
        out.append(regrets(surface, incumbents(surface, part)))
    return out


# -- the others --------------------------------------------------------------------------------------------------------


def space_of(surface: Surface) -> list[Candidate]:
    known = Player(surface, Noise(), 0).knowledge
    return [option.candidate for option in options(known, surface.axes, Tune()) if option.candidate != surface.found]


def score(surface: Surface, player: Player, candidate: Candidate) -> float | None:
    """Mean log gain over the configuration as found, over the levels both have."""
    gains = []
    for level in surface.levels:
        mine = {b.block: b.output_tok_s for _, b in player.knowledge.blocks(candidate, level)}
        base = {b.block: b.output_tok_s for _, b in player.knowledge.blocks(surface.found, level)}
        gains += [math.log(mine[k] / base[k]) for k in mine.keys() & base.keys()]
    return statistics.fmean(gains) if gains else None


def grid(surface: Surface, player: Player, space: list[Candidate], rng: np.random.Generator) -> Iterator[Candidate]:
    yield from space


def shuffled(surface: Surface, player: Player, space: list[Candidate], rng: np.random.Generator) -> Iterator[Candidate]:
    yield from (space[i] for i in rng.permutation(len(space)))


def optuna_tpe(surface: Surface, player: Player, space: list[Candidate], rng: np.random.Generator) -> Iterator[Candidate]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.TPESampler(seed=int(rng.integers(2**31)), n_startup_trials=2)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    seen: set[Candidate] = set()
    for _ in range(20 * len(space)):
        trial = study.ask()
        candidate = space[trial.suggest_int("index", 0, len(space) - 1)]
        if candidate not in seen:
            yield candidate
            seen.add(candidate)
        value = score(surface, player, candidate)
        if value is None:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, value)


def gaussian_process(surface: Surface, player: Player, space: list[Candidate], rng: np.random.Generator) -> Iterator[Candidate]:
    """Matern 5/2 over the logarithm of depth with expected improvement (Optuna's own GP sampler needs torch)."""
    x = np.log([max(1, c.depth) for c in space]) + 0.7 * np.array([[c.algorithm for c in space].index(c.algorithm) for c in space])
    order = list(rng.permutation(len(space)))
    seen: dict[int, float] = {}
    for turn in range(len(space)):
        left = [i for i in order if i not in seen]
        pick = left[0] if turn < 2 or len(seen) < 2 else left[_best_improvement(x, seen, left)]
        yield space[pick]
        value = score(surface, player, space[pick])
        seen[pick] = min(seen.values(), default=0.0) - 0.1 if value is None else value


def _best_improvement(x: np.ndarray, seen: dict[int, float], left: Sequence[int]) -> int:
    known = np.array(sorted(seen))
    y = np.array([seen[i] for i in known])
    scale = max(float(y.std()), 0.02)

    def kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        r = math.sqrt(5) * np.abs(a[:, None] - b[None, :]) / 0.7
        return scale**2 * (1 + r + r**2 / 3) * np.exp(-r)

    factor = cho_factor(kernel(x[known], x[known]) + np.eye(len(known)) * 0.01**2)
    cross = kernel(x[np.array(left)], x[known])
    mean = y.mean() + cross @ cho_solve(factor, y - y.mean())
    sd = np.sqrt(np.maximum(scale**2 - np.einsum("ij,ji->i", cross, cho_solve(factor, cross.T)), 1e-12))
    z = (mean - y.max()) / sd
    return int(np.argmax(sd * (z * ndtr(z) + np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi))))


def halving(surface: Surface, player: Player, space: list[Candidate], rng: np.random.Generator) -> Iterator[Candidate]:
    """Four at random, the better two again, the best once more; then the next four."""
    order = [space[i] for i in rng.permutation(len(space))]
    for start in range(0, len(order), 4):
        rung = order[start : start + 4]
        yield from rung
        while len(rung) > 1:
            rung = sorted(rung, key=lambda c: -(score(surface, player, c) or -9.0))[: len(rung) // 2]
            yield from rung


OTHERS: dict[str, Chooser] = {
    "grid": grid,
    "random": shuffled,
    "optuna TPE": optuna_tpe,
    "GP": gaussian_process,
    "halving": halving,
}


def play_other(surface: Surface, chooser: Chooser, noise: Noise, seed: int, horizon: int = HORIZON) -> Player:
    player = Player(surface, noise, seed)

    def launch(candidate: Candidate, kind: str) -> None:
        player.play(PlannedLaunch(candidate=candidate, why="", levels=surface.levels, blocks=BLOCKS, seconds=0.0, kind=kind))

    launch(surface.found, "baseline")
    for candidate in chooser(surface, player, space_of(surface), np.random.default_rng(seed)):
        if len(player.knowledge.trials) > horizon:
            break
        launch(candidate, "explore")
    return player


# -- figures -----------------------------------------------------------------------------------------------------------


def launches_needed(by_launch: Sequence[Sequence[float]]) -> int | None:
    """Index of the first launch from which every level stays within 2 % of the best."""
    good = [max(row) <= WITHIN for row in by_launch]
    return next((n for n in range(len(good)) if all(good[n:])), None)


def wrong_claims(surface: Surface, verdict: Verdict) -> tuple[int, int]:
    """(confident claims that are wrong, confident claims): a settled point that loses more than 5 % against another candidate, or a gain
    whose interval excludes 1.0 on the wrong side of the truth."""
    wrong = total = 0
    for point in verdict.points:
        if not point.resolved:
            continue
        total += 1
        bad = surface.regret(point.candidate, point.level) > 0.05
        if point.gain_vs_found is not None and point.gain_vs_found.excludes_one:
            truth = surface.tok_s[point.candidate, point.level] / surface.tok_s[surface.found, point.level]
            bad = bad or (truth - 1) * (point.gain_vs_found.value - 1) <= 0
        wrong += bad
    return wrong, total


def play_leadline(surface: Surface, noise: Noise, seed: int) -> tuple[Player, Verdict]:
    player, stop = campaign(surface, noise=noise, seed=seed, tune=TUNE)
    return player, recommend(player.knowledge, surface.axes, TUNE, surface.levels, surface.found, lambda c: (c.label,), stop)


class Row:
    """Figures of one method over several seeds of one surface or family."""

    def __init__(self) -> None:
        self.needed: list[int | None] = []
        self.paths: list[list[list[float]]] = []
        self.regret_4: list[float] = []
        self.launched: list[int] = []
        self.wrong = self.claims = self.changes = self.runs = 0

    def add(self, surface: Surface, player: Player) -> None:
        by_launch = after_each(surface, player)
        self.paths.append(by_launch)
        self.needed.append(launches_needed(by_launch))
        self.regret_4.append(statistics.fmean(by_launch[min(LAUNCHES, len(by_launch) - 1)]))
        self.launched.append(len(player.knowledge.trials) - 1)
        self.runs += 1

    @property
    def typical(self) -> str:
        ranked = sorted(HORIZON + 1 if n is None else n for n in self.needed)
        middle = ranked[len(ranked) // 2]
        worst = ranked[-1]
        return f"{middle if middle <= HORIZON else '>' + str(HORIZON)}/{worst if worst <= HORIZON else '>' + str(HORIZON)}"

    def within(self, launches: int) -> float:
        """Share of runs in which every level is within 2 % after that many launches."""
        return sum(max(rows[min(launches, len(rows) - 1)]) <= WITHIN for rows in self.paths) / len(self.paths)


def compare(surfaces: Sequence[Surface], noises: Sequence[Noise], seeds: range) -> dict[str, Row]:
    rows = {name: Row() for name in ("leadline", *OTHERS)}
    for surface in surfaces:
        for seed in seeds:
            noise = noises[seed % len(noises)]
            player, verdict = play_leadline(surface, noise, seed)
            mine = rows["leadline"]
            mine.add(surface, player)
            wrong, claims = wrong_claims(surface, verdict)
            mine.wrong += wrong
            mine.claims += claims
            mine.changes += verdict.change or any(point.candidate != surface.found for point in verdict.points)
            for name, chooser in OTHERS.items():
                rows[name].add(surface, play_other(surface, chooser, noise, seed))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="seeds a recorded surface")
    parser.add_argument("--generated", type=int, default=20, help="surfaces a generated family")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument("--check", action="store_true", help="exit 1 when a bar is missed")
    asked = parser.parse_args()
    warnings.filterwarnings("ignore")
    noises = [Noise(block=b) for b in (0.01, 0.02, 0.03, 0.05)]
    exact = Noise(block=0.0, launch=0.0, liking=0.0)
    tables = {f"{surface.name}, as recorded": compare([surface], [exact], range(min(3, asked.seeds))) for surface in recorded()}
    tables |= {f"{surface.name}, 2 % noise": compare([surface], [Noise(block=0.02)], range(asked.seeds)) for surface in recorded()}
    for family in FAMILIES:
        tables[family] = compare([generated(family, i) for i in range(asked.generated)], noises, range(4))
    hits = all_hits(10)
    if asked.json:
        everything = [hit for row in hits.values() for hit in row]
        print(json.dumps({"choosers": _figures(tables), "coverage": sum(hit.inside for hit in everything) / len(everything)}, indent=1))
    else:
        print(_text(tables))
        print("\nprediction intervals (90 %) against what was measured afterwards, from as found, off, the deepest and one shallow depth")
        print_coverage(hits)
        print()
        published.main()
    missed = [*_missed(tables), *_uncovered(hits)]
    for line in missed:
        print("MISSED:", line, file=sys.stderr)
    return 1 if asked.check and missed else 0


def _figures(tables: dict[str, dict[str, Row]]) -> dict[str, dict[str, dict[str, float | str]]]:
    return {
        name: {
            method: {
                "launches_median_worst": row.typical,
                "within_2pct_after_4": round(row.within(LAUNCHES), 3),
                "regret_after_4": round(statistics.fmean(row.regret_4), 4),
                "launches": round(statistics.fmean(row.launched), 1),
                "wrong": row.wrong,
                "claims": row.claims,
            }
            for method, row in rows.items()
        }
        for name, rows in tables.items()
    }


def _text(tables: dict[str, dict[str, Row]]) -> str:
    lines = [
        f"launches to within {WITHIN:.0%} of the best at every concurrency, median/worst; share of runs there after {LAUNCHES}; mean regret after {LAUNCHES}",
        "",
        f"{'':44}" + "".join(f"{name:>26}" for name in ("leadline", *OTHERS)) + "   stops after  wrong/claims",
    ]
    for name, rows in tables.items():
        cells = "".join(f"{row.typical:>9} {row.within(LAUNCHES):>6.0%} {statistics.fmean(row.regret_4):>8.1%} " for row in rows.values())
        mine = rows["leadline"]
        lines.append(f"{name:44}{cells}   {statistics.fmean(mine.launched):>6.1f}      {mine.wrong}/{mine.claims}")
    null = tables["null"]["leadline"]
    lines += ["", f"null surfaces: {null.changes} of {null.runs} were changed; the rest got 'change nothing'"]
    made = [rows["leadline"] for name, rows in tables.items() if name in FAMILIES]
    wrong, claims = sum(row.wrong for row in made), sum(row.claims for row in made)
    lines.append(f"confident claims on generated surfaces: {wrong} of {claims} wrong ({wrong / max(1, claims):.1%})")
    return "\n".join(lines)


def _missed(tables: dict[str, dict[str, Row]]) -> list[str]:
    out = []
    for name, rows in tables.items():
        mine = rows["leadline"]
        if name.endswith("as recorded") and mine.within(LAUNCHES) < 1:
            out.append(f"{name}: {mine.within(LAUNCHES):.0%} of runs within {WITHIN:.0%} after {LAUNCHES} launches")
    made = [rows["leadline"] for name, rows in tables.items() if name in FAMILIES]
    wrong, claims = sum(row.wrong for row in made), sum(row.claims for row in made)
    if claims and wrong / claims >= 0.05:
        out.append(f"{wrong} of {claims} confident claims on generated surfaces are wrong")
    null = tables["null"]["leadline"]
    if null.changes > 0.05 * null.runs:
        out.append(f"{null.changes} of {null.runs} null surfaces were changed")
    return out


def _uncovered(hits: dict[str, list[Hit]]) -> list[str]:
    everything = [hit for row in hits.values() for hit in row]
    inside = sum(hit.inside for hit in everything) / len(everything)
    return [f"only {inside:.1%} of predictions inside their 90 % interval"] if inside < 0.85 else []


if __name__ == "__main__":
    sys.exit(main())
