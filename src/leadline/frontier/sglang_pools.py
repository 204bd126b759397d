"""SGLang's pool sizing, forwards and backwards.

Forwards, :func:`plan`: from the bytes left for pools to state slots, running requests and KV tokens.  Backwards, :func:`budgets`:
which byte budgets print exactly what a server printed.  What is predicted equally over a whole budget interval is exact.

Notation (bytes a GPU):

========  ==============================================================================================================
R         bytes left for the pools after weights and the slack (1 - mem_fraction_static)
D         draft tokens a round, depth + 1 on a chain; 0 with speculation off
M         requested max_running_requests (48 when it is not given and speculation is on)
P         recurrent state of one request; 0 for a model without linear layers
K         state slots (max_mamba_cache_size); ``ratio`` of them are taken by a running request
m         --mamba-full-memory-ratio; s = m / (1 + m)
cell      KV bytes of one token, draft layers included where the release counts them
========  ==============================================================================================================

================  =============================================================  =====================================
regime            K                                                              T (tokens)
================  =============================================================  =====================================
old               floor((R - M D P) s / P)                                       floor((R - M D P - K P) / cell)
joint             floor(R s / (P (1 + D/ratio)))                                 floor((R - c D P - K P) / cell)
joint+1           floor((R s - P (1 + D)) / (P (1 + D/ratio)))                   floor((R - (c+1) D P - (K+1) P) / cell)
================  =============================================================  =====================================

with c = min(M, K // ratio) running requests.  Sources: sglang 0.5.9 to 0.5.12 ``srt/model_executor/model_runner_kv_cache_mixin.py``
(old), 0.5.13 and 0.5.14 the same file, 0.5.15 and 0.5.16 ``srt/mem_cache/kv_cache_configurator.py`` (joint), from 0.5.17 the latter (joint+1).
"""

from __future__ import annotations

from collections.abc import Iterator

from ..records import Record

UNBOUNDED = 1 << 62
"""Upper end of a budget that an observation does not bound."""
_SCAN_LIMIT = 100_000
"""Most state-slot counts tried when a log does not print them."""


class Service(Record, frozen=True):
    """Everything that sizes the pools of one service, apart from the budget, the depth and the requested limit."""

    regime: str
    """``old``, ``joint`` or ``joint+1``."""
    limit: str
    """What bounds a requested limit: ``none``, ``estimate`` or ``half``."""
    cell_bytes: float
    """KV bytes of one token, target layers only."""
    draft_cell_bytes: float = 0
    """KV bytes of one token in the draft layers, where the release counts them."""
    state_bytes: int = 0
    slots_on: int = 1
    """State slots a running request takes with speculation on (``ratio``)."""
    slots_off: int = 1
    full_memory_ratio: float = 0.9
    page_tokens: int = 1
    context_tokens: int = 1
    max_total_tokens: int | None = None
    state_slots: int | None = None
    """``--max-mamba-cache-size``, where it is given."""
    radix_cache: bool = True
    workers: int = 1
    """Attention data-parallel workers; limits are divided by it."""
    default_running: int = 48
    draft_state: bool = True
    """False where per-draft states are not kept (ReplaySSM)."""

    def cell(self, draft_tokens: int) -> float:
        return self.cell_bytes + (self.draft_cell_bytes if draft_tokens else 0)

    def ratio(self, draft_tokens: int) -> int:
        if not self.radix_cache:
            return 1
        return self.slots_on if draft_tokens else self.slots_off

    def requested(self, draft_tokens: int, asked: int | None) -> int | None:
        """M of one worker; ``None`` when there is no limit but the engine's own estimate."""
        total = asked if asked is not None else (self.default_running if draft_tokens else None)
        return None if total is None else total // self.workers


class Plan(Record, frozen=True):
    """What a budget turns into. Where ``fails`` is set the figures are the engine's own and may be negative."""

    tokens: int
    running: int
    slots: int | None = None
    reserved_bytes: int = 0
    """Bytes set aside for the states of draft tokens."""
    fails: str = ""
    """``slots``, ``tokens`` or ``running``: the check at which the start dies."""


