"""The frontier of an SGLang service: what every depth would hold, from one boot.

One start calibrates what the configuration cannot tell (the bytes left for pools).  Everything that stays open (the release, whether
draft layers count, the scheduling mode with speculation on) is carried as a set of *readings*; a reading that could not have printed
what the server printed is dropped.  A row is exact when all remaining readings give the same figures over their whole budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ..engines import sglang_facts
from ..engines.releases import known, release
from ..engines.sglang_log import PRINTED_HALF_BYTES
from ..records import OFF, Candidate, Capacity, FrontierRow, Record
from .sglang_inputs import Inputs, gather, sizes, sizes_exact, strategy, unsized
from .sglang_pools import UNBOUNDED, Budget, Observed, Plan, Service, budgets
from .sglang_readings import GIB, SLACK_UNSEEN_BYTES, Answer, Reading, answer, pinned, reading_plans, readings


def draft_tokens_of(candidate: Candidate) -> int:
    """D of a candidate: what it pins, else depth + 1."""
    if candidate.off:
        return 0
    return int(dict(candidate.settings).get("num_draft_tokens", candidate.depth + 1))


def row(inputs: Inputs, found: Sequence[Reading], candidate: Candidate) -> FrontierRow:
    """One line of the frontier."""
    draft_tokens = draft_tokens_of(candidate)
    refused = _refused(inputs, candidate, draft_tokens)
    if refused is not None:
        return FrontierRow(candidate=candidate, starts=False, reason=refused[0], remedy=refused[1], exact=True)
    settings = dict(candidate.settings)
    asked = int(settings["max_running_requests"]) if "max_running_requests" in settings else inputs.asked
    shift, sure = _shift(inputs, settings)
    if shift is None:
        return FrontierRow(candidate=candidate, starts=None, reason="the log does not show the free memory that a memory fraction scales")
    found = _without_draft(found) if _draft_free(candidate.algorithm) else found
    got = answer(found, draft_tokens, asked, shift)
    if got.starts is None and got.plan is None:
        return FrontierRow(candidate=candidate, starts=None, reason=_unknown(inputs, found), remedy=_needed(inputs))
    exact = got.exact and sure and inputs.seen is not None and sizes_exact(inputs)
    room: int | None = None
    better = _better(inputs, found, candidate, draft_tokens, got, shift)
    gap = _draft_gap(inputs, found, candidate)
    exact = exact and not gap
    if gap > 0 and got.starts:
        room = _draft_room(found, draft_tokens, asked, shift)
        if room < _largest_draft(inputs):
            got = Answer(starts=None, plan=got.plan, worst=None, exact=False)
    return FrontierRow(
        candidate=candidate,
        starts=got.starts,
        capacity=_capacity(inputs, got) if got.starts is not False else Capacity(),
        reason=_reason(inputs, found, draft_tokens, asked, got, exact, room) if gap >= 0 or got.starts is False else _AT_LEAST,
        remedy=_remedy(inputs, found, draft_tokens, got, better),
        exact=exact,
        feasible_as=better[0] if better is not None else None,
    )


_AT_LEAST = "at least: the start that was seen held a draft, whose weights come on top without it"


def _draft_free(algorithm: str) -> bool:
    return algorithm == OFF or sglang_facts.canonical(algorithm) in sglang_facts.DRAFT_FREE


def _without_draft(found: Sequence[Reading]) -> tuple[Reading, ...]:
    """The readings of a service whose tokens hold no draft layer."""
    return tuple(
        Reading(service=msgspec.structs.replace(reading.service, draft_cell_bytes=0), budget=reading.budget, label=reading.label)
        for reading in found
    )


def _draft_gap(inputs: Inputs, found: Sequence[Reading], candidate: Candidate) -> int:
    """1 when the candidate loads a draft that the calibrating start did not, -1 the other way round, 0 when nothing changes.

    Only releases that charge draft weights to the pools count; they are those whose limit is half the tokens (from 0.5.14).
    """
    if inputs.seen is None or not any(reading.service.limit == "half" for reading in found):
        return 0
    had = bool(inputs.seen.draft_tokens) and not _draft_free(inputs.argument("speculative_algorithm") or inputs.found.algorithm)
    return int(not _draft_free(candidate.algorithm)) - int(had)


def _draft_room(found: Sequence[Reading], draft_tokens: int, asked: int | None, shift: tuple[int, int]) -> int:
    """The largest draft weights (bytes) under which every reading still starts, to 16 MiB."""
    low, high = 0, min(reading.budget.low_bytes for reading in found)
    while high - low > 1 << 24:
        middle = (low + high) // 2
        starts = answer(found, draft_tokens, asked, (shift[0] - middle, shift[1] - middle)).starts
        low, high = (middle, high) if starts else (low, middle)
    return low


def _largest_draft(inputs: Inputs) -> int:
    """Half of the target's weights in bytes: no head or draft in use is larger. Huge where the log does not tell."""
    before, after = inputs.boot.free_before_bytes, inputs.boot.free_after_bytes
    return UNBOUNDED if before is None or after is None else (before - after) // 2


