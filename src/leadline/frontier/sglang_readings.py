"""Every way to read an SGLang service that fits what it printed, and what all of them together answer."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from ..engines import sglang_facts
from ..engines.releases import Release, known, release
from ..engines.sglang_log import PRINTED_HALF_BYTES
from ..records import Record
from .sglang_inputs import Inputs, given_slots, layers, printed_sizes, sizes, strategy
from .sglang_pools import Budget, Plan, Service, budgets, plan, rough_budgets

GIB = 1 << 30
SIZE_ERROR = 0.005
"""Relative error allowed for sizes divided out of the log's rounded figures."""
SLACK_UNSEEN_BYTES = GIB // 8
"""How far the budget may lie below what the rounded memory lines give (communicators, allocator blocks; 0.055 GiB on one H200)."""


class Reading(Record, frozen=True):
    """One way to read a service that fits what is known, with the budget it implies."""

    service: Service
    budget: Budget
    label: str = ""


def readings(inputs: Inputs) -> tuple[Reading, ...]:
    """Every reading of the service that could have printed what it printed; without a start, every reading with an open budget."""
    found: list[Reading] = []
    form = sizes(inputs)
    if form is None:
        return ()
    rounded = form[:2] == (printed_sizes(inputs.boot) or ())[:2]
    for label, service in _services(inputs):
        spans: Iterable[Budget]
        if inputs.seen is not None:
            spans = rough_budgets(service, inputs.seen, SIZE_ERROR) if rounded else budgets(service, inputs.seen)
        else:
            spans = _from_memory_lines(inputs, service)
        found += [Reading(service=service, budget=span, label=label) for span in spans]
    return tuple(_that_die(inputs, found))


def _that_die(inputs: Inputs, found: Sequence[Reading]) -> list[Reading]:
    """A log that ends at pool sizing rules out every reading under which that start would have come up; all, if that leaves none."""
    if inputs.seen is not None or not inputs.boot.pool_error or inputs.tried is None:
        return list(found)
    died = [reading for reading in found if any(p.fails for p in reading_plans(reading, inputs.tried, inputs.asked, (0, 0)))]
    return died or list(found)


def _services(inputs: Inputs) -> list[tuple[str, Service]]:
    form = sizes(inputs)
    if form is None:
        return []
    version = known(inputs.version)
    versions = [version] if version else [release(v) for v in inputs.boot.eras or sglang_facts.ERAS]
    result: list[tuple[str, Service]] = []
    for ver in versions:
        for drafted, on in itertools.product(_draft_layers(inputs, ver), _slots_on(inputs, ver)):
            service = _service(inputs, ver, form[0], form[1], drafted, on)
            label = f"regime {service.regime}" + (f", {on} state slots a request" if form[1] else "")
            label += f", {drafted} draft layer(s) in a token" if drafted else ""
            if all(service != other for _, other in result):
                result.append((label, service))
    return result


def _service(inputs: Inputs, version: Release, cell: float, state: int, drafted: int, slots_on: int) -> Service:
    context = inputs.boot.context or inputs.number("context_length") or (inputs.shape.context if inputs.shape else None)
    return Service(
        regime=sglang_facts.regime(version),
        limit=sglang_facts.requested_limit(version),
        cell_bytes=cell,
        draft_cell_bytes=int(cell * drafted / layers(inputs)) if drafted else 0,
        state_bytes=state,
        slots_on=slots_on,
        slots_off=_slots_off(inputs, version),
        full_memory_ratio=float(inputs.argument("mamba_full_memory_ratio") or 0.9),
        page_tokens=inputs.number("page_size") or 1,
        context_tokens=context or 1,
        max_total_tokens=inputs.number("max_total_tokens"),
        state_slots=given_slots(inputs),
        radix_cache=not inputs.flag("disable_radix_cache"),
        workers=(inputs.number("dp_size") or 1) if inputs.flag("enable_dp_attention") else 1,
        draft_state=not inputs.flag("enable_linear_replayssm_spec"),
    )


def _draft_layers(inputs: Inputs, version: Release) -> tuple[int, ...]:
    """How many draft layers may count into a token once speculation is on; several where it cannot be known."""
    if not sglang_facts.draft_in_budget(version):
        return (0,)
    path = inputs.argument("speculative_draft_model_path")
    if path is None and inputs.found.off:
        return (0, 1)
    if sglang_facts.canonical(inputs.found.algorithm) in sglang_facts.DRAFT_FREE:
        return (0,)
    if path is None and not sglang_facts.draft_without_path_in_cell(version):
        return (0,)
    declared = inputs.shape.draft_layers if inputs.shape and path is None else None
    return tuple(sorted({0, 1, declared or 1})) if path is None else (1,)


def _slots(strategy: str, overlap: bool) -> int:
    """State slots a running request takes (``ratio``): 3, plus 2 or 1 for the buffered strategies."""
    return {"no_buffer": 3, "extra_buffer": 5 if overlap else 4, "extra_buffer_lazy": 4}.get(strategy, 3)


