"""How far a round is from the memory's limit: the bytes it must read against what the memory delivers.

Everything is per GPU: ranks of one model read their shares at the same time.

==========  ====================================================================================================================
weights     all of them once a round; of a mixture of experts only those that ``batch * (depth + 1)`` tokens touch under uniform
            routing (:func:`leadline.cost.experts_read`; real routing touches fewer); an input embedding of its own is looked up, not read
draft       a dense draft once a draft token; the draft of a mixture of experts is left out, so that the floor stays a floor
KV cache    of every request that runs, half way through its answer
==========  ====================================================================================================================

Published bandwidths in GB/s (10^9 bytes), as NVIDIA's data sheets give them for the product that ``nvidia-smi`` calls by that name
(data sheets of H200, H100, H20, A100, A40, A30, A10, L40S, L40, L4, V100, T4 at nvidia.com/data-center, product pages of GeForce and
RTX PRO).  A card that is not in the table, or whose name stands for several memories, is unknown: ``[tune] memory_gb_s`` states it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from . import cost
from .compare import Board
from .config import Tune
from .records import Candidate, OperatingPoint, Record

GB_S: dict[str, float] = {
    "B300 SXM6 AC": 8000,
    "B200": 8000,
    "H200": 4800,
    "H200 NVL": 4800,
    "H100 80GB HBM3": 3350,
    "H100 NVL": 3900,
    "H100 PCIe": 2000,
    "H20": 4000,
    "A100-SXM4-80GB": 2039,
    "A100 80GB PCIe": 1935,
    "A100-SXM4-40GB": 1555,
    "A100-PCIE-40GB": 1555,
    "A40": 696,
    "A30": 933,
    "A10": 600,
    "A10G": 600,
    "L40S": 864,
    "L40": 864,
    "L4": 300,
    "V100-SXM2-16GB": 900,
    "V100-SXM2-32GB": 900,
    "V100-PCIE-16GB": 900,
    "V100-PCIE-32GB": 900,
    "T4": 320,
    "RTX PRO 6000 Blackwell Workstation Edition": 1792,
    "RTX PRO 6000 Blackwell Max-Q Workstation Edition": 1792,
    "RTX PRO 6000 Blackwell Server Edition": 1597,
    "RTX 6000 Ada Generation": 960,
    "RTX A6000": 768,
    "GeForce RTX 5090": 1792,
    "GeForce RTX 4090": 1008,
    "GeForce RTX 3090 Ti": 1008,
    "GeForce RTX 3090": 936,
}
"""Name without ``NVIDIA`` or ``Tesla`` -> GB/s."""

STATE_IT = "state it as memory_gb_s in [tune]"
BEYOND_FLOOR = 1.05
"""A round that is faster than its floor by more than this contradicts what was assumed."""


class Reading(Record, frozen=True):
    """A round against the memory's bandwidth."""

    floor_s: float
    """Time to read what a round must read, once."""
    share: float
    """floor / measured round: 1 = the memory is the limit."""
    text: str


def read(
    *, weight_bytes: float, kv_bytes: float, bandwidth_bytes_s: float, round_s: float, length: float, draft_bytes: float = 0.0
) -> Reading:
    """Bytes moved in a round (weights, the batch's KV once, the draft as often as it runs) against ``bandwidth_bytes_s``.

    ``length`` is tokens a round yields per request. Above 0.7 a round cannot become much cheaper, so only accepting more
    tokens helps; below 0.3 something else than memory is the limit and depth is not the lever.
    """
    floor = (weight_bytes + kv_bytes + draft_bytes) / bandwidth_bytes_s
    share = floor / round_s
    if share > BEYOND_FLOOR:
        text = f"a round takes {1 / share:.2f} times what reading its bytes should take: what is assumed of the bytes does not hold here"
    elif share >= 0.7:
        text = (
            f"a round takes {1 / share:.2f} times what reading its bytes takes: memory is the limit, only more accepted tokens a round help"
        )
    elif share >= 0.3:
        text = f"a round takes {1 / share:.1f} times what reading its bytes takes: up to that factor is left in kernels and scheduling"
    else:
        text = (
            f"a round takes {1 / share:.1f} times what reading its bytes takes: memory is not the limit, "
            "look at overhead before speculation depth"
        )
    return Reading(floor_s=floor, share=share, text=f"{text} (now {length:.2f} tokens a round)")


