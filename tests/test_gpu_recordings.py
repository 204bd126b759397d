"""What leadline recorded itself on a GPU: predicted capacity against printed capacity, and a start that died for a missing part."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from leadline.diagnose import diagnose
from leadline.engines import recognise
from leadline.frontier import predict_frontier
from leadline.records import OFF, Candidate, Evidence, Exit, FrontierRow, Source

DATA = Path(__file__).parent / "data" / "recordings"
CONFIG = json.loads((DATA / "sglang-0.5.12.post1-h200" / "config.json").read_text())


def candidate(steps: int, running: int | None = None) -> Candidate:
    settings = (("max_running_requests", str(running)),) if running else ()
    return Candidate(algorithm="NEXTN" if steps else OFF, depth=steps, settings=settings)


def predicted(boot: Path, version: str, *wanted: Candidate) -> tuple[FrontierRow, ...]:
    """Rows for ``wanted`` from one boot's command and log."""
    _, parsed = recognise((boot / "cmd.txt").read_text().split())
    log = (boot / "server.log").read_text()
    return predict_frontier("sglang", version, parsed, log=log, model_config=CONFIG, depths=(), candidates=wanted)


def printed(boot: Path) -> tuple[int, int]:
    told = json.loads((boot / "reported.json").read_text())
    return told["max_running_requests"], told["max_total_num_tokens"]


@pytest.mark.parametrize(("folder", "steps"), [("k0", 0), ("k10", 10)])
def test_the_joint_formula_is_exact_from_another_boot(folder: str, steps: int) -> None:
    joint = DATA / "sglang-0.5.13.post1-h200"
    (row,) = predicted(joint / "k3", "0.5.13.post1", candidate(steps))
    assert row.starts is True
    assert (row.capacity.max_running_requests, row.capacity.max_total_num_tokens) == printed(joint / folder)


@pytest.mark.parametrize(("steps", "running"), [(2, 37), (3, 34), (4, 32), (5, 30), (6, 28), (7, 27), (8, 25), (9, 24), (10, 23)])
def test_pinned_limits_hold_what_was_predicted(steps: int, running: int) -> None:
    (row,) = predicted(DATA / "sglang-0.5.12.post1-h200" / "k1", "0.5.12.post1", candidate(steps, running))
    found = (row.capacity.max_running_requests, row.capacity.max_total_num_tokens)
    assert found == printed(DATA / "sglang-0.5.12.post1-h200-pinned" / f"k{steps}-M{running}")
    assert row.exact


def test_a_start_without_a_compiled_part_is_a_dependency_not_memory() -> None:
    log = (DATA / "vllm-0.22.1-h200" / "no-flash-attention" / "server.log").read_text()
    evidence = Evidence(sources=(Source(name="log", text=log),), engine="vllm", exit=Exit(code=1))
    finding = diagnose(evidence)[0]
    assert finding.failure
    assert not finding.cls.startswith("memory")
    assert any("vllm_flash_attn" in quote.text for quote in finding.quotes)
