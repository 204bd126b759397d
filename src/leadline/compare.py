"""The board of a campaign: every measured cell, and how two candidates compare at a level."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from . import acceptance as accepted
from . import sameness, stats
from .records import Acceptance, BlockResult, Candidate, Interval, Level, Outcome
from .space import off_of, running
from .state import Knowledge

LOOKS = 2
"""A campaign looks again after every launch and may stop at any of them; claims are widened as if each were made this often."""


def _same(knowledge: Knowledge, off: Candidate, candidate: Candidate) -> sameness.Sameness:
    plain = [block for trial in knowledge.of(off) for block in trial.blocks]
    return sameness.of_blocks(plain, (block for trial in knowledge.of(candidate) for block in trial.blocks))


class Board:
    """Measured cells of a campaign with the noise of its host, computed once for a decision."""

    def __init__(self, knowledge: Knowledge, levels: Sequence[Level], found: Candidate, *, prompts: bool = True) -> None:
        self.prompts = prompts
        """Whether prompts may pair at concurrency 1 (not when a block's figure is not its throughput)."""
        self.knowledge = knowledge
        self.levels = tuple(levels)
        self.found = found
        self.off = off_of(found)
        refused = knowledge.refused
        self.outputs = {c: _same(knowledge, self.off, c) for c in knowledge.candidates if c not in refused and c != self.off}
        """Outputs of each candidate against speculation off."""
        self.candidates = tuple(
            c for c in knowledge.candidates if c not in refused and (c == found or c not in self.outputs or not self.outputs[c].failed)
        )
        """Candidates that served, did not fail and answered sensibly, in order of first launch."""
        self._cells = {
            (c, level): tuple(pair for pair in knowledge.blocks(c, level) if pair[1].output_tok_s > 0)
            for c in self.candidates
            for level in self.levels
        }
        repeated = [cell for cell in self._cells.values() if len({launch for launch, _ in cell}) > 1]
        self.launch = stats.launch_spread(repeated)
        self.noise_floor = stats.noise_floor(repeated)
        self._priors = {level: self._prior(level) for level in self.levels}
        self._contrasts: dict[tuple[Candidate, Candidate, Level], stats.Contrast | None] = {}

    def cell(self, candidate: Candidate, level: Level) -> tuple[tuple[int, BlockResult], ...]:
        """Valid blocks as (launch, block); () when the cell was not measured."""
        return self._cells.get((candidate, level), ())

    def measured(self, level: Level) -> tuple[Candidate, ...]:
        return tuple(c for c in self.candidates if self.cell(c, level))

    def anchor(self, level: Level) -> Candidate | None:
        """What gains are counted from: as found, else speculation off, else whatever was measured first."""
        here = self.measured(level)
        return next((c for c in (self.found, self.off) if c in here), here[0] if here else None)

    def contrast(self, a: Candidate, b: Candidate, level: Level) -> stats.Contrast | None:
        """log(a / b) at a level, or None when they share no block there."""
        key = (a, b, level)
        if key not in self._contrasts:
            left, right = _alike(self.cell(a, level), self.cell(b, level))
            self._contrasts[key] = (
                stats.contrast(left, right, prior=self._priors[level], launch=self.launch, prompts=self.prompts)
                if left and a != b
                else None
            )
        return self._contrasts[key]

    def log_tok_s(self, candidate: Candidate, level: Level) -> float | None:
        """Log throughput on the anchor's blocks: the anchor's own mean plus the contrast, so that block content cancels."""
        anchor, cell = self.anchor(level), self.cell(candidate, level)
        if not cell or anchor is None:
            return None
        versus = self.contrast(candidate, anchor, level)
        base = cell if versus is None else self.cell(anchor, level)
        mean = sum(math.log(block.output_tok_s) for _, block in base) / len(base)
        return mean + (versus.mean if versus is not None else 0.0)

    def leader(self, level: Level) -> tuple[Candidate, float] | None:
        """Best measured candidate of a level with its log throughput; of equals the one as found, then the smallest depth."""
        seen = [(value, c) for c in self.measured(level) if (value := self.log_tok_s(c, level)) is not None]
        if not seen:
            return None
        value, best = max(seen, key=lambda pair: (pair[0], pair[1] == self.found, -pair[1].depth))
        return best, value

    def leaders(self) -> dict[Level, Candidate]:
        """Leader of every level that was measured."""
        tops = {level: self.leader(level) for level in self.levels}
        return {level: top[0] for level, top in tops.items() if top is not None}

    @property
    def engine(self) -> str:
        known = self.knowledge
        if known.reported is not None:
            return known.reported.engine
        return known.began.conditions.engine if known.began is not None else ""

    @property
    def version(self) -> str | None:
        """The engine's release, as the last launch that told it said."""
        told = [
            one.version
            for one in (self.knowledge.reported, *(t.reported for t in self.knowledge.trials))
            if one is not None and one.version
        ]
        return told[-1] if told else None

    @property
    def facts(self) -> dict[str, str]:
        """What the engine said about itself, the newest launch last."""
        out: dict[str, str] = {}
        for reported in (self.knowledge.reported, *(trial.reported for trial in self.knowledge.trials)):
            if reported is not None:
                out |= dict(reported.facts)
        return out

    def sd(self, candidate: Candidate, level: Level) -> float:
        """Standard error of the contrast with the anchor (of one launch's mean for the anchor itself)."""
        anchor = self.anchor(level)
        versus = self.contrast(candidate, anchor, level) if anchor is not None else None
        if versus is not None:
            return versus.sd
        n = max(1, len(self.cell(candidate, level)))
        return math.hypot(self._priors[level].sd / math.sqrt(2 * n), self.launch.sd)

    def throughput(self, candidate: Candidate, level: Level, confidence: float) -> Interval | None:
        """Output tok/s of the cell with the noise of a launch."""
        cell = self.cell(candidate, level)
        if not cell:
            return None
        return stats.estimate((block.output_tok_s for _, block in cell), confidence=confidence, launch=self.launch)

    def acceptance(self, candidate: Candidate, workload: str) -> Acceptance | None:
        """Acceptance of a candidate on a workload, all concurrencies together (it does not depend on the batch)."""
        runs: list[Acceptance] = []
        for trial in self.knowledge.of(candidate):
            seen = [trial.acceptance(level) for level in self.levels if level.workload == workload]
            if not any(seen):
                seen = [block.acceptance for block in trial.blocks if block.level.workload == workload]
            runs += [run for run in seen if run is not None]
        return accepted.pooled(runs)

    def length(self, candidate: Candidate, workload: str) -> float | None:
        """Acceptance length, bonus token included."""
        run = self.acceptance(candidate, workload)
        return accepted.length(run) if run is not None else None

    def context_tokens(self, candidate: Candidate, level: Level) -> float:
        """Mean tokens in the cache of a request half way through its answer."""
        requests = [r for _, block in self.cell(candidate, level) for r in block.requests if r.outcome is Outcome.OK]
        return sum((r.tokens_in or 0) + r.tokens_out / 2 for r in requests) / len(requests) if requests else 0.0

    def alarms(self) -> tuple[str, ...]:
        """Defects of the engine that the acceptance figures give away."""
        out = []
        for candidate in self.candidates:
            for workload in dict.fromkeys(level.workload for level in self.levels):
                runs = [
                    (level.concurrency, run)
                    for trial in self.knowledge.of(candidate)
                    for level in self.levels
                    if level.workload == workload and (run := trial.acceptance(level)) is not None
                ]
                text = accepted.depends_on_batch(runs)
                if text:
                    out.append(f"{candidate.label}, {workload}: {text}")
        return tuple(out)

    def running(self, candidate: Candidate) -> int | None:
        return running(self.knowledge, candidate)

    def median_ms(self, candidate: Candidate, level: Level, name: str) -> float | None:
        """Median ``ttft_ms`` or ``tpot_ms`` of the served requests of a cell."""
        values = sorted(
            value
            for _, block in self.cell(candidate, level)
            for request in block.requests
            if request.outcome is Outcome.OK and (value := getattr(request, name)) is not None
        )
        return values[len(values) // 2] if values else None

    def tokens_out(self, level: Level) -> float | None:
        """Mean output tokens of a served request at a level."""
        counts = [
            request.tokens_out
            for candidate in self.measured(level)
            for _, block in self.cell(candidate, level)
            for request in block.requests
            if request.outcome is Outcome.OK
        ]
        return sum(counts) / len(counts) if counts else None

    def _prior(self, level: Level) -> stats.Spread:
        """What a block's contrast spreads at this level, from all candidates there, capped so that one cell still counts."""
        pooled = stats.block_spread([self.cell(c, level) for c in self.measured(level)])
        return stats.Spread(sd=pooled.sd, df=min(pooled.df, 6.0))


_Cell: TypeAlias = tuple[tuple[int, BlockResult], ...]


def _alike(a: _Cell, b: _Cell) -> tuple[_Cell, _Cell]:
    """The blocks both cells played with the same prompts; what one side played otherwise (cut short, another seed) is left out."""
    prompts: dict[int, set[tuple[str, ...]]] = {}
    for _, block in (*a, *b):
        prompts.setdefault(block.block, set()).add(tuple(sorted(request.prompt_id for request in block.requests)))
    shared = {block.block for _, block in a} & {block.block for _, block in b}
    kept = {number for number in shared if len(prompts[number]) == 1}
    return tuple(pair for pair in a if pair[1].block in kept), tuple(pair for pair in b if pair[1].block in kept)