def bandwidth(hardware: str, engine: str) -> tuple[float | None, str]:
    """(bytes a second of one GPU, or None; why not). ``hardware`` as in :class:`~leadline.records.Conditions`: the CPU, then each GPU.

    >>> bandwidth("8 x Xeon; NVIDIA H200, 143771 MiB, 580.1; NVIDIA H200, 143771 MiB, 580.1", "sglang")
    (4800000000000.0, '')
    """
    cpu, *gpus = hardware.split("; ")
    if not gpus:
        return None, f"the memory bandwidth of {cpu} is not known: {STATE_IT}, as measured by STREAM"
    if engine == "llamacpp":
        return None, f"llama.cpp may keep a part of the model beside the GPU: {STATE_IT} if all of it is on one memory"
    names = sorted({gpu.partition(",")[0].removeprefix("NVIDIA ").removeprefix("Tesla ") for gpu in gpus})
    if len(names) > 1:
        return None, f"the GPUs of the host differ ({', '.join(names)}): {STATE_IT} for the slowest in use"
    if names[0] not in GB_S:
        return None, f"the memory bandwidth of {names[0]} is not in leadline's table: {STATE_IT}"
    return GB_S[names[0]] * 1e9, ""


def model_facts(config: Mapping[str, object]) -> dict[str, str]:
    """Facts of a model's ``config.json`` (or its ``text_config``) that a reading needs, under names of ours; sizes of the whole model.

    ``num_experts`` (0 = dense), ``num_experts_per_tok``; ``expert_bytes`` (all routed experts, three matrices each) and ``embedding_bytes`` (an
    input embedding that is not also the output head), where the config tells how many bytes a weight has.
    """
    inner = config.get("text_config")
    whole = {**config, **inner} if isinstance(inner, Mapping) else dict(config)
    facts: dict[str, str] = {}
    each, hidden = _bytes_a_weight(whole), _count(whole, "hidden_size")
    vocabulary = _count(whole, "vocab_size")
    if each and hidden and vocabulary and whole.get("tie_word_embeddings", True) is False:
        # embeddings stay in 16 bit where the rest is quantised
        facts["embedding_bytes"] = f"{vocabulary * hidden * max(each, 2):g}"
    experts = cost.experts_of(config)
    if experts is None:
        return facts | {"num_experts": "0"}
    facts |= {"num_experts": str(experts.total), "num_experts_per_tok": str(experts.active)}
    inside = _count(whole, "moe_intermediate_size") or _count(whole, "intermediate_size")
    layers = _count(whole, "num_hidden_layers") - _count(whole, "first_k_dense_replace")
    dense = whole.get("mlp_only_layers")
    layers -= len(dense) if isinstance(dense, list) else 0
    layers //= _count(whole, "decoder_sparse_step") or _count(whole, "moe_layer_freq") or 1
    if each and hidden and inside and layers > 0:
        facts["expert_bytes"] = f"{3 * hidden * inside * experts.total * layers * each:g}"
    return facts


def gguf_facts(head: bytes) -> dict[str, str]:
    """``num_experts`` and ``num_experts_per_tok`` from the beginning of a GGUF file; {} where it is none, or is cut before they are certain.

    Format: GGUF 3, metadata as key, type (4 = unsigned 32 bit), value; the architecture's keys stand before the tokenizer's.
    """
    found = {
        name: int.from_bytes(hit.group(1), "little")
        for name in ("expert_count", "expert_used_count")
        if (hit := re.search(rb"\." + name.encode() + rb"\x04\x00\x00\x00(.{4})", head, re.DOTALL))
    }
    if not head.startswith(b"GGUF") or b"tokenizer.ggml." not in head:
        return {}
    if not found.get("expert_count"):
        return {"num_experts": "0"}
    return {"num_experts": str(found["expert_count"]), "num_experts_per_tok": str(found.get("expert_used_count", 0))}


