"""The journal of an unfinished bundle: the sha256 of every file that is finished.

A conversion that was killed resumes from it. A file that no longer has its hash, because the
machine went down before all of it was on the disk, is made again. The same hashes go into the
manifest.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from fnmatch import fnmatchcase
import json
from pathlib import Path
import shutil

from ane_book.conversion.target import check_ours
from mlprogram.files import refuse_others, regular_files, sha256

UNFINISHED = "unfinished_"  # prefix of a file that is being written
PART = "evidence.json.*.part"  # the same, of evidence.json
#: The files of an unfinished bundle; somebody else put there what has any other name.
OURS = (
    "journal.json", "tokenizer.json", "schemes.json", "manifest.json", "evidence.json",
    "embedding.npy", "per_layer.npy", "positions.npy", "golden.npz", "hidden_*.npz",
    "experts_*.npz",
    "calibration_*.pt", "layers_*.mlpackage", "layer_*.mlpackage", "trunk_*.mlpackage",
    "head.mlpackage", "head_*.mlpackage",
)  # fmt: skip


class Journal:
    """The journal of the folder in which a bundle is built; `key` names source and recipe.

    A thread of its own computes hashes while the next file is being written. Raises InvalidInput
    where the folder, or a file in it, is not a bundle's.
    """

    def __init__(self, folder: Path, key: str):
        self._folder, self._file, self._key = folder, folder / "journal.json", key
        self._unfinished = folder / f"{UNFINISHED}{self._file.name}"
        self._noted: dict[str, dict[str, str]] = {}  # file or package -> its files -> sha256
        self._worker = ThreadPoolExecutor(1)
        self._last: Future | None = None
        noted = self._read()
        folder.mkdir(parents=True, exist_ok=True)
        self._noted = dict(noted)
        self._save()  # before deleting: what has a journal is ours, even half a bundle
        for path in folder.iterdir():
            if path != self._file and (path.name not in noted or _hashes(path) != noted[path.name]):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
                self._noted.pop(path.name, None)
        self._save()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, error: type[BaseException] | None, *_) -> None:
        self._worker.shutdown()
        if error and [*self._folder.iterdir()] == [self._file]:  # there is nothing to go on from
            shutil.rmtree(self._folder)

    def _read(self) -> dict[str, dict[str, str]]:
        """The hashes in an existing journal of the same source and recipe; {} without one."""
        try:
            journal = json.loads(self._file.read_bytes() if self._file.is_file() else "")
            key, noted = journal["key"], {n: dict(files) for n, files in journal["noted"].items()}
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            if self._folder.is_dir() and [*self._folder.iterdir()] == [self._unfinished]:
                self._unfinished.unlink()  # of a conversion that was killed at its first write
            check_ours(self._folder)
            return {}
        self._check(noted)
        return noted if key == self._key else {}

    def _check(self, noted: dict[str, dict[str, str]]) -> None:
        """Raise InvalidInput where a file would be lost that is not the bundle's."""
        names = [path.name for path in self._folder.iterdir()]
        refuse_others(self._folder, names, _is_begun)
        for name in noted.keys() & names:  # a package, or a file, which has none in it
            inner = [f"{name}/{file}" for file in regular_files(self._folder / name)]
            refuse_others(self._folder, inner, noted[name].__contains__)

    def note(self) -> None:
        """Add the hashes of files that were finished since the last call."""
        self._wait()
        self._last = self._worker.submit(self._note)

    def _wait(self) -> None:
        if self._last is not None:
            self._last.result()

    def _note(self) -> None:
        for path in sorted(self._folder.iterdir()):
            name = path.name
            if name not in self._noted and path != self._file and _is_ours(name):
                self._noted[name] = _hashes(path)
        self._save()

    def _save(self) -> None:
        self._unfinished.write_text(json.dumps({"key": self._key, "noted": self._noted}))
        self._unfinished.replace(self._file)

    def hashes(self) -> dict[str, str]:
        """sha256 of every finished file that is still there."""
        self._wait()
        finished = [name for name in sorted(self._noted) if (self._folder / name).exists()]
        return {file: digest for name in finished for file, digest in self._noted[name].items()}

    def remove(self) -> None:
        """Delete the journal: the bundle is finished."""
        self._wait()
        self._file.unlink()


def _is_ours(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in OURS)


def _is_begun(name: str) -> bool:
    return _is_ours(name.removeprefix(UNFINISHED)) or fnmatchcase(name, PART)


def _hashes(path: Path) -> dict[str, str]:
    """sha256 of a file, or of all files of a package, by their paths in the bundle."""
    if path.is_dir():
        names = [f"{path.name}/{name}" for name in regular_files(path)]
    else:
        names = [path.name] if path.is_file() else []  # a pipe would be waited for
    return {name: sha256(path.parent / name) for name in sorted(names)}
