"""The frontier of a vLLM service: what every depth would hold, from one start.

Memory is handed out in blocks: ``blocks = floor(bytes / (page x layers))`` and a request of the maximum length takes
``ceil(length / block) + groups x (1 + depth)`` of them, where ``groups`` counts the groups of recurrent layers (0 without any; one more
block each in ``align`` mode).  ``KV cache size`` is int(blocks / blocks a request x length).

* n-gram and suffix drafting changes nothing in the pool.
* A draft with layers of its own takes its share of every block once speculation is on, whatever the depth.
* On recurrent models every draft token costs one state block a request and group.

Sources: vllm 0.20.2, 0.25.1, 0.32.0, 0.33.0 ``v1/core/kv_cache_utils.py`` (get_max_concurrency_for_kv_cache_config), ``v1/kv_cache_interface.py``
(MambaSpec), ``config/vllm.py`` (lookahead, DFlash limit, graph sizes), ``config/speculative.py`` (divisibility).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..engines import Parsed, vllm_facts
from ..engines.vllm import Cache, cache, speculative
from ..engines.vllm_log import Boot, last_boot
from ..records import Candidate, Capacity, FrontierRow, Record
from .shapes import Shape, shape

_GRAPH_CEILING = 512
"""Default capture ceiling in tokens (1024 on data-centre Blackwell)."""


class Inputs(Record, frozen=True):
    """What is known of a service."""

    boot: Boot
    pool: Cache
    knobs: tuple[tuple[str, str], ...]
    config: tuple[tuple[str, str], ...]
    found: Candidate
    shape: Shape | None = None
    draft: Shape | None = None
    n_predict: int | None = None

    def number(self, name: str) -> int | None:
        value = dict(self.knobs).get(name) or dict(self.boot.asked).get("max_num_seqs" if name == "max_running_requests" else name)
        return int(value) if value is not None and value.isdigit() else None

    @property
    def tokens(self) -> int | None:
        return self.pool.tokens if self.pool.tokens is not None else self.boot.tokens

    @property
    def depth(self) -> int:
        """Depth of the start that calibrates."""
        told = self.boot.depth if self.boot.depth is not None else self.pool.depth
        return self.found.depth if told is None else told

    @property
    def method(self) -> str:
        """Method of the start that calibrates."""
        return vllm_facts.canonical(self.boot.method or self.found.algorithm)


def gather(
    parsed: Parsed,
    log: str,
    metrics: str,
    model_config: Mapping[str, object] | None,
    draft_config: Mapping[str, object] | None,
) -> Inputs:
    """Put command, log, ``/metrics`` and the two ``config.json`` together."""
    knobs = dict(parsed.knobs)
    tp = int(knobs.get("tp_size", "1"))
    kv = knobs.get("kv_cache_dtype", "auto")
    config = speculative(parsed.argv, parsed.start)
    predicts = (draft_config or model_config or {}).get("n_predict")
    return Inputs(
        boot=last_boot(log),
        pool=cache(metrics),
        knobs=parsed.knobs,
        config=tuple(sorted((key, str(value)) for key, value in config.items())),
        found=parsed.candidate,
        shape=shape(model_config, tp=tp, kv_dtype=kv) if model_config else None,
        draft=shape(draft_config, tp=tp, kv_dtype=kv) if draft_config else None,
        n_predict=predicts if isinstance(predicts, int) else None,
    )


class Pool(Record, frozen=True):
    """The pool of the start that calibrates, and what a request takes from it."""

    blocks: float
    """May carry a fraction where it is divided out of the printed concurrency."""
    exact: bool
    length: int
    attention_blocks: int
    """Blocks of KV a request of the maximum length takes."""
    groups: int
    """Groups of recurrent layers."""
    extra: int
    """State blocks a request takes beside those of drafts: 1, in align mode 2."""


def pool(inputs: Inputs) -> Pool | str:
    """The calibrated pool, or why it cannot be calibrated."""
    tokens, length = inputs.tokens, inputs.boot.length or inputs.number("max_model_len")
    if tokens is None:
        return "no start with a 'KV cache size' line is in the log, and no metrics were given"
    if length is None:
        return "the maximum length of a request is neither in the log nor on the command line"
    hybrid = inputs.shape is not None and inputs.shape.hybrid
    size, blocks = inputs.pool.block_tokens, inputs.pool.blocks
    if not hybrid:
        each = math.ceil(length / size) if size else 1
        exact = blocks is not None and size is not None
        return Pool(
            blocks=blocks if exact and blocks else tokens / length * each,
            exact=exact,
            length=length,
            attention_blocks=each,
            groups=0,
            extra=0,
        )
    if size is None or blocks is None:
        return "a recurrent model needs num_gpu_blocks and block_size, which only /metrics tells"
    extra = 2 if dict(inputs.pool.facts).get("mamba_cache_mode") == "align" else 1
    attention = math.ceil(length / size)
    a_request = blocks * length / tokens
    groups = (a_request - attention) / (extra + inputs.depth)
    if abs(groups - round(groups)) > 0.02 or round(groups) < 1:
        return f"{a_request:.2f} blocks a request fit no grouping of recurrent layers leadline knows"
    return Pool(blocks=blocks, exact=True, length=length, attention_blocks=attention, groups=round(groups), extra=extra)


def holds(known: Pool, depth: int, blocks: float) -> int:
    """Tokens of ``KV cache size`` with ``blocks`` blocks at ``depth``: int(blocks / blocks a request x length)."""
    a_request = known.attention_blocks + known.groups * (known.extra + depth)
    return int(blocks / a_request * known.length)


def row(inputs: Inputs, candidate: Candidate) -> FrontierRow:
    """One line of the frontier."""
    method = vllm_facts.canonical(candidate.algorithm)
    refused = _refused(inputs, candidate, method)
    if refused is not None:
        return FrontierRow(candidate=candidate, starts=False, reason=refused[0], remedy=refused[1], exact=True)
    known = pool(inputs)
    if isinstance(known, str):
        return FrontierRow(
            candidate=candidate, starts=None, reason=known, remedy=_failed_start(inputs) or "give the log and the /metrics of one start"
        )
    share, sure, why = _share(inputs, candidate, method)
    low, high = (known.blocks, known.blocks) if share == 1 else (known.blocks * share, (known.blocks + 1) * share)
    if known.exact:  # the pool's bytes are known to less than one block of the calibrating start
        low, high = math.floor(low), math.ceil(high) - 1 if share != 1 else math.floor(high)
    depth = candidate.depth if known.groups else 0
    tokens = max(0, holds(known, depth, low))
    if tokens != holds(known, depth, high):
        sure, why = False, why or "a lower bound, to one block of the other layout"
    running, limit_note = _running(inputs, candidate, method)
    exact = sure and (known.exact or share == 1)
    return FrontierRow(
        candidate=candidate,
        starts=tokens >= known.length if exact or tokens >= known.length else None,
        capacity=Capacity(max_total_num_tokens=tokens, max_running_requests=running, context_tokens=known.length),
        reason="; ".join(part for part in (why, limit_note, _graphs(inputs, candidate, running)) if part),
        remedy="" if tokens >= known.length else "lower --max-model-len, or raise --gpu-memory-utilization",
        exact=exact,
    )


def _share(inputs: Inputs, candidate: Candidate, method: str) -> tuple[float, bool, str]:
    """(blocks of the candidate / blocks of the calibrating start, whether that is exact, why not)."""
    had = _draft_layers(inputs, inputs.method, inputs.depth)
    has = _draft_layers(inputs, method, candidate.depth)
    if had == has:
        return 1.0, True, ""
    if had is None or has is None or inputs.shape is None:
        return 1.0, False, "the draft's layers take a share of every block; give config.json of model and draft for it"
    if inputs.shape.missing or (inputs.draft and inputs.draft.missing):
        return 1.0, False, "not sized: " + ", ".join((*inputs.shape.missing, *(inputs.draft.missing if inputs.draft else ())))
    target = _layer_bytes(inputs.shape)
    each = _layer_bytes(inputs.draft) / _layers(inputs.draft) if inputs.draft else target / _layers(inputs.shape)
    share = (target + had * each) / (target + has * each)
    if "kv_cache_memory_bytes" in dict(inputs.pool.facts):
        return share, True, ""
    bound = "at most: the draft's weights come out of the same memory" if has else "at least: the draft's weights come on top"
    return share, False, bound


def _draft_layers(inputs: Inputs, method: str, depth: int) -> int | None:
    """KV layers of the draft; 0 without one, ``None`` where no config tells."""
    if not depth or method in vllm_facts.DRAFT_FREE or method == "off":
        return 0
    if inputs.draft is not None:
        return _layers(inputs.draft)
    return inputs.shape.draft_layers if inputs.shape is not None and method == "mtp" else None


def _layers(form: Shape) -> int:
    return max(1, form.full_layers + form.sliding_layers)


def _layer_bytes(form: Shape) -> int:
    return form.full_layers * form.full_token_bytes + form.sliding_layers * form.sliding_token_bytes


def _running(inputs: Inputs, candidate: Candidate, method: str) -> tuple[int | None, str]:
    """Running requests the scheduler admits, and a note where the draft pass lowers them."""
    pinned = dict(candidate.settings).get("max_running_requests")
    limit = int(pinned) if pinned else inputs.number("max_running_requests")
    batched = inputs.number("max_num_batched_tokens")
    if method not in vllm_facts.BLOCK or batched is None or candidate.off:
        return limit, ""
    most = batched // max(1, vllm_facts.lookahead(method, candidate.depth))
    if limit is not None and limit <= most:
        return limit, ""
    return most, f"the draft pass fits {most} requests into --max-num-batched-tokens {batched}; more wait"


def _graphs(inputs: Inputs, candidate: Candidate, running: int | None) -> str:
    if candidate.off or running is None or running * (candidate.depth + 1) <= _GRAPH_CEILING:
        return ""
    last = _GRAPH_CEILING // (candidate.depth + 1)
    return f"above {last} running requests a step of {candidate.depth + 1} tokens each leaves the captured graphs (default ceiling {_GRAPH_CEILING}) and runs eager"


def _refused(inputs: Inputs, candidate: Candidate, method: str) -> tuple[str, str] | None:
    """Rules that end a start in its first seconds: (reason, remedy)."""
    depth = candidate.depth
    predicts = inputs.n_predict
    if method == "mtp" and predicts is not None and depth > predicts and depth % predicts:
        near = depth // predicts * predicts
        return (
            f"{depth} draft tokens are not a multiple of the {predicts} the draft predicts at once",
            f"ask for {near} or {near + predicts}",
        )
    batched, ahead = inputs.number("max_num_batched_tokens"), vllm_facts.lookahead(method, depth)
    if batched is not None and ahead and batched <= ahead:
        return (
            f"{ahead} look-ahead tokens do not fit into --max-num-batched-tokens {batched}",
            f"raise --max-num-batched-tokens above {ahead}",
        )
    block = candidate.depth != inputs.found.depth and method in vllm_facts.BLOCK and method == vllm_facts.canonical(inputs.found.algorithm)
    if block and depth > inputs.found.depth:
        return f"the draft is trained for blocks of {inputs.found.depth} tokens", f"ask for {inputs.found.depth} or fewer"
    return None


def _failed_start(inputs: Inputs) -> str:
    """The remedy a failed start named itself."""
    boot = inputs.boot
    if boot.fitting_length is not None:
        return f"the failed start says --max-model-len {boot.fitting_length} would fit"
    return ""


def statement(inputs: Inputs) -> tuple[str, ...]:
    """What can and what cannot be known from the start that calibrated, in sentences."""
    known = pool(inputs)
    if isinstance(known, str):
        return (f"Capacity is not known: {known}.",)
    shown = "speculation off" if not inputs.depth else f"{inputs.method} {inputs.depth}"
    said = [f"Calibrated by one start with {shown}: {inputs.tokens:,} tokens, requests of up to {known.length:,}."]
    if known.groups:
        said.append(f"Recurrent layers form {known.groups} groups: each draft token costs {known.groups} blocks a request.")
    else:
        said.append("Depth does not change the size of the KV cache; only a draft with layers of its own does, once.")
    said.append("Not known from it: memory of activations and graphs at other depths, what is accepted, and what a round costs.")
    return tuple(said)


def rows(inputs: Inputs, candidates: Sequence[Candidate]) -> tuple[FrontierRow, ...]:
    return tuple(row(inputs, candidate) for candidate in candidates)
