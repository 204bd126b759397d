"""Failures made for real on a real host, and the doctor over SSH: each is named right, from the kernel's and systemd's own words."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from leadline.doctor import examine

from .doctor_cases import CASES, LabCase, clean, prepare, produce
from .host import Lab


@pytest.fixture(scope="module")
def guest(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    patch = pytest.MonkeyPatch()
    patch.setenv("LEADLINE_SSH", " ".join(lab.ssh))
    ssh = (*lab.ssh, "-o", f"ControlPath={tmp_path_factory.mktemp('ssh')}/s", "-l", "root", "lab")
    nowhere = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run([*ssh[:-1], "-M", "-N", "-f", "lab"], check=True, **nowhere)
    prepare(ssh)
    yield ssh
    subprocess.run([*ssh[:-1], "-O", "exit", "lab"], check=False, **nowhere)
    patch.undo()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_real_failure_is_named(guest: tuple[str, ...], case: LabCase) -> None:
    unit = produce(guest, case)
    try:
        findings = examine(f"ssh://root@lab/{unit}")
    finally:
        clean(guest, unit)
    assert findings[0].cls == case.cls, findings[0]
    if case.cls == "memory.host_oom_kill":
        assert any(quote.source == "kernel" and unit in quote.text for quote in findings[0].quotes), "the victim's cgroup is the proof"
