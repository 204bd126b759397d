"""What is known of an SGLang service, gathered from its command, log, endpoint and model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..engines import Parsed, sglang_facts
from ..engines.releases import Release, known, release
from ..engines.sglang_log import Boot, boots
from ..records import Candidate, Record
from .sglang_pools import Observed
from .shapes import Shape, shape


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
    tried: int | None = None
    """Draft tokens of the start in the log, whether it came up or not."""
    notes: tuple[str, ...] = ()

    def argument(self, name: str) -> str | None:
        value = dict(self.arguments).get(name)
        return None if value in (None, "None", "") else value

    def number(self, name: str) -> int | None:
        value = self.argument(name)
        return int(value) if value is not None and value.lstrip("-").isdigit() else None

    def flag(self, name: str) -> bool:
        return (self.argument(name) or "").lower() == "true"


def gather(
    version: str | None, parsed: Parsed, log: str, server_info: Mapping[str, object] | None, model_config: Mapping[str, object] | None
) -> Inputs:
    """Put command, log, ``/server_info`` and ``config.json`` together; the log's last complete start calibrates."""
    info = server_info or {}
    boot = _calibrating(boots(log))
    arguments = _merged(parsed, boot, info)
    lookup = dict(arguments)
    form = _shape(model_config, lookup)
    draft_tokens = _draft_tokens(parsed, lookup, boot)
    asked = _asked(parsed, lookup, boot, draft_tokens)
    tokens, running = boot.tokens, boot.running
    if tokens is None and isinstance(info.get("max_total_num_tokens"), int):
        tokens, running = int(str(info["max_total_num_tokens"])), _state_figure(info, "effective_max_running_requests_per_dp")
    slots = boot.state.slots if boot.state else _state_figure(info, "max_mamba_cache_size") if boot.tokens is None else None
    seen = None
    if tokens is not None and draft_tokens is not None:
        seen = Observed(
            draft_tokens=draft_tokens, asked=_asked_then(lookup, draft_tokens, asked), tokens=tokens, running=running, slots=slots
        )
    return Inputs(
        version=version or (str(info["version"]) if "version" in info else None),
        arguments=arguments,
        boot=boot,
        shape=form,
        found=parsed.candidate,
        asked=asked,
        seen=seen,
        tried=draft_tokens,
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


def _draft_tokens(parsed: Parsed, arguments: Mapping[str, str], boot: Boot) -> int | None:
    """D of the start that calibrates: 0 when off, ``None`` when nobody says. The resolved arguments count more than the command."""
    if boot.verify_tokens is not None:
        return boot.verify_tokens
    given = arguments.get("speculative_num_draft_tokens")
    if given is not None:
        return 0 if given == "None" else int(given)
    if not parsed.argv:
        return 0 if arguments.get("speculative_algorithm") == "None" else None
    found = parsed.candidate
    return 0 if found.off else int(dict(found.settings).get("num_draft_tokens", found.depth + 1))


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


def _asked_then(arguments: Mapping[str, str], draft_tokens: int, asked: int | None) -> int | None:
    """The limit of the start in the log, which may have been another than the command's (a trial)."""
    resolved = arguments.get("max_running_requests")
    if resolved is not None and resolved.isdigit():
        return int(resolved)
    return None if resolved == "None" and not draft_tokens else asked


def _state_figure(info: Mapping[str, object], name: str) -> int | None:
    """A figure of the first scheduler in ``internal_states``; what stands at the top level is what was asked for."""
    states = info.get("internal_states")
    if not isinstance(states, Sequence) or not states or not isinstance(states[0], Mapping):
        return None
    found = states[0].get(name)
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


def sizes(inputs: Inputs) -> tuple[float, int, bool] | None:
    """(cell, P, exact) from config.json, else from the log's rounded sizes; ``None`` when neither tells."""
    printed = printed_sizes(inputs.boot)
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


def printed_sizes(boot: Boot) -> tuple[float, int, bool] | None:
    if not boot.pools or not boot.pools[0].tokens or not boot.pools[0].size_bytes:
        return None
    cell = boot.pools[0].size_bytes / boot.pools[0].tokens
    state = (boot.state.conv_bytes + boot.state.ssm_bytes) / (boot.state.slots + 1) if boot.state else 0
    return cell, round(state), False


def sizes_exact(inputs: Inputs) -> bool:
    found = sizes(inputs)
    return found is not None and found[2] and not unsized(inputs)


def unsized(inputs: Inputs) -> list[str]:
    """Set-ups whose formula leadline does not carry in full."""
    found: list[str] = []
    if (inputs.number("pp_size") or 1) > 1:
        found.append("pipeline stages hold different layers and the smallest pool counts, which is not modelled")
    if (inputs.number("dp_size") or 1) > 1 and not inputs.flag("enable_dp_attention"):
        found.append("data-parallel replicas divide the limit differently by release, which is not modelled")
    if (inputs.argument("kv_cache_dtype") or "auto").startswith(("fp4", "mxfp")):
        found.append("block-scaled KV cache sizes are not modelled")
    if inputs.flag("enable_linear_replayssm_spec"):
        found.append("the ring of --enable-linear-replayssm-spec is not sized")
    version = known(inputs.version)
    sliding = inputs.shape is not None and inputs.shape.sliding_layers > 0
    if sliding and (version is None or version >= release("0.5.14")):
        found.append("from 0.5.14 sliding-window pools count the draft's layers and a token cap by rules that are not modelled")
    if version is not None and version > release(sglang_facts.NEWEST_READ):
        found.append(f"release {inputs.version} is newer than the newest read ({sglang_facts.NEWEST_READ})")
    if version is not None and version < release(sglang_facts.OLDEST):
        found.append(f"release {inputs.version} is older than the oldest read ({sglang_facts.OLDEST})")
    return found


def layers(inputs: Inputs) -> int:
    return max(1, inputs.shape.full_layers + inputs.shape.sliding_layers) if inputs.shape else 1


def given_slots(inputs: Inputs) -> int | None:
    """``--max-mamba-cache-size`` as given: the resolved argument holds the computed one after start-up, the command line does not."""
    given = dict(inputs.boot.arguments).get("max_mamba_cache_size") if inputs.boot.arguments else inputs.argument("max_mamba_cache_size")
    return int(given) if given is not None and given.isdigit() else None


def strategy(inputs: Inputs, version: Release) -> str:
    told = inputs.argument("mamba_scheduler_strategy") or inputs.argument("mamba_radix_cache_strategy") or "auto"
    return sglang_facts.state_strategy_auto(version) if told == "auto" else told
