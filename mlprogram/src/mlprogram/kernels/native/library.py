"""Compile, cache and load the shared library of the compiled kernels.

Loading a library runs its code, so it is kept where only the user may write, in a file that is
named after a hash of its sources and one of its own content. The file is opened once, checked, and
loaded through the same descriptor. One that is truncated, damaged, owned by somebody else or that
lacks a function is compiled again. If the cache folder is not private, the library is compiled in a
temporary folder, which is removed as soon as it is loaded.
"""

from collections.abc import Callable, Collection
import ctypes
from dataclasses import dataclass
from functools import cached_property
import hashlib
import os
from pathlib import Path
import shlex
import shutil
import stat
import subprocess
import tempfile

from mlprogram.errors import InvalidInput, MLProgramError
from mlprogram.machine import cache_folder

__all__ = ["load"]

SOURCES = sorted(Path(__file__).with_name("c").glob("*.[ch]"))
FLAGS = ("-O3", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-pthread")

LIBRARIES = ("-lm",)  # which a linker wants after the files that use them

#: Compiler flags for the machine's own processor, tried in order; the last one is for any
#: processor. A command that names a processor itself is not changed: CC="gcc -march=x86-64-v3".
TARGETS = (("-march=native",), ("-mcpu=native",), ())

WITHOUT = "products go through torch, more slowly"


def load(functions: Collection[str]) -> tuple[ctypes.CDLL | None, str]:
    """The library with these functions and how it was compiled; or None and the reason."""
    try:
        command = _compiler()
    except InvalidInput as error:
        return None, f"{error}; {WITHOUT}"
    message = ""
    chosen = any(word.startswith(("-march=", "-mcpu=")) for word in command)
    for target in [()] if chosen else TARGETS:
        try:
            library, place = _obtain(_Build(command, target), functions)
        except (OSError, subprocess.SubprocessError) as error:
            message = str(getattr(error, "stderr", "") or error)
            continue
        return library, " ".join(["made by", *command, *target]) + place
    lines = message.strip().splitlines() or ["no message"]
    said = next((line for line in lines if "error: " in line), lines[-1])
    said = said.partition("error: ")[2] or said
    return None, f"{shlex.join(command)} cannot compile them ({said}); {WITHOUT}"


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
        known = subprocess.run(macros, check=True, capture_output=True, timeout=60).stdout
        made_of = [source, known, repr((self.command, FLAGS, LIBRARIES, self.target)).encode()]
        return hashlib.sha256(b"\0".join(made_of)).hexdigest()[:16]

    def make(self, folder: Path) -> Path:
        """Compile a new library, which is synced to disk before it gets its name."""
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / "kernels.so"
            files = [str(file) for file in SOURCES if file.suffix == ".c"]
            build = [*self.command, *FLAGS, "-shared", *self.target, "-o", str(made)]
            build += [*files, *LIBRARIES]
            subprocess.run(build, check=True, capture_output=True, text=True, timeout=120)
            made.chmod(0o700)
            with made.open("rb") as file:
                os.fsync(file.fileno())
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            path = folder / f"{self.key}-{digest}.so"
            made.replace(path)  # another process may have made it meanwhile
        entry = os.open(folder, os.O_RDONLY)
        os.fsync(entry)
        os.close(entry)
        return path


def _obtain(build: _Build, functions: Collection[str]) -> tuple[ctypes.CDLL, str]:
    """The library, and a note on where it is if not in the cache.

    Raises OSError or SubprocessError if it cannot be compiled.
    """
    try:
        return _kept(_private_folder(), build, functions), ""
    except (OSError, MLProgramError) as error:
        reason = error
    with tempfile.TemporaryDirectory(prefix="mlprogram-") as folder:
        library = _kept(Path(folder), build, functions)
    return library, f", for this process alone ({reason})"


def _private_folder() -> Path:
    """The cache's folder of libraries; raises OSError if others may write to it."""
    folder = cache_folder() / "kernels"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_users_alone(folder.lstat(), stat.S_ISDIR):
        raise PermissionError(f"others may write {folder}, or it is theirs")
    return folder


def _is_users_alone(info: os.stat_result, kind: Callable[[int], bool]) -> bool:
    """Whether a file is of this kind, belongs to the user, and is writable by nobody else."""
    return kind(info.st_mode) and info.st_uid == os.geteuid() and not info.st_mode & 0o022


def _kept(folder: Path, build: _Build, functions: Collection[str]) -> ctypes.CDLL:
    """Load the library from a folder, compiling it unless a valid one is there."""
    for path in sorted(folder.glob(f"{build.key}-*.so")):
        library = _loaded(path, functions)
        if library is not None:
            return library
        path.unlink(missing_ok=True)
    path = build.make(folder)
    library = _loaded(path, functions)
    if library is None:
        raise OSError(f"{path} cannot be loaded")
    return library


def _loaded(path: Path, functions: Collection[str]) -> ctypes.CDLL | None:
    """Load the library at a path if it is valid, private and has the functions; else None."""
    try:  # no link is followed, and no pipe waited for
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(descriptor, "rb", closefd=False) as file:
        sound = _is_users_alone(os.fstat(descriptor), stat.S_ISREG)
        sound = sound and path.stem.endswith(hashlib.file_digest(file, "sha256").hexdigest())
    if not sound:
        os.close(descriptor)
        return None
    # What was checked is loaded, whatever the path leads to by now. The descriptor stays open: the
    # loader goes by names, and would take the next file of this number for the same library.
    opened = f"/proc/self/fd/{descriptor}"
    try:
        library = ctypes.CDLL(opened if os.path.exists(opened) else str(path))
    except OSError:
        os.close(descriptor)
        return None
    return library if all(hasattr(library, name) for name in functions) else None
