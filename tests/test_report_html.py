"""The HTML page without a browser: self-contained, small, every figure in the data, folds and links that lead somewhere."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

import docs_console
import planted
from leadline import report, words
from leadline.records import AnyEvent, Candidate
from leadline.report import charts
from leadline.state import Knowledge, fold

VOID = {"meta", "link", "br", "img", "input", "hr", "circle", "path", "line", "rect", "polyline", "polygon"}


class Page(HTMLParser):
    """Text nodes with the chain of their elements, and every element's attributes."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, list[tuple[str, dict[str, str]]]]] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = (tag, {name: value or "" for name, value in attrs})
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1][0] == tag, f"</{tag}> closes <{self.open[-1][0]}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((data, list(self.open)))


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for part in value.values():
            yield from leaves(part)
    elif isinstance(value, list):
        for part in value:
            yield from leaves(part)
    else:
        yield value


def campaign(name: str) -> list[AnyEvent]:
    if name == "crash":
        return planted.crash_campaign()
    return (
        planted.demo_campaign() if name == "demo" else docs_console.real_events(name.replace("real-demo", "demo").replace("real-", "h200-"))
    )


@pytest.fixture(params=["crash", "demo", "real-demo", "real-crash", "real-gain"])
def known(request: pytest.FixtureRequest) -> Knowledge:
    return fold(campaign(request.param))


@pytest.fixture
def page(known: Knowledge) -> Page:
    return Page(report.html(known))


def embedded(page: Page) -> Any:
    return json.loads(next(text for text, chain in page.texts if chain[-1][1].get("id") == "report-data"))


def test_elements_nest_and_ids_are_unique(page: Page) -> None:
    assert page.open == []
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs and attrs["id"] != "hatch"]
    assert len(ids) == len(set(ids))


