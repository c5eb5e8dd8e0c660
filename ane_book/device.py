"""What this machine can do, and where this library keeps what it makes.

What the executor has to know of a machine, it says itself: `mlprogram.machine`.
"""

from importlib import metadata
from pathlib import Path

from mlprogram import machine

#: One line of `describe`: what was checked, whether it is there (None: a fact, no verdict), detail.
Check = tuple[str, bool | None, str]


def cache_folder() -> Path:
    """Where this library keeps what it makes: $ANE_BOOK_CACHE, or ane-book in the user's cache.

    Raises InvalidInput where neither that nor the user's home is known.
    """
    return machine.find_cache("ANE_BOOK_CACHE", "ane-book")


def _installed(package: str, purpose: str) -> Check:
    try:
        return package, True, metadata.version(package)
    except metadata.PackageNotFoundError:
        return package, False, f"not installed; needed to {purpose}"


def describe() -> list[Check]:
    """Every check as (what, whether it is there or None for a plain fact, detail)."""
    memory = machine.memory_bytes()
    return [
        ("system", None, machine.system()),
        ("chip", None, f"{machine.chip()}, {machine.cores()} cores"),
        ("memory", None, f"{memory / 1e9:.1f} GB" if memory else "not known on this system"),
        ("Core ML predictions", machine.CAN_PREDICT, machine.CAN_PREDICT_REASON),
        ("Neural Engine", *machine.neural_engine()),
        _installed("coremltools", "convert models"),
        _installed("torch", "convert and to run off a Mac"),
        _installed("coreai-core", "make and run assets of Core AI"),
    ]
