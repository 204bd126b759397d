"""The frontier before launching: the H200 recordings, the published campaign, every regime, and what must always hold."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from leadline import frontier
from leadline.engines import Parsed, recognise
from leadline.frontier import sglang, sglang_pools
from leadline.frontier.sglang_pools import Budget, Observed, Service, budgets, plan
from leadline.frontier.shapes import shape
from leadline.records import Candidate, FrontierRow

RECORDED = Path(__file__).parent / "data/recordings/sglang-0.5.12.post1-h200"
GIB = 1 << 30
OFF = Candidate(algorithm="off", depth=0)


def text(case: str, name: str = "server.log") -> str:
    return (RECORDED / case / name).read_text()


def command(case: str) -> Parsed:
    return recognise(shlex.split(text(case, "cmd.txt")))[1]


CONFIG: dict[str, object] = json.loads((RECORDED / "config.json").read_text())


def rows(
    case: str, version: str | None = "0.5.12.post1", config: dict[str, object] | None = CONFIG, **more: object
) -> dict[str, FrontierRow]:
    found = frontier.predict_frontier("sglang", version, command(case), log=text(case), model_config=config, **more)  # type: ignore[arg-type]
    return {row.candidate.label: row for row in found}


def figures(row: FrontierRow) -> tuple[int | None, int | None]:
    return row.capacity.max_running_requests, row.capacity.max_total_num_tokens


# -- one H200 --------------------------------------------------------------------------------------------------------------------

RECORDED_CAPACITY = {0: (47, 832765), 1: (38, 672421), 2: (33, 593821), 3: (29, 515221), 5: (20, 354877), 8: (6, 115933)}
PINNED_20 = Candidate(algorithm="NEXTN", depth=10, settings=(("max_running_requests", "20"),))


def label(depth: int) -> str:
    return f"NEXTN {depth}" if depth else "off"


@pytest.mark.parametrize("case", ["k1", "k2", "k3", "k5", "k0"])
def test_one_boot_predicts_every_recorded_depth_to_the_token(case: str) -> None:
    found = rows(case, candidates=[PINNED_20])
    for depth, capacity in RECORDED_CAPACITY.items():
        row = found[label(depth)]
        assert (figures(row), row.starts, row.exact) == (capacity, True, True)
    assert figures(found[PINNED_20.label]) == (20, 468061)
    assert found[PINNED_20.label].exact


@pytest.mark.parametrize("case", ["k1", "k0"])
def test_the_depth_that_died_is_predicted_with_its_reason_and_its_remedy(case: str) -> None:
    row = rows(case)[label(10)]
    assert row.starts is False
    assert row.exact
    assert figures(row) == (None, None)
    assert "48 x 11 x 73.7 MiB = 38.0 GiB" in row.reason
    assert "36.1 GiB" in row.reason
    assert row.feasible_as == Candidate(algorithm="NEXTN", depth=10, settings=(("max_running_requests", "23"),))
    assert "--max-running-requests 23 starts it: 23 running requests and 414,613 tokens" in row.remedy


def test_the_inverse_is_the_best_limit_at_every_depth() -> None:
    inputs = sglang.gather("0.5.12.post1", command("k1"), text("k1"), None, CONFIG)
    found = sglang.readings(inputs)
    best = {depth: sglang.pinned(found, depth + 1, 48) for depth in (1, 2, 3, 5, 8, 10)}
    assert {depth: got[0] for depth, got in best.items() if got} == {1: 39, 2: 37, 3: 34, 5: 30, 8: 25, 10: 23}
    five = best[5]
    assert five is not None
    assert five[1].plan is not None
    assert (five[1].plan.running, five[1].plan.tokens) == (30, 534085)
    nine = rows("k1")[label(9)]
    assert (nine.starts, figures(nine)) == (True, (2, 37333))
    assert "--max-running-requests 24 runs more" in nine.remedy


def test_what_a_boot_without_speculation_can_and_cannot_tell() -> None:
    old = sglang.gather("0.5.12.post1", command("k0"), text("k0"), None, CONFIG)
    said = " ".join(sglang.statement(old, sglang.readings(old)))
    assert "speculation off" in said
    assert "Known from it: capacity at every depth" in said
    assert "Not known from it: whether draft weights" in said
    told = rows("k0")
    assert "had no draft" in told[label(3)].reason
    assert told["off"].reason == rows("k1")[label(3)].reason == ""
    new = rows("k0", version="0.5.20")  # the same log read as if a release printed it that charges draft weights
    assert new["off"].starts is None or not new["off"].exact or new["NEXTN 3"].exact is False
    joint = sglang.gather("0.5.14", command("k0"), text("k0"), None, CONFIG)
    row = sglang.row(joint, sglang.readings(joint), Candidate(algorithm="NEXTN", depth=3))
    assert (row.starts, row.exact) == (True, False)
    assert "at most" in row.reason
    assert "draft's weights" in row.reason
    assert "upper bounds" in " ".join(sglang.statement(joint, sglang.readings(joint)))


def test_the_log_itself_tells_the_regime() -> None:
    assert {name: figures(row) for name, row in rows("k1", version=None).items()} == {
        name: figures(row) for name, row in rows("k1").items()
    }
    assert all(row.exact for row in rows("k1", version=None).values())
    assert {name: figures(row) for name, row in rows("k0", version=None).items()} == {
        name: figures(row) for name, row in rows("k0").items()
    }
    wrong = rows("k1", version="0.5.17")["NEXTN 3"]
    assert (wrong.starts, figures(wrong)) == (None, (None, None))
    assert "fit no formula" in wrong.reason
    assert "belong to the same service" in wrong.remedy


def test_the_log_of_the_crash_alone_gives_the_remedy() -> None:
    found = rows("k10-crash")
    row = found[label(10)]
    assert (row.starts, row.exact) == (False, False)
    assert row.feasible_as is not None
    assert dict(row.feasible_as.settings)["max_running_requests"] == "23"
    low = found[label(5)]
    assert (low.starts, low.exact) == (True, False)
    running, tokens = figures(low)
    assert running == 20
    assert tokens is not None
    assert 354877 * 0.99 < tokens <= 354877
    assert "rounded" in low.reason


def test_without_the_model_config_the_log_gives_lower_bounds() -> None:
    found = rows("k1", config=None)
    for depth, (running, tokens) in RECORDED_CAPACITY.items():
        row = found[label(depth)]
        assert not row.exact
        got_running, got_tokens = figures(row)
        assert got_running is not None
        assert got_tokens is not None
        assert running - 1 <= got_running <= running
        assert tokens * 0.95 < got_tokens <= tokens
    assert found[label(10)].starts is False
    assert "config.json was not given" in found[label(5)].reason


def test_a_pinned_limit_stays_pinned_on_both_sides() -> None:
    found = rows("k10-M20")
    assert figures(found["off"]) == (20, 832765)
    assert figures(found[label(10)]) == (20, 468061)
    assert found[label(3)].remedy == ""


def test_endpoint_alone_or_nothing_at_all() -> None:
    info = json.loads(text("k1", "get_server_info.json"))
    got = frontier.predict_frontier("sglang", None, command("k1"), server_info=info, model_config=CONFIG, depths=(1, 3))
    assert [figures(row) for row in got] == [(38, 672421), (29, 515221)]
    (nothing,) = frontier.predict_frontier("sglang", None, command("k1"), depths=(3,))
    assert (nothing.starts, nothing.exact) == (None, False)
    assert "config.json" in nothing.remedy
    (no_start,) = frontier.predict_frontier("sglang", None, command("k1"), model_config=CONFIG, depths=(3,))
    assert no_start.starts is None
    assert "max_total_num_tokens=" in no_start.remedy
    (other,) = frontier.predict_frontier("llama.cpp", None, command("k1"), depths=(3,))
    assert "no capacity model for llama.cpp" in other.reason


def test_log_and_endpoint_of_different_starts_are_said() -> None:
    info = json.loads(text("k10-answered-by-an-older-server", "get_server_info.json"))
    inputs = sglang.gather(None, command("k1"), text("k1"), info, CONFIG)
    assert any("115,933" in note for note in inputs.notes)
    assert any("steps" in note for note in inputs.notes)


def test_a_changed_memory_fraction_is_an_estimate() -> None:
    more = Candidate(algorithm="NEXTN", depth=10, settings=(("mem_fraction_static", "0.60"),))
    row = rows("k1", candidates=[more])[more.label]
    assert (row.starts, row.exact) == (True, False)
    assert figures(row)[0] is not None
    less = Candidate(algorithm="NEXTN", depth=5, settings=(("mem_fraction_static", "0.40"),))
    assert rows("k1", candidates=[less])[less.label].starts is False
    blind = frontier.predict_frontier(
        "sglang",
        None,
        command("k1"),
        server_info=json.loads(text("k1", "get_server_info.json")),
        model_config=CONFIG,
        depths=(),
        candidates=[more],
    )
    assert blind[0].starts is None
    assert "memory fraction" in blind[0].reason


# -- the published campaign --------------------------------------------------------------------------------------------------------

PUBLISHED = {"architectures": ["Qwen3_5MoeForConditionalGeneration"]} | {
    "text_config": {
        "num_hidden_layers": 48,
        "full_attention_interval": 4,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_value_heads": 64,
        "linear_num_key_heads": 16,
        "linear_value_head_dim": 128,
        "linear_key_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "max_position_embeddings": 262144,
        "dtype": "bfloat16",
    }
}
TABLE = [(1, 455357, 26), (3, 377207, 21), (4, 295931, 17)]
"""(steps as published, max_total_num_tokens, max_running_requests)."""


def published(depth: int) -> sglang.Inputs:
    """A service as published, calibrated by one of its rows."""
    tokens, running = {k: (t, r) for k, t, r in TABLE}[depth]
    argv = (
        "python3 -m sglang.launch_server --model-path Qwen/Qwen3.5-122B-A10B --tp-size 4 --attention-backend triton "
        "--mamba-scheduler-strategy extra_buffer --speculative-algorithm NEXTN "
        f"--speculative-num-steps {depth} --speculative-eagle-topk 1 --speculative-num-draft-tokens {depth + 1}"
    ).split()
    log = (
        f"server_args=ServerArgs(tp_size=4, max_running_requests=48, speculative_num_draft_tokens={depth + 1}, mem_fraction_static=0.9)\n"
        f"max_total_num_tokens={tokens}, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests={running}, "
        "context_len=262144, available_gpu_mem=9.31 GB\n"
    )
    return sglang.gather("0.5.12.post1", recognise(argv)[1], log, None, PUBLISHED)


def test_the_published_campaign_is_reproduced_to_the_token() -> None:
    inputs = published(4)
    found = sglang.readings(inputs)
    table = {k: sglang.row(inputs, found, Candidate(algorithm="NEXTN", depth=k)) for k in range(1, 11)}
    assert figures(table[2]) == (26, 455357)  # printed under "steps = 1"
    assert figures(table[3]) == (21, 377207)
    assert figures(table[4]) == (17, 295931)
    assert figures(table[1]) == (30, 533507)
    assert [figures(table[k]) for k in (5, 6, 7)] == [(12, 217781), (7, 139631), (3, 61481)]
    assert [table[k].starts for k in (8, 9, 10)] == [False, False, False]
    assert all(row.exact for row in table.values())
    feasible = {k: row.feasible_as for k, row in table.items() if row.feasible_as is not None}
    limits = {k: int(dict(c.settings)["max_running_requests"]) for k, c in feasible.items()}
    assert limits == {1: 33, 2: 30, 3: 28, 4: 26, 5: 25, 6: 23, 7: 22, 8: 21, 9: 20, 10: 19}
    assert "19 running requests and 349,073 tokens (now 17 and 295,931)" in table[10].remedy


def test_the_row_called_one_step_behaves_like_two() -> None:
    inputs = published(4)
    labels = {found.depth: found for found in sglang.check_labels(sglang.readings(inputs), TABLE)}
    assert labels[1].behaves_like == 2
    assert not labels[1].agrees
    assert "off by 1" in labels[1].text
    assert labels[3].agrees
    assert labels[4].agrees
    assert labels[3].text == "depth 3: 377,207 tokens as computed"
    (nonsense,) = sglang.check_labels(sglang.readings(inputs), [(2, 123456, 20)])
    assert nonsense.behaves_like is None
    assert "fit no depth" in nonsense.text


def test_more_rows_narrow_what_one_leaves_open() -> None:
    inputs = published(3)
    found = sglang.readings(inputs)
    assert len(found) == 2  # one row of this table fits two budgets
    narrowed = sglang.narrowed(found, [Observed(draft_tokens=5, asked=None, tokens=295931, running=17)])
    assert len(narrowed) == 1
    assert figures(sglang.row(inputs, narrowed, Candidate(algorithm="NEXTN", depth=5))) == (12, 217781)
    assert sglang.narrowed(found, [Observed(draft_tokens=5, asked=None, tokens=999, running=17)]) == ()


@pytest.mark.parametrize(
    ("regime", "draft_cell", "wanted"),
    [
        ("old", 0, {1: (30, 533507), 2: (26, 455357), 5: (12, 217781), 7: (3, 61481)}),
        ("joint", 0, {1: (28, 696059), 3: (22, 692933), 5: (18, 692933), 10: (12, 705437)}),
        ("joint+1", 1024, {1: (27, 645401), 3: (21, 645401), 6: (15, 656943), 10: (11, 659829)}),
    ],
)
def test_every_regime_by_the_same_budget(regime: str, draft_cell: int, wanted: dict[int, tuple[int, int]]) -> None:
    service = Service(
        regime=regime, limit="half", cell_bytes=12288, draft_cell_bytes=draft_cell, state_bytes=38412288, slots_on=5, slots_off=5
    )
    for depth, (running, tokens) in wanted.items():
        got = plan(service, 16120393728, depth + 1, None)
        assert (got.running, got.tokens, got.fails) == (running, tokens, "")


# -- rules of releases -----------------------------------------------------------------------------------------------------------------

PURE: dict[str, object] = {
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "num_attention_heads": 32,
    "head_dim": 128,
    "hidden_size": 4096,
    "max_position_embeddings": 40960,
    "torch_dtype": "bfloat16",
}


def boot_log(tokens: int, running: int, *, draft_tokens: int | None, state: str = "", extra: str = "") -> str:
    spec = (
        f"speculative_algorithm='EAGLE3', speculative_num_draft_tokens={draft_tokens}"
        if draft_tokens
        else "speculative_algorithm=None, speculative_num_draft_tokens=None"
    )
    return (
        f"[x] server_args=ServerArgs(page_size=1, mem_fraction_static=0.85, {spec}{extra})\n[x] Load weight begin. avail mem=78.50 GB\n"
        f"[x] Load weight end. elapsed=1.0 s, type=T, avail mem=62.00 GB, mem usage=16.50 GB.\n{state}"
        f"[x] max_total_num_tokens={tokens}, chunked_prefill_size=8192, max_running_requests={running}, context_len=40960, available_gpu_mem=9.00 GB\n"
    )


def eagle(*words: str) -> Parsed:
    argv = ("python3", "-m", "sglang.launch_server", "--model-path", "/m", "--speculative-algorithm", "EAGLE3", *words)
    return recognise((*argv, "--speculative-draft-model-path", "/d", "--speculative-num-steps", "3"))[1]


def test_pure_attention_does_not_depend_on_depth() -> None:
    log = boot_log(300_000, 48, draft_tokens=4)
    found = frontier.predict_frontier("sglang", "0.5.12.post1", eagle(), log=log, model_config=PURE, depths=(0, 1, 8))
    assert [figures(row) for row in found] == [(3750, 300_000), (48, 300_000), (48, 300_000)]
    assert all(row.exact for row in found)
    new = frontier.predict_frontier("sglang", "0.5.23", eagle(), log=log, model_config=PURE, depths=(0, 1, 8))
    assert [figures(row) for row in new][1:] == [(48, 300_000)] * 2
    assert new[0].capacity.max_total_num_tokens == 300_000 * 37 // 36  # without the draft's layer in every token
    assert not new[0].exact
    assert "at least" in new[0].reason  # the draft's weights come on top
    ngram = Candidate(algorithm="NGRAM", depth=7)
    (free,) = frontier.predict_frontier("sglang", "0.5.23", eagle(), log=log, model_config=PURE, depths=(), candidates=[ngram])
    assert free.capacity.max_total_num_tokens == 300_000 * 37 // 36
    assert not free.exact


def test_the_log_of_a_trial_is_read_with_the_trials_own_limit() -> None:
    """The command as found has no limit; the start in the log was a trial with 20."""
    found = frontier.predict_frontier(
        "sglang", "0.5.12.post1", command("k1"), log=text("k10-M20"), model_config=CONFIG, depths=(0, 1, 3, 10)
    )
    assert [figures(row) for row in found] == [(47, 832765), (38, 672421), (29, 515221), (None, None)]
    assert all(row.exact for row in found)
    off = frontier.predict_frontier("sglang", "0.5.12.post1", command("k10-M20"), log=text("k0"), model_config=CONFIG, depths=(0, 10))
    assert [figures(row) for row in off] == [(20, 832765), (20, 468061)]


def test_pages_and_a_user_cap() -> None:
    service = Service(regime="old", limit="half", cell_bytes=1000, page_tokens=64, context_tokens=4096)
    got = plan(service, 1_000_000, 4, None)
    assert got.tokens == 960
    (span,) = budgets(service, Observed(draft_tokens=4, asked=None, tokens=960, running=48))
    assert span == Budget(low_bytes=960_000, high_bytes=1_024_000)
    capped = Service(regime="old", limit="half", cell_bytes=1000, max_total_tokens=500, context_tokens=4096)
    (open_span,) = budgets(capped, Observed(draft_tokens=0, asked=None, tokens=500))
    assert not open_span.bounded
    log = boot_log(5000, 48, draft_tokens=4, extra=", max_total_tokens=5000")
    row = frontier.predict_frontier("sglang", "0.5.12.post1", eagle(), log=log, model_config=PURE, depths=(2,))[0]
    assert (figures(row), row.exact) == ((48, 5000), False)
    assert "hides how much memory" in row.reason


@pytest.mark.parametrize(
    ("version", "strategy", "on", "off"),
    [
        ("0.5.9", "extra_buffer", {4}, 5),
        ("0.5.10.post1", "extra_buffer", {4, 5}, 5),
        ("0.5.12.post1", "extra_buffer", {5}, 5),
        ("0.5.12.post1", "auto", {3}, 3),
        ("0.5.14", "auto", {5}, 5),
        ("0.5.20", "extra_buffer_lazy", {4}, 4),
        ("0.5.20", "no_buffer", {3}, 3),
    ],
)
def test_state_slots_a_request_by_release_and_strategy(version: str, strategy: str, on: set[int], off: int) -> None:
    argv = ("python3", "-m", "sglang.launch_server", "--model-path", "/m", "--mamba-scheduler-strategy", strategy)
    inputs = sglang.gather(version, recognise(argv)[1], boot_log(1, 1, draft_tokens=None).replace("max_total", "x"), None, CONFIG)
    found = sglang.readings(inputs)
    assert {reading.service.slots_on for reading in found} == on
    assert {reading.service.slots_off for reading in found} == {off}


def test_refusals_before_any_memory_is_planned() -> None:
    argv = ("python3", "-m", "sglang.launch_server", "--model-path", "/m")
    parsed = recognise(argv)[1]
    row = frontier.predict_frontier("sglang", "0.5.12.post1", parsed, model_config=CONFIG, depths=(3,))[0]
    assert row.starts is False
    assert "--mamba-scheduler-strategy extra_buffer" in row.remedy
    deep = frontier.predict_frontier("sglang", "0.5.20", parsed, model_config=CONFIG, depths=(256,))[0]
    assert (deep.starts, "mamba_track_interval" in deep.reason) == (False, True)
    early = frontier.predict_frontier(
        "sglang", "0.5.9", parsed, model_config=PURE, depths=(), candidates=[Candidate(algorithm="DFLASH", depth=7)]
    )[0]
    assert (early.starts, "begins with release 0.5.11" in early.reason) == (False, True)


def test_a_joint_start_that_failed_prints_its_own_figures() -> None:
    log = (
        "server_args=ServerArgs(mem_fraction_static=0.5, speculative_algorithm='EAGLE', speculative_num_draft_tokens=4)\n"
        "Load weight begin. avail mem=139.00 GB\nLoad weight end. elapsed=1 s, type=T, avail mem=70.60 GB, mem usage=1 GB.\n"
        "RuntimeError: Not enough GPU memory for hybrid (mamba/linear-attention) state cache. Computed max_mamba_cache_size=-2 "
        "(total_rest_memory=0.10 GB, mamba_cache_per_req=73.69 MB). Try: (1) reduce --max-running-requests, ...\n"
    )
    argv = [
        "python3",
        "-m",
        "sglang.launch_server",
        "--model-path",
        "/m",
        "--speculative-algorithm",
        "NEXTN",
        "--speculative-num-steps",
        "3",
    ]
    found = frontier.predict_frontier("sglang", "0.5.17", recognise(argv)[1], log=log, model_config=CONFIG, depths=(0, 3))
    assert found[1].starts is False
    assert "no state slot" in found[1].reason
    assert "--mem-fraction-static" in found[1].remedy
    assert found[1].feasible_as is None


def test_set_ups_that_are_not_modelled_say_so() -> None:
    for extra, word in (
        (", pp_size=2", "pipeline"),
        (", dp_size=2", "data-parallel"),
        (", kv_cache_dtype='fp4_e2m1'", "KV cache"),
        (", enable_linear_replayssm_spec=True", "ring"),
    ):
        log = boot_log(300_000, 48, draft_tokens=4, extra=extra)
        row = frontier.predict_frontier("sglang", "0.5.12.post1", eagle(), log=log, model_config=PURE, depths=(2,))[0]
        assert not row.exact, extra
        assert word in row.reason or row.starts is None
    newer = frontier.predict_frontier(
        "sglang", "0.9.0", eagle(), log=boot_log(300_000, 48, draft_tokens=4), model_config=PURE, depths=(2,)
    )[0]
    assert "newer than the newest read" in newer.reason
    older = frontier.predict_frontier(
        "sglang", "0.4.9", eagle(), log=boot_log(300_000, 48, draft_tokens=4), model_config=PURE, depths=(2,)
    )[0]
    assert "older than the oldest read" in older.reason


def test_explicit_slots_and_no_radix_cache_take_their_own_branches() -> None:
    base = {"regime": "old", "limit": "half", "cell_bytes": 24576, "state_bytes": 77266944, "slots_on": 5, "slots_off": 5}
    fixed = Service(**base, state_slots=100)  # type: ignore[arg-type]
    assert plan(fixed, 36 * GIB, 4, None).slots == 100
    assert plan(fixed, 36 * GIB, 4, None).running == 20
    bare = Service(**base, radix_cache=False)  # type: ignore[arg-type]
    assert plan(bare, 36 * GIB, 4, 30).slots == 30
    assert plan(bare, 36 * GIB, 0, None).slots != 0
    joint = Service(**{**base, "regime": "joint+1"}, state_slots=100)  # type: ignore[arg-type]
    got = plan(joint, 36 * GIB, 4, None)
    assert (got.slots, got.running) == (100, 20)
    assert got.reserved_bytes == 21 * 4 * 77266944
    seen = Observed(draft_tokens=4, asked=None, tokens=got.tokens, running=20, slots=100)
    assert any(span.low_bytes <= 36 * GIB < span.high_bytes for span in budgets(joint, seen))
    replay = Service(**{**base, "regime": "joint+1"}, draft_state=False)  # type: ignore[arg-type]
    assert plan(replay, 36 * GIB, 4, None).reserved_bytes == 0
    workers = Service(**base, workers=2)  # type: ignore[arg-type]
    assert workers.requested(4, None) == 24


# -- shapes ----------------------------------------------------------------------------------------------------------------------------


def test_shapes_of_model_families() -> None:
    qwen = shape(CONFIG)
    assert (qwen.full_layers, qwen.full_token_bytes, qwen.linear_layers, qwen.state_bytes, qwen.draft_layers) == (12, 2048, 36, 77266944, 1)
    big = shape(PUBLISHED, tp=4)
    assert (big.full_layers * big.full_token_bytes, big.state_bytes) == (12288, 38412288)
    half = shape(CONFIG, state_dtype="bfloat16").state_bytes
    assert half < 0.52 * qwen.state_bytes
    deepseek = shape({"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "torch_dtype": "bfloat16"}, tp=8)
    assert (deepseek.full_token_bytes, deepseek.full_layers) == (1152, 61)
    sparse = shape({"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128, "dtype": "bfloat16"})
    assert sparse.full_token_bytes == 1152 + 132
    oss = shape(
        {
            "architectures": ["GptOssForCausalLM"],
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "sliding_window": 128,
        }
    )
    assert (oss.full_layers, oss.sliding_layers, oss.sliding_window) == (2, 2, 128)
    gemma = shape(
        {
            "architectures": ["Gemma3ForCausalLM"],
            "num_hidden_layers": 2,
            "layer_types": ["sliding_attention"] * 2,
            "num_key_value_heads": 1,
            "head_dim": 8,
        }
    )
    assert (gemma.full_layers, gemma.sliding_layers) == (2, 0)  # this architecture gets no pool of its own
    kimi = shape(
        {
            "num_hidden_layers": 4,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "linear_attn_config": {"kda_layers": [1, 2, 3], "num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4},
        }
    )
    assert (kimi.linear_layers, kimi.full_layers) == (3, 1)
    assert kimi.state_bytes == 3 * (32 * 128 * 128 * 4 + 3 * 32 * 128 * 3 * 2)
    nemotron = shape(
        {
            "hybrid_override_pattern": "M-M*",
            "num_key_value_heads": 2,
            "head_dim": 128,
            "mamba_num_heads": 128,
            "mamba_head_dim": 80,
            "ssm_state_size": 128,
            "n_groups": 8,
            "conv_kernel": 4,
        },
        tp=16,
    )
    assert (nemotron.linear_layers, nemotron.full_layers) == (2, 1)
    assert nemotron.state_bytes == 2 * (8 * 80 * 128 * 4 + (128 * 80 + 2 * 16 * 128) // 16 * 3 * 2)
    llama4 = shape(
        {
            "architectures": ["Llama4ForConditionalGeneration"],
            "text_config": {"num_hidden_layers": 8, "num_key_value_heads": 8, "head_dim": 128},
        }
    )
    assert (llama4.full_layers, llama4.sliding_layers) == (2, 6)
    mimo = shape(
        {
            "architectures": ["MiMoV2FlashForCausalLM"],
            "num_hidden_layers": 3,
            "hybrid_layer_pattern": [0, 1, 1],
            "num_key_value_heads": 4,
            "swa_num_key_value_heads": 8,
            "head_dim": 192,
            "v_head_dim": 128,
        }
    )
    assert (mimo.full_token_bytes, mimo.sliding_token_bytes) == (4 * 320 * 2, 8 * 320 * 2)


def test_shapes_say_what_is_missing() -> None:
    assert "the number of layers" in shape({}).missing
    assert "the KV heads and their size" in shape({"num_hidden_layers": 2}).missing
    assert any("dtype" in m for m in shape({**PURE, "torch_dtype": "int3"}).missing)
    assert any("precision" in m for m in shape({**PURE, "quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}).missing)
    assert any("recurrent state" in m for m in shape({**PURE, "layer_types": ["linear_attention"] * 36}).missing)
    assert any("compress_ratios" in m for m in shape({**PURE, "compress_ratios": [4, 128]}).missing)
    assert any("which layers" in m for m in shape({**PURE, "mamba_d_state": 128}).missing)
    assert any("state dtype" in m for m in shape(CONFIG, state_dtype="int4").missing)
    sparse = {"num_hidden_layers": 1, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128}
    assert any("indexer" in m for m in shape(sparse, kv_dtype="fp8_e4m3").missing)
    assert shape({**PURE, "head_dim": None}).full_token_bytes == 8 * 256 * 2
    assert shape(PURE, kv_dtype="fp8_e5m2").full_token_bytes == 8 * 256


def test_a_config_of_another_model_is_not_believed() -> None:
    found = rows("k1", config=PURE)
    assert not found["NEXTN 3"].exact
    assert "does not fit" in found["NEXTN 3"].reason or found["NEXTN 3"].starts is None


def test_sliding_windows_count_with_their_share() -> None:
    config: dict[str, object] = {
        "architectures": ["GptOssForCausalLM"],
        "num_hidden_layers": 24,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "torch_dtype": "bfloat16",
    }
    log = boot_log(400_000, 48, draft_tokens=4)
    row = frontier.predict_frontier("sglang", "0.5.12.post1", eagle(), log=log, model_config=config, depths=(6,))[0]
    assert (figures(row), row.exact) == ((48, 400_000), True)
    newer = frontier.predict_frontier("sglang", "0.5.23", eagle(), log=log, model_config=config, depths=(6,))[0]
    assert not newer.exact
    assert "sliding-window pools" in newer.reason or newer.starts is None
    inputs = sglang.gather("0.5.12.post1", eagle(), log, None, config)
    assert sglang.readings(inputs)[0].service.cell_bytes == 12 * 2048 + 0.8 * 12 * 2048


# -- what must always hold ---------------------------------------------------------------------------------------------------------------

SERVICES = st.builds(
    Service,
    regime=st.sampled_from(["old", "joint", "joint+1"]),
    limit=st.sampled_from(["none", "estimate", "half"]),
    cell_bytes=st.integers(1, 200).map(lambda n: float(n * 1024)),
    draft_cell_bytes=st.sampled_from([0.0, 1024.0]),
    state_bytes=st.one_of(st.just(0), st.integers(1 << 20, 1 << 28)),
    slots_on=st.integers(3, 5),
    slots_off=st.integers(3, 5),
    full_memory_ratio=st.sampled_from([0.5, 0.9, 2.0]),
    page_tokens=st.sampled_from([1, 16, 64]),
    context_tokens=st.sampled_from([4096, 32768, 262144]),
)
BYTES = st.integers(1 << 28, 1 << 38)


@settings(deadline=None, max_examples=250)
@given(service=SERVICES, budget=BYTES, depth=st.integers(1, 30), asked=st.none() | st.integers(1, 300))
def test_deeper_never_runs_more_requests(service: Service, budget: int, depth: int, asked: int | None) -> None:
    shallow, deep = plan(service, budget, depth + 1, asked), plan(service, budget, depth + 2, asked)
    if not service.state_bytes:
        assert (deep.tokens, deep.running) == (shallow.tokens, shallow.running)
        return
    assert shallow.slots is not None
    assert deep.slots is not None
    assert deep.slots <= shallow.slots
    if service.regime == "old":
        assert deep.tokens <= shallow.tokens
        assert deep.fails or not shallow.fails
    if not deep.fails and not shallow.fails and shallow.running < shallow.tokens // 2:
        assert deep.running <= shallow.running


@settings(deadline=None, max_examples=250)
@given(service=SERVICES, budget=BYTES, more=st.integers(1, 1 << 34), depth=st.integers(0, 30), asked=st.none() | st.integers(1, 300))
def test_more_memory_never_holds_less(service: Service, budget: int, more: int, depth: int, asked: int | None) -> None:
    draft_tokens = depth + 1 if depth else 0
    small, large = plan(service, budget, draft_tokens, asked), plan(service, budget + more, draft_tokens, asked)
    assert (large.slots or 0) >= (small.slots or 0)
    # a state slot or running request that just fits takes its bytes from the tokens: at most that much may be lost
    step = service.state_bytes * (1 + draft_tokens) / service.cell(draft_tokens) + service.page_tokens
    assert large.tokens >= small.tokens - step


@settings(deadline=None, max_examples=150)
@given(service=SERVICES, budget=BYTES, depth=st.integers(0, 30))
def test_more_ranks_never_hold_less(service: Service, budget: int, depth: int) -> None:
    """Twice the ranks halve the bytes of a token and of a state; the same budget a GPU then holds at least as much."""
    assume(service.state_bytes % 2 == 0)
    draft_tokens = depth + 1 if depth else 0
    double = Service(
        **{
            **{name: getattr(service, name) for name in service.__struct_fields__},
            "cell_bytes": service.cell_bytes / 2,
            "draft_cell_bytes": service.draft_cell_bytes / 2,
            "state_bytes": service.state_bytes // 2,
        }
    )
    one, two = plan(service, budget, draft_tokens, None), plan(double, budget, draft_tokens, None)
    # whole slots and whole requests, and padding that halves too: a few of each more than twice as many may be set aside
    step = service.state_bytes * (6 + 3 * draft_tokens) / service.cell(draft_tokens) + 2 * service.page_tokens
    assert two.tokens >= 2 * one.tokens - step - 1
    assert (two.slots or 0) >= (one.slots or 0) or (one.slots or 0) < 0


@settings(deadline=None, max_examples=200)
@given(service=SERVICES, budget=BYTES, depth=st.integers(0, 12), asked=st.none() | st.integers(1, 200), printed=st.booleans())
def test_the_inverse_finds_the_budget_that_printed_it(service: Service, budget: int, depth: int, asked: int | None, printed: bool) -> None:
    draft_tokens = depth + 1 if depth else 0
    got = plan(service, budget, draft_tokens, asked)
    assume(not got.fails)
    assume(got.slots is None or got.slots < 20_000)
    seen = Observed(draft_tokens=draft_tokens, asked=asked, tokens=got.tokens, running=got.running, slots=got.slots if printed else None)
    spans = budgets(service, seen)
    assert any(span.low_bytes <= budget < span.high_bytes for span in spans)
    for span in spans:
        assert plan(service, span.low_bytes, draft_tokens, asked).tokens == got.tokens
    rough = sglang_pools.rough_budgets(service, seen, 0.005)
    if printed or not service.state_bytes:
        assert any(span.low_bytes <= budget * 1.01 and budget * 0.99 < span.high_bytes for span in rough) or service.page_tokens > 1


@settings(deadline=None, max_examples=40)
@given(
    depths=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    limit=st.none() | st.integers(1, 200),
    fraction=st.none() | st.integers(30, 95),
)
def test_rows_are_never_negative_and_always_explained(depths: list[int], limit: int | None, fraction: int | None) -> None:
    pins = {"max_running_requests": str(limit)} if limit else {}
    pins |= {"mem_fraction_static": f"0.{fraction}"} if fraction else {}
    asked = [Candidate(algorithm="NEXTN", depth=d, settings=tuple(sorted(pins.items()))) for d in depths if d]
    for row in frontier.predict_frontier(
        "sglang", "0.5.12.post1", command("k1"), log=text("k1"), model_config=CONFIG, depths=depths, candidates=asked
    ):
        for figure in figures(row):
            assert figure is None or figure >= 0
        if row.starts is not True:
            assert row.reason
            assert row.remedy
        if row.feasible_as is not None:
            (again,) = frontier.predict_frontier(
                "sglang", "0.5.12.post1", command("k1"), log=text("k1"), model_config=CONFIG, depths=(), candidates=[row.feasible_as]
            )
            assert again.starts is True