def plan(service: Service, budget_bytes: int, draft_tokens: int, asked: int | None) -> Plan:
    """What a start with these figures holds (see the module's table)."""
    requested = service.requested(draft_tokens, asked)
    slots, reserved, rest = _states(service, budget_bytes, draft_tokens, requested)
    tokens = int(rest // service.cell(draft_tokens))
    if service.max_total_tokens is not None:
        tokens = min(tokens, service.max_total_tokens)
    tokens = tokens // service.page_tokens * service.page_tokens
    running = _running(service, tokens, requested)
    if slots is not None:
        running = min(running, slots // service.ratio(draft_tokens))
    fails = ""
    if slots is not None and slots <= 0 and service.regime != "old":
        fails = "slots"
    elif tokens <= 0:
        fails = "tokens"
    elif running <= 0:
        fails = "running"
    return Plan(tokens=tokens, running=running, slots=slots, reserved_bytes=reserved, fails=fails)


def _states(service: Service, budget: int, draft_tokens: int, requested: int | None) -> tuple[int | None, int, int]:
    """(K, bytes reserved for draft states, bytes left for tokens)."""
    if not service.state_bytes:
        return None, 0, budget
    reserved = _old_reserve(service, draft_tokens, requested)
    slots = _fixed_slots(service, requested)
    if slots is None:
        slots = _auto_slots(service, budget - reserved, draft_tokens)
    if service.regime != "old":
        reserved = _joint_reserve(service, slots, draft_tokens, requested)
    return slots, reserved, budget - reserved - (slots + _pad(service)) * service.state_bytes


def _pad(service: Service) -> int:
    """The padding slot that joint+1 charges to both buffers."""
    return 1 if service.regime == "joint+1" else 0


def _drafts(service: Service, draft_tokens: int) -> int:
    return draft_tokens if service.draft_state else 0


def _old_reserve(service: Service, draft_tokens: int, requested: int | None) -> int:
    if service.regime != "old" or requested is None:
        return 0
    return requested * _drafts(service, draft_tokens) * service.state_bytes


def _joint_reserve(service: Service, slots: int, draft_tokens: int, requested: int | None) -> int:
    drafts = _drafts(service, draft_tokens)
    if not drafts or requested is None:
        return 0
    running = min(requested, slots // service.ratio(draft_tokens))
    return (running + _pad(service)) * drafts * service.state_bytes


def _fixed_slots(service: Service, requested: int | None) -> int | None:
    if service.state_slots is not None:
        return service.state_slots // service.workers
    return requested if not service.radix_cache and requested is not None else None


def _auto_slots(service: Service, budget: int, draft_tokens: int) -> int:
    share = service.full_memory_ratio / (1 + service.full_memory_ratio)
    state = service.state_bytes
    if service.regime == "old":
        return int(budget * share // state)
    drafts = _drafts(service, draft_tokens)
    padding = state * (1 + drafts) * _pad(service)
    return int((budget * share - padding) // (state * (1 + drafts / service.ratio(draft_tokens))))


def _running(service: Service, tokens: int, requested: int | None) -> int:
    estimate = max(min(int(tokens / service.context_tokens * 512), 4096), 2048)
    if requested is None:
        return estimate if service.limit == "none" else min(estimate, tokens // 2)
    return {"none": requested, "estimate": min(requested, estimate), "half": min(requested, tokens // 2)}[service.limit]


# -- backwards ---------------------------------------------------------------------------------------------------------------


class Observed(Record, frozen=True):
    """What one start printed of its pools."""

    draft_tokens: int
    asked: int | None
    """The max_running_requests it was asked for; ``None`` when none was."""
    tokens: int
    running: int | None = None
    slots: int | None = None


class Budget(Record, frozen=True, order=True):
    """Every R with ``low_bytes <= R < high_bytes``."""

    low_bytes: int
    high_bytes: int

    @property
    def bounded(self) -> bool:
        return self.high_bytes < UNBOUNDED


def budgets(service: Service, seen: Observed) -> tuple[Budget, ...]:
    """The budgets under which this service prints exactly ``seen``; empty when none does (another release, another model)."""
    found: list[Budget] = []
    for slots in _possible_slots(service, seen):
        low, high = _token_window(service, seen, slots)
        if slots is not None and _fixed_slots(service, service.requested(seen.draft_tokens, seen.asked)) is None:
            from_slots = _slot_window(service, seen, slots)
            low, high = max(low, from_slots[0]), min(high, from_slots[1])
        # a cell with a fraction (sliding windows) may need one byte more for the engine's own floating-point division
        low = low if low >= high or _prints(service, low, seen) else low + 1
        if low < high and _prints(service, low, seen):
            found.append(Budget(low_bytes=low, high_bytes=high))
    return tuple(found)


def rough_budgets(service: Service, seen: Observed, error: float) -> tuple[Budget, ...]:
    """As :func:`budgets` where the sizes themselves are only known to a relative ``error``; never exact.

    A service is kept when its figures come within three times that error (and one request) of what was printed.
    """
    if service.state_bytes and seen.slots is None:
        return ()
    middle = seen.tokens * service.cell(seen.draft_tokens) + _spent(service, seen, seen.slots)
    got = plan(service, int(middle), seen.draft_tokens, seen.asked)
    if seen.slots is not None and got.slots is not None and abs(got.slots - seen.slots) > 1 + 3 * error * seen.slots:
        return ()
    if seen.running is not None and abs(got.running - seen.running) > 1 + 3 * error * seen.running:
        return ()
    return (Budget(low_bytes=int(middle * (1 - error)), high_bytes=int(middle * (1 + error))),)


def _prints(service: Service, budget: int, seen: Observed) -> bool:
    got = plan(service, budget, seen.draft_tokens, seen.asked)
    return (
        not got.fails
        and got.tokens == seen.tokens
        and seen.running in (None, got.running)
        and (seen.slots is None or got.slots is None or got.slots == seen.slots)
    )


def _possible_slots(service: Service, seen: Observed) -> Iterator[int | None]:
    if not service.state_bytes:
        yield None
        return
    fixed = _fixed_slots(service, service.requested(seen.draft_tokens, seen.asked))
    if fixed is not None:
        yield fixed
    elif seen.slots is not None:
        yield seen.slots
    else:
        # in every regime the KV pool is at least the share 1/(1+m) of the budget, which bounds K from above
        most = int(seen.tokens * service.cell(seen.draft_tokens) * service.full_memory_ratio / service.state_bytes) + 64
        yield from range(min(most, _SCAN_LIMIT))


def _spent(service: Service, seen: Observed, slots: int | None) -> int:
    """Bytes of the budget that are not KV tokens."""
    if slots is None:
        return 0
    requested = service.requested(seen.draft_tokens, seen.asked)
    reserve = _old_reserve(service, seen.draft_tokens, requested)
    if service.regime != "old":
        reserve = _joint_reserve(service, slots, seen.draft_tokens, requested)
    return reserve + (slots + _pad(service)) * service.state_bytes


def _token_window(service: Service, seen: Observed, slots: int | None) -> tuple[int, int]:
    cell, spent = service.cell(seen.draft_tokens), _spent(service, seen, slots)
    low = _up(seen.tokens * cell) + spent
    capped = service.max_total_tokens is not None and seen.tokens >= service.max_total_tokens // service.page_tokens * service.page_tokens
    return low, UNBOUNDED if capped else _up((seen.tokens + service.page_tokens) * cell) + spent


def _slot_window(service: Service, seen: Observed, slots: int) -> tuple[int, int]:
    share = service.full_memory_ratio / (1 + service.full_memory_ratio)
    if service.regime == "old":
        base = _old_reserve(service, seen.draft_tokens, service.requested(seen.draft_tokens, seen.asked))
        return base + _up(slots * service.state_bytes / share), base + _up((slots + 1) * service.state_bytes / share)
    drafts = _drafts(service, seen.draft_tokens)
    unit = service.state_bytes * (1 + drafts / service.ratio(seen.draft_tokens))
    padding = service.state_bytes * (1 + drafts) * _pad(service)
    return _up((slots * unit + padding) / share), _up(((slots + 1) * unit + padding) / share)


def _up(size: float) -> int:
    whole = int(size)
    return whole if whole == size else whole + 1
