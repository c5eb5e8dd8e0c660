"""One op of a package under each semantics."""

from collections.abc import Callable

from _package import op, typed
from mlprogram import MLProgram
import numpy as np

DTYPES = {"float32": "fp32", "float16": "fp16", "int32": "int32", "bool": "bool", "int16": "int16"}


def like(array: np.ndarray):
    """The MIL type of an array."""
    return typed(DTYPES[str(array.dtype)], *array.shape)


def one(make: Callable, kind: str, made, inputs: dict[str, np.ndarray], **constants):
    """A package of one op, whose result `y` has the type `made`."""
    operation = op(kind, {"y": made}, **{name: name for name in inputs}, **constants)
    return make([operation], ("y",), {name: like(array) for name, array in inputs.items()})


def of(path, inputs: dict[str, np.ndarray], semantics: str | None = None) -> np.ndarray:
    """What a package computes, the same with every shortcut and with none."""
    first, plain = (
        MLProgram(path, semantics=semantics, optimize=optimize).predict(inputs)["y"]
        for optimize in (True, False)
    )
    np.testing.assert_array_equal(first, plain)
    return first


def both(path, inputs: dict[str, np.ndarray]) -> tuple[list, list, list]:
    """The result as documented, as reported, and by default."""
    return tuple(of(path, inputs, s).tolist() for s in ("documented", "reported", None))