def _capacity(inputs: Inputs, got: Answer) -> Capacity:
    if got.plan is None:
        return Capacity()
    return Capacity(
        max_total_num_tokens=max(0, got.plan.tokens),
        max_running_requests=max(0, got.plan.running),
        state_slots=got.plan.slots,
        context_tokens=inputs.boot.context or (inputs.shape.context if inputs.shape else None),
    )


def _shift(inputs: Inputs, settings: Mapping[str, str]) -> tuple[tuple[int, int] | None, bool]:
    """Bytes a changed ``mem_fraction_static`` adds to the budget (low, high), and whether nothing is added."""
    if "mem_fraction_static" not in settings:
        return (0, 0), True
    now = inputs.argument("mem_fraction_static")
    before = inputs.boot.free_before_bytes
    if now is None or before is None:
        return None, False
    step = float(settings["mem_fraction_static"]) - float(now)
    ends = sorted((round(step * (before - PRINTED_HALF_BYTES)), round(step * (before + SLACK_UNSEEN_BYTES))))
    return (ends[0], ends[1]), step == 0


def _refused(inputs: Inputs, candidate: Candidate, draft_tokens: int) -> tuple[str, str] | None:
    """Rules that end a start before any memory is planned: (reason, remedy)."""
    version = known(inputs.version)
    hybrid = inputs.shape is not None and inputs.shape.hybrid
    if hybrid and draft_tokens > sglang_facts.MAMBA_TRACK_INTERVAL:
        return (
            f"{draft_tokens} draft tokens exceed mamba_track_interval ({sglang_facts.MAMBA_TRACK_INTERVAL})",
            "ask for fewer draft tokens",
        )
    architecture = inputs.shape.architecture if inputs.shape else ""
    if (
        version is not None
        and draft_tokens
        and architecture.startswith(("Qwen3Next", "Qwen3_5"))
        and not inputs.flag("disable_radix_cache")
    ):
        affected = release("0.5.10") <= version < release("0.5.14")
        if affected and strategy(inputs, version) == "no_buffer":
            return (
                f"speculation on {architecture} with the radix cache needs state buffers in releases 0.5.10 to 0.5.13",
                "add --mamba-scheduler-strategy extra_buffer (with SGLANG_ENABLE_SPEC_V2=1 in 0.5.10), or --disable-radix-cache",
            )
    first = sglang_facts.ALGORITHM_SINCE.get(candidate.algorithm)
    if version is not None and first is not None and version < release(first):
        return f"{candidate.algorithm} begins with release {first}, this is {inputs.version}", f"upgrade to {first} or later"
    return None


def _better(
    inputs: Inputs, found: Sequence[Reading], candidate: Candidate, draft_tokens: int, got: Answer, shift: tuple[int, int]
) -> tuple[Candidate, int, Plan] | None:
    """A pinned max_running_requests that starts where this does not, or runs more requests than this."""
    if not draft_tokens or not any(reading.service.state_bytes for reading in found):
        return None
    best = pinned(found, draft_tokens, max(sglang_facts.MAX_RUNNING_WITH_SPECULATION, inputs.asked or 0), shift)
    if best is None or best[1].plan is None:
        return None
    chosen = inputs.asked is not None or "max_running_requests" in dict(candidate.settings)
    if got.starts and got.plan is not None and (chosen or best[1].plan.running <= got.plan.running):
        return None
    settings = {**dict(candidate.settings), "max_running_requests": str(best[0])}
    changed = Candidate(algorithm=candidate.algorithm, depth=candidate.depth, settings=tuple(sorted(settings.items())))
    return changed, best[0], best[1].plan


def gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.1f} GiB"


