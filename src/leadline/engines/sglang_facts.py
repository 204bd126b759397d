"""What SGLang's releases accept and how they differ, as data.

Read in the sources of the releases 0.5.9, 0.5.10.post1, 0.5.11, 0.5.12.post1, 0.5.13.post1, 0.5.14, 0.5.15.post1 to 0.5.23:
``srt/server_args.py``, from 0.5.14 ``srt/arg_groups/``; memory planning in ``srt/model_executor/model_runner_kv_cache_mixin.py``, from
0.5.16 ``srt/mem_cache/kv_cache_configurator.py``, and ``srt/model_executor/pool_configurator.py``.
"""

from __future__ import annotations

from .arguments import Flag
from .releases import Release, release, since

OLDEST = "0.5.9"
NEWEST_READ = "0.5.23"

ALGORITHM = Flag(names=("--speculative-algorithm", "--speculative-algo"), shortest="--speculative-alg")
STEPS = Flag(names=("--speculative-num-steps",), shortest="--speculative-num-s")
TOPK = Flag(names=("--speculative-eagle-topk",), shortest="--speculative-ea")
DRAFT_TOKENS = Flag(names=("--speculative-num-draft-tokens",), shortest="--speculative-num-d")
DRAFT_PATH = Flag(names=("--speculative-draft-model-path", "--speculative-draft-model"))
DFLASH_BLOCK = Flag(names=("--speculative-dflash-block-size",))
ADAPTIVE = Flag(names=("--speculative-adaptive",), switch=True)
ADAPTIVE_CONFIG = Flag(names=("--speculative-adaptive-config",))
MULTI_LAYER = Flag(names=("--enable-multi-layer-eagle",), switch=True)

MODEL = Flag(names=("--model-path", "--model"))
HOST = Flag(names=("--host",))
PORT = Flag(names=("--port",))
CONFIG = Flag(names=("--config",))

KNOBS: dict[str, Flag] = {
    "topk": TOPK,
    "num_draft_tokens": DRAFT_TOKENS,
    "max_running_requests": Flag(names=("--max-running-requests",), shortest="--max-run"),
    "mem_fraction_static": Flag(names=("--mem-fraction-static",), shortest="--mem"),
    "max_mamba_cache_size": Flag(names=("--max-mamba-cache-size",), shortest="--max-mam"),
    "mamba_full_memory_ratio": Flag(names=("--mamba-full-memory-ratio",), shortest="--mamba-f"),
    "mamba_ssm_dtype": Flag(names=("--mamba-ssm-dtype",), shortest="--mamba-ss"),
    "mamba_scheduler_strategy": Flag(names=("--mamba-scheduler-strategy", "--mamba-radix-cache-strategy")),
    "max_total_tokens": Flag(names=("--max-total-tokens",), shortest="--max-to"),
    "context_length": Flag(names=("--context-length",), shortest="--context-l"),
    "page_size": Flag(names=("--page-size",), shortest="--page-"),
    "swa_full_tokens_ratio": Flag(names=("--swa-full-tokens-ratio",), shortest="--swa-f"),
    "kv_cache_dtype": Flag(names=("--kv-cache-dtype",), shortest="--kv-cache"),
    "chunked_prefill_size": Flag(names=("--chunked-prefill-size",), shortest="--chunked"),
    "cuda_graph_max_bs": Flag(names=("--cuda-graph-max-bs", "--cuda-graph-max-bs-decode")),
    "tp_size": Flag(names=("--tensor-parallel-size", "--tp-size", "--tp")),
    "dp_size": Flag(names=("--data-parallel-size", "--dp-size", "--dp")),
    "pp_size": Flag(names=("--pipeline-parallel-size", "--pp-size", "--pp")),
    "attention_backend": Flag(names=("--attention-backend",), shortest="--attention-b"),
    "attention_mode": Flag(names=("--speculative-attention-mode",), shortest="--speculative-at"),
    "adaptive_config": ADAPTIVE_CONFIG,
    "ngram_min_bfs_breadth": Flag(names=("--speculative-ngram-min-bfs-breadth",)),
    "ngram_max_bfs_breadth": Flag(names=("--speculative-ngram-max-bfs-breadth",)),
    "ngram_match_type": Flag(names=("--speculative-ngram-match-type",)),
    "ngram_capacity": Flag(names=("--speculative-ngram-capacity",)),
    "ngram_max_trie_depth": Flag(names=("--speculative-ngram-max-trie-depth",)),
    "served_model_name": Flag(names=("--served-model-name",)),
}
"""Knobs with a value, by leadline's name."""

SWITCHES: dict[str, Flag] = {
    "speculative_adaptive": ADAPTIVE,
    "enable_multi_layer_eagle": MULTI_LAYER,
    "disable_radix_cache": Flag(names=("--disable-radix-cache",), switch=True),
    "disable_overlap_schedule": Flag(names=("--disable-overlap-schedule",), switch=True),
    "enable_dp_attention": Flag(names=("--enable-dp-attention",), switch=True),
    "enable_linear_replayssm_spec": Flag(names=("--enable-linear-replayssm-spec",), switch=True),
    "enable_metrics": Flag(names=("--enable-metrics",), switch=True),
    "disable_cuda_graph": Flag(names=("--disable-cuda-graph",), switch=True),
}

KNOB_SINCE: dict[str, str] = {
    "speculative_adaptive": "0.5.11",
    "adaptive_config": "0.5.11",
    "ngram_max_trie_depth": "0.5.10",
    "enable_linear_replayssm_spec": "0.5.17",
}