def test_nothing_is_fetched(page: Page) -> None:
    for tag, attrs in page.elements:
        for name in ("src", "srcset", "poster", "action", "xlink:href", "background"):
            assert name not in attrs, (tag, attrs)
        if "href" in attrs:
            assert attrs["href"].startswith(("#", "data:")), (tag, attrs)
    policy = next(attrs["content"] for _, attrs in page.elements if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert "connect-src" not in policy
    style = next(text for text, chain in page.texts if chain[-1][0] == "style")
    assert "url(" not in style.replace("url(#hatch)", "")
    assert "@import" not in style


def test_every_link_leads_to_an_element(page: Page) -> None:
    ids = {attrs["id"] for _, attrs in page.elements if "id" in attrs}
    for _, attrs in page.elements:
        if attrs.get("href", "").startswith("#"):
            assert attrs["href"][1:] in ids
        for name in ("aria-labelledby", "for"):
            if name in attrs:
                assert attrs[name] in ids


def test_the_embedded_data_is_the_json_report(known: Knowledge, page: Page) -> None:
    assert embedded(page) == report.as_json(known)


def test_every_figure_of_the_page_stands_in_the_json(known: Knowledge, page: Page) -> None:
    data = list(leaves(embedded(page)))
    numbers = {float(leaf) for leaf in data if isinstance(leaf, int | float) and not isinstance(leaf, bool)}
    figures = [float(attrs["value"]) for tag, attrs in page.elements if tag == "data"]
    figures += [float(attrs["data-value"]) for _, attrs in page.elements if "data-value" in attrs]
    assert len(figures) > 100
    strays = [figure for figure in figures if figure not in numbers]
    assert strays == []


def test_no_figure_stands_outside_a_data_element(known: Knowledge, page: Page) -> None:
    """Digits in running text come from strings of the JSON (labels, sentences, quotes), never from the template."""
    built = report.as_json(known)
    strings = {leaf for leaf in leaves(built) if isinstance(leaf, str)}
    held = " ".join(" ".join(text.split()) for text in strings)
    levels = {level.label for level in known.began.levels} | {words.level(level) for level in known.began.levels}  # type: ignore[union-attr]
    named = {words.candidate(point) for point in (known.verdict.overall, known.verdict.found, *(p.candidate for p in known.verdict.points))}  # type: ignore[union-attr]
    labels = {cell.candidate.label for cell in report.document(known).cells} | {row.candidate.label for row in known.frontier}
    held += " " + " ".join(levels | named | labels)
    for text, chain in page.texts:
        tags = [tag for tag, _ in chain]
        if "data" in tags or {"script", "style", "svg", "option", "title"} & set(tags):
            continue
        if not re.search(r"\d", text):
            continue
        for piece in re.findall(r"[^\s,;:()]*\d[^\s,;:()]*", text):
            assert piece.strip(".") in held or piece in CONSTANT, f"{piece!r} in {text!r}"


CONSTANT = {"1", "90"}
"""``An interval that touches 1``, ``the acceptance length is 1 plus``; ``90 %`` in the condition `intervals`."""


def test_headline_figures_of_the_json_stand_in_the_page(known: Knowledge, page: Page) -> None:
    built = report.as_json(known)
    shown = {float(attrs["value"]) for tag, attrs in page.elements if tag == "data"}
    wanted = [built["launches"], built["blocks"], built["elapsed_s"]] + ([] if built["own_process"] else [built["down_s"]])
    for point in built["points"]:
        wanted += [point["output_tok_s"][part] for part in ("value", "low", "high")]
    for cell in built["best_cells"]:
        for name in ("output_tok_s", "gain_vs_found"):
            if cell.get(name):
                wanted += [cell[name][part] for part in ("value", "low", "high")]
    for row in built["frontier"]:
        wanted += [count for name, count in row["capacity"].items() if count is not None and name.startswith("max_")]
    assert [figure for figure in wanted if float(figure) not in shown] == []
    text = " ".join(" ".join(text for text, _ in page.texts).split())
    for line in [built["sentence"], *built["not_shown"], *built["warnings"], *(quote for quote in quotes(built))]:
        assert " ".join(line.split()) in text


def quotes(built: dict[str, Any]) -> Iterator[str]:
    for trial in built["failed"]:
        for finding in trial["findings"]:
            yield finding["summary"]
            for quote in finding["quotes"]:
                yield quote["text"]


def test_a_failed_trial_is_linked_from_headline_timeline_and_table(page: Page) -> None:
    targets = [attrs["href"] for tag, attrs in page.elements if tag == "a" and attrs.get("href", "").startswith("#trial-")]
    failed = embedded(page)["failed"]
    for trial in failed:
        assert targets.count(f"#trial-{trial['number']}") == 3, "headline, timeline and table"


def test_marks_are_told_apart_without_colour(page: Page) -> None:
    """Each series has its own shape; outcomes and readings stand in words."""
    text = " ".join(text for text, _ in page.texts)
    assert "faster" in text
    assert "no difference shown" in text or "slower" in text
    for _, attrs in page.elements:
        if "pt" in attrs.get("class", "").split() and attrs.get("aria-hidden") != "true":
            assert re.search(r"\w", attrs.get("aria-label", ""))


def test_a_knob_that_follows_the_depth_makes_one_line() -> None:
    """The engine couples a knob to the depth: its values are no reason for a line of their own each; another choice of it is."""
    coupled = [Candidate(algorithm="NEXTN", depth=depth, settings=(("max_running_requests", str(40 - depth)),)) for depth in (2, 5, 8)]
    other = [Candidate(algorithm="ngram", depth=depth, settings=(("n", str(n)),)) for depth, n in ((8, 4), (16, 4), (48, 12))]
    document = report.document(fold(planted.demo_campaign()))
    shown = [
        msgspec.structs.replace(document.cells[0], candidate=candidate)
        for candidate in (*coupled, *other, Candidate(algorithm="off", depth=0))
    ]
    named = charts.families(msgspec.structs.replace(document, cells=tuple(shown)))
    assert {named[candidate] for candidate in coupled} == {"NEXTN, max_running_requests pinned"}
    assert [named[candidate] for candidate in other] == ["ngram n=4", "ngram n=4", "ngram n=12"]


def test_hostile_text_stays_text() -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    events = [
        msgspec.structs.replace(e, findings=(msgspec.structs.replace(e.findings[0], summary=evil),), log_tail=evil)
        if type(e).__name__ == "Failed"
        else e
        for e in planted.crash_campaign()
    ]
    page = Page(report.html(fold(events)))
    assert sum(1 for tag, _ in page.elements if tag == "script") == 2
    assert not any(tag == "img" for tag, _ in page.elements)
    assert embedded(page)["failed"][0]["findings"][0]["summary"] == evil


def test_two_hundred_trials_stay_under_three_megabytes() -> None:
    html = report.html(fold(planted.large_campaign(200)))
    assert len(html.encode()) < 3_000_000
    assert html.count('class="failure"') == 28


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 6, 20, 60, 100])
def test_a_running_campaign_has_a_page(cut: int) -> None:
    page = Page(report.html(fold(planted.demo_campaign()[:cut])))
    assert page.open == []
    assert embedded(page)["status"] in {"empty", "running"}