def _reason(
    inputs: Inputs, found: Sequence[Reading], draft_tokens: int, asked: int | None, got: Answer, exact: bool, room: int | None
) -> str:
    service, budget = found[0].service, found[0].budget
    if got.starts is False and got.worst is not None:
        return _why_dead(service, budget, draft_tokens, asked, got.worst)
    if room is not None:
        return (
            f"at most: the draft's weights come out of the same memory and were not loaded here; starts while they stay below {gib(room)}"
        )
    if got.starts is None:
        return (
            "on the edge: "
            + ("; ".join(sorted({reading.label for reading in found})) or "the budget")
            + " decide, and the log does not tell which"
        )
    if exact:
        unseen = draft_tokens and inputs.seen is not None and not inputs.seen.draft_tokens
        return (
            "the start that was seen had no draft: whether its weights, KV and graphs fit beside the pools is not known from it"
            if unseen
            else ""
        )
    causes = _open(inputs, found)
    if not causes and got.spread_tokens <= found[0].service.page_tokens:
        return f"to within {got.spread_tokens} token(s): one token of the start that was seen is not a whole number of tokens here"
    return "a lower bound: " + "; ".join(causes or ["the free memory that a memory fraction scales is printed rounded"])


def _why_dead(service: Service, budget: Budget, draft_tokens: int, asked: int | None, worst: Plan) -> str:
    requested = service.requested(draft_tokens, asked)
    pool = gib(budget.low_bytes)
    if service.regime == "old" and worst.reserved_bytes and worst.fails in ("tokens", "running"):
        each = (
            gib(worst.reserved_bytes // max(1, requested or 1) // max(1, draft_tokens))
            if service.state_bytes > GIB
            else f"{service.state_bytes / (1 << 20):.1f} MiB"
        )
        return (
            f"reserves the states of {draft_tokens} draft tokens for {requested} requests before any of them runs: "
            f"{requested} x {draft_tokens} x {each} = {gib(worst.reserved_bytes)} of {pool} left for pools; the start dies at pool sizing "
            "(Not enough memory) although memory is free"
        )
    what = {"slots": "no state slot", "tokens": "no KV token", "running": "no running request"}[worst.fails]
    return f"{what} fits in the {pool} left for pools; the start dies at pool sizing"


def _open(inputs: Inputs, found: Sequence[Reading]) -> list[str]:
    causes: list[str] = []
    known_sizes = sizes(inputs)
    if known_sizes is None or not known_sizes[2]:
        missing = inputs.shape.missing if inputs.shape else ("config.json was not given: sizes are the log's rounded figures",)
        causes += list(missing) or ["config.json does not fit the sizes in the log, which are used instead"]
    causes += unsized(inputs)
    if inputs.seen is None:
        causes.append("the budget comes from the log's rounded free-memory lines")
    labels = sorted({reading.label for reading in found})
    if len(labels) > 1:
        causes.append("the log fits more than one reading (" + "; ".join(labels) + ")")
    if any(not reading.budget.bounded for reading in found):
        causes.append("--max-total-tokens hides how much memory is left")
    return causes


def _unknown(inputs: Inputs, found: Sequence[Reading]) -> str:
    if sizes(inputs) is None:
        return "neither config.json nor the log tells the size of a token"
    if inputs.seen is not None and not found:
        return (
            f"{inputs.seen.tokens:,} tokens and {inputs.seen.running} running requests fit no formula leadline knows "
            f"for {'version ' + inputs.version if inputs.version else 'any release'} with this config.json"
        )
    return "no start with a capacity line is in the log"


def _needed(inputs: Inputs) -> str:
    if sizes(inputs) is None:
        return "give the model's config.json (--model-config)"
    if inputs.seen is None:
        return "give the log of one start that reached 'max_total_num_tokens=' (any depth, or speculation off)"
    return "check that log, version and config.json belong to the same service"


def _remedy(inputs: Inputs, found: Sequence[Reading], draft_tokens: int, got: Answer, better: tuple[Candidate, int, Plan] | None) -> str:
    if better is not None:
        _, asked, best = better
        now = f" (now {inputs.seen.running} and {inputs.seen.tokens:,})" if inputs.seen is not None and got.plan is None else ""
        verb = "starts it" if got.plan is None else "runs more"
        return f"--max-running-requests {asked} {verb}: {best.running} running requests and {best.tokens:,} tokens{now}"
    if got.starts is True or got.worst is None:
        return ""
    return _raise_fraction(inputs, found, draft_tokens)


def _raise_fraction(inputs: Inputs, found: Sequence[Reading], draft_tokens: int) -> str:
    now, before = inputs.argument("mem_fraction_static"), inputs.boot.free_before_bytes
    if now is None or before is None:
        return "raise --mem-fraction-static, or ask for fewer draft tokens"
    for step in range(1, 100):
        fraction = float(now) + step / 100
        if fraction >= 0.99:
            break
        added = round(step / 100 * (before - PRINTED_HALF_BYTES))
        if answer(found, draft_tokens, inputs.asked, (added, added)).starts:
            return (
                f"--mem-fraction-static {fraction:.2f} or more would start it; that memory is taken from activations, graphs and the draft"
            )
    return "ask for fewer draft tokens: no memory fraction below 0.99 starts it"


class Label(Record, frozen=True):
    """A published or noted row (depth, tokens, running) held against the formula."""

    depth: int
    tokens: int
    running: int | None
    behaves_like: int | None
    """The depth whose figures these are; ``None`` when no depth up to the limit fits."""

    @property
    def agrees(self) -> bool:
        return self.behaves_like == self.depth

    @property
    def text(self) -> str:
        if self.agrees:
            return f"depth {self.depth}: {self.tokens:,} tokens as computed"
        if self.behaves_like is None:
            return f"depth {self.depth}: {self.tokens:,} tokens fit no depth of this service"
        return f"depth {self.depth}: {self.tokens:,} tokens are what {self.behaves_like} steps hold; the label is off by {self.behaves_like - self.depth}"


def check_labels(found: Sequence[Reading], rows: Sequence[tuple[int, int, int | None]], deepest: int = 32) -> tuple[Label, ...]:
    """Hold rows of (depth, tokens, running) from a table against the calibrated service; tells which label is off."""
    labels = []
    for depth, tokens, running in rows:
        fits = [k for k in range(deepest + 1) if _holds(found, k + 1 if k else 0, tokens, running)]
        like = depth if depth in fits else (fits[0] if fits else None)
        labels.append(Label(depth=depth, tokens=tokens, running=running, behaves_like=like))
    return tuple(labels)


def _holds(found: Sequence[Reading], draft_tokens: int, tokens: int, running: int | None) -> bool:
    return any(
        p.tokens == tokens and running in (None, p.running) and not p.fails
        for reading in found
        for p in reading_plans(reading, draft_tokens, None, (0, 0))
    )


def narrowed(found: Sequence[Reading], more: Sequence[Observed]) -> tuple[Reading, ...]:
    """The readings that also print every further observation, with the budgets they share."""
    kept: list[Reading] = []
    for reading in found:
        spans = [reading.budget]
        for seen in more:
            others = budgets(reading.service, seen)
            spans = [
                Budget(low_bytes=max(a.low_bytes, b.low_bytes), high_bytes=min(a.high_bytes, b.high_bytes))
                for a in spans
                for b in others
                if max(a.low_bytes, b.low_bytes) < min(a.high_bytes, b.high_bytes)
            ]
        kept += [Reading(service=reading.service, budget=span, label=reading.label) for span in spans]
    return tuple(kept)


def statement(inputs: Inputs, found: Sequence[Reading]) -> tuple[str, ...]:
    """What can and what cannot be known from the start that calibrated, in sentences."""
    if inputs.seen is None or not found:
        return (_unknown(inputs, found) + "; " + _needed(inputs),) if not found else ("No start was seen whole: figures are estimates.",)
    depth = "speculation off" if not inputs.seen.draft_tokens else f"{inputs.seen.draft_tokens} draft tokens"
    span = found[0].budget
    said = [
        f"Calibrated by one start with {depth}: {gib(span.low_bytes)} a GPU left for pools"
        + (" (exact to one token)." if len(found) == 1 else ".")
    ]
    if not inputs.seen.draft_tokens:
        if any(reading.service.limit == "half" for reading in found):
            said.append(
                "Not known from it: the draft's weights and layers, which this release takes out of the same memory; figures with speculation are upper bounds."
            )
        else:
            said.append(
                "Known from it: capacity at every depth, because this release charges neither draft weights nor draft KV to the pools. "
                "Not known from it: whether draft weights, draft KV and graphs fit in the memory outside the pools, what is accepted, and what a round costs."
            )
    else:
        said.append(
            "Known from it: capacity at every depth and with speculation off. Not known from it: what is accepted and what a round costs elsewhere."
        )
    return (*said, *inputs.notes)


__all__ = ["Inputs", "Label", "Reading", "check_labels", "gather", "narrowed", "pinned", "readings", "row", "statement"]
