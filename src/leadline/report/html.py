"""The report as one HTML file: template, style, script and data in one, nothing fetched.

The file carries a content security policy that forbids every request, so that "no network" is the browser's promise and not ours alone.
"""

from __future__ import annotations

import functools
import json
import shlex
from importlib import resources

import jinja2
from markupsafe import Markup

from .. import words
from ..records import Candidate, Interval, Level
from . import charts
from .document import Document, builtins
from .text import command_lines, conditions, gain

OPEN_FAILURES = 5
"""Up to this many failed trials show their log at once; more start folded."""


def render(document: Document, live: bool = False) -> str:
    """The page. ``live`` adds the script that follows a running campaign on the server that sent it (``leadline serve``)."""
    looks = charts.styles(document)
    candidates = sorted({cell.candidate for cell in document.cells if cell.positions}, key=lambda c: (not c.off, c))
    levels = [level for level in document.levels if any(cell.level == level for cell in document.cells)]
    off = next((cell.candidate for cell in document.cells if cell.candidate.off), None)
    page = (
        _environment()
        .get_template("page.html.j2")
        .render(
            d=document,
            live=live,
            style=Markup(_read("style.css")),
            script=Markup(_read("page.js")),
            data=Markup(json.dumps(builtins(document), ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")),
            policy="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
            + ("; connect-src 'self'" if live else ""),
            levels=levels,
            throughput=[(level, charts.depth_chart(document, level, charts.THROUGHPUT, looks)) for level in levels],
            tpot=[(level, charts.depth_chart(document, level, charts.TPOT, looks)) for level in levels],
            acceptance=[(level, charts.acceptance_chart(document, level, candidates)) for level in levels],
            acceptance_legend=_acceptance_legend(document, candidates),
            gains=charts.gain_chart(document),
            timeline=charts.timeline(document),
            legend=[(look, charts.swatch(look)) for look in looks.values()],
            off=off,
            modelled=any(cell.model_tok_s is not None for cell in document.cells),
            barred=any(row.starts is False for row in document.frontier),
            elsewhere={point.level: point for point in document.points if point.candidate != document.best},
            rates={cell.level: _rates(document, off, cell.level) for cell in document.best_cells},
            queued=_queued(document),
            confidence=next((cell.output_tok_s.confidence for cell in document.best_cells if cell.output_tok_s), None),
            same_reference=document.found is not None and document.found.off,
            failed_numbers={trial.number for trial in document.failed},
            open_failures=len(document.failed) <= OPEN_FAILURES,
            conditions=conditions(document),
            command="\n".join(line[2:] for line in command_lines(document.command)) if document.command else "",
            command_flat=shlex.join(document.command),
        )
    )
    return page + "\n"


def _rates(document: Document, off: Candidate | None, level: Level) -> list[tuple[str, Interval]]:
    """Throughput at a level of the recommended setting, the one as found and off; a setting that is two of them has one row."""
    roles = ((document.best if document.change else None, "recommended"), (document.found, "as found"), (off, "speculation off"))
    named: dict[Candidate, list[str]] = {}
    for candidate, role in roles:
        if candidate is not None:
            named.setdefault(candidate, []).append(role)
    measured = {cell.candidate: cell.output_tok_s for cell in document.cells if cell.level == level}
    return [(", ".join(names), rate) for candidate, names in named.items() if (rate := measured.get(candidate)) is not None]


def _queued(document: Document) -> dict[Level, int]:
    """Levels at which more requests are under way than the recommended setting runs at a time, with how many it runs."""
    running = next((row.max_running_requests for row in reversed(document.trials) if row.candidate == document.best and row.blocks), None)
    return {level: running for level in document.levels if running and level.rate_rps is None and level.concurrency > running}


def _acceptance_legend(document: Document, candidates: list[Candidate]) -> list[tuple[str, Markup]]:
    shown = {cell.candidate for level in document.levels for cell in charts.acceptance_cells(document, level)}
    looks = [charts.Style(index=index, name=candidate.label) for index, candidate in enumerate(candidates) if candidate in shown]
    return [(look.name, charts.swatch(look)) for look in looks]


def _read(name: str) -> str:
    return resources.files("leadline").joinpath("data", "report", name).read_text(encoding="utf-8")


def _figure(value: float | None, unit: str = "") -> Markup:
    """A figure whose raw value the page keeps: ``<data value="295.93">296</data>``."""
    if value is None:
        return Markup("–")
    return Markup('<data value="{}">{}</data>').format(words.raw(value), words.number(value, unit))


def _count(value: int | None) -> Markup:
    return Markup("–") if value is None else Markup('<data value="{}">{}</data>').format(value, f"{value:,}")


def _span(estimate: Interval, about: bool = True) -> Markup:
    low, high = _figure(estimate.low, estimate.unit), _figure(estimate.high, estimate.unit)
    if not about:
        return Markup('<span class="iv">({}–{})</span>').format(low, high)
    made = f"{estimate.confidence:.0%} interval, n = {estimate.n}; {estimate.method}"
    return Markup('<span class="iv" title="{}">({}–{})</span>').format(made, low, high)


def _interval(estimate: Interval | None, unit: bool = False, about: bool = True) -> Markup:
    """A figure with its interval; a dash where there is nothing. ``about`` says in a title how it was made (long tables leave that to the JSON)."""
    if estimate is None:
        return Markup("–")
    mark = "×" if estimate.unit == "ratio" else (f" {estimate.unit}" if unit else "")
    head = Markup("{}{}").format(_figure(estimate.value, estimate.unit), mark)
    return head + " " + _span(estimate, about)


def _gain(ratio: Interval | None, candidate: Candidate | None, reference: Candidate | None, about: bool = True) -> Markup:
    """A gain with its reading in words; the words carry the meaning, the colour only repeats it."""
    if ratio is None or candidate == reference:
        return Markup('<span class="muted">{}</span>').format(gain(None, candidate, reference) if candidate else "not measured")
    said = words.reading(ratio)
    return Markup('{} <span class="says {}">{}</span>').format(_interval(ratio, about=about), said.split()[0], said)


def _duration(seconds: float | None) -> Markup:
    return Markup("–") if seconds is None else Markup('<data value="{}">{}</data>').format(words.raw(seconds), words.duration(seconds))


def _share(value: float) -> Markup:
    return Markup('<data value="{}">{}</data>').format(words.raw(value), words.share(value))


def _memory(count: int | None) -> Markup:
    return Markup("–") if count is None else Markup('<data value="{}">{}</data>').format(count, words.gibibytes(count))


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_read), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.update(
        fig=_figure,
        count=_count,
        iv=_interval,
        gain=_gain,
        dur=_duration,
        share=_share,
        memory=_memory,
        words=words,
        raw=words.raw,
        span=_span,
    )
    return environment
