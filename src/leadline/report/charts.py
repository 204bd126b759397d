"""The report's charts as SVG text: drawn once, on the server's side, so that the page needs no library, prints, and opens at once.

Conventions that hold in every chart: a series is told apart by marker shape as well as by colour; every mark that carries a figure is a
focusable group whose ``aria-label`` says the figure in words (the page shows the same words in a tooltip) and whose ``data-value`` is the raw number
of the JSON; axes of amounts start at zero.  Coordinates are in px of the view box.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from markupsafe import Markup, escape

from .. import words
from ..records import Candidate, FrontierRow, Interval, Level, Record
from .cells import Cell
from .document import Document, TrialRow

SHAPES = ("circle", "square", "triangle", "diamond", "wedge", "plus")


class Style(Record, frozen=True):
    """How a series looks: one of six colours and one of six shapes."""

    index: int
    name: str

    @property
    def css(self) -> str:
        return f"s{self.index % len(SHAPES)}"

    @property
    def shape(self) -> str:
        # after six series the shapes turn against the colours, so that no two of the first 36 look alike
        return SHAPES[(self.index + self.index // len(SHAPES)) % len(SHAPES)]


class Frame(Record, frozen=True):
    """A plot's box and its scales."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    x: tuple[float, float]
    y: tuple[float, float]

    def at_x(self, value: float) -> float:
        low, high = self.x
        return round(self.left + (value - low) / (high - low) * (self.width - self.left - self.right), 1)

    def at_y(self, value: float) -> float:
        low, high = self.y
        return round(self.height - self.bottom - (value - low) / (high - low) * (self.height - self.top - self.bottom), 1)


def families(document: Document) -> dict[Candidate, str]:
    """The line that each candidate belongs to: its method and pinned knobs, without the depth.

    Where an engine couples a knob to the depth (every depth has its own value), one line holds them all: ``NEXTN, max_running_requests pinned``.
    """
    alike: dict[tuple[str, tuple[str, ...]], list[Candidate]] = {}
    for candidate in dict.fromkeys(cell.candidate for cell in document.cells):
        alike.setdefault((candidate.algorithm, tuple(name for name, _ in candidate.settings)), []).append(candidate)
    named = {}
    for (algorithm, knobs), members in alike.items():
        coupled = len(members) > 2 and len({c.settings for c in members}) == len({c.depth for c in members}) == len(members)
        for candidate in members:
            values = [f"{name}={value}" for name, value in candidate.settings]
            named[candidate] = f"{algorithm}, {words.one_of(list(knobs))} pinned" if coupled and knobs else " ".join([algorithm, *values])
    return named


