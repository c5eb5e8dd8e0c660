"""Keep the plan of a function in the cache: the next process runs it without planning, or torch.

A plan is kept where all of its steps run in C as one stretch of fixed sizes. Its file has a line of
JSON (names, types and the `CallTable`) and an image: the table's words, and whatever constants are
not in the package's weight files as a kernel reads them. An address in the image is a place, the
number of a base (the image, a weight file, an entry of the kernels), and an offset from where that
lies in this process.

The file is named by what the plan was made of: the program, options, this library, torch, and the
compiled kernels, which are this processor's. Weight files are compared by size, inode and times, as
their content would take seconds to read. One that is damaged or another user's (`sealed.py`), or
whose package has changed, is never run: the plan is made anew.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
import hashlib
from importlib.util import find_spec
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import mlprogram
from mlprogram import sealed
from mlprogram.errors import MLProgramError
from mlprogram.kernels import compiled
from mlprogram.machine import memory_bytes
from mlprogram.package.container import read_model
from mlprogram.package.description import Feature
from mlprogram.package.files import inside
from mlprogram.package.values import TensorType
from mlprogram.package.weight_file import BlobFile
from mlprogram.run.table import CallTable, new, read
import numpy as np

if TYPE_CHECKING:
    from mlprogram.run.states import States


class Failed(NamedTuple):
    """A call that failed: its place in the table, and the memory of `CallTable.run`."""

    place: int
    memory: list[np.ndarray]


@dataclass
class WholePlan:
    """A plan whose steps all run in C, as one stretch of fixed sizes.

    inputs, outputs: their names. results: of each output which of the values made it is, and
    whether it is copied. image: begins with the table. owners: what has the memory of constants.
    """

    inputs: list[str]
    outputs: list[str]
    table: CallTable
    results: Sequence[tuple[int, bool]]
    image: np.ndarray
    owners: list

    def run(
        self, arrays: Iterable[np.ndarray], states: "States", used: int
    ) -> dict | Failed | None:
        """The outputs by name; None, and nothing was run, where states lie in memory otherwise.

        used: see `MLProgram.predict`.
        """
        given = dict(zip(self.inputs, arrays, strict=True))
        found = [given[name] for name, *_ in self.table.given]
        aligned = [x if x.flags.aligned else x.copy() for x in found]
        done = self.table.run(self.image, states, aligned, used)
        if done is None or done[0] >= 0:
            return done and Failed(*done)
        made = [read(view, done[1]) for view in self.table.made]
        values = [made[i].copy() if copied else made[i] for i, copied in self.results]
        values = [x if x.flags.c_contiguous else x.copy() for x in values]
        return dict(zip(self.outputs, values, strict=True))


@dataclass
class KeptPlan:
    """A function and its plan, as a file has them.

    digest: of that file, with its key. files: of the package, see `files`.
    """

    digest: str
    files: tuple
    name: str
    functions: list[str]
    inputs: dict[str, TensorType]
    outputs: dict[str, TensorType]
    states: dict[str, TensorType]
    features: dict[str, Feature]
    images: dict[str, Feature]
    plan: WholePlan


# --- finding --------------------------------------------------------------------------------------


def find(
    path: str | Path, function: str | None, precision: str, semantics: str | None
) -> KeptPlan | None:
    """The kept plan of a function of a package; None if there is none that holds."""
    with suppress(OSError, RuntimeError, ValueError, MLProgramError):  # the reader says why
        folder = Path(path).resolve()
        file, content = read_model(folder, folder)
        program = hashlib.sha256(content).hexdigest()
        if (key := file_key(program, file, function, precision, semantics)) is None:
            return None
        for found in sorted(sealed.private_folder().glob(f"{key}-*.plan")):
            with suppress(OSError, MemoryError, MLProgramError):  # others may read it: leave it
                if (plan := _opened(found, program, folder, file.parent)) is not None:
                    return plan
                found.unlink(missing_ok=True)
    return None


def file_key(
    program: str, file: Path, function: str | None, precision: str, semantics: str | None
) -> str | None:
    """A hash of all that a plan is made of, but for weight files; None without kernels."""
    library, _ = compiled.library()
    if library is None:
        return None
    made_of = [program, str(file), function, precision, semantics, library.made_of, _code()]
    made_of += [np.__version__, os.environ.get("ATEN_CPU_CAPABILITY")]
    return hashlib.sha256(repr(made_of).encode()).hexdigest()[:16]


@cache
def _code() -> list[tuple[str, int, int]]:
    """The files of this library, and torch's first one, with sizes and times."""
    torch = find_spec("torch")
    paths = [torch.origin] if torch and torch.origin else []
    for folder, _, names in os.walk(Path(mlprogram.__file__).parent):
        paths += [os.path.join(folder, name) for name in sorted(names) if name.endswith(".py")]
    found = ((path, os.stat(path)) for path in paths)
    return sorted((path, status.st_size, status.st_mtime_ns) for path, status in found)