def _count(config: Mapping[str, object], name: str) -> int:
    value = config.get(name)
    return value if isinstance(value, int) else 0


def _bytes_a_weight(config: Mapping[str, object]) -> float:
    """Bytes of one weight; 0 where the config does not tell (quantised otherwise than to 8 bit floats)."""
    quantised = config.get("quantization_config")
    if isinstance(quantised, Mapping):
        return 1.0 if quantised.get("quant_method") == "fp8" else 0.0
    return {"bfloat16": 2.0, "float16": 2.0, "float32": 4.0}.get(str(config.get("torch_dtype") or config.get("dtype")), 0.0)


def readings(board: Board, points: Sequence[OperatingPoint], tune: Tune) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(one reading an operating point, what could not be read and why); both empty where nothing is known of host and engine."""
    began = board.knowledge.began
    hardware = began.conditions.hardware if began is not None else ""
    speed: float | None
    if tune.memory_gb_s is not None:
        speed, why = tune.memory_gb_s * 1e9, ""
    elif hardware:
        speed, why = bandwidth(hardware, board.engine)
    else:
        return (), ()
    plain = _loaded(board, board.off)
    if speed is not None:
        why = _no_weights(board.facts, plain)
    if speed is None or plain is None or why:
        return (), (f"how far a round is from the memory's limit: {why}",)
    return tuple(text for point in points if (text := _reading(board, point, plain, speed))), ()


def _no_weights(facts: Mapping[str, str], plain: float | None) -> str:
    """Why what a round reads is not known; empty when it is."""
    if plain is None:
        return "the size of the weights is not known: neither the log of speculation off nor a model file tells it"
    if "num_experts" not in facts:
        return "whether the model is a mixture of experts is not known: its config (or GGUF file) was not seen on the service's host"
    if facts["num_experts"] != "0" and "expert_bytes" not in facts:
        return "how many bytes the model's experts have is not known: its config (or GGUF file) does not tell"
    if int(facts.get("pp_size", "1")) > 1:
        return "the layers are spread over GPUs that take turns (pipeline)"
    return ""


def _loaded(board: Board, candidate: Candidate) -> float | None:
    """Bytes of all weights that a launch of the candidate loaded on a GPU, the draft's included."""
    told = [dict(trial.reported.facts).get("weight_bytes") for trial in board.knowledge.of(candidate) if trial.reported is not None]
    known = [float(text) for text in told if text]
    return known[-1] if known else None


def _reading(board: Board, point: OperatingPoint, plain: float, speed: float) -> str:
    candidate, facts = point.candidate, board.facts
    value = board.log_tok_s(candidate, point.level)
    length = 1.0 if candidate.off else board.length(candidate, point.level.workload)
    if value is None or length is None:
        return ""
    batch = cost.closed_loop(max(1, point.level.concurrency), board.running(candidate)).batch
    ranks = int(facts.get("tp_size", "1"))
    weights = plain - float(facts.get("embedding_bytes", 0)) / ranks
    draft = max(0.0, (_loaded(board, candidate) or plain) - plain)
    if "expert_bytes" in facts:
        experts = cost.Experts(total=int(facts["num_experts"]), active=int(facts["num_experts_per_tok"]))
        idle = 1 - cost.experts_read(batch * (candidate.depth + 1), experts) / experts.total
        weights, draft = weights - idle * float(facts["expert_bytes"]) / ranks, 0.0
    found = read(
        weight_bytes=max(0.0, weights),
        kv_bytes=float(facts.get("kv_bytes_per_token", 0)) * board.context_tokens(candidate, point.level) * batch,
        draft_bytes=draft * candidate.depth,
        bandwidth_bytes_s=speed,
        round_s=batch * length / math.exp(value),
        length=length,
    )
    return f"{point.level.label}: {found.text}"
