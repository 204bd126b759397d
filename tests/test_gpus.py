"""GPU memory between launches, and servers that pretend their acceptance."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from leadline import gpus
from leadline.config import Deploy
from leadline.engines.declared import declared_acceptance, environment
from leadline.errors import MemoryNotFree
from leadline.process import ProcessSupervisor
from leadline.records import Command
from leadline.target import Completed, LocalTarget

GIB = 1 << 30


class Driver(LocalTarget):
    """A machine whose driver tells the planted figures, one reading after the other; the last one stays."""

    def __init__(self, *readings: str, status: int = 0) -> None:
        self.readings = list(readings)
        self.status = status
        self.asked: list[tuple[str, ...]] = []

    def run(self, argv: Sequence[str], *, timeout_s: float = 30.0, stdin: bytes = b"", root: bool = False) -> Completed:
        self.asked.append(tuple(argv))
        if "--query-compute-apps" in " ".join(argv):
            return Completed(argv=tuple(argv), status=self.status, stdout=b"4711, sglang::scheduler, 81234 MiB\n", stderr=b"")
        text = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        return Completed(argv=tuple(argv), status=self.status, stdout=text.encode(), stderr=b"")


def test_memory_in_use_is_read_for_every_gpu() -> None:
    assert gpus.used_bytes(Driver("4\n81559\n")) == (4 << 20, 81559 << 20)
    only = Driver("7")
    assert gpus.used_bytes(only, "1") == (7 << 20,)
    assert only.asked[0][1:3] == ("-i", "1")
    assert gpus.used_bytes(Driver("No devices were found", status=6)) == ()


def test_growth_names_the_gpu_and_ignores_small_change() -> None:
    assert gpus.grown((GIB, GIB), (GIB + (GIB >> 1), GIB)) == ""
    assert gpus.grown((0, 0), (0, 80 * GIB)) == "GPU 1: 80.0 GiB more than before the first launch"


@pytest.fixture
def service(tmp_path: Path) -> ProcessSupervisor:
    command = Command(argv=(sys.executable, "-c", "import time; time.sleep(60)"))
    return ProcessSupervisor(command, tmp_path, Deploy(free_timeout_s=1.2))


def test_the_next_start_waits_until_the_driver_freed_the_memory(service: ProcessSupervisor) -> None:
    driver = Driver("4", "90000", "90000", "5")
    service.target = driver
    argv = (sys.executable, "-c", "import time; time.sleep(60)")
    service.start(argv)
    service.start(argv)
    assert driver.readings == ["5"]
    service.close()


def test_memory_that_stays_taken_is_an_error_that_names_the_holder(service: ProcessSupervisor) -> None:
    service.target = Driver("4", "90000")
    argv = (sys.executable, "-c", "import time; time.sleep(60)")
    service.start(argv)
    with pytest.raises(MemoryNotFree, match=r"GPU 0: 87\.9 GiB more.*sglang::scheduler"):
        service.start(argv)
    service.close()


def test_a_declared_acceptance_is_found_in_a_real_process(tmp_path: Path) -> None:
    pretending = {**os.environ, "SGLANG_SIMULATE_ACC_LEN": "6.2910"}
    with subprocess.Popen(["sh", "-c", "echo up; read line"], env=pretending, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        seen = environment(LocalTarget().read(f"/proc/{process.pid}/environ"))
        process.kill()
    assert declared_acceptance(seen, ()) == "SGLANG_SIMULATE_ACC_LEN=6.2910"


@pytest.mark.parametrize("value", ["-1", "0", "", "no"])
def test_a_switch_that_is_off_declares_nothing(value: str) -> None:
    assert declared_acceptance({"SGLANG_SIMULATE_ACC_LEN": value}, ("vllm", "serve")) == ""


def test_vllm_declares_in_its_arguments() -> None:
    config = '{"method": "mtp", "rejection_sample_method": "synthetic", "synthetic_acceptance_length": 3.0}'
    assert declared_acceptance({}, ("vllm", "serve", "--speculative-config", config)) == config
