"""A headless browser: playwright's own, or a Chromium of the system that playwright drives."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PHONE, DESK = (390, 844), (1400, 900)
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@contextmanager
def shown(path: Path, size: tuple[int, int] = PHONE, scheme: str = "light") -> Iterator[Any]:
    """Yield a tab that shows the page without a network; skip the test where there is no browser.

    Scripts that fail, requests and what the content security policy blocks fail the test.
    """
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        except sync_api.Error as e:
            pytest.skip(f"no browser: {str(e).splitlines()[0]}")
        viewport = {"width": size[0], "height": size[1]}
        context = browser.new_context(offline=True, viewport=viewport, color_scheme=scheme)
        errors: list[str] = []
        tab = context.new_page()
        tab.on("pageerror", lambda e: errors.append(str(e)))
        tab.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
        tab.on("request", lambda r: errors.append(r.url) if not r.url.startswith("file:") else None)
        tab.goto(path.as_uri())
        yield tab
        assert errors == [], "scripts run without a fault, and nothing is asked of a network"
        browser.close()
