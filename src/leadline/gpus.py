"""GPU memory of the service's host, through the driver's own tool. A host without it has no GPUs as far as we are concerned."""

from __future__ import annotations

from collections.abc import Sequence

from .target import Target

SLACK_BYTES = 1 << 30
"""Growth below this is no server: contexts of monitoring tools, the driver's own bookkeeping."""
_MIB = 1 << 20


def used_bytes(target: Target, visible: str = "") -> tuple[int, ...]:
    """Memory in use on every GPU, in the driver's order; empty where there is no GPU to ask for.

    ``visible`` is a ``CUDA_VISIBLE_DEVICES``: of several GPUs only those the service may use count.
    """
    only = ["-i", visible] if visible else []
    said = target.run(["nvidia-smi", *only, "--query-gpu=memory.used", "--format=csv,noheader,nounits"])
    if said.status != 0:
        return ()
    return tuple(int(line) * _MIB for line in said.text.split() if line.isdigit())


def grown(before: Sequence[int], now: Sequence[int]) -> str:
    """Which GPUs hold clearly more than before, in words; empty for none.

    >>> grown((0, 0), (0, 5 << 30))
    'GPU 1: 5.0 GiB more than before the first launch'
    """
    pairs = enumerate(zip(before, now, strict=True))
    return "; ".join(
        f"GPU {index}: {(late - early) / (1 << 30):.1f} GiB more than before the first launch"
        for index, (early, late) in pairs
        if late - early > SLACK_BYTES
    )


def holders(target: Target) -> str:
    """Who holds GPU memory, as the driver tells."""
    said = target.run(["nvidia-smi", "--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader"])
    lines = [line.strip() for line in said.text.splitlines() if line.strip()] if said.status == 0 else []
    return "; ".join(lines) or "the driver names no process"
