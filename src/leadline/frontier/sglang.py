"""The frontier of an SGLang service: what every depth would hold, from one boot.

One start calibrates what the configuration cannot tell (the bytes left for pools).  Everything that stays open (the release, whether
draft layers count, the scheduling mode with speculation on) is carried as a set of *readings*; a reading that could not have printed
what the server printed is dropped.  A row is exact when all remaining readings give the same figures over their whole budget.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from ..engines import Parsed, sglang_facts
from ..engines.releases import known, release
from ..engines.sglang_log import PRINTED_HALF_BYTES, Boot, boots
from ..records import Candidate, Capacity, FrontierRow, Record
from .sglang_pools import UNBOUNDED, Budget, Observed, Plan, Service, budgets, plan, rough_budgets
from .shapes import Shape, shape

GIB = 1 << 30
_SIZE_ERROR = 0.005
"""Relative error allowed for sizes divided out of the log's rounded figures."""
_SLACK_UNSEEN_BYTES = GIB // 8
"""How far the budget may lie below what the rounded memory lines give (communicators, allocator blocks; 0.055 GiB on one H200)."""


class Reading(Record, frozen=True):
    """One way to read a service that fits what is known, with the budget it implies."""

    service: Service
    budget: Budget
    label: str = ""


class Inputs(Record, frozen=True):
    """What is known of a service, gathered from its command, log, endpoint and model."""

    version: str | None
    arguments: tuple[tuple[str, str], ...]
    boot: Boot
    shape: Shape | None
    found: Candidate
    asked: int | None
    """max_running_requests given by the operator; ``None`` when the engine chose."""
    seen: Observed | None
    """What the calibrating start printed."""
    notes: tuple[str, ...] = ()

    def argument(self, name: str) -> str | None:
        value = dict(self.arguments).get(name)
        return None if value in (None, "None", "") else value

    def number(self, name: str) -> int | None:
        value = self.argument(name)
        return int(value) if value is not None and value.lstrip("-").isdigit() else None

    def flag(self, name: str) -> bool:
        return (self.argument(name) or "").lower() == "true"


# -- gathering -----------------------------------------------------------------------------------------------------------------


def gather(
    version: str | None, parsed: Parsed, log: str, server_info: Mapping[str, object] | None, model_config: Mapping[str, object] | None
) -> Inputs:
    """Put command, log, ``/server_info`` and ``config.json`` together; the log's last complete start calibrates."""
    info = server_info or {}
    boot = _calibrating(boots(log))
    arguments = _merged(parsed, boot, info)
    lookup = dict(arguments)
    form = _shape(model_config, lookup)
    draft_tokens = _draft_tokens(lookup, boot)
    asked = _asked(parsed, lookup, boot, draft_tokens)
    tokens, running = boot.tokens, boot.running
    if tokens is None and isinstance(info.get("max_total_num_tokens"), int):
        tokens, running = int(str(info["max_total_num_tokens"])), _effective(info)
    slots = boot.state.slots if boot.state else None
    seen = None
    if tokens is not None and draft_tokens is not None:
        seen = Observed(draft_tokens=draft_tokens, asked=asked, tokens=tokens, running=running, slots=slots)
    return Inputs(
        version=version or (str(info["version"]) if "version" in info else None),
        arguments=arguments,
        boot=boot,
        shape=form,
        found=parsed.candidate,
        asked=asked,
        seen=seen,
        notes=_conflicts(parsed, boot, info),
    )


def _calibrating(found: Sequence[Boot]) -> Boot:
    complete = [boot for boot in found if boot.tokens is not None]
    return complete[-1] if complete else found[-1]


