"""Write a plan to the cache: see `kept.py`."""

from contextlib import suppress
from dataclasses import astuple
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from mlprogram import sealed
from mlprogram.errors import MLProgramError
from mlprogram.files import private_file
from mlprogram.kernels import native
from mlprogram.package.description import Feature
from mlprogram.package.validation.validate import needed_memory
from mlprogram.run.calls import ConstantMemory
from mlprogram.run.compile import Compiled
from mlprogram.run.kept import WholePlan, file_key, identity
from mlprogram.run.open_sizes import OpenSizes
from mlprogram.run.plan import Name
from mlprogram.run.stretches import NativeStretch, whole
from mlprogram.run.table import ALIGNMENT
import numpy as np
from torch import Tensor

if TYPE_CHECKING:
    from mlprogram.run.program import MLProgram

LARGEST = 32 << 20  # bytes of a file; constants that take more are laid out in every process
MOST, COUNT = 256 << 20, 1_000  # bytes of all files, and how many; those used longest ago go first
DAY = 24 * 3600  # seconds


class Unkept(Exception):
    """A plan is not one that is kept."""


def keep(program: "MLProgram", compiled: Compiled) -> WholePlan | None:
    """The plan of a program, if all of it runs in C; and write it to the cache, if the program was
    opened from a package's folder."""
    try:
        stretch, results = one_stretch(program, compiled)
    except Unkept:
        return None
    package = program.package
    if program.asked is not None and package.file is not None:
        with suppress(Unkept, OSError, MLProgramError):
            _write(program, compiled, file_key(package.digest, package.file, *program.asked))
    names, words = [*program.outputs], stretch.words.at(0)
    return WholePlan([*program.inputs], names, stretch.tables.at(0), results, words, [stretch])


def _write(program: "MLProgram", compiled: Compiled, key: str | None) -> None:
    made = content(program, compiled)
    if key is None or len(made) > LARGEST:
        return
    folder = sealed.private_folder()
    path = folder / f"{key}-{hashlib.sha256(made).hexdigest()}.plan"
    with private_file(path) as file:
        file.write(made)
    with os.scandir(folder) as files:
        left, kept = MOST, [(x.stat(), x.path) for x in files if x.name.endswith(".plan")]
    now = path.stat().st_mtime  # what is dated later is of a clock that went back
    kept.sort(key=lambda pair: (pair[0].st_mtime > now, -pair[0].st_mtime_ns))
    for i, (status, one) in enumerate(kept):
        left -= status.st_size
        if left < 0 or i >= COUNT:
            Path(one).unlink(missing_ok=True)
    for part in folder.glob("*.plan.*.part"):  # of writers, some of which were killed
        if part.stat().st_mtime < now - DAY:
            part.unlink(missing_ok=True)


def content(program: "MLProgram", compiled: Compiled) -> bytes:
    """The file of a program's plan, the same in every process; raises Unkept."""
    stretch, results = one_stretch(program, compiled)
    maps = [np.frombuffer(blob._map, np.uint8) for blob in program.package._blobs.values()]
    image = _Image(stretch, [(x.ctypes.data, x.nbytes) for x in maps])
    head = {
        "name": program.name,
        "functions": program.functions,
        "needs": needed_memory(program._function, program._lift)[0],
        **{
            part: [(name, astuple(type_)) for name, type_ in getattr(program, part).items()]
            for part in ("inputs", "outputs", "states")
        },
        "features": [_feature(f) for f in program.features.values()],
        "images": [_feature(f) for f in program.images.values()],
        "table": stretch.tables.at(0),
        "results": results,
        "weights": [
            (name.removeprefix("@model_path/"), identity(blob))
            for name, blob in program.package._blobs.items()
        ],
        "entries": image.entries,
        "count": len(image.places),
    }
    places = np.array(image.places, np.int64).reshape(-1, 3).T
    return json.dumps(head).encode() + b"\n" + places.tobytes() + image.data


