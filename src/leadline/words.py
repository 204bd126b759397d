"""Figures as people read them: one place for rounding, units and the words around an interval.

Every renderer (terminal, Markdown, HTML, live view) takes its figures from here, so that the same number reads the same everywhere.
"""

from __future__ import annotations

from .records import Candidate, Interval, Level

UNKNOWN = "not known"


def number(value: float, unit: str = "") -> str:
    """A figure with about three significant digits; ``unit`` ``ratio`` keeps two decimals: 1,876 or 23.6 or 1.77."""
    if unit == "ratio":
        return f"{value:.2f}"
    size = abs(value)
    if size >= 99.95 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 9.995 else f"{value:.2f}"


def raw(value: float) -> float:
    """The figure as JSON and page carry it: seven significant digits, whole numbers from a million on as they are (times, token counts)."""
    return value if abs(value) >= 1e6 or value != value else float(f"{value:.7g}")


def with_unit(value: float, unit: str) -> str:
    """``1.77×``, ``296 tok/s``, ``5.1 ms``."""
    if unit == "ratio":
        return f"{number(value, unit)}×"
    return f"{number(value, unit)} {unit}".rstrip()


def span(interval: Interval) -> str:
    """``292–299``, in the digits of :func:`number`."""
    return f"{number(interval.low, interval.unit)}–{number(interval.high, interval.unit)}"


def interval(estimate: Interval | None, unit: bool = False) -> str:
    """``296 (292–299)``, ``1.77× (1.74–1.80)``; a dash where there is nothing."""
    if estimate is None:
        return "-"
    shown = with_unit(estimate.value, estimate.unit) if unit or estimate.unit == "ratio" else number(estimate.value, estimate.unit)
    return f"{shown} ({span(estimate)})"


def reading(ratio: Interval | None) -> str:
    """What a ratio of throughputs says: ``faster``, ``slower``, ``no difference shown`` or ``not measured``."""
    if ratio is None:
        return "not measured"
    if not ratio.excludes_one:
        return "no difference shown"
    return "faster" if ratio.low > 1.0 else "slower"


def duration(seconds: float) -> str:
    """``0.4 s``, ``41 s``, ``2 min 5 s``, ``1 h 12 min``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def count(number_of: int, one: str, many: str) -> str:
    """``1 launch``, ``7 launches``."""
    return f"{number_of:,} {one if number_of == 1 else many}"


def share(value: float) -> str:
    """``88 %``, ``0.4 %``."""
    percent = 100 * value
    return f"{percent:.0f} %" if percent >= 9.95 or percent == 0 else f"{percent:.1f} %"


def beyond_one(ratio: Interval) -> str:
    """A ratio near one as a share: ``2.0 %`` for 1.02."""
    return share(ratio.value - 1.0)


def gibibytes(count: float) -> str:
    """``16.6 GiB``, ``512 MiB``."""
    if count >= 2**30:
        return f"{number(count / 2**30)} GiB"
    return f"{number(count / 2**20)} MiB"


def one_of(names: list[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""


def candidate(point: Candidate) -> str:
    """The candidate in words: ``speculation off``, ``EAGLE 10 with max_running_requests 20``."""
    head = "speculation off" if point.off else f"{point.algorithm} {point.depth}"
    if not point.settings:
        return head
    return f"{head} with {one_of([f'{name} {value}' for name, value in point.settings])}"


def level(at: Level) -> str:
    """The level in words: ``chat, 1 at once``, ``chat, 2.5 a second``."""
    return f"{at.workload}, {at.concurrency} at once" if at.rate_rps is None else f"{at.workload}, {at.rate_rps:g} a second"