def styles(document: Document) -> dict[str, Style]:
    """A style for every line of :func:`families`, in the order of first appearance; ``off`` first."""
    names = dict.fromkeys(families(document).values())
    return {name: Style(index=index, name=name) for index, name in enumerate(names)}


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) from ``low`` to ``high``."""
    if high <= low:
        return [low]
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 10) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def marker(shape: str, x: float, y: float, size: float = 4.5, extra: str = "") -> str:
    """One mark, centred."""
    s = size
    paths = {
        "square": f"M{x - s:.1f},{y - s:.1f}h{2 * s}v{2 * s}h{-2 * s}z",
        "triangle": f"M{x:.1f},{y - 1.2 * s:.1f}l{1.15 * s:.1f},{2.1 * s:.1f}h{-2.3 * s:.1f}z",
        "diamond": f"M{x:.1f},{y - 1.3 * s:.1f}l{1.3 * s:.1f},{1.3 * s:.1f}l{-1.3 * s:.1f},{1.3 * s:.1f}l{-1.3 * s:.1f},{-1.3 * s:.1f}z",
        "wedge": f"M{x:.1f},{y + 1.2 * s:.1f}l{1.15 * s:.1f},{-2.1 * s:.1f}h{-2.3 * s:.1f}z",
        "plus": f"M{x - s / 2.6:.1f},{y - s:.1f}h{s / 1.3:.1f}v{s / 1.6:.1f}h{s / 1.6:.1f}v{s / 1.3:.1f}h{-s / 1.6:.1f}v{s / 1.6:.1f}h{-s / 1.3:.1f}v{-s / 1.6:.1f}h{-s / 1.6:.1f}v{-s / 1.3:.1f}h{s / 1.6:.1f}z",
    }
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{s}"{extra}/>'
    return f'<path d="{paths[shape]}"{extra}/>'


def _point(label: str, css: str, value: float, inside: str) -> str:
    return f'<g class="pt {css}" role="img" tabindex="-1" aria-label="{escape(label)}" data-value="{words.raw(value)}">{inside}</g>'


def _svg(frame: Frame, label: str, inside: Iterable[str], css: str = "") -> Markup:
    head = f'<svg class="chart {css}" viewBox="0 0 {frame.width:g} {frame.height:g}" role="group" aria-label="{escape(label)}">'
    return Markup(head + "".join(inside) + "</svg>")


def _axes(frame: Frame, xs: Sequence[float], ys: Sequence[float], x_label: str, y_name: Callable[[float], str]) -> list[str]:
    made = []
    right, foot = frame.width - frame.right, frame.height - frame.bottom
    for value in ys:
        y = frame.at_y(value)
        made.append(f'<line class="grid" x1="{frame.left:g}" x2="{right:g}" y1="{y}" y2="{y}"/>')
        made.append(f'<text class="tick" x="{frame.left - 6:g}" y="{y + 3.5:.1f}" text-anchor="end">{y_name(value)}</text>')
    for value in xs:
        x = frame.at_x(value)
        made.append(f'<line class="grid tk" x1="{x}" x2="{x}" y1="{foot:g}" y2="{foot + 4:g}"/>')
        made.append(
            f'<text class="tick" x="{x}" y="{foot + 16:g}" text-anchor="middle">{"off" if value == 0 and x_label else f"{value:g}"}</text>'
        )
    made.append(f'<line class="axis" x1="{frame.left:g}" x2="{right:g}" y1="{foot:g}" y2="{foot:g}"/>')
    if x_label:
        made.append(
            f'<text class="name" x="{(frame.left + right) / 2:g}" y="{frame.height - 4:g}" text-anchor="middle">{escape(x_label)}</text>'
        )
    return made


def _depth_ticks(deepest: int) -> list[float]:
    step = next(step for step in (1, 2, 4, 5, 10, 20, 50, 100, 1000) if deepest / step <= 12)
    return [float(depth) for depth in range(0, deepest + 1, step)]


# -- throughput and TPOT against depth -----------------------------------------------------------------------------------


class Metric(Record, frozen=True):
    """What a depth chart shows on its y axis."""

    field: str
    model: str
    title: str
    unit: str


THROUGHPUT = Metric(field="output_tok_s", model="model_tok_s", title="output tok/s", unit="tok/s")
TPOT = Metric(field="tpot_ms", model="model_tpot_ms", title="TPOT, ms per token (lower is better)", unit="ms")


def depth_chart(document: Document, level: Level, metric: Metric, looks: dict[str, Style]) -> Markup:
    """One panel: measured means with intervals, the model's curve with its band, depths that do not start."""
    here = [cell for cell in document.cells if cell.level == level]
    tops = [m.high for cell in here if (m := getattr(cell, metric.field)) is not None]
    tops += [m.value for cell in here if (m := getattr(cell, metric.model)) is not None]
    barred = [row for row in document.frontier if row.starts is False]
    deepest = max([cell.candidate.depth for cell in here] + [row.candidate.depth for row in barred], default=1)
    frame = Frame(
        width=360,
        height=262,
        left=48,
        right=16,
        top=30,
        bottom=44,
        x=(-0.03 * max(deepest, 1), max(deepest, 1) * 1.03),
        y=(0, max(tops, default=1) * 1.12),
    )
    made = _axes(frame, _depth_ticks(max(deepest, 1)), ticks(0, frame.y[1]), "depth (draft tokens per round)", lambda value: f"{value:,g}")
    made.append(f'<text class="title" x="{frame.left:g}" y="14">{escape(words.level(level))}</text>')
    made += _barred(frame, barred)
    made += _off_line(frame, here, metric)
    named = families(document)
    for name, look in looks.items():
        mine = sorted((cell for cell in here if named[cell.candidate] == name), key=lambda cell: cell.candidate.depth)
        made += _series(frame, mine, metric, look)
    for cell in here:
        made += _named(frame, cell, metric, document)
    return _svg(frame, f"{metric.title} against depth: {words.level(level)}", made)


def _barred(frame: Frame, rows: Sequence[FrontierRow]) -> list[str]:
    made = []
    for row in rows:
        x, y = frame.at_x(row.candidate.depth), frame.height - frame.bottom - 9
        label = f"{row.candidate.label} does not start: {row.reason}"
        cross = f'<path class="cross" d="M{x - 5:.1f},{y - 5:.1f}l10,10m0,-10l-10,10"/><rect class="hit" x="{x - 9:.1f}" y="{y - 9:.1f}" width="18" height="18"/>'
        made.append(f'<g class="pt barred" role="img" tabindex="-1" aria-label="{escape(label)}">{cross}</g>')
    return made


