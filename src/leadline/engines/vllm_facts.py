"""What vLLM's releases accept and how they differ, as data.

Read in the sources of vllm 0.20.2, 0.25.1, 0.32.0 and 0.33.0: ``engine/arg_utils.py``, ``config/speculative.py``, ``config/vllm.py``,
``utils/argparse_utils.py``, ``v1/core/kv_cache_utils.py``, ``v1/spec_decode/metrics.py``, ``v1/metrics/loggers.py``.
"""

from __future__ import annotations

from .arguments import Flag

OLDEST = "0.20.0"
NEWEST_READ = "0.33.0"

CONFIG = Flag(names=("--speculative-config", "-sc"), underscores=True)
METHOD = Flag(names=("--spec-method",), underscores=True)
DRAFT = Flag(names=("--spec-model",), underscores=True)
TOKENS = Flag(names=("--spec-tokens",), underscores=True)
SHORT = {"method": METHOD, "model": DRAFT, "num_speculative_tokens": TOKENS}
"""Short flags of some keys of the speculative config; a key may stand in one place only. Absent in 0.20."""
SHORT_READ_FROM = "0.25.1"

MODEL = Flag(names=("--model",))
HOST = Flag(names=("--host",))
PORT = Flag(names=("--port",))
FILE = Flag(names=("--config",))

KNOBS: dict[str, Flag] = {
    "max_running_requests": Flag(names=("--max-num-seqs",), underscores=True),
    "max_num_batched_tokens": Flag(names=("--max-num-batched-tokens",), underscores=True),
    "gpu_memory_utilization": Flag(names=("--gpu-memory-utilization",), underscores=True),
    "kv_cache_memory": Flag(names=("--kv-cache-memory-bytes", "--kv-cache-memory"), underscores=True),
    "num_gpu_blocks_override": Flag(names=("--num-gpu-blocks-override",), underscores=True),
    "max_model_len": Flag(names=("--max-model-len",), underscores=True),
    "block_size": Flag(names=("--block-size",), underscores=True),
    "kv_cache_dtype": Flag(names=("--kv-cache-dtype",), underscores=True),
    "mamba_cache_mode": Flag(names=("--mamba-cache-mode",), underscores=True),
    "tp_size": Flag(names=("--tensor-parallel-size", "-tp"), underscores=True),
    "pp_size": Flag(names=("--pipeline-parallel-size", "-pp"), underscores=True),
    "dp_size": Flag(names=("--data-parallel-size", "-dp"), underscores=True),
    "performance_mode": Flag(names=("--performance-mode",), underscores=True),
    "served_model_name": Flag(names=("--served-model-name",), underscores=True),
}
"""Knobs with a value, by leadline's name (``max_running_requests`` is ``--max-num-seqs``)."""

SWITCHES: dict[str, Flag] = {
    "enforce_eager": Flag(names=("--enforce-eager",), switch=True, underscores=True),
    "no_async_scheduling": Flag(names=("--no-async-scheduling",), switch=True, underscores=True),
}

SPECULATIVE_KEYS = (
    "prompt_lookup_max",
    "prompt_lookup_min",
    "draft_tensor_parallel_size",
    "num_speculative_tokens_per_batch_size",
    "enable_adaptive_verification",
    "suffix_decoding_max_tree_depth",
    "suffix_decoding_max_spec_factor",
    "suffix_decoding_min_token_prob",
    "parallel_drafting",
    "max_model_len",
    "quantization",
)
"""Keys of the speculative config a candidate may set (as JSON values)."""
SCHEDULE = "num_speculative_tokens_per_batch_size"

DRAFT_FREE = ("ngram", "ngram_gpu", "suffix")
BLOCK = ("dflash", "dspark")
"""Drafts trained for one block length."""
CHAIN = ("mtp", "eagle", "eagle3", "draft_model")
"""Model-based methods whose depth is free. The set of methods is not closed: it differs by release."""
SUFFIX_DEPTH = 24
LOOKAHEAD_PLUS_ONE = ("dflash",)
"""Methods that need one query token more than drafts."""


def canonical(method: str) -> str:
    """The method's present name: every ``*_mtp`` is mtp (a deprecation in all releases read).

    >>> canonical("qwen3_next_mtp")
    'mtp'
    """
    return "mtp" if method.endswith("_mtp") else method.strip("[]")


def inferred(model: str) -> str:
    """The method vLLM takes when only a model is named; refined by the draft's architecture, which a command line does not show.

    >>> inferred("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B")
    'eagle3'
    """
    lower = model.lower()
    if model in ("ngram", "[ngram]"):
        return "ngram"
    for mark, method in (("eagle3", "eagle3"), ("eagle", "eagle"), ("dflash", "dflash"), ("dspark", "dspark"), ("mtp", "mtp")):
        if mark in lower:
            return method
    return "draft_model"


def lookahead(method: str, depth: int) -> int:
    """KV slots a running request needs past its scheduled tokens (``config/vllm.py``, ``num_lookahead_tokens``)."""
    if method in DRAFT_FREE or not depth:
        return 0
    return depth + 1 if method in LOOKAHEAD_PLUS_ONE else depth
