"""Compile, cache and load the shared library of the compiled kernels.

Loading a library runs its code, so it is kept where only the user may write, in a file that is
named after a hash of its sources and one of its own content. The file is opened once, checked, and
loaded through the same descriptor. One that is truncated, damaged, owned by somebody else or that
lacks a function is compiled again. If the cache folder is full, unwritable or not private, the
library stays in a temporary folder, which is removed as soon as it is loaded, and a warning is
logged.
"""

from collections.abc import Collection
import ctypes
from dataclasses import dataclass
import errno
from functools import cached_property
import hashlib
import logging
import os
from pathlib import Path
import re
import shlex
import shutil
import subprocess
import tempfile

from mlprogram import sealed
from mlprogram.errors import InvalidInput, MLProgramError
from mlprogram.files import sha256, written_whole

SOURCES = sorted(Path(__file__).with_name("native").glob("c/*.[ch]"))
FLAGS = ("-O3", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-pthread")

LIBRARIES = ("-lm",)  # which a linker wants after the files that use them

#: Compiler flags for the machine's own processor, tried in order; the last one is for any
#: processor. A command that names a processor itself is not changed: CC="gcc -march=x86-64-v3".
TARGETS = (("-march=native",), ("-mcpu=native",), ())

#: A compiler's line that says no more than that its linker failed.
SUMMARY = re.compile("error: (ld returned|linker command failed)")

LOGGER = logging.getLogger(__name__)
WITHOUT = "products go through torch, more slowly"


def load(functions: Collection[str]) -> tuple[ctypes.CDLL | None, str]:
    """The library with these functions and how it was compiled; or None and the reason."""
    try:
        command = _compiler()
    except InvalidInput as error:
        return None, f"{error}; {WITHOUT}"
    reason = ""
    chosen = any(word.startswith(("-march=", "-mcpu=")) for word in command)
    for target in [()] if chosen else TARGETS:
        try:
            library, place = _obtain(_Build(command, target), functions)
        except subprocess.SubprocessError as error:
            reason = f"{shlex.join(command)} cannot compile them ({_message(error)}); {WITHOUT}"
        except OSError as error:  # which other flags do not help
            reason = f"they cannot be made ({error}); {WITHOUT}"
            break
        else:
            return library, " ".join(["made by", *command, *target]) + place
    LOGGER.warning("there are no compiled kernels: %s", reason)
    return None, reason


def _message(error: subprocess.SubprocessError) -> str:
    """The line of a compiler's message that tells most."""
    lines = str(getattr(error, "stderr", "") or error).strip().splitlines()
    lines = [line for line in lines if not SUMMARY.search(line)] or ["no message"]
    said = next((line for line in lines if "error: " in line), lines[-1])
    return said.partition("error: ")[2] or said


def _compiler() -> list[str]:
    """The compiler's command: $CC with its arguments, or a compiler that is installed."""
    chosen = os.environ.get("CC", "").strip()
    try:
        commands = [shlex.split(chosen)] if chosen else [["cc"], ["gcc"], ["clang"]]
    except ValueError as error:
        raise InvalidInput(f"CC={chosen!r} is no command: {error}") from None
    if os.name == "posix":
        for name, *arguments in commands:
            path = shutil.which(name)
            if path:
                return [path, *arguments]
    raise InvalidInput(
        f"CC={chosen!r} cannot be found" if chosen else "no C compiler (CC, cc, gcc, clang)"
    )


@dataclass(frozen=True)
class _Build:
    """One way to compile the library: the compiler's command, and the flags for the processor."""

    command: list[str]
    target: tuple[str, ...]

    @cached_property
    def key(self) -> str:
        """A hash of everything that determines the library: sources, compiler, instructions."""
        source = b"".join(file.read_bytes() for file in SOURCES)
        # The macros name the instructions that may be used, so another processor gets another key.
        macros = [*self.command, *self.target[:1], "-dM", "-E", "-x", "c", os.devnull]
        ran = subprocess.run(macros, check=True, capture_output=True, text=True, timeout=60)
        made_of = f"{ran.stdout}\0{(self.command, FLAGS, LIBRARIES, self.target)!r}"
        return hashlib.sha256(source + made_of.encode()).hexdigest()[:16]

    def make(self, folder: Path) -> Path:
        """Compile a new library in a folder, and name it after its content."""
        made = folder / "kernels.so"
        files = [str(file) for file in SOURCES if file.suffix == ".c"]
        build = [*self.command, *FLAGS, "-shared", *self.target, "-o", str(made)]
        build += [*files, *LIBRARIES]
        own = os.environ | {"TMPDIR": str(folder), "LC_ALL": "C"}
        try:
            subprocess.run(build, check=True, capture_output=True, text=True, timeout=120, env=own)
        except subprocess.CalledProcessError as error:
            full = os.strerror(errno.ENOSPC)
            if full in error.stderr:
                raise OSError(errno.ENOSPC, full, str(folder)) from None
            raise
        made.chmod(0o700)
        return made.rename(folder / f"{self.key}-{sha256(made)}.so")


def _obtain(build: _Build, functions: Collection[str]) -> tuple[ctypes.CDLL, str]:
    """The library, and a note on where it is if not in the cache.

    Raises OSError or SubprocessError if it cannot be compiled.
    """
    folder, reason = None, ""
    try:
        folder = sealed.private_folder()
        if (kept := _kept(folder, build, functions)) is not None:
            return kept, ""
    except (OSError, MLProgramError) as error:
        reason = str(error)
        if isinstance(error, OSError) and error.filename and error.strerror:
            reason = f"{error.filename}: {error.strerror}"
    with tempfile.TemporaryDirectory(prefix="mlprogram-") as scratch:
        path = build.make(Path(scratch))
        try:
            path = _copied(path, folder) if folder else path
        except OSError as error:
            reason = f"{folder}: {error.strerror}"
        library = _loaded(path, functions)
    if library is None:
        raise OSError(f"{path} cannot be loaded")
    if not reason:
        return library, ""
    LOGGER.warning(
        "the compiled kernels cannot be kept (%s), so every process compiles its own; set "
        "MLPROGRAM_CACHE to a private folder with room for them",
        reason,
    )
    return library, f", for this process alone ({reason})"


def _copied(made: Path, folder: Path) -> Path:
    """Copy a library into a folder, where it is synced to disk before it gets its name."""
    kept = folder / made.name
    with written_whole(kept) as unfinished:  # another process may have made it meanwhile
        shutil.copy(made, unfinished)
    return kept


def _kept(folder: Path, build: _Build, functions: Collection[str]) -> ctypes.CDLL | None:
    """Load the library that a folder has, if it is valid; one that is not is deleted."""
    for path in sorted(folder.glob(f"{build.key}-*.so")):
        library = _loaded(path, functions)
        if library is not None:
            return library
        path.unlink(missing_ok=True)
    return None


def _loaded(path: Path, functions: Collection[str]) -> ctypes.CDLL | None:
    """Load the library at a path if it is valid, private and has the functions; else None."""
    if (descriptor := sealed.opened(path)) is None:
        return None
    # What was checked is loaded, whatever the path leads to by now. The descriptor stays open: the
    # loader goes by names, and would take the next file of this number for the same library.
    opened = f"/proc/self/fd/{descriptor}"
    try:
        library = ctypes.CDLL(opened if os.path.exists(opened) else str(path))
    except OSError:
        os.close(descriptor)
        return None
    library.made_of = path.stem  # type: ignore[attr-defined]
    return library if all(hasattr(library, name) for name in functions) else None
