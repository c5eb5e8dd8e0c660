"""Read numpy's files safely: the caller says which name, shape and dtype to expect.

A file that is damaged, or made to harm, raises InvalidBundle in one sentence, and memory is filled
only with what was asked for, whatever the file's own header says.
"""

from collections.abc import Mapping
from math import prod
from pathlib import Path
import zipfile

from ane_book.errors import InvalidBundle
import numpy as np
from numpy.lib import format as npy

Shape = tuple[int, ...]
MAX_HEADER = 4096  # bytes in front of the numbers; numpy writes 128


def map_array(path: Path, shape: Shape, dtype: type) -> np.ndarray:
    """Memory-map the array of a .npy file; raises InvalidBundle unless it is of this type."""
    try:
        found = npy.open_memmap(path, mode="r")
        if path.stat().st_size != found.offset + found.nbytes:
            raise ValueError("more bytes than its header says")
        return _checked(found, shape, dtype)
    except Exception as error:  # numpy's parsers raise whatever the damage leads to
        raise _damaged(path, error) from None


def read_arrays(path: Path, wanted: Mapping[str, tuple[Shape, type]]) -> dict[str, np.ndarray]:
    """Read arrays of a .npz file; raises InvalidBundle unless each has its shape and dtype."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {name: _member(archive, name, *as_) for name, as_ in wanted.items()}
    except Exception as error:  # zipfile's as well: BadZipFile, zlib.error, ...
        raise _damaged(path, error) from None


def _member(archive: zipfile.ZipFile, name: str, shape: Shape, dtype: type) -> np.ndarray:
    most = prod(shape) * np.dtype(dtype).itemsize + MAX_HEADER  # however much it unfolds to
    if archive.getinfo(f"{name}.npy").file_size > most:
        raise ValueError(f"{name} is longer than {dtype.__name__}{shape}")
    with archive.open(f"{name}.npy") as file:
        return _checked(npy.read_array(file), shape, dtype)


def _checked(found: np.ndarray, shape: Shape, dtype: type) -> np.ndarray:
    if (found.shape, found.dtype) != (shape, np.dtype(dtype)) or not found.flags.c_contiguous:
        order = "" if found.flags.c_contiguous else " in Fortran order"
        said = f"{found.dtype}{found.shape}{order}"
        raise ValueError(f"{said}; manifest.json says {np.dtype(dtype)}{shape}")
    return found


def _damaged(path: Path, error: Exception) -> InvalidBundle:
    reason = str(error)[:200] or type(error).__name__
    return InvalidBundle(f"{path} is damaged ({reason}); convert the model again")
