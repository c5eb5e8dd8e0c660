"""The weight files of a package: `weight.bin`, then `weight_1.bin`, `weight_2.bin`, ...

Once one weight file passes 2 GiB, Core ML is reported to offer nothing of the model to the Neural
Engine; the same weights in several files it does (claim `weight-file`). So the next file begins
where a blob would take the present one past `FILE_LIMIT`, and a larger blob has a file to itself.
The names are those of a package that Core ML planned wholly on the engine, by its author
(kasper0406/gemma-coreml-chat@e14b530, gemma_chat/weight_shards.py). Manifest.json names only the
folder, and the program each file.

Taught in the chapter "From a layer to packages".
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from mlprogram.errors import InvalidInput
from mlprogram.package.container import blob_values
from mlprogram.package.files import proto
from mlprogram.package.weight_file import (
    HEADER,
    RECORD,
    SUB_BYTE,
    VERSION,
    blob_record,
    pack_bits,
    stored_bytes,
)
import numpy as np

FILE_LIMIT = 1_000_000_000  # bytes of a file, unless one blob is larger
MOST = 1 << 31  # bytes of a file, whatever is in it: the number of the claim `weight-file`
ALIGNMENT = 64
FOLDER = "@model_path/weights/"


def file_sizes(blobs: Iterable[int]) -> tuple[int, ...]:
    """Bytes of each weight file for blobs of so many bytes, stored in this order."""
    ends: list[int] = []
    for size in blobs:
        _append(ends, size)
    return tuple(ends)


def _append(ends: list[int], size: int) -> None:
    """Count a blob of `size` bytes in the last of the files that end at `ends`, or in a new one."""
    if ends:
        end = _after(ends[-1], size)
        if end <= FILE_LIMIT:
            ends[-1] = end
            return
    ends.append(_after(HEADER.size, size))


def _after(end: int, size: int) -> int:
    """The end of a file that ended at `end`, with one more blob; only what follows one aligns."""
    return end + -end % ALIGNMENT + RECORD.size + size


def _name(number: int) -> str:
    return f"weight_{number}.bin" if number else "weight.bin"


def _refuse_large(end: int, name: str) -> None:
    if end > MOST:
        raise InvalidInput(
            f"the weight {name} takes {end:,} bytes, and with more than {MOST:,} in one file "
            "Core ML offers nothing of a program to the Neural Engine; store it with fewer bits "
            "(--quant, --quant-head), or cut it into parts (--head-rows)"
        )


class WeightFiles:
    """Writes the weight files of a package into its folder `weights`, one blob after the other.

    No file stays open: one that is interrupted leaves nothing to be closed.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._ends: list[int] = []
        self._count = 0  # blobs of the present file
        (folder / _name(0)).write_bytes(HEADER.pack(0, VERSION))

    def write(self, name: str, dtype: str, array: np.ndarray) -> tuple[str, int]:
        """Append an operand of the weight `name`; returns its file and the offset in it.

        dtype: of MIL; values of fewer than 8 bits are given one to a byte. Raises InvalidInput for
        a blob that is too large for any file.
        """
        files, size = len(self._ends), stored_bytes(dtype, array.shape)
        _append(self._ends, size)
        _refuse_large(self._ends[-1], name)
        self._count = self._count + 1 if len(self._ends) == files else 1
        file, offset = _name(len(self._ends) - 1), self._ends[-1] - size - RECORD.size
        bits = SUB_BYTE.get(dtype)
        raw = pack_bits(array, bits) if bits else np.ascontiguousarray(array)
        mode = "wb" if self._count == 1 else "r+b"
        with (self._folder / file).open(mode, buffering=0) as out:
            out.write(HEADER.pack(self._count, VERSION))
            out.seek(offset)
            out.write(blob_record(dtype, array.shape, offset))
            left = raw.reshape(-1).view(np.uint8)
            while left.size:  # Linux takes 2 GB at most in one call
                left = left[out.write(left.data) :]
        return FOLDER + file, offset


def spread_weights(package: Path) -> None:
    """Spread the weight file of a package that coremltools wrote over several, in place.

    Does nothing where it has at most `FILE_LIMIT` bytes. Raises InvalidInput for a constant that is
    too large for any file.
    """
    folder = package / "Data" / "com.apple.CoreML"
    file, program = folder / "weights" / _name(0), folder / "model.mlmodel"
    if not file.exists() or file.stat().st_size <= FILE_LIMIT:
        return
    model = proto("Model_pb2").Model.FromString(program.read_bytes())
    values: dict[int, list] = {}
    names: dict[int, str] = {}
    for name, value in blob_values(model):
        values.setdefault(value.offset, []).append(value)
        names.setdefault(value.offset, name)
    whole = file.rename(folder / "whole.bin")
    places = _spread(whole, file.parent, dict(sorted(names.items())))
    whole.unlink()
    for offset, (name, new) in places.items():
        for value in values[offset]:
            value.fileName, value.offset = name, new
    program.write_bytes(model.SerializeToString(deterministic=True))


def _spread(whole: Path, folder: Path, names: dict[int, str]) -> dict[int, tuple[str, int]]:
    """Copy the blobs at the offsets `names` to files in `folder`: offset -> new file and offset."""
    ends: list[int] = []
    places: dict[int, tuple[str, int]] = {}
    counts: Counter[str] = Counter()
    with whole.open("rb") as source:
        for offset, name in names.items():
            source.seek(offset)
            sentinel, code, size, start, padding = RECORD.unpack(source.read(RECORD.size))
            _append(ends, size)
            _refuse_large(ends[-1], name)
            file, at = _name(len(ends) - 1), ends[-1] - size - RECORD.size
            source.seek(start)
            with (folder / file).open("r+b" if counts[file] else "wb") as out:
                counts[file] += 1
                out.write(HEADER.pack(counts[file], VERSION))
                out.seek(at)
                out.write(RECORD.pack(sentinel, code, size, at + RECORD.size, padding))
                out.write(source.read(size))
            places[offset] = FOLDER + file, at
    return places
