"""Evidence -> findings: why a server is down, or that it is well. Pure: no I/O, no clock.

The path is the order of the modules: :mod:`lines` takes prefixes off and tells processes apart, :mod:`tracebacks`, :mod:`life`,
:mod:`supervision`, :mod:`kernel` and :mod:`samples` read what is there, :mod:`rules` is the table of what a failure means,
:mod:`verdict` ranks: first cause before consequence, kernel and supervisor before exit codes, a stop request before everything that
follows it, performance only when nothing failed, ``unknown`` when nothing decides.
"""

from __future__ import annotations

from ..records import Evidence, Finding
from .reading import read
from .verdict import rank

__all__ = ["diagnose"]


def diagnose(evidence: Evidence) -> tuple[Finding, ...]:
    """Findings ranked; the first is the verdict. Never empty: ``healthy`` and ``unknown`` are findings too."""
    return rank(read(evidence))
