"""Reading the Prometheus text format: series by name and labels, nothing interpreted.

Format: prometheus.io "text-based format", version 0.0.4.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..records import Record
from . import Underway

_SERIES = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')


RANKS = ("moe_ep_rank", "pp_rank", "priority", "tp_rank")
"""Labels whose values tell of the same requests once more: ranks that work on one batch, a queue's share beside its total."""


class Series(Record, frozen=True):
    """One sample."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float

    def label(self, name: str) -> str | None:
        return dict(self.labels).get(name)


class Metrics(Record, frozen=True):
    """A scrape."""

    series: tuple[Series, ...]

    def named(self, name: str) -> tuple[Series, ...]:
        return tuple(s for s in self.series if s.name == name)

    def total(self, name: str) -> float:
        """Sum over all label sets (data-parallel engines, ranks); 0 where the series is absent."""
        return sum(s.value for s in self.named(name))

    def by(self, name: str, label: str) -> Mapping[str, float]:
        """Sums by one label."""
        sums: dict[str, float] = {}
        for s in self.named(name):
            key = s.label(label)
            if key is not None:
                sums[key] = sums.get(key, 0.0) + s.value
        return sums


def counters(text: str) -> Metrics:
    """Parse a scrape; lines that are no samples are skipped."""
    found: list[Series] = []
    for line in text.splitlines():
        match = None if line.startswith("#") else _SERIES.match(line)
        if match is None:
            continue
        name, labels, value = match.groups()
        try:
            number = float(value)
        except ValueError:
            continue
        pairs = tuple((k, v.replace('\\"', '"').replace("\\\\", "\\")) for k, v in _LABEL.findall(labels or ""))
        found.append(Series(name=name, labels=pairs, value=number))
    return Metrics(series=tuple(found))


def underway(text: str, running: str, waiting: str) -> Underway | None:
    """Requests in hand by two gauges, ranks of one batch counted once and data-parallel engines added; ``None`` without the first gauge.

    >>> underway('r{tp_rank="0"} 3\\nr{tp_rank="1"} 3\\nw{tp_rank="0"} 1', "r", "w")
    Underway(running=3.0, waiting=1.0)
    """
    metrics = counters(text)
    if not metrics.named(running):
        return None
    return Underway(running=_once(metrics, running), waiting=_once(metrics, waiting))


def _once(metrics: Metrics, name: str) -> float:
    groups: dict[tuple[tuple[str, str], ...], float] = {}
    for s in metrics.named(name):
        key = tuple(pair for pair in s.labels if pair[0] not in RANKS)
        groups[key] = max(groups.get(key, 0.0), s.value)
    return sum(groups.values())
