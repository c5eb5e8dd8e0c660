"""Read numpy's files safely: the caller says which name, shape and dtype to expect.

A file that is damaged, or made to harm, raises InvalidBundle in one sentence, and memory is taken
only for what was asked for, whatever the file's own header says.

Formats: numpy.lib.format (.npy); .npz is a zip archive of such files.
"""

from collections.abc import Mapping
from io import BytesIO
from math import prod
from pathlib import Path
from typing import BinaryIO
import zipfile

from ane_book.errors import InvalidBundle
import numpy as np
from numpy.lib import format as npy

Shape = tuple[int, ...]
MAX_HEADER = 4096  # bytes in front of the numbers; numpy writes 128


def map_array(path: Path, shape: Shape, dtype: type) -> np.ndarray:
    """Memory-map the array of a .npy file; raises InvalidBundle unless it is of this type."""
    try:
        with path.open("rb") as file:
            _check_header(file, shape, dtype)
            start = file.tell()
        if path.stat().st_size != start + prod(shape) * np.dtype(dtype).itemsize:
            raise ValueError("more or fewer bytes than its header says")
        return np.memmap(path, dtype, "r", start, shape)
    except Exception as error:  # numpy's parsers raise whatever the damage leads to
        raise _damaged(path, error) from None


def read_arrays(path: Path, wanted: Mapping[str, tuple[Shape, type]]) -> dict[str, np.ndarray]:
    """Read arrays of a .npz file; raises InvalidBundle unless each has its shape and dtype."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {name: _member(archive, name, *as_) for name, as_ in wanted.items()}
    except (
        Exception
    ) as error:  # zipfile's as well: BadZipFile, zlib.error, NotImplementedError, ...
        raise _damaged(path, error) from None


def _member(archive: zipfile.ZipFile, name: str, shape: Shape, dtype: type) -> np.ndarray:
    size = prod(shape) * np.dtype(dtype).itemsize
    with archive.open(f"{name}.npy") as file:
        content = file.read(size + MAX_HEADER)  # no more, however much the archive unfolds to
        if file.read(1):
            raise ValueError(f"{name} is longer than {dtype.__name__}{shape}")
    stream = BytesIO(content)
    _check_header(stream, shape, dtype)
    if len(content) - stream.tell() != size:
        raise ValueError(f"{name} has more or fewer bytes than its header says")
    return np.frombuffer(content, dtype, offset=stream.tell()).reshape(shape).copy()


def _check_header(file: BinaryIO, shape: Shape, dtype: type) -> None:
    """Read a .npy header; ValueError unless it says this shape and dtype, in C order."""
    version = npy.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"version {version} of the format is not (1, 0)")
    # numpy's stubs lack the limit
    declared = npy.read_array_header_1_0(file, max_header_size=MAX_HEADER)  # type: ignore[call-arg]
    if declared != (shape, False, np.dtype(dtype)):
        order = " in Fortran order" if declared[1] else ""
        raise ValueError(
            f"{declared[2]}{declared[0]}{order}; manifest.json says {np.dtype(dtype)}{shape}"
        )


def _damaged(path: Path, error: Exception) -> InvalidBundle:
    reason = str(error)[:200] or type(error).__name__
    return InvalidBundle(f"{path} is damaged ({reason}); convert the model again")
