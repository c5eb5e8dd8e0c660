"""What this machine can do, decided once, with the reason kept as a string.

Core ML's predictions need a Mac; everything else in this library runs anywhere. What the executor
has to know of a machine, it says itself (`mlprogram.machine`); here that can be had as well.
"""

from functools import cache
import importlib.metadata
import os
from pathlib import Path
import platform
import subprocess
import sys

from mlprogram.machine import (
    CAN_PREDICT,
    CAN_PREDICT_REASON,
    cores,
    find_cache,
    macos_version,
    memory_bytes,
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
    "state_folder",
    "system",
]

#: One line of `describe`: what was checked, whether it is there (None: a fact, no verdict), detail.
Check = tuple[str, bool | None, str]


def macos_build() -> str:
    """macOS' build, such as "24A335", to which compiled models belong; "" on another system."""
    return _sysctl("kern.osversion") if sys.platform == "darwin" else ""


@cache
def chip() -> str:
    """The processor's name as its maker gives it, such as "Apple M4 Max"."""
    if sys.platform == "darwin":
        return _sysctl("machdep.cpu.brand_string") or platform.machine()
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def chip_key(name: str) -> str:
    """A chip's name as the tables of this library have it: "m4-max" for "Apple M4 Max"."""
    return "-".join(name.lower().replace("-", " ").split()).removeprefix("apple-")


def cache_folder() -> Path:
    """Where this library keeps what it makes: $ANE_BOOK_CACHE, or ane-book in the user's cache.

    Raises InvalidInput where neither that nor the user's home is known.
    """
    return find_cache("ANE_BOOK_CACHE", "ane-book")


def state_folder() -> Path | None:
    """Where this library keeps what it remembers of a user, ane-book in the user's state folder;
    None where no home is known."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if os.path.isabs(base):
        return Path(base) / "ane-book"
    try:
        home = Path.home()
    except RuntimeError:
        return None
    return home / ".local" / "state" / "ane-book" if home.is_absolute() else None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _installed(package: str, purpose: str) -> Check:
    version = _version(package)
    return package, version is not None, version or f"not installed; needed to {purpose}"


def neural_engine() -> tuple[bool, str]:
    """Whether Core ML has an engine to plan on here, and why not.

    A virtual machine has none, and Core ML may hang for half an hour looking for it: GitHub's
    runners are such (soniqo/speech-swift, pull request 286).
    """
    if not CAN_PREDICT:
        return False, CAN_PREDICT_REASON
    if platform.machine() != "arm64":
        return False, "a Mac with an Intel processor has no Neural Engine"
    if _sysctl("kern.hv_vmm_present") == "1":
        return False, "a virtual machine has no Neural Engine"
    return True, "present on Apple silicon; where an op ran is Core ML's choice"


@cache
def _sysctl(name: str) -> str:
    """A value of macOS' kernel, "" where it has none of that name."""
    command = ["sysctl", "-n", name]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def system() -> str:
    """Operating system, processor family and Python."""
    version = macos_version()
    name = f"macOS {version[0]}.{version[1]}" if version else platform.platform(terse=True)
    return f"{name}, {platform.machine()}, Python {platform.python_version()}"


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