def _off_line(frame: Frame, here: Sequence[Cell], metric: Metric) -> list[str]:
    off = next((cell for cell in here if cell.candidate.off), None)
    estimate: Interval | None = getattr(off, metric.field) if off is not None else None
    if estimate is None:
        return []
    y = frame.at_y(estimate.value)
    return [f'<line class="off-line" x1="{frame.left:g}" x2="{frame.width - frame.right:g}" y1="{y}" y2="{y}"/>']


def _series(frame: Frame, mine: Sequence[Cell], metric: Metric, look: Style) -> list[str]:
    made: list[str] = []
    modelled = [(cell.candidate.depth, m) for cell in mine if (m := getattr(cell, metric.model)) is not None]
    if len(modelled) > 1:
        ups = " ".join(f"{frame.at_x(depth)},{frame.at_y(min(m.high, frame.y[1]))}" for depth, m in modelled)
        downs = " ".join(f"{frame.at_x(depth)},{frame.at_y(max(m.low, 0))}" for depth, m in reversed(modelled))
        line = " ".join(f"{frame.at_x(depth)},{frame.at_y(m.value)}" for depth, m in modelled)
        made.append(f'<polygon class="band {look.css}" points="{ups} {downs}"/><polyline class="model {look.css}" points="{line}"/>')
    measured = [cell for cell in mine if getattr(cell, metric.field) is not None]
    if len(measured) > 1:
        line = " ".join(f"{frame.at_x(c.candidate.depth)},{frame.at_y(getattr(c, metric.field).value)}" for c in measured)
        made.append(f'<polyline class="line {look.css}" points="{line}"/>')
    for cell in mine:
        made += _marks(frame, cell, metric, look)
    return made


def _marks(frame: Frame, cell: Cell, metric: Metric, look: Style) -> list[str]:
    """The measured mean with its interval, or the hollow mark of a prediction."""
    estimate, model = getattr(cell, metric.field), getattr(cell, metric.model)
    x = frame.at_x(cell.candidate.depth)
    if estimate is None:
        if model is None:
            return []
        y = frame.at_y(model.value)
        label = f"{cell.candidate.label}, {words.level(cell.level)}: predicted {words.interval(model)} {metric.unit}, not launched"
        return [_point(label, f"{look.css} hollow", model.value, marker(look.shape, x, y, 3.5) + _hit(x, y))]
    y, low, high = frame.at_y(estimate.value), frame.at_y(max(estimate.low, 0)), frame.at_y(min(estimate.high, frame.y[1]))
    bar = f'<path class="bar" d="M{x - 4:.1f},{low}h8M{x},{low}V{high}M{x - 4:.1f},{high}h8"/>'
    return [_point(point_label(cell, metric), look.css, estimate.value, bar + marker(look.shape, x, y) + _hit(x, y))]


def point_label(cell: Cell, metric: Metric) -> str:
    """What a mark says when it is hovered or focused."""
    estimate: Interval = getattr(cell, metric.field)
    said = f"{cell.candidate.label}, {words.level(cell.level)}: {words.with_unit(estimate.value, estimate.unit)}"
    said += f", {estimate.confidence:.0%} interval {words.span(estimate)}, n = {estimate.n}"
    predicted = cell.predicted_tok_s if metric is THROUGHPUT else cell.predicted_tpot_ms
    if predicted is not None:
        said += f"; predicted before it was measured {words.interval(predicted)}"
    return said


def _hit(x: float, y: float) -> str:
    return f'<circle class="hit" cx="{x}" cy="{y}" r="10"/>'


def _named(frame: Frame, cell: Cell, metric: Metric, document: Document) -> list[str]:
    """Rings and words at the configuration as found and at the recommended one."""
    estimate: Interval | None = getattr(cell, metric.field)
    if estimate is None or cell.candidate not in (document.found, document.best):
        return []
    best = cell.candidate == document.best
    name = "recommended" if best else "as found"
    if document.best == document.found:
        name = "as found, kept"
    x, y = frame.at_x(cell.candidate.depth), frame.at_y(estimate.value)
    anchor = "end" if x > frame.width * 0.72 else ("start" if x < frame.width * 0.28 else "middle")
    shift = 14 if best else -22
    return [
        f'<circle class="ring{" best" if best else ""}" cx="{x}" cy="{y}" r="8.5"/>',
        f'<text class="named" x="{x}" y="{y - shift:.1f}" text-anchor="{anchor}">{name}</text>',
    ]


# -- gains ---------------------------------------------------------------------------------------------------------------


