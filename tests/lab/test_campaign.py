"""The whole of it on a real host over real SSH: inspect, tune with restarts and a crashing depth, restore, apply, restore again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from leadline.config import Deploy
from leadline.errors import HostInUse, LeadlineError
from leadline.journal import Journal
from leadline.ssh import SshTarget
from leadline.systemd import SystemdSupervisor

from .host import Lab

UNIT, PORT = "fake.service", 8200
TARGET = f"ssh://lab/{UNIT}"


@pytest.fixture(scope="module")
def service(lab: Lab) -> Iterator[str]:
    lab.install_engine(UNIT, PORT, "--spec-method draft --spec-depth 2", "--plant deep --speed 0.3 --plant-crash-depth 8")
    yield UNIT
    lab.remove([UNIT])


def run(lab: Lab, home: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "LEADLINE_SSH": " ".join(lab.ssh), "LEADLINE_HOME": str(home), "HOME": str(home)}
    return subprocess.run(
        [sys.executable, "-m", "leadline", *argv], capture_output=True, text=True, env=env, cwd=home, timeout=600, check=False
    )


def leadline(lab: Lab, home: Path, *argv: str) -> str:
    done = run(lab, home, *argv)
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-1000:]
    return done.stdout


def facts(lab: Lab) -> str:
    """What must be equal before and after: the unit's text, its enablement, every file systemd reads, timers."""
    return (
        lab.sh(
            'systemctl cat "$1"; systemctl is-enabled "$1"; systemctl show -p ExecStart --value "$1" | sed "s/ ; ignore.*//"; '
            "systemctl list-timers --all --no-legend | awk '{print $NF}' | sort",
            UNIT,
        )
        + lab.files()
    )


def running(lab: Lab) -> str:
    return lab.sh('tr "\\0" " " <"/proc/$(systemctl show -p MainPID --value "$1")/cmdline"', UNIT)


def test_inspect_touches_nothing(lab: Lab, service: str, tmp_path: Path) -> None:
    before = facts(lab) + lab.sh(
        'systemctl show -p InvocationID,MainPID,NRestarts "$1"; find /etc /run/systemd /run/leadline -newermt "-1 second" 2>/dev/null; true',
        UNIT,
    )
    lab.wait_for_port(PORT)
    seen = json.loads(leadline(lab, tmp_path, "inspect", TARGET, "--observe-traffic", "6s", "--json"))["service"]
    assert (seen["engine"], seen["found"]["depth"], seen["running"]) == ("fake", 2, True)
    assert seen["reported"]["depth"] == 2
    assert seen["round_trip_ms"] > 0
    assert seen["traffic"]["samples"] >= 2
    assert seen["traffic"]["mix"] == [], "nobody uses it"
    after = facts(lab) + lab.sh(
        'systemctl show -p InvocationID,MainPID,NRestarts "$1"; find /etc /run/systemd /run/leadline -newermt "-1 second" 2>/dev/null; true',
        UNIT,
    )
    assert after == before
    assert lab.traces() == ""


def test_a_whole_campaign(lab: Lab, service: str, tmp_path: Path) -> None:
    lab.wait_for_port(PORT)
    before = facts(lab)
    config = tmp_path / "leadline.toml"
    config.write_text(
        "[measure]\nconcurrency = [1, 2]\nmax_tokens = 24\nexplore_blocks = 2\nconfirm_blocks = 2\nmax_blocks = 3\n"
        '[tune]\ndepths = [1, 2, 4, 8]\nask = ["draft 8"]\nmax_launches = 7\n[deploy]\ndeadman_s = 60\nstop_grace_s = 3\n'
    )
    leadline(lab, tmp_path, "tune", TARGET, "--yes", "--quiet", "--json", "--config", str(config))
    (folder,) = (tmp_path / "campaigns").iterdir()
    with Journal(folder, write=False) as book:
        known = book.knowledge
    verdict = known.verdict
    assert verdict is not None
    assert verdict.found.depth == 2
    assert any(trial.failed and trial.candidate.depth == 8 for trial in known.trials), "the crashing depth is a finding, not the end"
    assert known.launches >= 4
    assert "contained in every latency" in " ".join(leadline(lab, tmp_path, "report").split())
    assert facts(lab) == before
    assert lab.traces() == ""
    assert "--spec-depth 2" in running(lab)

    assert "neither a trial nor a setting" in leadline(lab, tmp_path, "restore", TARGET)
    assert facts(lab) == before

    assert verdict.change, "the planted surface is half as fast again at depth 4"
    for _ in range(2):  # applied, taken back, applied again, taken back again
        leadline(lab, tmp_path, "apply", "--yes")
        depth = verdict.overall.depth
        assert f"--spec-depth {depth}" in running(lab)
        assert facts(lab) != before
        assert lab.traces().split() == [f"/etc/systemd/system/{UNIT}.d/zz-leadline.conf"]
        lab.sh("systemctl daemon-reload && systemctl restart fake.service")
        assert f"--spec-depth {depth}" in running(lab), "what was applied stays"
        leadline(lab, tmp_path, "restore", TARGET)
        assert facts(lab) == before
        assert "--spec-depth 2" in running(lab)


def test_bench_and_doctor_of_a_unit(lab: Lab, service: str, tmp_path: Path) -> None:
    lab.wait_for_port(PORT)
    before = facts(lab)
    quick = tmp_path / "leadline.toml"
    quick.write_text("[measure]\nconcurrency = [1]\nmax_tokens = 8\nmax_blocks = 1\n")
    told = json.loads(leadline(lab, tmp_path, "bench", TARGET, "--quiet", "--json", "--config", str(quick)))
    (level,) = told["figures"]
    assert level["requests"] > 0
    assert level["failed"] == []
    assert told["result"]["round_trip_ms"] > 0
    (finding, *_) = json.loads(leadline(lab, tmp_path, "doctor", TARGET, "--json"))["findings"]
    assert finding["class"] == "healthy"
    assert facts(lab) == before
    assert lab.traces() == ""


def test_a_service_that_another_campaign_holds_is_not_touched(lab: Lab, service: str, tmp_path: Path) -> None:
    """The first one holds it from its consent on, before anything is measured; the second one says who, from where and since when."""
    lab.wait_for_port(PORT)
    other = SystemdSupervisor(SshTarget("lab", ssh=lab.ssh), UNIT, target_name=TARGET, settings=Deploy(deadman_s=120))
    other.arm()
    stamp = lab.sh('systemctl show -p InvocationID "$1"', UNIT)
    try:
        for verb in (("tune", TARGET, "--yes", "--quiet"), ("restore", TARGET)):
            said = refused(lab, tmp_path, HostInUse, *verb)
            assert f"pid {os.getpid()}" in said
            assert "since 20" in said
        assert lab.sh('systemctl show -p InvocationID "$1"', UNIT) == stamp
    finally:
        other.restore()
        other.close()
    assert lab.traces() == ""


def refused(lab: Lab, home: Path, error: type[LeadlineError], *argv: str) -> str:
    done = run(lab, home, *argv)
    assert done.returncode == error.exit_code, done.stderr[-4000:]
    return " ".join(done.stderr.split())
