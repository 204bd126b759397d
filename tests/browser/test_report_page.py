"""The report's page in headless Chromium: it opens without a request or an error, answers to pointer and keyboard, and passes axe and html-validate.

Screenshots of every page in light, dark and print go to ``out/browser``.  What these tests need: a ``chromium`` on the path (Debian's; nothing is
downloaded) and, for axe-core and html-validate, ``npm ci`` in this folder.  Without them the tests are skipped, unless ``LEADLINE_BROWSER=required``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import docs_console
import planted
from leadline import report
from leadline.journal import Journal
from leadline.records import AnyEvent
from leadline.serve import Follower
from leadline.state import fold

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

HERE = Path(__file__).parent
SHOTS = HERE.parent.parent / "out" / "browser"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
CAMPAIGNS: dict[str, Callable[[], list[AnyEvent]]] = {
    "crash": planted.crash_campaign,
    "demo": planted.demo_campaign,
    "running": lambda: planted.demo_campaign(upto=60),
    "real-demo": lambda: docs_console.real_events("demo"),
    "real-crash": lambda: docs_console.real_events("h200-crash"),
    "real-gain": lambda: docs_console.real_events("h200-gain"),
    "large": planted.large_campaign,
}


def needed(what: str, found: object) -> None:
    """Skip where a tool is missing; fail where the run was told that it must be there."""
    if not found:
        if os.environ.get("LEADLINE_BROWSER") == "required":
            pytest.fail(f"{what} is missing")
        pytest.skip(f"{what} is missing")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    made = {}
    for name, campaign in CAMPAIGNS.items():
        made[name] = folder / f"{name}.html"
        made[name].write_text(report.html(fold(campaign())), encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = shutil.which("chromium")
    needed("chromium", chromium)
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        yield opened
        opened.close()


def until(page: Any, truth: str) -> None:
    """Poll an expression from outside: the page's own policy forbids the evaluation inside it that the driver would use."""
    for _ in range(300):
        if page.evaluate(truth):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"never true: {truth}")


class Watched:
    """A page with everything that it asked for and complained about."""

    def __init__(self, browser: Any, **options: Any) -> None:
        self.page = browser.new_page(viewport={"width": 1280, "height": 900}, **options)
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))

    def open(self, path: Path) -> Any:
        self.page.goto(path.as_uri())
        return self.page


@pytest.fixture
def watched(browser: Any) -> Iterator[Watched]:
    made = Watched(browser, reduced_motion="reduce")  # scrolling is instant, so that nothing here waits for it
    yield made
    made.page.close()


@pytest.mark.parametrize("name", sorted(CAMPAIGNS))
def test_the_page_opens_alone_and_without_complaint(watched: Watched, pages: dict[str, Path], name: str) -> None:
    page = watched.open(pages[name])
    page.mouse.wheel(0, 4000)
    page.wait_for_timeout(50)
    assert watched.requests == [pages[name].as_uri()], "nothing but the file itself is read"
    assert watched.complaints == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out sideways"


@pytest.mark.parametrize(
    ("name", "scheme"), [*((name, "light") for name in sorted(set(CAMPAIGNS) - {"large"})), ("crash", "dark"), ("real-crash", "dark")]
)
def test_screenshots(browser: Any, pages: dict[str, Path], name: str, scheme: str) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    page = Watched(browser, color_scheme=scheme).open(pages[name])
    page.screenshot(path=SHOTS / f"{name}-{scheme}.png", full_page=True)
    page.screenshot(path=SHOTS / f"{name}-{scheme}-top.png")
    ink, paper = page.evaluate("[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]")
    lightness = [sum(int(part) for part in re.findall(r"\d+", colour)[:3]) for colour in (ink, paper)]
    assert (lightness[0] < lightness[1]) == (scheme == "light")
    page.close()


def test_a_narrow_screen_scrolls_one_way_only(browser: Any, pages: dict[str, Path]) -> None:
    page = Watched(browser).open(pages["crash"])
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / "crash-phone.png", full_page=True)
    page.close()


