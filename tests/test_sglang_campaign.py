"""A whole campaign on a process that behaves like SGLang on the H200: the published failure is predicted, seen and turned around."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from leadline import sockets
from leadline.target import free_port

TESTS = Path(__file__).parent
DECLARED = TESTS.parent / "tools" / "gpu" / "declared.sh"

DRIVER = """#!/bin/sh
case "$*" in
*memory.used*) echo 0 ;;
*name,memory.total*) echo "NVIDIA H200, 143771 MiB, 580.159.04" ;;
esac
"""
"""What the driver's tool said on that host, with nothing in use."""


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The report of ``leadline tune`` on a server as found at 3 steps, with depth 10 asked for although it cannot start."""
    home = tmp_path_factory.mktemp("home")
    model = home / "q3n"
    model.mkdir()
    (model / "config.json").write_text((TESTS / "data/recordings/sglang-0.5.12.post1-h200/config.json").read_text())
    settings = home / "leadline.toml"
    settings.write_text(
        '[tune]\nalgorithms = ["NEXTN"]\nask = ["NEXTN 10"]\nmax_launches = 4\n'
        '[measure]\nconcurrency = [1, 32]\nworkloads = ["chat"]\nmax_tokens = 24\nprompts = 2\nexplore_blocks = 1\nconfirm_blocks = 1\n'
    )
    port = free_port()
    server = ["--model-path", str(model), "--host", "127.0.0.1", "--port", str(port), "--mem-fraction-static", "0.55"]
    server += ["--mamba-scheduler-strategy", "extra_buffer", "--decode-log-interval", "4", "--speculative-algorithm", "NEXTN"]
    server += ["--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"]
    wrapped = [f"process:{DECLARED}", "0.88", sys.executable, "-m", "sglang.launch_server", *server]
    path = os.pathsep.join([*sys.path, str(TESTS / "stand_in")])
    driver = home / "bin" / "nvidia-smi"
    driver.parent.mkdir()
    driver.write_text(DRIVER)
    driver.chmod(0o755)
    programs = f"{driver.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": programs, "LEADLINE_HOME": str(home / "state"), "PYTHONPATH": path, "STAND_IN_SPEED": "40"}
    command = [sys.executable, "-m", "leadline", "tune", "--yes", "--json", "--config", str(settings), *wrapped]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    report: dict[str, Any] = json.loads(done.stdout)
    report["port"], report["mark"] = port, str(model)
    return report


def trials(campaign: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = campaign["trials"]
    return found


def test_the_deepest_is_launched_with_the_limit_that_makes_it_start(campaign: dict[str, Any]) -> None:
    labels = [label(trial) for trial in trials(campaign)]
    assert labels == ["NEXTN 3", "off", "NEXTN 10", "NEXTN 10 max_running_requests=23"]


def test_the_frontier_comes_from_the_first_boot_and_is_exact(campaign: dict[str, Any]) -> None:
    rows = {(row["candidate"]["depth"], bool(row["candidate"]["settings"])): row for row in campaign["frontier"]}
    assert [rows[k, False]["capacity"]["max_total_num_tokens"] for k in (1, 2, 3, 5, 8)] == [672421, 593821, 515221, 354877, 115933]
    assert rows[10, False]["starts"] is False
    assert rows[10, True]["capacity"]["max_running_requests"] == 23
    assert all(row["exact"] for row in campaign["frontier"])


def test_the_server_holds_what_was_predicted(campaign: dict[str, Any]) -> None:
    deepest = next(trial for trial in trials(campaign) if label(trial) == "NEXTN 10 max_running_requests=23")
    predicted = next(row for row in campaign["frontier"] if row["candidate"] == deepest["candidate"])["capacity"]
    assert deepest["max_running_requests"] == predicted["max_running_requests"] == 23
    assert deepest["max_total_num_tokens"] == predicted["max_total_num_tokens"] == 414_613


def test_the_asked_failure_is_a_finding_with_the_right_cause(campaign: dict[str, Any]) -> None:
    failed = next(one for one in campaign["failed"] if one["label"] == "NEXTN 10")
    finding = failed["findings"][0]
    assert finding["cls"] == "memory.kv_pool_too_small"
    assert "--max-running-requests" in finding["remedy"]


def test_declared_acceptance_is_said(campaign: dict[str, Any]) -> None:
    assert any("simulated" in warning or "declared" in warning for warning in campaign["warnings"])


def test_every_best_point_is_held_against_the_memorys_limit(campaign: dict[str, Any]) -> None:
    read = [text for text in campaign["readings"] if "reading its bytes" in text]
    assert len(read) == len(campaign["points"])
    assert not any("memory's limit" in text for text in campaign["not_shown"])


def test_nothing_is_left_running(campaign: dict[str, Any]) -> None:
    assert sockets.listeners(campaign["port"]) == ()
    running = [p.info["cmdline"] for p in psutil.process_iter(["cmdline"]) if campaign["mark"] in (p.info["cmdline"] or ())]
    assert running == []


def label(trial: dict[str, Any]) -> str:
    found: str = trial["label"]
    return found