def gain_chart(document: Document) -> Markup:
    """The recommended point against as found and against off, level by level, on one axis of ratios."""
    shown = [cell for cell in document.best_cells if cell.gain_vs_found is not None or cell.gain_vs_off is not None]
    if not shown:
        return Markup("")
    same = document.found is not None and document.found.off
    ratios = [r for cell in shown for r in (cell.gain_vs_found, None if same else cell.gain_vs_off) if r is not None]
    low, high = min([0.9, *(r.low for r in ratios)]), max([1.1, *(r.high for r in ratios)])
    pad = 0.04 * (high - low)
    row_px = 52.0
    frame = Frame(width=720, height=54 + row_px * len(shown), left=150, right=120, top=8, bottom=40, x=(low - pad, high + pad), y=(0, 1))
    foot = frame.height - frame.bottom
    made = []
    for value in ticks(low - pad, high + pad, 7):
        x = frame.at_x(value)
        made.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{frame.top:g}" y2="{foot:g}"/>')
        made.append(f'<text class="tick" x="{x}" y="{foot + 16:g}" text-anchor="middle">{value:g}×</text>')
    one = frame.at_x(1.0)
    made.append(f'<line class="one" x1="{one}" x2="{one}" y1="{frame.top:g}" y2="{foot:g}"/>')
    made.append(f'<text class="name" x="{one}" y="{foot + 32:g}" text-anchor="middle">no difference</text>')
    for index, cell in enumerate(shown):
        middle = frame.top + row_px * (index + 0.5)
        made.append(
            f'<text class="row" x="{frame.left - 12:g}" y="{middle + 4:.1f}" text-anchor="end">{escape(words.level(cell.level))}</text>'
        )
        pairs = [(cell.gain_vs_found, "as found", "s1", "circle", -10.0 if not same else 0.0)]
        if not same:
            pairs.append((cell.gain_vs_off, "speculation off", "s0", "diamond", 12.0))
        for ratio, against, css, shape, shift in pairs:
            if ratio is not None:
                made.append(_gain(frame, cell, ratio, against, css, shape, middle + shift))
    return _svg(frame, "Gain of the recommended setting at every level", made, "wide")


def _gain(frame: Frame, cell: Cell, ratio: Interval, against: str, css: str, shape: str, y: float) -> str:
    x, low, high = frame.at_x(ratio.value), frame.at_x(ratio.low), frame.at_x(ratio.high)
    said = words.reading(ratio)
    label = f"{words.level(cell.level)}, against {against}: {words.interval(ratio)}, {said}"
    caps = f"M{low},{y - 4:.1f}v8M{high},{y - 4:.1f}v8" if high - low > 14 else ""  # narrower than the mark: caps would only blur it
    bar = f'<path class="bar thick" d="M{low},{y:.1f}H{high}{caps}"/>'
    text = f"{words.with_unit(ratio.value, 'ratio')} {against}" + ("" if ratio.excludes_one else ": no difference shown")
    # beyond the middle of a wide axis the words go to the left of the mark
    left = high > frame.width - 190
    at = f'x="{low - 8:.1f}" text-anchor="end"' if left else f'x="{high + 8:.1f}"'
    words_beside = f'<text class="beside" {at} y="{y + 4:.1f}">{escape(text)}</text>'
    return _point(label, css, ratio.value, bar + marker(shape, x, y) + words_beside)


# -- acceptance ----------------------------------------------------------------------------------------------------------


def acceptance_cells(document: Document, level: Level, most: int = 6) -> list[Cell]:
    """The cells whose acceptance is drawn: the recommended one and the deepest of the others."""
    seen = [cell for cell in document.cells if cell.level == level and cell.positions]
    ranked = sorted(seen, key=lambda cell: (cell.candidate != document.best, -cell.candidate.depth, cell.candidate))
    return sorted(ranked[:most], key=lambda cell: cell.candidate)


def acceptance_chart(document: Document, level: Level, candidates: Sequence[Candidate]) -> Markup:
    """Share of rounds whose first j drafts were all accepted, against j."""
    shown = acceptance_cells(document, level)
    if not shown:
        return Markup("")
    deepest = max(len(cell.positions) for cell in shown)
    frame = Frame(width=360, height=240, left=46, right=16, top=30, bottom=44, x=(0.7, deepest + 0.3), y=(0, 1.05))
    xs = [tick for tick in _depth_ticks(deepest) if tick > 0]
    made = _axes(frame, xs, ticks(0, 1, 4), "draft position", lambda value: f"{100 * value:.0f} %")
    made.append(f'<text class="title" x="{frame.left:g}" y="14">{escape(words.level(level))}</text>')
    for cell in shown:
        look = Style(index=list(candidates).index(cell.candidate), name=cell.candidate.label)
        line = " ".join(f"{frame.at_x(j)},{frame.at_y(value)}" for j, value in enumerate(cell.positions, 1))
        made.append(f'<polyline class="line {look.css}" points="{line}"/>')
        for j, value in enumerate(cell.positions, 1):
            x, y = frame.at_x(j), frame.at_y(value)
            label = (
                f"{cell.candidate.label}, {words.level(level)}: first {j} drafts accepted in {words.share(value)} of {cell.rounds} rounds"
            )
            made.append(_point(label, look.css, value, marker(look.shape, x, y, 3.2) + _hit(x, y)))
    return _svg(frame, f"Acceptance by position: {words.level(level)}", made)