def _merged(parsed: Parsed, boot: Boot, info: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """Command line under log under endpoint: what the server resolved counts more than what it was asked."""
    told = {name: str(value) for name, value in info.items() if isinstance(value, (str, int, float, bool)) or value is None}
    command = {name: value for name, value in parsed.knobs if name not in ("topk", "num_draft_tokens")}
    return tuple(sorted({**command, **dict(boot.arguments), **told}.items()))


def _shape(model_config: Mapping[str, object] | None, arguments: Mapping[str, str]) -> Shape | None:
    if model_config is None:
        return None
    tp = int(arguments.get("tp_size", "1"))
    if arguments.get("enable_dp_attention", "").lower() == "true":
        tp = max(1, tp // int(arguments.get("dp_size", "1")))
    state = arguments.get("mamba_ssm_dtype", "")
    return shape(model_config, tp=tp, kv_dtype=arguments.get("kv_cache_dtype", "auto"), state_dtype="" if state == "None" else state)


def _draft_tokens(arguments: Mapping[str, str], boot: Boot) -> int | None:
    """D of the start that calibrates: 0 when off, ``None`` when nobody says."""
    if boot.verify_tokens is not None:
        return boot.verify_tokens
    given = arguments.get("speculative_num_draft_tokens")
    if given is not None:
        return 0 if given == "None" else int(given)
    if "speculative_algorithm" in arguments:
        return 0 if arguments["speculative_algorithm"] == "None" else None
    return None if not arguments else 0


def _asked(parsed: Parsed, arguments: Mapping[str, str], boot: Boot, draft_tokens: int | None) -> int | None:
    """The operator's max_running_requests. The resolved value is no witness: the engine writes its own 48 over an absent one."""
    pinned = dict(parsed.knobs).get("max_running_requests") or dict(parsed.candidate.settings).get("max_running_requests")
    if pinned is not None:
        return int(pinned)
    resolved = arguments.get("max_running_requests") or boot.argument("max_running_requests")
    automatic = bool(draft_tokens) and resolved == str(sglang_facts.MAX_RUNNING_WITH_SPECULATION)
    if parsed.argv or automatic or resolved is None or not resolved.isdigit():
        return None
    return int(resolved)


def _effective(info: Mapping[str, object]) -> int | None:
    states = info.get("internal_states")
    if not isinstance(states, Sequence) or not states or not isinstance(states[0], Mapping):
        return None
    found = states[0].get("effective_max_running_requests_per_dp")
    return found if isinstance(found, int) else None


def _conflicts(parsed: Parsed, boot: Boot, info: Mapping[str, object]) -> tuple[str, ...]:
    notes: list[str] = []
    told = info.get("max_total_num_tokens")
    if isinstance(told, int) and boot.tokens is not None and told != boot.tokens:
        notes.append(f"log and endpoint are not of the same start: {boot.tokens:,} tokens in the log, {told:,} from the endpoint")
    asked, logged = info.get("speculative_num_steps"), boot.argument("speculative_num_steps")
    if isinstance(asked, int) and logged is not None and int(logged) != asked:
        notes.append(f"log and endpoint are not of the same start: {logged} steps in the log, {asked} from the endpoint")
    return tuple(notes)


# -- readings ------------------------------------------------------------------------------------------------------------------


def readings(inputs: Inputs) -> tuple[Reading, ...]:
    """Every reading of the service that could have printed what it printed; without a start, every reading with an open budget."""
    found: list[Reading] = []
    form = _sizes(inputs)
    if form is None:
        return ()
    rounded = form[:2] == (_printed_sizes(inputs.boot) or ())[:2]
    for label, service in _services(inputs):
        spans: Iterable[Budget]
        if inputs.seen is not None:
            spans = rough_budgets(service, inputs.seen, _SIZE_ERROR) if rounded else budgets(service, inputs.seen)
        else:
            spans = _from_memory_lines(inputs, service)
        found += [Reading(service=service, budget=span, label=label) for span in spans]
    return tuple(found)


def _services(inputs: Inputs) -> list[tuple[str, Service]]:
    form = _sizes(inputs)
    if form is None:
        return []
    cell, state, _ = form
    version = known(inputs.version)
    versions = [version] if version else [release(v) for v in ("0.5.12.post1", "0.5.13", "0.5.14", "0.5.17", "0.5.19")]
    result: list[tuple[str, Service]] = []
    for ver in versions:
        regime, limit = sglang_facts.regime(ver), sglang_facts.requested_limit(ver)
        for layers, on in itertools.product(_draft_layers(inputs, ver), _slots_on(inputs, ver)):
            service = Service(
                regime=regime,
                limit=limit,
                cell_bytes=cell,
                draft_cell_bytes=int(cell * layers / _layers(inputs)) if layers else 0,
                state_bytes=state,
                slots_on=on,
                slots_off=_slots_off(inputs, ver),
                full_memory_ratio=float(inputs.argument("mamba_full_memory_ratio") or 0.9),
                page_tokens=inputs.number("page_size") or 1,
                context_tokens=inputs.boot.context or inputs.number("context_length") or (inputs.shape and inputs.shape.context) or 1,
                max_total_tokens=inputs.number("max_total_tokens"),
                state_slots=_given_slots(inputs),
                radix_cache=not inputs.flag("disable_radix_cache"),
                workers=(inputs.number("dp_size") or 1) if inputs.flag("enable_dp_attention") else 1,
                draft_state=not inputs.flag("enable_linear_replayssm_spec"),
            )
            label = f"regime {regime}, {on} state slots a request" + (f", {layers} draft layer(s) in a token" if layers else "")
            if all(service != other for _, other in result):
                result.append((label, service))
    return result


def _given_slots(inputs: Inputs) -> int | None:
    """``--max-mamba-cache-size`` as given: the resolved argument holds the computed one after start-up, the command line does not."""
    given = dict(inputs.boot.arguments).get("max_mamba_cache_size") if inputs.boot.arguments else inputs.argument("max_mamba_cache_size")
    return int(given) if given is not None and given.isdigit() else None


def _layers(inputs: Inputs) -> int:
    return max(1, inputs.shape.full_layers + inputs.shape.sliding_layers) if inputs.shape else 1


def _sizes(inputs: Inputs) -> tuple[float, int, bool] | None:
    """(cell, P, exact) from config.json, else from the log's rounded sizes; ``None`` when neither tells."""
    printed = _printed_sizes(inputs.boot)
    if inputs.shape is None or not inputs.shape.full_token_bytes:
        return printed
    form = inputs.shape
    ratio = float(inputs.argument("swa_full_tokens_ratio") or 0.8)
    sliding = form.sliding_layers * form.sliding_token_bytes
    cell: float = form.full_layers * form.full_token_bytes + (ratio * sliding if form.full_layers else sliding)
    if printed is not None and not form.sliding_layers and abs(printed[0] - cell) > 0.005 * cell:
        return printed  # the config is of another model, or holds something leadline does not size
    if form.hybrid and not form.state_bytes:
        return printed
    return cell, form.state_bytes, form.exact


def _printed_sizes(boot: Boot) -> tuple[float, int, bool] | None:
    if not boot.pools or not boot.pools[0].tokens or not boot.pools[0].size_bytes:
        return None
    cell = boot.pools[0].size_bytes / boot.pools[0].tokens
    state = (boot.state.conv_bytes + boot.state.ssm_bytes) / (boot.state.slots + 1) if boot.state else 0
    return cell, round(state), False


def _draft_layers(inputs: Inputs, version: tuple[int, int, int, int]) -> tuple[int, ...]:
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


def _strategy(inputs: Inputs, version: tuple[int, int, int, int]) -> str:
    told = inputs.argument("mamba_scheduler_strategy") or inputs.argument("mamba_radix_cache_strategy") or "auto"
    return sglang_facts.state_strategy_auto(version) if told == "auto" else told


def _slots(strategy: str, overlap: bool) -> int:
    """State slots a running request takes (``ratio``): 3, plus 2 or 1 for the buffered strategies."""
    return {"no_buffer": 3, "extra_buffer": 5 if overlap else 4, "extra_buffer_lazy": 4}.get(strategy, 3)


def _slots_off(inputs: Inputs, version: tuple[int, int, int, int]) -> int:
    overlap = not inputs.flag("disable_overlap_schedule")
    if version < release("0.5.11") and inputs.seen is not None and inputs.seen.draft_tokens:
        overlap = True  # speculation itself had switched it off
    return _slots(_strategy(inputs, version), overlap)


def _slots_on(inputs: Inputs, version: tuple[int, int, int, int]) -> tuple[int, ...]:
    strategy = _strategy(inputs, version)
    if version < release("0.5.10"):
        return (_slots(strategy, overlap=False),)
    if version < release("0.5.11") and (inputs.seen is None or not inputs.seen.draft_tokens):
        return tuple(sorted({_slots(strategy, overlap=False), _slots(strategy, overlap=True)}))  # SGLANG_ENABLE_SPEC_V2 decides
    return (_slots(strategy, overlap=not inputs.flag("disable_overlap_schedule")),)


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
    return (Budget(low_bytes=max(0, high - _SLACK_UNSEEN_BYTES), high_bytes=max(1, high)),)


# -- rows ----------------------------------------------------------------------------------------------------------------------


class Answer(Record, frozen=True):
    """All plans that remain possible for one candidate, put together."""

    starts: bool | None
    plan: Plan | None
    """The plan; where readings differ, the smallest figures of those that start (a lower bound)."""
    worst: Plan | None
    exact: bool


def answer(found: Sequence[Reading], draft_tokens: int, asked: int | None, shift: tuple[int, int] = (0, 0)) -> Answer:
    """``shift`` = (low, high) bytes added to every budget, for a changed memory fraction."""
    plans = [p for reading in found for p in _plans(reading, draft_tokens, asked, shift)]
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
    return Answer(starts=starts, plan=best, worst=min(bad, key=lambda p: p.tokens) if bad else None, exact=_same(plans, found))


def _same(plans: Sequence[Plan], found: Sequence[Reading]) -> bool:
    if not all(reading.budget.bounded for reading in found):
        return False
    return all(p.fails for p in plans) or all((p.tokens, p.running, p.fails) == (plans[0].tokens, plans[0].running, "") for p in plans)


def _plans(reading: Reading, draft_tokens: int, asked: int | None, shift: tuple[int, int]) -> list[Plan]:
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
    got = answer(found, draft_tokens, asked, shift)
    if got.starts is None and got.plan is None:
        return FrontierRow(candidate=candidate, starts=None, reason=_unknown(inputs, found), remedy=_needed(inputs))
    exact = got.exact and sure and inputs.seen is not None and _sizes_exact(inputs)
    room: int | None = None
    better = _better(inputs, found, candidate, draft_tokens, got, shift)
    if draft_tokens and got.starts and _draft_weights_open(inputs):
        exact, room = False, _draft_room(found, draft_tokens, asked, shift)
        if room < _largest_draft(inputs):
            got = Answer(starts=None, plan=got.plan, worst=None, exact=False)
    return FrontierRow(
        candidate=candidate,
        starts=got.starts,
        capacity=_capacity(inputs, got) if got.starts is not False else Capacity(),
        reason=_reason(inputs, found, draft_tokens, asked, got, exact, room),
        remedy=_remedy(inputs, found, draft_tokens, got, better),
        exact=exact,
        feasible_as=better[0] if better is not None else None,
    )


def _sizes_exact(inputs: Inputs) -> bool:
    sizes = _sizes(inputs)
    return sizes is not None and sizes[2] and not _unsized(inputs)


def _unsized(inputs: Inputs) -> list[str]:
    """Set-ups whose formula leadline does not carry in full."""
    found: list[str] = []
    if (inputs.number("pp_size") or 1) > 1:
        found.append("pipeline stages hold different layers and the smallest pool counts, which is not modelled")
    if (inputs.number("dp_size") or 1) > 1 and not inputs.flag("enable_dp_attention"):
        found.append("data-parallel replicas divide the limit differently by release, which is not modelled")
    if (inputs.argument("kv_cache_dtype") or "auto").startswith(("fp4", "mxfp")):
        found.append("block-scaled KV cache sizes are not modelled")
    version = known(inputs.version)
    if version is not None and version > release(sglang_facts.NEWEST_READ):
        found.append(f"release {inputs.version} is newer than the newest read ({sglang_facts.NEWEST_READ})")
    if version is not None and version < release(sglang_facts.OLDEST):
        found.append(f"release {inputs.version} is older than the oldest read ({sglang_facts.OLDEST})")
    return found


def _draft_weights_open(inputs: Inputs) -> bool:
    """From a start without speculation, on a release that charges draft weights to the pools: their size is not known."""
    if inputs.seen is None or inputs.seen.draft_tokens or sglang_facts.canonical(inputs.found.algorithm) in sglang_facts.DRAFT_FREE:
        return False
    version = known(inputs.version)
    return version is None or sglang_facts.draft_in_budget(version)


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
    ends = sorted((round(step * (before - PRINTED_HALF_BYTES)), round(step * (before + _SLACK_UNSEEN_BYTES))))
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
        if affected and _strategy(inputs, version) == "no_buffer":
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


# -- words ---------------------------------------------------------------------------------------------------------------------


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
        return ""
    return "a lower bound: " + "; ".join(_open(inputs, found))


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
    sizes = _sizes(inputs)
    if sizes is None or not sizes[2]:
        missing = inputs.shape.missing if inputs.shape else ("config.json was not given: sizes are the log's rounded figures",)
        causes += list(missing) or ["config.json does not fit the sizes in the log, which are used instead"]
    causes += _unsized(inputs)
    if inputs.seen is None:
        causes.append("the budget comes from the log's rounded free-memory lines")
    labels = sorted({reading.label for reading in found})
    if len(labels) > 1:
        causes.append("the log fits more than one reading (" + "; ".join(labels) + ")")
    if any(not reading.budget.bounded for reading in found):
        causes.append("--max-total-tokens hides how much memory is left")
    return causes or ["the free memory that a memory fraction scales is printed rounded"]


def _unknown(inputs: Inputs, found: Sequence[Reading]) -> str:
    if _sizes(inputs) is None:
        return "neither config.json nor the log tells the size of a token"
    if inputs.seen is not None and not found:
        return (
            f"{inputs.seen.tokens:,} tokens and {inputs.seen.running} running requests fit no formula leadline knows "
            f"for {'version ' + inputs.version if inputs.version else 'any release'} with this config.json"
        )
    return "no start with a capacity line is in the log"


def _needed(inputs: Inputs) -> str:
    if _sizes(inputs) is None:
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


# -- cross-checks --------------------------------------------------------------------------------------------------------------


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
        for p in _plans(reading, draft_tokens, None, (0, 0))
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
        if _draft_weights_open(inputs):
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


__all__ = ["UNBOUNDED", "Inputs", "Label", "Reading", "check_labels", "gather", "narrowed", "pinned", "readings", "row", "statement"]
