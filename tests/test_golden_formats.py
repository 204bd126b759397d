"""Formats of nine SGLang and four vLLM releases: what each prints is read the same way, and gives the same frontier."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leadline import frontier
from leadline.engines import sglang_facts, vllm_log
from leadline.engines.releases import release
from leadline.engines.sglang import SGLang
from leadline.engines.sglang_log import decodes, last_boot
from leadline.engines.vllm import VLLM, cache, from_counters
from leadline.inspection import Texts, inspect
from leadline.records import Candidate, Reported

DATA = Path(__file__).parent / "data"
CONFIG = json.loads((DATA / "recordings/sglang-0.5.12.post1-h200/config.json").read_text())
SGLANG = sorted(path.name.removesuffix(".log") for path in (DATA / "sglang").glob("*.log"))
VLLM_RELEASES = sorted(path.name.removesuffix(".log") for path in (DATA / "vllm").glob("*.log"))


def sample(engine: str, version: str) -> tuple[str, dict[str, object]]:
    return (DATA / engine / f"{version}.log").read_text(), json.loads((DATA / engine / f"{version}.expected.json").read_text())


def test_enough_releases_are_held() -> None:
    assert len(SGLANG) >= 8
    assert len(VLLM_RELEASES) >= 4


@pytest.mark.parametrize("version", SGLANG)
def test_sglang_boot_lines(version: str) -> None:
    log, want = sample("sglang", version)
    boot = last_boot(log)
    assert boot.state is not None
    assert (boot.tokens, boot.running, boot.context) == (want["max_total_num_tokens"], want["max_running_requests"], want["context_tokens"])
    assert boot.state.slots == want["state_slots"]
    assert boot.argument("speculative_num_draft_tokens") == str(int(str(want["depth"])) + 1)
    assert boot.argument("speculative_draft_model_path") is None
    assert boot.ready
    assert boot.pool_error == ""
    assert boot.free_before_bytes == round(139.11 * (1 << 30))
    drafted_first = release(version) >= release("0.5.14")
    assert boot.draft_loaded_first is drafted_first
    assert boot.verify_tokens == (int(str(want["depth"])) + 1 if drafted_first else None)
    assert abs(boot.pools[0].size_bytes / boot.pools[0].tokens / 24576 - 1) < 0.002
    capacity = SGLang().capacity(Reported(engine="sglang"), log)
    assert (capacity.max_total_num_tokens, capacity.state_slots) == (want["max_total_num_tokens"], want["state_slots"])
    same = Candidate(algorithm="NEXTN", depth=int(str(want["depth"])))
    assert SGLang().mismatch(same, Reported(engine="sglang"), log) == ""
    assert SGLang().mismatch(Candidate(algorithm="NEXTN", depth=9), Reported(engine="sglang"), log) != ""


@pytest.mark.parametrize("version", SGLANG)
def test_the_log_narrows_the_release(version: str) -> None:
    log, _ = sample("sglang", version)
    kept = sglang_facts.eras(log)
    mine = max((era for era in sglang_facts.ERAS if release(era) <= release(version)), key=release)
    assert mine in kept
    assert len(kept) < len(sglang_facts.ERAS)


@pytest.mark.parametrize("version", SGLANG)
def test_sglang_decode_lines(version: str) -> None:
    log, want = sample("sglang", version)
    (line,) = decodes(log)
    assert (line.running, line.queued, line.tok_s, line.cuda_graph, line.after_prefill) == (4, 3, 400.0, True, True)
    assert (line.accept_length, line.accept_rate) == (want["accept_length"], want["accept_rate_printed"])
    depth = int(str(want["depth"]))
    assert line.accept_length is not None
    told = line.accept_length / (depth + 1) if sglang_facts.rate_counts_bonus(release(version)) else (line.accept_length - 1) / depth
    assert line.accept_rate == pytest.approx(told, abs=0.006)


@pytest.mark.parametrize("version", SGLANG)
@pytest.mark.parametrize("known", [True, False])
def test_sglang_frontier_from_one_boot(version: str, known: bool) -> None:
    """With the release named every depth is exact (to one token where a token grew by a draft layer); without it the log still never gives a wrong exact figure."""
    log, want = sample("sglang", version)
    found = inspect(Texts(log=log, model_config=CONFIG, version=version if known else None), (0, 1, 2, 3, 5, 8, 10))
    table = {row.candidate.depth: row for row in found.rows}
    predicted = want["frontier"]
    assert isinstance(predicted, dict)
    for depth, figures in predicted.items():
        row = table[int(depth)]
        if not known and not row.exact:
            continue
        assert row.exact or "to within 1 token" in row.reason, row.reason
        assert row.starts is (figures is not None)
        if figures is not None:
            tokens = row.capacity.max_total_num_tokens
            assert row.capacity.max_running_requests == figures[0]
            assert tokens in ((figures[1],) if row.exact else (figures[1], figures[1] - 1))


def test_nothing_in_a_log_leaves_every_release_open() -> None:
    assert sglang_facts.eras("") == sglang_facts.ERAS
    assert sglang_facts.eras("KV Cache is allocated. #tokens: 1, Memory baseline taken") == sglang_facts.ERAS  # two releases in one text


@pytest.mark.parametrize("version", VLLM_RELEASES)
def test_vllm_lines_and_metrics(version: str) -> None:
    log, want = sample("vllm", version)
    metrics = (DATA / "vllm" / f"{version}.metrics").read_text()
    boot = vllm_log.last_boot(log)
    assert (boot.version, boot.method, boot.depth) == (version, want["method"], want["depth"])
    assert (boot.tokens, boot.length) == (want["max_total_num_tokens"], want["context_tokens"])
    assert boot.available_bytes == round(49.25 * (1 << 30))
    assert boot.ready
    assert boot.error == ""
    pool = cache(metrics)
    assert (pool.depth, pool.blocks, pool.block_tokens) == (want["depth"], want["blocks"], 16)
    assert pool.tokens == (want["max_total_num_tokens"] if release(version) >= release("0.25") else None)
    got = from_counters("", metrics)
    assert got is not None
    assert (got.rounds, list(got.per_position)) == (want["rounds"], want["per_position"])
    (period,) = vllm_log.periods(log)
    assert period.length == want["accept_length"]
    assert [round(share * 1000) for share in period.shares] == want["per_position"]
    capacity = VLLM().capacity(Reported(engine="vllm"), log)
    assert (capacity.max_total_num_tokens, capacity.max_running_requests) == (want["max_total_num_tokens"], want["max_running_requests"])
    same = Candidate(algorithm=str(want["method"]), depth=int(str(want["depth"])))
    assert VLLM().mismatch(same, VLLM().reported(_parsed(log), {"/metrics": metrics}), log) == ""
    rows = frontier.predict_frontier("vllm", version, _parsed(log), log=log, metrics=metrics, depths=(int(str(want["depth"])), 8))
    assert all(row.capacity.max_total_num_tokens == want["max_total_num_tokens"] for row in rows)


def _parsed(log: str):  # type: ignore[no-untyped-def]
    boot = vllm_log.last_boot(log)
    config = json.dumps({"method": boot.method, "num_speculative_tokens": boot.depth, "model": "/d"})
    found = VLLM().parse(("vllm", "serve", "/models/m", "--max-num-seqs", "128", "--speculative-config", config))
    assert found is not None
    return found
