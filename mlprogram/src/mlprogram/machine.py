"""Facts about this machine: chip, memory, cores, cache folder, whether Core ML runs here.

Nothing heavy is imported: whether coremltools can predict is read from its installed files.

References:
- Core ML states and several functions in a package need iOS 18 or macOS 15:
  https://apple.github.io/coremltools/docs-guides/source/stateful-models.html
"""

from collections.abc import Iterator
from functools import cache
import importlib.util
import math
import os
from pathlib import Path
import platform
import re
import subprocess
import sys

from mlprogram.errors import InvalidInput

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
MIN_MACOS = (15, 0)  # the first to run iOS 18 programs: states, several functions in a package


@cache
def macos_version() -> tuple[int, int] | None:
    """(major, minor) of macOS, or None on another system."""
    if sys.platform != "darwin":
        return None
    major, minor, *_ = (platform.mac_ver()[0] + ".0.0").split(".")
    return int(major), int(minor)


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


#: Whether Core ML can run programs here, and the reason.
CAN_PREDICT, CAN_PREDICT_REASON = _can_predict()


def cache_folder() -> Path:
    """Where compiled kernels are kept: $MLPROGRAM_CACHE, or mlprogram in the user's cache.

    Raises InvalidInput if neither that nor the user's home is known.
    """
    return find_cache("MLPROGRAM_CACHE", "mlprogram")


def find_cache(variable: str, name: str) -> Path:
    """The folder that an environment variable names, or one of this name in the user's cache.

    Raises InvalidInput if neither that nor the user's home is known.
    """
    if chosen := os.environ.get(variable):
        return Path(chosen)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / name
    try:
        return Path.home() / ".cache" / name
    except RuntimeError:
        raise InvalidInput(
            f"this user has no home folder to keep a cache in; set {variable} to a folder"
        ) from None


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def physical_cores() -> int:
    """Those cores of which no two are threads of one, where Linux tells; else all."""
    if not hasattr(os, "sched_getaffinity"):
        return cores()
    places = (f"/sys/devices/system/cpu/cpu{n}/topology/" for n in os.sched_getaffinity(0))
    try:
        names = ("physical_package_id", "core_id")
        return len({tuple(Path(place, name).read_text() for name in names) for place in places})
    except OSError:
        return cores()


def memory_bytes() -> int | None:
    """The bytes of memory that this process may use; None if the system does not say.

    That is the machine's memory, or less if there is a limit on the process (`ulimit -v`) or on a
    control group that it is in, as in containers and batch systems.
    """
    limits = [*_group_limits()]
    try:
        import resource

        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        limits.append(resource.getrlimit(resource.RLIMIT_AS)[0])
    except (ImportError, ValueError, OSError):  # Windows has neither
        return None
    return min(limit for limit in limits if limit > 0)  # less than none is no limit


#: Where Linux lists the control groups of this process, and where their limits are.
OWN_GROUPS, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def _group_limits() -> Iterator[int]:
    """Yield the memory limits, in bytes, of this process's control group and of its parents.

    Version 2 has one tree of groups, version 1 a tree for memory. In a container the path may be
    the host's, of which only the last part is visible, as the root of the tree.
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


def system() -> str:
    """Operating system, processor family and Python."""
    version = macos_version()
    name = f"macOS {version[0]}.{version[1]}" if version else platform.platform(terse=True)
    return f"{name}, {platform.machine()}, Python {platform.python_version()}"


@cache
def _sysctl(name: str) -> str:
    """A value of macOS' kernel, "" where it has none of that name."""
    command = ["sysctl", "-n", name]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def parse_bytes(text: str | int) -> int:
    """Bytes from "250MB", "1GB" or a number; units are powers of ten."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?B?)\s*", str(text).upper())
    size = float(match[1]) * UNITS[match[2]] if match and match[2] in UNITS else math.inf
    if size == math.inf:  # so are 400 digits
        raise InvalidInput(f"{str(text)[:80]!r} is not a size; write it like 250MB or 1GB")
    return int(size)
