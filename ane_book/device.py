"""What this machine can do, decided once, with the reason kept as a string.

Core ML's predictions need a Mac; everything else in this library runs anywhere. Nothing heavy is
imported here: whether coremltools can predict is read off the files it installed.

References:
- Core ML states and several functions in a package need iOS 18 or macOS 15:
  https://apple.github.io/coremltools/docs-guides/source/stateful-models.html
"""

from collections.abc import Iterator
from functools import cache
import importlib.metadata
import importlib.util
import os
from pathlib import Path
import platform
import subprocess
import sys

from ane_book.errors import InvalidInput

__all__ = [
    "CAN_PREDICT",
    "CAN_PREDICT_REASON",
    "Check",
    "cache_folder",
    "describe",
    "memory_bytes",
    "state_folder",
]

MIN_MACOS = (15, 0)  # the first to run iOS 18 programs: states, several functions in a package

#: One line of `describe`: what was checked, whether it is there (None: a fact, no verdict), detail.
Check = tuple[str, bool | None, str]


@cache
def macos_version() -> tuple[int, int] | None:
    """(major, minor) of macOS, or None on another system."""
    if sys.platform != "darwin":
        return None
    major, minor, *_ = (platform.mac_ver()[0] + ".0.0").split(".")
    return int(major), int(minor)


@cache
def macos_build() -> str:
    """macOS' build, such as "24A335", to which compiled models belong; "" on another system."""
    return _sysctl("kern.osversion") if sys.platform == "darwin" else ""


def _coreml_library() -> Path | None:
    """coremltools' binding to Core ML, which only its macOS wheels carry."""
    spec = importlib.util.find_spec("coremltools")
    if spec is None or spec.origin is None:
        return None
    return next(iter(sorted(Path(spec.origin).parent.glob("libcoremlpython*.so"))), None)


def _can_predict() -> tuple[bool, str]:
    version = macos_version()
    if version is None:
        return False, f"Core ML runs on macOS only; this is {platform.system() or sys.platform}"
    if version < MIN_MACOS:
        return False, (
            f"states and several functions need macOS {MIN_MACOS[0]}; "
            f"this is macOS {version[0]}.{version[1]}"
        )
    if _coreml_library() is None:
        return False, (
            "coremltools is not installed with its Core ML binding (libcoremlpython); "
            f"install its wheel for macOS and Python {sys.version_info[0]}.{sys.version_info[1]}"
        )
    return True, f"macOS {version[0]}.{version[1]} with coremltools' Core ML binding"


#: Whether Core ML can run a bundle's programs here, and the reason for the answer.
CAN_PREDICT, CAN_PREDICT_REASON = _can_predict()


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


def cache_folder() -> Path:
    """Where this library keeps what it makes: $ANE_BOOK_CACHE, or ane-book in the user's cache.

    Raises InvalidInput where neither that nor the user's home is known.
    """
    chosen, base = os.environ.get("ANE_BOOK_CACHE"), os.environ.get("XDG_CACHE_HOME")
    if chosen or base:
        return Path(chosen) if chosen else Path(base) / "ane-book"
    try:
        return Path.home() / ".cache" / "ane-book"
    except RuntimeError:
        raise InvalidInput(
            "this user has no home folder to keep a cache in; set ANE_BOOK_CACHE to a folder"
        ) from None


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


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_bytes() -> int | None:
    """Memory that this process may use, in bytes; None where nobody can say.

    The machine's, or less by a limit on the process itself (`ulimit -v`) or on a control group that
    it is in, as containers and batch systems set it.
    """
    limits = [*_group_limits()]
    try:
        import resource

        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        limits.append(resource.getrlimit(resource.RLIMIT_AS)[0])
    except (ImportError, ValueError, OSError):  # Windows has neither
        return None
    return min(limit for limit in limits if limit > 0)  # less than none is no limit


#: Where Linux says what groups this process is in, and where their limits stand.
OWN_GROUPS, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def _group_limits() -> Iterator[int]:
    """The memory limits of this process' control group and of those that it lies in, in bytes.

    Version 2 has one tree of groups, version 1 one for memory. In a container the path may be that
    on the host, of which only the end is to be seen, as the top of the tree.
    """
    lines = OWN_GROUPS.read_text().splitlines() if OWN_GROUPS.exists() else []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top, name = GROUPS, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = GROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(top):
                break
            try:
                yield int((folder / name).read_text())
            except (OSError, ValueError):  # not there, or "max"
                continue


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _installed(package: str, purpose: str) -> Check:
    version = _version(package)
    return package, version is not None, version or f"not installed; needed to {purpose}"


@cache
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
    ]
