"""How large the report of 200 trials is, how long it takes to write, and how long a browser takes to open it.

Bars: under 3 MB, opens in under a second.  Run ``python benchmarks/report_bench.py``; needs ``chromium`` on the path and the package playwright.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import planted
from leadline import report
from leadline.state import fold

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
SIZE_LIMIT_BYTES = 3_000_000
OPEN_LIMIT_MS = 1000.0


def main() -> int:
    known = fold(planted.large_campaign(200))
    began = time.perf_counter()
    html = report.html(known)
    wrote_ms = 1000 * (time.perf_counter() - began)
    size = len(html.encode())
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "large.html"
        path.write_text(html, encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        opened_ms = []
        for _ in range(5):
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(path.as_uri())
            opened_ms.append(page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd"))
            page.close()
        browser.close()
    middle = statistics.median(opened_ms)
    print(
        f"200 trials: {size / 1e6:.2f} MB, written in {wrote_ms:.0f} ms, opened in {middle:.0f} ms (median of {len(opened_ms)}, {min(opened_ms):.0f}-{max(opened_ms):.0f})"
    )
    return 0 if size < SIZE_LIMIT_BYTES and middle < OPEN_LIMIT_MS else 1


if __name__ == "__main__":
    raise SystemExit(main())