def _slots_off(inputs: Inputs, version: Release) -> int:
    overlap = not inputs.flag("disable_overlap_schedule")
    if version < release("0.5.11") and inputs.seen is not None and inputs.seen.draft_tokens:
        overlap = True  # speculation itself had switched it off
    return _slots(strategy(inputs, version), overlap)


def _slots_on(inputs: Inputs, version: Release) -> tuple[int, ...]:
    kind = strategy(inputs, version)
    if version < release("0.5.10"):
        return (_slots(kind, overlap=False),)
    if version < release("0.5.11") and (inputs.seen is None or not inputs.seen.draft_tokens):
        return tuple(sorted({_slots(kind, overlap=False), _slots(kind, overlap=True)}))  # SGLANG_ENABLE_SPEC_V2 decides
    return (_slots(kind, overlap=not inputs.flag("disable_overlap_schedule")),)


def _from_memory_lines(inputs: Inputs, service: Service) -> tuple[Budget, ...]:
    """A budget from ``avail mem`` (rounded, so never exact), for a start that died before it printed a capacity."""
    boot, fraction = inputs.boot, inputs.argument("mem_fraction_static")
    if boot.failed_rest_bytes is not None and boot.failed_slots is not None:
        spent = 0  # printed after the draft states of c requests were taken off; c is 0 for K <= 0
        middle = boot.failed_rest_bytes + spent
        return (Budget(low_bytes=max(0, middle - PRINTED_HALF_BYTES), high_bytes=middle + PRINTED_HALF_BYTES),)
    if boot.free_before_bytes is None or boot.free_after_bytes is None or fraction is None:
        return ()
    high = boot.free_after_bytes + PRINTED_HALF_BYTES - round((boot.free_before_bytes - PRINTED_HALF_BYTES) * (1 - float(fraction)))
    return (Budget(low_bytes=max(0, high - SLACK_UNSEEN_BYTES), high_bytes=max(1, high)),)


class Answer(Record, frozen=True):
    """All plans that remain possible for one candidate, put together."""

    starts: bool | None
    plan: Plan | None
    """The plan; where readings differ, the smallest figures of those that start (a lower bound)."""
    worst: Plan | None
    exact: bool
    spread_tokens: int = 0
    """How far the tokens of the plans that start lie apart."""


def answer(found: Sequence[Reading], draft_tokens: int, asked: int | None, shift: tuple[int, int] = (0, 0)) -> Answer:
    """``shift`` = (low, high) bytes added to every budget, for a changed memory fraction."""
    plans = [p for reading in found for p in reading_plans(reading, draft_tokens, asked, shift)]
    if not plans:
        return Answer(starts=None, plan=None, worst=None, exact=False)
    good = [p for p in plans if not p.fails]
    bad = [p for p in plans if p.fails]
    best = None
    if good:
        slots = [p.slots for p in good if p.slots is not None]
        best = Plan(
            tokens=min(p.tokens for p in good),
            running=min(p.running for p in good),
            slots=min(slots) if slots else None,
            reserved_bytes=good[0].reserved_bytes,
        )
    starts = None if good and bad else bool(good)
    return Answer(
        starts=starts,
        plan=best,
        worst=min(bad, key=lambda p: p.tokens) if bad else None,
        exact=_same(plans, found),
        spread_tokens=_spread(good),
    )


def _spread(good: Sequence[Plan]) -> int:
    return max(p.tokens for p in good) - min(p.tokens for p in good) if good else 0


def _same(plans: Sequence[Plan], found: Sequence[Reading]) -> bool:
    if not all(reading.budget.bounded for reading in found):
        return False
    return all(p.fails for p in plans) or all((p.tokens, p.running, p.fails) == (plans[0].tokens, plans[0].running, "") for p in plans)


def reading_plans(reading: Reading, draft_tokens: int, asked: int | None, shift: tuple[int, int]) -> list[Plan]:
    low = max(0, reading.budget.low_bytes + shift[0])
    high = low if not reading.budget.bounded else max(low, reading.budget.high_bytes - 1 + shift[1])
    ends = [plan(reading.service, low, draft_tokens, asked), plan(reading.service, high, draft_tokens, asked)]
    if ends[0] != ends[1]:  # K may step in between, and T falls where it does
        ends += [plan(reading.service, low + (high - low) * i // 64, draft_tokens, asked) for i in range(1, 64)]
    return ends


def pinned(found: Sequence[Reading], draft_tokens: int, most: int, shift: tuple[int, int] = (0, 0)) -> tuple[int, Answer] | None:
    """The max_running_requests in 1 .. ``most`` that starts with the most running requests, then the most tokens; ``None`` if none does."""
    best: tuple[int, Answer] | None = None
    for asked in range(1, most + 1):
        got = answer(found, draft_tokens, asked, shift)
        if not got.starts or got.plan is None:
            continue
        if best is None or best[1].plan is None or (got.plan.running, got.plan.tokens) > (best[1].plan.running, best[1].plan.tokens):
            best = asked, got
    return best
