"""One level of evidence made from what a measurement found, with the tools and the day."""

import datetime
from importlib.metadata import PackageNotFoundError, version
import platform

from ane_book.bundle.evidence import Level

TOOLS = ("ane-book", "mlprogram", "coremltools", "torch", "numpy")


def versions() -> dict[str, str]:
    """Versions of what computes and measures here."""
    found = {"python": platform.python_version()}
    for name in TOOLS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def level(passed: bool, reason: str, figures: dict, machine: dict[str, str] | None = None) -> Level:
    """A level that was measured just now."""
    today = datetime.datetime.now(datetime.UTC).date()
    return Level(
        status="passed" if passed else "failed",
        reason=reason[:2000],
        figures=figures,
        tools=versions(),
        machine=machine or {},
        date=today,
    )
