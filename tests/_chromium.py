"""Headless Chromium, as a phone: what pages and their scripts are tested in."""

from collections.abc import Iterator
from contextlib import contextmanager
import shutil

import pytest

__all__ = ["PHONE", "chromium", "needs_chromium"]

PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
FLAGS = [
    "--headless=new",
    "--no-sandbox",  # root has no sandbox
    "--disable-gpu",
    "--disable-dev-shm-usage",
    # Nothing of its own on the network: a closed one would fill the log with failures.
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-quic",
    "--disable-sync",
]

needs_chromium = pytest.mark.skipif(
    shutil.which("chromedriver") is None,
    reason="no chromedriver: install Chromium with its driver "
    "(Debian: apt-get install chromium chromium-driver; macOS: brew install chromedriver)",
)


@contextmanager
def chromium() -> Iterator:
    """A browser with a phone's screen, whose console can be read."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    try:
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
        yield driver
    finally:
        driver.quit()
