"""The cache of bundles: what is in it, who writes, and how to make room.

    bundles/NAME-KEY     a bundle; the time of the folder is that of its last use
    compiled/NAME-KEY    what Core ML compiled of a package, likewise
    lowered/KEY          a block as coremltools lowered it, some kB; the 2,048 used last, one entry
    names/KEY            the name of the bundle that a reference model was converted to
    locks/KEY.lock       held by the process that writes a bundle, in the cache or elsewhere

`ANE_BOOK_CACHE` moves the cache. Files with other names in it are never touched.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
import json
import logging
import os
from pathlib import Path
import re
import shutil
import time
from typing import TYPE_CHECKING

from ane_book.bundle import read_manifest
from ane_book.device import cache_folder
from ane_book.errors import InvalidBundle, InvalidInput
from mlprogram.files import regular_files, written_whole

if TYPE_CHECKING:
    from filelock import FileLock

#: The name of a bundle, of one that is being made, and of one that is being replaced.
KNOWN = re.compile(r"([^/\\]+-[0-9a-f]{16})(\.partial|\.replaced)?")


@dataclass(frozen=True)
class Entry:
    """A folder in the cache.

    used: the time of its last use, in seconds since 1970. recipe: the options that are not the
    defaults; {"compiled": True} for what Core ML compiled, {} if there is no manifest to read.
    """

    path: Path
    bytes: int
    used: float
    recipe: dict[str, str | int | bool | list | None]

    @property
    def kind(self) -> str:
        """bundles, compiled or lowered."""
        return self.path.name if self.path == lowered() else self.path.parent.name

    @property
    def bundle(self) -> Path:
        """The folder of the bundle that it is or belongs to: without .partial or .replaced."""
        match = KNOWN.fullmatch(self.path.name)
        return self.path.with_name(match[1]) if match else self.path


def bundles() -> Path:
    """The folder of the bundles; it need not exist."""
    return cache_folder() / "bundles"


def compiled() -> Path:
    """The folder of the packages that Core ML has compiled; it need not exist."""
    return cache_folder() / "compiled"


def lowered() -> Path:
    """The folder of the lowered blocks, which are one entry; it need not exist."""
    return cache_folder() / "lowered"


def entries() -> list[Entry]:
    """Every bundle and compiled package in the cache, finished or not, and the lowered blocks; the
    last used first."""
    folders = [folder for folder in (bundles(), compiled()) if folder.is_dir()]
    found = chain.from_iterable(folder.iterdir() for folder in folders)
    result = []
    for path in (lowered(), *(path for path in found if KNOWN.fullmatch(path.name))):
        if path.is_dir() and not path.is_symlink():
            with suppress(FileNotFoundError):  # renamed just now
                size, used = sum(regular_files(path).values()), path.stat().st_mtime
                result.append(Entry(path, size, used, _recipe(path)))
    return sorted(result, key=lambda entry: -entry.used)


def _recipe(bundle: Path) -> dict:
    if bundle.parent == compiled():
        return {"compiled": True}
    try:
        recipe = read_manifest(bundle).recipe
    except InvalidBundle:  # gone by now, damaged, or of another version
        return {}
    options = recipe.model_dump(mode="json", exclude_defaults=True)
    if recipe.quant_head == recipe.quant:  # which nobody has to ask for
        del options["quant_head"]
    return options


def rows(found: list[Entry]) -> list[tuple[str, str, str, str]]:
    """The rows of a table of entries: name, bytes, last use, recipe; the last has the sum."""
    lines = []
    for e in found:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(e.used))
        options = ", ".join(
            name if value is True else f"{name} {value}" for name, value in e.recipe.items()
        )
        lines.append((e.path.name, f"{e.bytes:,} bytes", used, options))
    total = sum(e.bytes for e in found)
    return [*lines, (str(cache_folder()), f"{total:,} bytes", "", "")]


def delete(names: Iterable[str]) -> list[Entry]:
    """Delete entries by their names; raises InvalidInput for one that is not there or in use."""
    by_name = {entry.path.name: entry for entry in entries()}
    chosen = list(dict.fromkeys(names))
    for name in chosen:
        if name not in by_name:
            raise InvalidInput(f"{cache_folder()} keeps no {name!r}; `ane-book cache` lists all")
    for name in chosen:
        if not _remove(by_name[name]):
            raise InvalidInput(f"{by_name[name].path}: a process is writing it just now")
    return [by_name[name] for name in chosen]


def _remove(entry: Entry) -> bool:
    """Delete an entry, or return False while somebody writes it."""
    from filelock import Timeout

    try:
        with _lock(entry.bundle).acquire(timeout=0):
            (entry.path / "manifest.json").unlink(missing_ok=True)  # half a bundle is none
            shutil.rmtree(entry.path)
    except Timeout:
        return False
    except OSError as error:
        raise InvalidInput(f"{error.filename}: cannot be deleted ({error.strerror})") from None
    return True


def mark_used(bundle: Path) -> None:
    """Set the time of last use of a folder in the cache; does nothing for any other."""
    with suppress(OSError):  # a cache that may only be read is a cache too
        if bundle.resolve().parent in (bundles().resolve(), compiled().resolve()):
            os.utime(bundle)


def _lock(bundle: Path) -> "FileLock":
    from filelock import FileLock

    folder = cache_folder() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    return FileLock(folder / f"{sha256(os.fsencode(bundle.resolve())).hexdigest()[:16]}.lock")


@contextmanager
def locked(bundle: Path) -> Iterator[None]:
    """Hold the lock for writing a bundle; waits for a process that has it."""
    from filelock import Timeout

    lock = _lock(bundle)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        words = "waiting for another process, which is writing %s"
        logging.getLogger("ane_book").warning(words, bundle)  # to stderr, unless the host says else
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def keep(name: str, made_of: dict[str, str], make: Callable[[Path], None]) -> Path:
    """Return the folder in `compiled` that `make` fills; it is made once, whole or not at all.

    made_of: all that the content depends on, by name; a change of any makes another folder. Raises
    OSError where it is not in the cache and cannot be written there.
    """
    key = sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:16]
    path = compiled() / f"{name}-{key}"
    if not _is_whole(path):
        compiled().mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(path):
            if not _is_whole(path):  # no other process made it meanwhile
                unfinished = path.with_name(f"{path.name}.partial")
                for folder in (path, unfinished):
                    shutil.rmtree(folder, ignore_errors=True)
                unfinished.mkdir()
                try:
                    make(unfinished)
                    fields = {"made_of": made_of, "files": regular_files(unfinished)}
                    (unfinished / "manifest.json").write_text(json.dumps(fields))
                    unfinished.rename(path)
                finally:
                    shutil.rmtree(unfinished, ignore_errors=True)
    mark_used(path)
    return path


def _is_whole(path: Path) -> bool:
    """Whether a kept folder is complete, by the names and sizes of its files."""
    try:
        files = json.loads((path / "manifest.json").read_bytes())["files"]
    except (OSError, ValueError, LookupError, TypeError):
        return False
    sizes = regular_files(path)
    return bool(files) and all(sizes.get(name) == size for name, size in files.items())


def recall(key: str) -> Path | None:
    """The bundle that `remember` stored under a key, if it is still in the cache."""
    try:
        name = (cache_folder() / "names" / key).read_text()
    except (OSError, ValueError):
        return None
    match = KNOWN.fullmatch(name)
    return bundles() / name if match and not match[2] and (bundles() / name).is_dir() else None


def remember(key: str, bundle: Path) -> None:
    """Store which bundle of the cache a key led to, if the cache can be written."""
    file = cache_folder() / "names" / key
    with suppress(OSError):  # the bundle is there all the same
        file.parent.mkdir(parents=True, exist_ok=True)
        with written_whole(file) as unfinished:
            unfinished.write_text(bundle.name)
