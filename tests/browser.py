"""Runs the pages in a headless Chromium; skipped without one."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def browser(downloads: Path) -> Iterator[Any]:
    """Gives a driver; what pages save goes to ``downloads``."""
    selenium = pytest.importorskip("selenium", reason="selenium is not installed")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no chromium and chromedriver here (apt-get install chromium-driver)")
    assert selenium
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = chromium
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(flag)
    options.add_argument("--window-size=1200,1100")
    for name in ("device", "ui"):  # a camera of moving colours, which needs no permission
        options.add_argument(f"--use-fake-{name}-for-media-stream")
    options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    running = webdriver.Chrome(options=options, service=Service(driver))
    running.set_page_load_timeout(120)
    running.set_script_timeout(120)
    try:
        yield running
    finally:
        running.quit()


def photograph(page: Any, name: str) -> None:
    """Keeps a screenshot where VLMILL_SCREENSHOTS says, for who wants to look at it."""
    folder = os.environ.get("VLMILL_SCREENSHOTS")
    if folder is not None:
        page.save_screenshot(str(Path(folder) / f"{name}.png"))
