"""A bundle's packages on one machine: read from its own disk, or received and kept in its cache.

A machine whose disk has the same manifest.json in the same folder reads its packages there. Any
other one is sent those of its own range, and keeps them in the cache, beside the bundles
(`ane-book cache` lists them): each package whole or not at all. Either way every byte is compared
with the manifest's sha256 before a program is loaded: a wrong token would not show its cause.
"""

from collections.abc import Iterable, Iterator
import hashlib
from pathlib import Path
import re
import shutil

from ane_book.bundle.cache import bundles, mark_used
from ane_book.bundle.manifest import Manifest
from ane_book.errors import InvalidBundle, OutOfSpace
from mlprogram.files import sha256

PIECE = 1 << 22  # bytes that are sent at once


def pieces(path: Path) -> Iterator[bytes]:
    """Yield a file's bytes, at most PIECE at once; an empty file gives one empty piece."""
    with path.open("rb") as file:
        yield (piece := file.read(PIECE))
        while piece := piece and file.read(PIECE):
            yield piece


class Files:
    """The files of some packages of a bundle; `folder` is where they are, or will be."""

    def __init__(self, path: Path, text: str, manifest: Manifest, packages: Iterable[str]):
        self._manifest, self._packages = manifest, list(dict.fromkeys(packages))
        self._is_own = _same(path / "manifest.json", text)
        name = re.sub(r"[^\w.-]", "_", manifest.name)[:80]
        folder_name = f"{name}.parts-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        self.folder = path if self._is_own else bundles() / folder_name

    def missing(self) -> list[str]:
        """The packages that have to be sent; raises InvalidBundle where this machine's own bundle
        has changed since it was written."""
        if self._is_own:
            if changed := self._changed(self.folder, self._packages):
                raise InvalidBundle(
                    f"{self.folder}: not as it was written: {', '.join(changed)}; copy the bundle "
                    "again, or delete it there: then what is needed is sent"
                )
            return []
        mark_used(self.folder)
        return [name for name in self._packages if self._changed(self.folder, [name])]

    def receive(self, name: str, content: bytes) -> None:
        """Append the next bytes to a file of a missing package."""
        package, _, rest = name.partition("/")
        if package not in self._packages or name not in self._manifest.files:
            raise InvalidBundle(f"{name!r} is no file of {self._manifest.name} that is needed here")
        path = self._partial(package) / rest
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.write(content)
        except OSError as error:
            raise OutOfSpace(f"{path}: cannot be written ({error.strerror})") from None

    def begin(self, package: str) -> None:
        """Begin to receive a package; deletes what is left of an earlier try."""
        shutil.rmtree(self._partial(package), ignore_errors=True)

    def keep(self, package: str) -> None:
        """Keep a package that was sent whole; raises InvalidBundle where its hashes differ."""
        partial = self._partial(package)
        if changed := self._changed(partial.parent, [package], partial.name):
            shutil.rmtree(partial)
            raise InvalidBundle(
                f"{package} arrived with {', '.join(changed)} changed: on the machine that sent it "
                "`ane-book inspect --checksums` says whether its bundle is sound"
            )
        shutil.rmtree(self.folder / package, ignore_errors=True)
        partial.rename(self.folder / package)

    def _partial(self, package: str) -> Path:
        return self.folder / f"{package}.partial"

    def _changed(self, folder: Path, packages: list[str], shown: str | None = None) -> list[str]:
        """The files of some packages that are missing or whose hashes differ."""
        changed = []
        for name, expected in self._manifest.sha256.items():
            package, _, rest = name.partition("/")
            if package in packages:
                try:
                    actual = sha256(folder / (shown or package) / rest)
                except OSError:
                    actual = ""
                if actual != expected:
                    changed.append(name)
        return changed


def _same(path: Path, text: str) -> bool:
    try:
        return path.read_text() == text
    except (OSError, ValueError):
        return False