# Machado, Oliveira, Fernandes 2009 (doi 10.1109/TVCG.2009.113), severity 1.0, on linear RGB
BLIND = {
    "none": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def linear(colour: str) -> list[float]:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    return [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]


def lab(rgb: list[float]) -> list[float]:
    weights = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    white = (0.9505, 1.0, 1.089)
    x, y, z = (sum(w * min(max(c, 0), 1) for w, c in zip(row, rgb, strict=True)) / n for row, n in zip(weights, white, strict=True))
    f = [v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z)]
    return [116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])]


@pytest.mark.parametrize("theme", [0, 1])
@pytest.mark.parametrize("sight", sorted(BLIND))
def test_series_colours_differ_for_every_eye(page: Page, theme: int, sight: str) -> None:
    """The six colours stay apart (CIE76 above 10) for dichromats, and every one stands out from the card (contrast above 4.5)."""
    style = next(text for text, chain in page.texts if chain[-1][0] == "style")
    palette = {name: both[theme] for name, *both in re.findall(r"--(c\d|card): light-dark\((#\w+), (#\w+)\)", style)}
    card = palette.pop("card")
    assert len(palette) == 6
    seen = {
        name: [sum(m * c for m, c in zip(row, linear(colour), strict=True)) for row in BLIND[sight]] for name, colour in palette.items()
    }
    for a, b in itertools.combinations(sorted(seen), 2):
        assert math.dist(lab(seen[a]), lab(seen[b])) > 10, (a, b)
    for name, colour in palette.items():
        light, dark = sorted(
            (sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear(hue), strict=True)) for hue in (colour, card)), reverse=True
        )
        assert (light + 0.05) / (dark + 0.05) > 4.5, name


def test_the_first_section_says_why_a_candidate_failed_what_was_gained_and_what_waits() -> None:
    page = Page(report.html(fold(planted.crash_campaign())))
    text = " ".join(" ".join(text for text, chain in page.texts if any(attrs.get("id") == "verdict" for _, attrs in chain)).split())
    assert planted.POOL_FINDING.summary in text
    assert planted.POOL_FINDING.remedy in text
    assert re.search(r"1\.12 × \( 1\.\d\d – 1\.\d\d \) against as found faster", text)
    assert "In brackets: 90 % intervals" in text
    assert re.search(r"recommended 296 .* as found 264 .* speculation off 167 ", text)
    assert text.count("wait in a queue") == 1
    assert re.search(r"Requests beyond 20 wait in a queue ?: TTFT [\d,]+ ms", text)
    assert "No setting is shown to be better here; the smallest of the tied ones is speculation off" in text


def test_an_algorithm_that_is_reported_under_another_name_is_said_to_be_the_same() -> None:
    crash = report.document(fold(planted.crash_campaign()))
    assert crash.spelling.startswith("SGLang reports NEXTN as EAGLE")
    for made in (report.html(fold(planted.crash_campaign())), report.markdown(fold(planted.crash_campaign()))):
        assert made.replace("&#39;", "'").split('id="report-data"')[0].count(crash.spelling) == 1
    assert report.document(fold(docs_console.real_events("h200-gain"))).spelling == ""
    assert report.document(fold(planted.demo_campaign())).spelling == ""
