"""Acceptance that is declared instead of measured: test switches that make an engine pretend how many drafts were right.

Such a server does the real work of every round, but how many tokens a round yields is a constant somebody chose, and its
text is not the model's.  The switch of SGLang is an environment variable, so it stands neither in the command nor in ``/server_info``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

FACT = "declared_acceptance"
"""Name under which a running server's switch stands in ``Reported.facts``."""
_VARIABLES = ("SGLANG_SIMULATE_ACC_LEN", "SIMULATE_ACC_LEN")  # the second before 0.5.4
_VLLM = ("rejection_sample_method", "synthetic")


def declared_acceptance(environment: Mapping[str, str], argv: Sequence[str]) -> str:
    """What makes the server pretend, as it is written there; empty when nothing does.

    >>> declared_acceptance({"SGLANG_SIMULATE_ACC_LEN": "6.29"}, ())
    'SGLANG_SIMULATE_ACC_LEN=6.29'
    """
    for name in _VARIABLES:
        value = environment.get(name, "")
        if _positive(value):
            return f"{name}={value}"
    synthetic = next((word for word in argv if all(part in word for part in _VLLM)), "")
    return synthetic[:200]


def environment(block: bytes) -> dict[str, str]:
    """A process's environment as the kernel shows it (proc_pid_environ(5): entries end in NUL)."""
    pairs = (entry.decode("utf-8", "replace").partition("=") for entry in block.split(b"\0") if b"=" in entry)
    return {name: value for name, _, value in pairs}


def _positive(text: str) -> bool:
    try:
        return float(text) > 0
    except ValueError:
        return False