def identity(blob: BlobFile) -> tuple[int, ...]:
    """What changes when a file does."""
    status = blob.status
    return (
        status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
    )  # fmt: skip


def files(program: str, blobs: Iterable[BlobFile]) -> tuple:
    """What changes when a package does: the digest of its model's file, and its weight files."""
    return program, *map(identity, blobs)


def _opened(path: Path, program: str, folder: Path, base: Path) -> KeptPlan | None:
    """The plan in a file; None if it is not as it was written, or weight files have changed.

    Raises OSError, MemoryError or MLProgramError where another process might read it.
    """
    if (descriptor := sealed.opened(path)) is None:
        return None
    with open(descriptor, "rb") as file:
        with suppress(OSError):  # a read-only cache
            os.utime(descriptor)  # it was used
        content = file.read()
    try:
        return _read(content, path, program, folder, base)
    except (OSError, MemoryError, MLProgramError):
        raise
    except Exception:  # sealed as we seal it, but nothing that we wrote
        return None


def _read(
    content: bytes, path: Path, program: str, folder: Path, base: Path
) -> KeptPlan | None:
    """The plan in a file's content, with the addresses of this process."""
    line, _, rest = content.partition(b"\n")
    head, words = _tuples(json.loads(line)), np.frombuffer(rest, np.int64)
    blobs = [BlobFile(inside(folder, base / name, f"{path}:")) for name, _ in head["weights"]]
    changed = [identity(blob) for blob in blobs] != [known for _, known in head["weights"]]
    if changed:
        return None
    if head["needs"] > (memory_bytes() or head["needs"]):
        raise MemoryError
    count = 3 * head["count"]
    places, which, offsets = words[:count].reshape(3, -1)
    image = new("<i8", (len(words) - count,))
    image[:] = words[count:]
    bases = [image.ctypes.data, *[np.frombuffer(b._map, np.uint8).ctypes.data for b in blobs]]
    bases += [compiled.entry(name) for name in head["entries"]]
    image[places] = np.array(bases)[which] + offsets
    inputs, outputs, states = (
        {name: TensorType(*type_) for name, type_ in head[part]}
        for part in ("inputs", "outputs", "states")
    )
    return KeptPlan(
        path.stem, files(program, blobs), head["name"], [*head["functions"]],
        inputs, outputs, states, _features(head["features"]), _features(head["images"]),
        WholePlan([*inputs], [*outputs], CallTable(*head["table"]), head["results"], image, blobs),
    )  # fmt: skip


def _features(described: Iterable) -> dict[str, Feature]:
    return {name: Feature(name, TensorType(*type_), *rest) for name, type_, *rest in described}


def _tuples(value: Any) -> Any:
    """A JSON value with tuples for lists."""
    if isinstance(value, dict):
        return {name: _tuples(each) for name, each in value.items()}
    return tuple([_tuples(each) for each in value]) if isinstance(value, list) else value
