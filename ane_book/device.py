"""What this machine can do, decided once, with the reason kept as a string.

Core ML's predictions need a Mac; everything else in this library runs anywhere. What the executor
has to know of a machine, it says itself (`mlprogram.machine`); here that can be had as well.
"""

from pathlib import Path

from mlprogram.machine import (
    CAN_PREDICT,
    CAN_PREDICT_REASON,
    chip,
    chip_key,
    cores,
    find_cache,
    macos_build,
    macos_version,
    memory_bytes,
    neural_engine,
    system,
)

__all__ = [
    "CAN_PREDICT",
    "CAN_PREDICT_REASON",
    "Check",
    "cache_folder",
    "chip",
    "chip_key",
    "cores",
    "describe",
    "macos_build",
    "macos_version",
    "memory_bytes",
    "neural_engine",
    "system",
]

#: One line of `describe`: what was checked, whether it is there (None: a fact, no verdict), detail.
Check = tuple[str, bool | None, str]


def cache_folder() -> Path:
    """Where this library keeps what it makes: $ANE_BOOK_CACHE, or ane-book in the user's cache.

    Raises InvalidInput where neither that nor the user's home is known.
    """
    return find_cache("ANE_BOOK_CACHE", "ane-book")


def _version(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _installed(package: str, purpose: str) -> Check:
    version = _version(package)
    return package, version is not None, version or f"not installed; needed to {purpose}"


def describe() -> list[Check]:
    """Every check as (what, whether it is there or None for a plain fact, detail)."""
    memory = memory_bytes()
    return [
        ("system", None, system()),
        ("chip", None, f"{chip()}, {cores()} cores"),
        ("memory", None, f"{memory / 1e9:.1f} GB" if memory else "not known on this system"),
        ("Core ML predictions", CAN_PREDICT, CAN_PREDICT_REASON),
        ("Neural Engine", *neural_engine()),
        _installed("coremltools", "convert models"),
        _installed("torch", "convert and to run off a Mac"),
        _installed("coreai-core", "make and run assets of Core AI"),
    ]
