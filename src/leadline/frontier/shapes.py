"""What a model's ``config.json`` says about memory: bytes a token of KV cache and bytes of recurrent state a request.

Formulas: sglang ``srt/model_executor/pool_configurator.py`` and ``srt/configs/mamba_utils.py`` (0.5.9 to 0.5.23), vllm 0.33
``v1/kv_cache_interface.py``; the sizes of GQA, MLA, sliding-window and linear-attention layers are the same in both.

=====================  ==========================================================================================
full                   bytes a token in one full-attention layer: kv_heads a rank x (head_dim + v_head_dim) x dtype bytes
MLA                    (kv_lora_rank + qk_rope_head_dim) x dtype bytes, the same on every rank
sliding                as full, with the sliding layers' own heads, times the share of tokens that pool holds
recurrent state        conv + ssm state of one request in all linear layers of a rank
=====================  ==========================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..records import Record

_DTYPE_BYTES = {"float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "int8": 1}


_OTHER_CACHES = ("compress_ratios", "sparse_attention_config")
"""Keys of models whose cache is more than attention and recurrent state (compressed or sparse attention)."""


class Shape(Record, frozen=True):
    """The memory shape of a model on one of ``tp`` ranks."""

    architecture: str
    full_layers: int
    full_token_bytes: int
    """Bytes of one token in one full-attention layer."""
    sliding_layers: int = 0
    sliding_token_bytes: int = 0
    sliding_window: int | None = None
    linear_layers: int = 0
    state_bytes: int = 0
    """Recurrent state of one request in all linear layers."""
    draft_layers: int | None = None
    """MTP layers that come with the target (``num_nextn_predict_layers`` and its kin)."""
    context: int | None = None
    missing: tuple[str, ...] = ()
    """What the config does not tell or leadline does not know how to size; each a phrase."""

    @property
    def exact(self) -> bool:
        return not self.missing

    @property
    def hybrid(self) -> bool:
        return self.linear_layers > 0


def shape(config: Mapping[str, object], *, tp: int = 1, kv_dtype: str = "auto", state_dtype: str = "") -> Shape:
    """Read a Hugging Face ``config.json`` (a vision model's ``text_config`` is used where there is one)."""
    inner = config.get("text_config")
    text: Mapping[str, object] = {**config, **inner} if isinstance(inner, Mapping) else config
    names = config.get("architectures")
    architecture = str(names[0]) if isinstance(names, Sequence) and names and not isinstance(names, str) else ""
    missing: list[str] = []
    width = _dtype_bytes(kv_dtype, text, missing)
    kinds = _layer_kinds(text, architecture, missing)
    full, sliding_bytes = _token_bytes(text, tp, width, missing)
    missing += [f"caches described by {key!r}" for key in _OTHER_CACHES if text.get(key)]
    linear = kinds.count("linear")
    state = _state_bytes(text, tp, linear, state_dtype, missing) if linear else 0
    return Shape(
        architecture=architecture,
        full_layers=kinds.count("full"),
        full_token_bytes=full,
        sliding_layers=kinds.count("sliding"),
        sliding_token_bytes=sliding_bytes if "sliding" in kinds else 0,
        sliding_window=_whole(text, "sliding_window"),
        linear_layers=linear,
        state_bytes=state,
        draft_layers=_draft_layers(text),
        context=_whole(text, "max_position_embeddings"),
        missing=tuple(missing),
    )


def _draft_layers(text: Mapping[str, object]) -> int | None:
    for key in ("num_nextn_predict_layers", "mtp_num_hidden_layers", "n_predict"):
        found = _whole(text, key)
        if found is not None:
            return found
    return None


def _dtype_bytes(kv_dtype: str, text: Mapping[str, object], missing: list[str]) -> int:
    name = kv_dtype
    if name in ("auto", ""):
        quantised = text.get("quantization_config")
        if isinstance(quantised, Mapping) and (quantised.get("kv_cache_scheme") or quantised.get("kv_cache_quant_algo")):
            missing.append("the checkpoint names its own KV cache precision")
        name = str(text.get("dtype") or text.get("torch_dtype") or "bfloat16")
    width = _DTYPE_BYTES.get(name.removeprefix("torch."))
    if width is None:
        missing.append(f"the size of KV cache dtype {name!r}")
        return 2
    return width


# -- attention -------------------------------------------------------------------------------------------------------------


def _token_bytes(text: Mapping[str, object], tp: int, width: int, missing: list[str]) -> tuple[int, int]:
    rank, rope = _whole(text, "kv_lora_rank"), _whole(text, "qk_rope_head_dim")
    if rank is not None and rope is not None:
        size = (rank + rope) * width
        index = _whole(text, "index_head_dim")
        if index is not None:
            size += index + index // 128 * 4
            if width == 1:
                missing.append("the layout of an fp8 cache with a sparse-attention indexer")
        return size, size
    heads = _whole(text, "num_key_value_heads") or _whole(text, "num_attention_heads")
    dim = _head_dim(text)
    if heads is None or dim is None:
        missing.append("the KV heads and their size")
        return 0, 0
    value_dim = _whole(text, "v_head_dim") or dim
    full = max(1, heads // tp) * (dim + value_dim) * width
    sliding_heads = _whole(text, "swa_num_key_value_heads") or heads
    sliding_dim = _whole(text, "swa_head_dim") or dim
    sliding_value = _whole(text, "swa_v_head_dim") or (value_dim if sliding_dim == dim else sliding_dim)
    return full, max(1, sliding_heads // tp) * (sliding_dim + sliding_value) * width


def _head_dim(text: Mapping[str, object]) -> int | None:
    dim = _whole(text, "head_dim")
    if dim is not None:
        return dim
    hidden, heads = _whole(text, "hidden_size"), _whole(text, "num_attention_heads")
    return hidden // heads if hidden and heads else None


# -- which layer is what ---------------------------------------------------------------------------------------------------

_KINDS = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "sliding",
    "chunked_attention": "sliding",
    "linear_attention": "linear",
    "mamba": "linear",
    "conv": "linear",
    "mlp": "none",
    "moe": "none",
}
_PATTERN = {"M": "linear", "*": "full", "-": "none", "E": "none"}
_SLIDING_POOL = ("Llama4", "GptOss", "MiMoV2", "Step3p5", "Step3p7", "Gemma4", "Laguna")
"""Architectures (by prefix) whose sliding layers get a pool of their own; elsewhere they are held like full layers."""


def _layer_kinds(text: Mapping[str, object], architecture: str, missing: list[str]) -> list[str]:
    count = _whole(text, "num_hidden_layers")
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return [_PATTERN.get(mark, "none") for mark in pattern]
    kinds = _listed(text) or _kimi(text) or _every_nth(text, count, architecture)
    if kinds is None:
        if count is None:
            missing.append("the number of layers")
            return []
        if "mamba_d_state" in text or "ssm_state_size" in text:
            missing.append(f"which layers of {architecture or 'this model'} are recurrent")
        kinds = ["full"] * count
    if "sliding" in kinds and not architecture.startswith(_SLIDING_POOL):
        kinds = ["full" if kind == "sliding" else kind for kind in kinds]
    return kinds


def _listed(text: Mapping[str, object]) -> list[str] | None:
    for key in ("layer_types", "layers_block_type"):
        listed = text.get(key)
        if isinstance(listed, Sequence) and not isinstance(listed, str) and listed:
            return [_KINDS.get(str(kind), "full") for kind in listed]
    swa = text.get("hybrid_layer_pattern")
    if isinstance(swa, Sequence) and not isinstance(swa, str) and swa:
        return ["sliding" if mark == 1 else "full" for mark in swa]
    return None


def _kimi(text: Mapping[str, object]) -> list[str] | None:
    linear = text.get("linear_attn_config")
    count = _whole(text, "num_hidden_layers")
    if not isinstance(linear, Mapping) or count is None:
        return None
    recurrent = {int(i) for i in linear.get("kda_layers", ())}  # numbered from 1
    return ["linear" if i + 1 in recurrent else "full" for i in range(count)]


def _every_nth(text: Mapping[str, object], count: int | None, architecture: str) -> list[str] | None:
    if count is None:
        return None
    interval = _whole(text, "full_attention_interval")
    if interval:
        return ["full" if (i + 1) % interval == 0 else "linear" for i in range(count)]
    if architecture.startswith("Llama4"):
        return ["full" if (i + 1) % 4 == 0 else "sliding" for i in range(count)]
    return None


# -- recurrent state -------------------------------------------------------------------------------------------------------


def _state_bytes(text: Mapping[str, object], tp: int, layers: int, state_dtype: str, missing: list[str]) -> int:
    """Bytes of one request's state: layers x (ssm numbers x ssm bytes + conv numbers x 2)."""
    dtype = state_dtype or str(text.get("mamba_ssm_dtype") or "float32")
    ssm_bytes = _DTYPE_BYTES.get(dtype)
    if ssm_bytes is None:
        missing.append(f"the size of state dtype {dtype!r}")
        ssm_bytes = 4
    numbers = _gdn(text, tp) or _kda(text, tp) or _mamba2(text, tp)
    if numbers is None:
        missing.append("the shape of the recurrent state")
        return 0
    ssm, conv = numbers
    return layers * (ssm * ssm_bytes + conv * 2)


def _gdn(text: Mapping[str, object], tp: int) -> tuple[int, int] | None:
    """Gated delta net (Qwen3-Next, Qwen3.5): ssm hv/tp x dv x dk, conv (hv dv + 2 hk dk)/tp x (kernel - 1)."""
    hv, hk = _whole(text, "linear_num_value_heads"), _whole(text, "linear_num_key_heads")
    dv, dk = _whole(text, "linear_value_head_dim"), _whole(text, "linear_key_head_dim")
    kernel = _whole(text, "linear_conv_kernel_dim")
    if hv is None or hk is None or dv is None or dk is None or kernel is None:
        return None
    return hv // tp * dv * dk, (hv * dv + 2 * _groups(hk, tp) * dk) // tp * (kernel - 1)


def _kda(text: Mapping[str, object], tp: int) -> tuple[int, int] | None:
    """Kimi delta attention: ssm h/tp x d x d, conv 3 h d / tp x (kernel - 1)."""
    linear = text.get("linear_attn_config")
    if not isinstance(linear, Mapping):
        return None
    heads, dim, kernel = (_whole(linear, key) for key in ("num_heads", "head_dim", "short_conv_kernel_size"))
    if heads is None or dim is None or kernel is None:
        return None
    return heads // tp * dim * dim, 3 * heads * dim // tp * (kernel - 1)


def _mamba2(text: Mapping[str, object], tp: int) -> tuple[int, int] | None:
    """Mamba 2 (Nemotron-H, Falcon-H1): ssm h/tp x d x n, conv (h d + 2 g n)/tp x (kernel - 1)."""
    for heads_key, dim_key, state_key, groups_key, kernel_key in (
        ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel"),
        ("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv"),
    ):
        found = [_whole(text, key) for key in (heads_key, dim_key, state_key, groups_key, kernel_key)]
        numbers = [number for number in found if number is not None]
        if len(numbers) == len(found):
            heads, dim, state, groups, kernel = numbers
            return heads // tp * dim * state, (heads * dim + 2 * _groups(groups, tp) * state) // tp * (kernel - 1)
    return None


def _groups(groups: int, tp: int) -> int:
    """Groups after replication: a rank must hold every group its heads need (sglang ``extra_groups_for_head_shards``)."""
    return groups if groups % tp == 0 else tp


def _whole(mapping: Mapping[str, object], key: str) -> int | None:
    value = mapping.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
