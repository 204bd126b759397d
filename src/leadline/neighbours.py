"""GPUs around a unit: memory that must come free after a stop, and containers that a ``daemon-reload`` could rob of theirs."""

from __future__ import annotations

import time

from . import probes
from .errors import MemoryNotFree, NeighboursAtRisk
from .probes import Shown
from .unithost import UnitHost


class GpuNeighbours:
    """What ``nvidia-smi`` and the container engines of a host say; silent on a host without them."""

    def __init__(self, host: UnitHost) -> None:
        self._host = host
        self._has_gpu: bool | None = None

    def _look(self) -> probes.Gpu:
        if self._has_gpu is False:
            return probes.Gpu()
        text = self._host.run("sh", "-c", probes.GPU, root=True).text
        self._has_gpu = text != probes.NO_GPU
        return probes.parse_gpu(text)

    def pids(self, shown: Shown) -> set[int]:
        """Processes of the unit that hold GPU memory now."""
        group = shown.get("ControlGroup")
        return {pid for pid, text in self._look().apps if group and group in text}

    def wait(self, pids: set[int], limit_s: float) -> None:
        """Until none of ``pids`` holds GPU memory. Raises MemoryNotFree."""
        until = time.monotonic() + limit_s
        while pids:
            held = pids & {pid for pid, _ in self._look().apps}
            if not held:
                return
            if time.monotonic() > until:
                raise MemoryNotFree(what="GPU memory", seconds=limit_s, who="pids " + ", ".join(map(str, sorted(held))))
            time.sleep(0.5)

    def refuse_risk(self, command: str) -> None:
        """Raise NeighboursAtRisk when containers with GPUs run here, other than the one that ``command`` itself starts."""
        names = [name for name in self._look().containers if not self._is_own(name.split()[0], command)]
        if names:
            raise NeighboursAtRisk(
                host=self._host.name,
                who=", ".join(names),
                fix="give those containers their devices with --device=/dev/nvidia… or the cgroupfs driver, stop them, "
                "or set deploy.allow_gpu_neighbours if you accept it",
            )

    @staticmethod
    def _is_own(name: str, command: str) -> bool:
        return f"--name {name} " in command or f"--name={name} " in command