ALGORITHM_SINCE: dict[str, str] = {"DFLASH": "0.5.11", "DSPARK": "0.5.16", "UNO": "0.5.20"}
CHAIN_WITH_STEPS = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
"""Algorithms whose depth is ``num_steps``. Plugins may register more: the set is not closed."""
BLOCK = ("DFLASH", "DSPARK", "UNO")
"""Algorithms trained for one block length: ``num_draft_tokens`` is the block, depth + 1."""
DRAFT_FREE = ("NGRAM",)

NGRAM_DRAFT_TOKENS = 12
"""``num_draft_tokens`` of NGRAM when it is not given (0.5.9: max_match_window_size, also 12)."""
BLOCK_DRAFT_TOKENS = 16
AUTOMATIC_TRIPLE = (3, 1, 4)
"""(num_steps, topk, num_draft_tokens) chosen when num_steps is absent; Llama and Grok targets get (5, 4, 8)."""
AUTOMATIC_TRIPLE_LLAMA = (5, 4, 8)
LLAMA_ARCHITECTURES = ("LlamaForCausalLM", "Grok1ForCausalLM", "Grok1ModelForCausalLM")

MAX_RUNNING_WITH_SPECULATION = 48
"""``max_running_requests`` when it is not given and speculation is on: every release, every algorithm."""
MAMBA_TRACK_INTERVAL = 256
"""Hybrid models assert ``num_draft_tokens`` <= this."""


def canonical(algorithm: str) -> str:
    """The name the server itself reports: NEXTN is rewritten to EAGLE.

    >>> canonical("nextn")
    'EAGLE'
    """
    upper = algorithm.upper()
    return "EAGLE" if upper == "NEXTN" else upper


def regime(version: Release) -> str:
    """How the pools of a hybrid model are sized: ``old``, ``joint`` or ``joint+1`` (``docs/frontier.md``)."""
    return since(version, [("0.0.0", "old"), ("0.5.13", "joint"), ("0.5.17", "joint+1")])


def requested_limit(version: Release) -> str:
    """What bounds a requested max_running_requests besides the state slots: ``none``, ``estimate`` or ``half`` (of the tokens)."""
    return since(version, [("0.0.0", "none"), ("0.5.10", "estimate"), ("0.5.14", "half")])


def draft_in_budget(version: Release) -> bool:
    """Whether draft weights are loaded before the budget is measured and draft layers counted into a token."""
    return version >= release("0.5.14")


def draft_without_path_in_cell(version: Release) -> bool:
    """Whether MTP layers that come with the target (no draft path) are counted into a token."""
    return version >= release("0.5.19")


def state_strategy_auto(version: Release) -> str:
    """What ``auto`` means for ``--mamba-scheduler-strategy``."""
    return since(version, [("0.0.0", "no_buffer"), ("0.5.14", "extra_buffer")])


def rate_counts_bonus(version: Release) -> bool:
    """Whether ``accept rate`` in the log is accept_len / draft_tokens (bonus token counted) instead of accepted / drafted."""
    return version < release("0.5.11")


def histogram_key(version: Release) -> str:
    """Per-request key of the acceptance histogram in ``meta_info``."""
    return since(version, [("0.0.0", "spec_accept_histogram"), ("0.5.12.post1", "spec_correct_drafts_histogram")])


ADAPTIVE_TABLE: list[tuple[str, str]] = [
    ("0.5.11", "[1,3,7]"),
    ("0.5.13", '{"1":[1,3,7],"8":[1,3],"32":[1]}'),
    ("0.5.14", '{"1":[1,3,7],"8":[0,1,3],"32":[0,1],"64":[0]}'),
    ("0.5.20", '{"1":[1,3,5,7],"8":[0,1,3],"32":[0,1],"64":[0]}'),
]
"""The engine's own table of candidate steps by batch size, by release."""

LOG_MARKS: list[tuple[str, str, str]] = [
    ("speculative_ngram_branch_length", "", "0.5.10"),
    ("speculative_adaptive=", "0.5.11", ""),
    ("'speculative_adaptive'", "0.5.11", ""),
    ("speculative_draft_window_size", "0.5.12", ""),
    ("KV Cache is allocated. #tokens", "", "0.5.13"),
    ("KV Cache is allocated. dtype:", "0.5.13", ""),
    ("Capture target verify CUDA graph begin", "0.5.14", ""),
    ("mamba_radix_cache_strategy", "0.5.14", ""),
    ("max_running_requests is capped to", "0.5.17", ""),
    ("Init torch distributed ends", "", "0.5.21"),
    ("Memory baseline taken", "0.5.21", ""),
]
"""Texts of a log that tell its release: (text, first release that prints it, first release that no longer does)."""

ERAS = ("0.5.9", "0.5.10", "0.5.11", "0.5.13", "0.5.14", "0.5.17", "0.5.19")
"""First release of every set of planning rules."""


def eras(log: str) -> tuple[str, ...]:
    """The sets of rules (by first release) that a log of unknown release may have been printed under."""
    low = max((release(first) for mark, first, _ in LOG_MARKS if first and mark in log), default=release("0.0.0"))
    high = min((release(before) for mark, _, before in LOG_MARKS if before and mark in log), default=release("99.0.0"))
    kept = []
    for i, first in enumerate(ERAS):
        end = release(ERAS[i + 1]) if i + 1 < len(ERAS) else release("99.0.0")
        if release(first) < high and end > low:
            kept.append(first)
    return tuple(kept) or ERAS
