"""Headless Chromium, as a phone: what pages and their scripts are tested in."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
import shutil

from _patience import HANGING, until
import pytest

PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
DESK = {"width": 1280, "height": 800, "deviceScaleFactor": 1, "mobile": False}
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


def look(driver, screen: dict, scheme: str = "light") -> None:
    """Give the browser another screen, and a reader who prefers "light" or "dark"."""
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


READY = "return location.href !== 'about:blank' && document.readyState === 'complete'"


def visit(browser, url: str) -> None:
    """Open an address, and forget what earlier pages have said on the console."""
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get(url)
    # On a busy machine the driver may take the end of the empty page for that of the next one.
    until(lambda: browser.execute_script(READY))


def console_errors(browser) -> list[str]:
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


#: Axe takes minutes for the contrast of each piece of a chapter's text. It depends on how a text
#: looks: its colour and size, and what lies behind it. So two texts of each look are judged (axe
#: itself passes over what is disabled), and code keeps two tokens of each look.
MARK_LOOKS = """
  const grounds = new Map([[null, ""]]), looks = new Map();
  const ground = element => {
    if (!grounds.has(element)) {
      const s = getComputedStyle(element);
      const own = [s.backgroundColor, s.backgroundImage, s.opacity, s.position, s.zIndex, s.filter];
      const plain = String(own) === "rgba(0, 0, 0, 0),none,1,static,auto,none";
      grounds.set(element, ground(element.parentElement) + (plain ? "" : own));
    }
    return grounds.get(element);
  };
  const hasText = element => element.matches("input, select, textarea") ||
    [...element.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.data.trim());
  const spare = [], judged = [];
  for (const element of document.body.querySelectorAll("*")) {
    const token = element.matches(".highlight pre span") && !element.firstElementChild;
    if (!hasText(element) || !element.checkVisibility({ visibilityProperty: true })) {
      if (token) spare.push(element);
      continue;
    }
    const s = getComputedStyle(element);
    const look = String([s.color, s.fontSize, s.fontWeight, s.textShadow, ground(element)]);
    looks.set(look, (looks.get(look) ?? 0) + 1);
    if (looks.get(look) <= 2) judged.push(element);
    else if (token) spare.push(element);
  }
  spare.forEach(token => token.remove());  // after all looks are taken: each change restyles
  document.querySelectorAll("[data-look]").forEach(element => { delete element.dataset.look; });
  judged.forEach(element => { element.dataset.look = ""; });
  axe.configure({ rules: [{ id: "color-contrast", selector: "[data-look]" }] });
"""

#: One line a finding: its weight, rule and the first elements that it names.
RUN_AXE = """
  const done = arguments[arguments.length - 1];
  axe.run(document, { resultTypes: ["violations"] }).then(
    ({ violations }) => done(violations.map(({ impact, id, nodes }) =>
      [impact, id, nodes.length, nodes.slice(0, 3).map(node => node.html.slice(0, 160))])),
    error => done([["failed", String(error), 0, []]]));
"""


def axe_violations(driver, impacts: tuple[str, ...] = ("serious", "critical")) -> list:
    """What axe-core finds on the page: [impact, rule, how many elements, the first of them].

    Takes some of the code off the page.
    """
    pytest.importorskip("axe_playwright_python", reason="no axe-core: `make` installs it")
    driver.set_script_timeout(HANGING)  # a chapter has thousands of elements to look at
    script = resources.files("axe_playwright_python").joinpath("axe.min.js")
    driver.execute_script(script.read_text(encoding="utf-8") + MARK_LOOKS)
    found = driver.execute_async_script(RUN_AXE)
    return [finding for finding in found if finding[0] in (*impacts, "failed")]