def test_paper_holds_everything(browser: Any, pages: dict[str, Path]) -> None:
    page = Watched(browser, color_scheme="dark").open(pages["crash"])
    page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = false; })")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("[...document.querySelectorAll('details')].every((fold) => fold.open)")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("#copy").is_visible()
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / "crash-print.png", full_page=True)
    page.emulate_media(media="screen")
    pdf = page.pdf(path=SHOTS / "crash.pdf", format="A4", margin=dict.fromkeys(("top", "bottom", "left", "right"), "12mm"))
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 15
    page.close()


# -- pointer and keyboard ------------------------------------------------------------------------------------------------


def test_hovering_a_mark_says_its_figure(watched: Watched, pages: dict[str, Path]) -> None:
    page = watched.open(pages["crash"])
    mark = page.locator("#curves .pt[aria-label^='EAGLE 5, chat, 1 at once']").first
    mark.scroll_into_view_if_needed()
    mark.hover()
    said = page.locator("#tip").inner_text()
    assert said.startswith("EAGLE 5, chat, 1 at once: 285 tok/s, 90% interval 278–292, n = 6; predicted before it was measured 293")
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / "crash-hover.png")
    page.mouse.move(5, 5)
    assert page.locator("#tip").is_hidden()
    barred = page.locator("#curves .pt.barred").first
    barred.hover()
    assert "EAGLE 10 does not start: draft state reserved for 48 requests" in page.locator("#tip").inner_text()
    assert watched.complaints == []


def test_marks_are_reached_by_keyboard(watched: Watched, pages: dict[str, Path]) -> None:
    page = watched.open(pages["crash"])
    page.locator("#level").focus()
    page.keyboard.press("Tab")
    first = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert first in page.locator("#tip").inner_text()
    page.keyboard.press("ArrowRight")
    second = page.evaluate("document.activeElement.getAttribute('aria-label')")
    assert second != first
    assert page.locator("#tip").inner_text() == second
    page.keyboard.press("End")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == first
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()
    stops = page.evaluate("[...document.querySelectorAll('.chart')].map((chart) => chart.querySelectorAll('[tabindex=\"0\"]').length)")
    assert set(stops) == {1}, "one tab stop a chart"


def test_filtering_a_concurrency(watched: Watched, pages: dict[str, Path]) -> None:
    page = watched.open(pages["crash"])
    page.select_option("#level", "chat c=16")
    shown = page.locator("[data-level]:visible")
    assert {shown.nth(i).get_attribute("data-level") for i in range(shown.count())} == {"chat c=16"}
    assert page.locator("#curves figure:visible").count() == 2
    assert page.locator("#acceptance figure:visible").count() == 1
    page.select_option("#level", "")
    assert page.locator("#curves figure:visible").count() == 6
    assert watched.complaints == []


def test_a_failed_trial_leads_to_its_evidence(watched: Watched, pages: dict[str, Path]) -> None:
    page = watched.open(pages["crash"])
    page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = fold.closest('#timeline') !== null; })")
    page.get_by_role("link", name="failed, see why").click()
    until(page, "location.hash === '#trial-1' && document.activeElement.id === 'trial-1'")
    failure = page.locator("#trial-1")
    assert failure.get_by_text("no OOM killer was involved").is_visible()
    assert failure.locator("q").first.inner_text() == "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
    assert failure.get_by_text("Received sigquit from a child process").is_visible(), "the log is unfolded"
    box = failure.bounding_box()
    assert box is not None
    assert -5 <= box["y"] < 900
    assert watched.requests == [pages["crash"].as_uri()]


def test_the_timeline_leads_there_too(watched: Watched, pages: dict[str, Path]) -> None:
    page = watched.open(pages["crash"])
    row = page.locator("#timeline a.trial.failed")
    row.focus()
    page.keyboard.press("Enter")
    until(page, "document.activeElement.id === 'trial-1'")