# -- timeline ------------------------------------------------------------------------------------------------------------


def timeline(document: Document) -> Markup:
    """One row a trial on the campaign's clock: loading hatched, measuring solid, a cross where it failed; the row leads to the trial."""
    rows = document.trials
    if not rows:
        return Markup("")
    row_px = 22.0 if len(rows) <= 60 else 9.0
    end_s = max([document.elapsed_s, 1.0])
    frame = Frame(width=900, height=34 + row_px * len(rows), left=265, right=20, top=4, bottom=30, x=(0, end_s * 1.02), y=(0, 1))
    foot = frame.height - frame.bottom
    made = [HATCH]
    for value in _minutes(end_s):
        x = frame.at_x(value)
        made.append(f'<line class="grid" x1="{x}" x2="{x}" y1="{frame.top:g}" y2="{foot:g}"/>')
        made.append(f'<text class="tick" x="{x}" y="{foot + 16:g}" text-anchor="middle">{words.duration(value)}</text>')
    for index, row in enumerate(rows):
        made.append(_bar(frame, row, frame.top + row_px * index, row_px, end_s, down=not document.own_process))
    return _svg(frame, "Timeline of the campaign", made, "wide")


HATCH = (
    '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<line class="hatch" x1="0" y1="0" x2="0" y2="6"/></pattern></defs>'
)


def _minutes(end_s: float) -> list[float]:
    step = next((s for s in (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600) if end_s / s <= 8), 86400)
    return [float(value) for value in range(0, int(end_s) + 1, step)]


def _bar(frame: Frame, row: TrialRow, y: float, height: float, end_s: float, down: bool) -> str:
    start, thick = frame.at_x(row.start_s), height - 6 if height > 12 else height - 2
    end = frame.at_x(row.end_s if row.end_s is not None else end_s)
    ready = frame.at_x(row.ready_s) if row.ready_s is not None else end
    top = y + 1
    made = [f'<rect class="load" x="{start}" y="{top:.1f}" width="{max(ready - start, 1):.1f}" height="{thick:.1f}"/>']
    if row.ready_s is not None:
        made.append(f'<rect class="measure" x="{ready}" y="{top:.1f}" width="{max(end - ready, 1):.1f}" height="{thick:.1f}"/>')
    if row.down_s and down:
        foot = frame.at_x(min(row.start_s + row.down_s, end_s)) - start
        made.append(
            f'<rect class="down" x="{start}" y="{top + thick:.1f}" width="{max(foot, 1):.1f}" height="{max(height - thick - 2, 1.5):.1f}"/>'
        )
    if row.outcome == "failed":
        made.append(f'<path class="cross" d="M{end + 3:.1f},{top:.1f}l{thick:.1f},{thick:.1f}m0,{-thick:.1f}l{-thick:.1f},{thick:.1f}"/>')
    if height > 12:
        made.append(
            f'<text class="row" x="{frame.left - 10:g}" y="{y + height / 2 + 4:.1f}" text-anchor="end">{escape(_short(f"{row.number} {row.label}", 36))}</text>'
        )
    spent = f", loaded in {words.duration(row.load_s)}" if row.load_s is not None else ""
    gone = f", service down {words.duration(row.down_s)}" if row.down_s is not None and down else ""
    label = f"trial {row.number}: {row.label}, {row.kind}, {row.outcome}{spent}{gone}"
    return f'<a class="pt trial {row.outcome.replace(" ", "-")}" href="#trial-{row.number}" tabindex="-1" aria-label="{escape(label)}">{"".join(made)}</a>'


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def swatch(look: Style) -> Markup:
    """A line and mark for the legend."""
    inside = f'<line class="line {look.css}" x1="1" x2="33" y1="8" y2="8"/>{marker(look.shape, 17, 8)}'
    return Markup(f'<svg class="swatch pt {look.css}" viewBox="0 0 34 16" width="34" height="16" aria-hidden="true">{inside}</svg>')
