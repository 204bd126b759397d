"""Decisive lines, as they stand, with their place."""

from __future__ import annotations

from collections.abc import Sequence

from ..mask import mask
from ..records import Quote
from .lines import Line

MOST = 4
WIDTH = 400


def quotes(lines: Sequence[Line]) -> tuple[Quote, ...]:
    """At most four quotes, in the order given, each line once, secrets masked."""
    seen: set[tuple[str, int]] = set()
    found: list[Quote] = []
    for line in lines:
        key = (line.source, line.number)
        if key in seen or not line.raw.strip():
            continue
        seen.add(key)
        name = f"{line.source}:{line.section}" if line.section else line.source
        found.append(Quote(source=name, line=line.number, text=mask(line.raw.strip())[:WIDTH]))
    return tuple(found[:MOST])