def test_the_theme_can_be_chosen(watched: Watched, pages: dict[str, Path]) -> None:
    page = watched.open(pages["crash"])
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.select_option("#theme", "dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before


def test_copy_and_save_give_the_whole(browser: Any, pages: dict[str, Path]) -> None:
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"], accept_downloads=True)
    page = context.new_page()
    page.goto(pages["crash"].as_uri())
    page.click("#copy")
    until(page, "document.getElementById('copied').textContent !== ''")
    assert page.evaluate("document.getElementById('copied').textContent") in ("Copied.", "Selected: copy it with the keyboard.")
    with page.expect_download() as saving:
        page.click("#save")
    saved = Path(saving.value.path()).read_text(encoding="utf-8")
    assert saving.value.suggested_filename == "sglang-h200-7f3a.json"
    assert '"format":"leadline-report/1"' in saved
    context.close()


# -- rules made by others ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "scheme"),
    [(name, scheme) for name in sorted(CAMPAIGNS) for scheme in ("light", "dark") if scheme == "light" or name == "crash"],
)
def test_axe_finds_nothing(browser: Any, pages: dict[str, Path], name: str, scheme: str) -> None:
    axe = HERE / "node_modules" / "axe-core" / "axe.min.js"
    needed("axe-core (npm ci in tests/browser)", axe.exists())
    page = Watched(browser, color_scheme=scheme).open(pages[name])
    page.evaluate(axe.read_text(encoding="utf-8"))
    # the large page's charts hold thousands of marks of the same few kinds: its structure is checked, its marks are those of the others
    exclude = [[".chart"]] if name == "large" else []
    found = page.evaluate("(exclude) => axe.run({ exclude }, { resultTypes: ['violations'] })", exclude)
    told = [f"{v['impact']} {v['id']}: {v['nodes'][0]['html'][:160]} ({len(v['nodes'])}x)" for v in found["violations"]]
    assert told == []
    page.close()


def test_the_pages_are_valid_html(pages: dict[str, Path], tmp_path: Path) -> None:
    tool = HERE / "node_modules" / "html-validate" / "bin" / "html-validate.mjs"
    needed("html-validate (npm ci in tests/browser)", tool.exists())
    config = tmp_path / "config.json"
    config.write_text('{"root": true, "extends": ["html-validate:standard"]}')
    served = tmp_path / "served.html"
    served.write_text(report.html(fold(planted.crash_campaign()), live=True), encoding="utf-8")
    paths = [str(pages[name]) for name in sorted(set(CAMPAIGNS) - {"large"})] + [str(served)]
    ended = subprocess.run(
        ["node", str(tool), "--config", str(config), "--formatter", "text", *paths], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


# -- following a campaign ------------------------------------------------------------------------------------------------


def test_the_served_page_follows_the_campaign(watched: Watched, tmp_path: Path) -> None:
    folder, events = tmp_path / "demo-1c9d", planted.demo_campaign()

    def write(some: list[AnyEvent]) -> None:
        with Journal(folder, write=True) as book:
            for event in some:
                book.append(event)

    write(events[:60])
    server = Follower(folder)
    server.every_s = 0.05
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        page = watched.page
        page.goto(server.url)
        assert page.locator("h1").inner_text().lower().startswith("no verdict yet")
        until(page, "document.getElementById('following').textContent.startsWith('launch')")
        page.select_option("#level", "copy c=4")
        write(events[60:])
        until(page, "document.querySelector('h1').textContent.includes('depends on the traffic')")
        assert page.locator("#following").inner_text().startswith("done: it depends on the traffic")
        assert page.locator("#level").input_value() == "copy c=4", "what the reader chose is kept"
        assert page.locator("#curves figure:visible").count() == 2
        assert page.evaluate("[...document.querySelectorAll('main > section')].map((section) => section.id)")[:2] == ["verdict", "run"]
        assert all(url.startswith(server.url) for url in watched.requests)
        assert watched.complaints == []
        server.shutdown()
        server.server_close()
        until(page, "document.getElementById('following').textContent.includes('is gone')")
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