def one_stretch(
    program: "MLProgram", compiled: Compiled
) -> tuple[NativeStretch, list[tuple[int, bool]]]:
    """The one stretch of a plan, and of each output which of its values it is, and if copied.

    Raises Unkept for a plan of more."""
    if len(compiled.parts) != 1 or not isinstance(stretch := compiled.parts[0], NativeStretch):
        raise Unkept
    table, results = stretch.tables.at(0), []
    is_open = any(f.shapes or f.bounds for f in program.features.values())
    is_double = len(program.outputs) < len(program.plan.main.results)
    if is_open or is_double or isinstance(compiled.run, OpenSizes):
        raise Unkept
    for result, type_ in zip(program.plan.main.results, program.outputs.values(), strict=True):
        if not isinstance(result.value, Name) or result.value.name not in stretch.made:
            raise Unkept
        at = stretch.made.index(result.value.name)
        base, _, dtype, shape, _ = table.made[at]
        if base >= 2 + sum(map(len, (table.given, table.states, table.known, table.new))):
            raise Unkept  # a constant
        if (dtype, shape) != (program._dtype(type_).str, type_.shape):
            raise Unkept
        results.append((at, result.copied))
    return stretch, results


def _feature(f: Feature) -> tuple:
    return f.name, astuple(f.type), f.shape, (), (), f.fill, f.color, f.mode


class _Image:
    """The words of a stretch's table, and its constants that are in no weight file. places: of
    addresses, each with its base and offset. entries: the names of the last bases."""

    def __init__(self, stretch: NativeStretch, maps: list[tuple[int, int]]):
        self.maps, self.at = maps, dict[int, int]()  # address -> place of its memory in the image
        self.data = bytearray(stretch.words.at(0).tobytes())
        self.places: list[tuple[int, int, int]] = []
        self.entries = [*dict.fromkeys(name for _, name in stretch.entries)]
        for place, name in stretch.entries:
            self.point(8 * place, 1 + len(maps) + self.entries.index(name), 0)
        for place, memory, offset in stretch.constants:
            base, at = self.owned(memory)
            self.point(8 * place, base, at + offset)

    def point(self, at: int, base: int, offset: int) -> None:
        """An address is to be at this byte of the image."""
        self.data[at : at + 8] = bytes(8)
        self.places.append((at // 8, base, offset))

    def owned(self, memory: ConstantMemory) -> tuple[int, int]:
        """The base of a constant's memory, and where it begins there."""
        owner = memory.owner
        if isinstance(owner, Tensor):
            return self.tensor(owner, memory.address)
        if not isinstance(owner, native.Weight):
            raise Unkept
        if memory.address not in self.at:
            begin = self.at[memory.address] = self.added(bytes(owner.matrix))
            for name, tensor in zip(("weight", "table", "bias"), owner._keep, strict=True):
                if tensor is not None:
                    field = getattr(type(owner.matrix), name)
                    self.point(begin + field.offset, *self.tensor(tensor, tensor.data_ptr()))
        return 0, self.at[memory.address]

    def tensor(self, tensor: Tensor, address: int) -> tuple[int, int]:
        """The base of an address in a tensor's memory, and the offset from it."""
        for i, (begin, size) in enumerate(self.maps):
            if begin <= address < begin + size:
                return 1 + i, address - begin
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.at:
            self.at[storage.data_ptr()] = self.added(whole(tensor).tobytes())
        return 0, self.at[storage.data_ptr()] + address - storage.data_ptr()

    def added(self, content: bytes) -> int:
        """The place in the image of bytes that are added to it."""
        self.data += bytes(-len(self.data) % ALIGNMENT)
        self.data += content
        if len(self.data) > LARGEST:
            raise Unkept
        begin = len(self.data) - len(content)
        self.data += bytes(-len(self.data) % 8)
        return begin
