"""Exact rewrites of products: with vectors, and with the matrix of a Fourier transform."""

from mlprogram.ane.faults.fix.edit import Typed, broadcast
from mlprogram.ane.faults.fix.mend import At, Mend, Rewrite, Unmended
import numpy as np
import torch

MOST = 1 << 22  # bytes of a matrix that is written into the program; the weight file keeps its own


def fourier_matrix(at: At) -> Mend:
    """A product with cos or sin of 2 pi j k / n -> with those of (j k mod n), exact to the last."""
    key, old = next(
        (key, array)
        for key in ("x", "y", "weight")
        if (array := at.array(key)) is not None and array.ndim > 1
    )
    if old.nbytes > MOST:
        raise Unmended(f"its matrix of {old.nbytes:,} bytes is in the weight file, which is kept")
    n = old.shape[-1]
    turns = 2 * np.pi * (np.outer(np.arange(old.size // n), np.arange(n)) % n) / n
    wave = np.cos(turns) if old.flat[0] == 1 else np.sin(turns)
    new = {key: wave.reshape(old.shape).astype(old.dtype)}
    return at.as_described(at.again(**new), new, values={}, sums=True, ulps=8)


def matmul_vector(at: At) -> Mend:
    """A matmul with a vector -> with a matrix of one row or column, which the product drops."""
    x, y = at.value("x"), at.value("y")
    row, column = (len(one.type.shape) == 1 for one in (x, y))
    left, right = _raised(at, x, 0) if row else x, _raised(at, y, 1) if column else y
    across, down = (bool(at.setting(f"transpose_{key}", False)) for key in "xy")
    flags = {"transpose_x": across and not row, "transpose_y": down and not column}
    batch = broadcast([left.type.shape[:-2], right.type.shape[:-2]])
    rows = left.type.shape[-1 if flags["transpose_x"] else -2]
    columns = right.type.shape[-2 if flags["transpose_y"] else -1]
    given = {"x": left, "y": right, **flags}
    product = at.make.op("matmul", given, at.type.dtype, (*batch, rows, columns))
    axes = np.array([-2] * row + [-1] * column, np.int32)
    kept = (*batch, *[rows] * (not row), *[columns] * (not column))
    result = at.make.op("squeeze", {"x": product, "axes": axes}, shape=kept)

    def meant(x, y):
        x = x.mT if flags["transpose_x"] else x
        return torch.matmul(x, y.mT if flags["transpose_y"] else y)

    values = {one.name: (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0) for one in (x, y)}
    return at.mend(result, [x, y], meant, values=values, sums=True)


def _raised(at: At, vector: Typed, axis: int) -> Typed:
    (size,) = vector.type.shape
    shape = (1, size) if axis == 0 else (size, 1)
    given = {"x": vector, "axes": np.array([axis], np.int32)}
    return at.make.op("expand_dims", given, shape=shape)


REWRITES: dict[str, Rewrite] = {
    "fourier-matrix": fourier_matrix, "matmul-vector": matmul_vector,
}  # fmt: skip
