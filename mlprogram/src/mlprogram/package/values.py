"""Read the types and the constant values of an ML Program from its protobuf.

A type is checked when it is read, a value is decoded when it is asked for. The file is not trusted:
a value that disagrees with its declared type raises InvalidPackage.

Format: `mlmodel/format/MIL.proto` of apple/coremltools.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, cast

from mlprogram.errors import InvalidPackage
from mlprogram.package.weight_file import NUMPY, SUB_BYTE, unpack_bits
import numpy as np

MAX_BYTES = 1 << 43  # 8 TiB: a larger tensor is damage or an attack, never a model
MAX_RANK = 64  # the most axes of a numpy array; most MIL ops take up to 5
MAX_TEXT = 1 << 26  # the most characters in an array; numpy pads all strings to the longest

#: codes of MIL.proto's DataType -> MIL's spelling; those left out (two of 8 bits) no op takes
DTYPES = {
    1: "bool", 2: "string", 10: "fp16", 11: "fp32", 12: "fp64", 13: "bf16", 21: "int8",
    22: "int16", 23: "int32", 24: "int64", 25: "int4", 31: "uint8", 32: "uint16", 33: "uint32",
    34: "uint64", 35: "uint4", 36: "uint2", 37: "uint1", 38: "uint6", 39: "uint3",
}  # fmt: skip

ITEMSIZE = {dtype: np.dtype(kind).itemsize for dtype, kind in NUMPY.items()}  # bytes in memory


@dataclass(frozen=True)
class TensorType:
    """dtype in MIL's spelling ("fp16", "int32", ...) and shape; None stands for a flexible size."""

    dtype: str
    shape: tuple[int | None, ...]
    kind: str = "tensor"  # or "state", "list", "dictionary"

    def __str__(self) -> str:
        if self.kind == "dictionary":
            return f"dictionary of {self.dtype}"
        sizes = ", ".join("?" if size is None else str(size) for size in self.shape)
        return f"{self.dtype}({sizes})"

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of a value without flexible sizes; raises ValueError if it has one."""
        if None in self.shape:
            raise ValueError(f"{self} has a flexible size")
        return cast("tuple[int, ...]", self.shape)

    @cached_property
    def nbytes(self) -> int:
        """The bytes of such a value in memory; a flexible size counts as 1."""
        return prod(size for size in self.shape if size is not None) * ITEMSIZE[self.dtype]


@dataclass(eq=False)
class Constant:
    """A value known at load time; `array()` reads it from the program or from the weight file.

    It equals only itself, so that it can be a key in the same dict as names of values. One whose
    weight file is not there has a type alone.
    """

    type: TensorType
    _read: Callable[[], np.ndarray] | None = field(repr=False)
    blob: tuple[str, int] | None = None  # weight file and offset; None for a value in the program
    stored_bytes: int = 0
    _packed: Callable[[], np.ndarray] | None = field(default=None, repr=False)

    @property
    def is_there(self) -> bool:
        return self._read is not None

    def array(self) -> np.ndarray:
        assert self._read is not None, "its weight file is not there"
        return self._read()

    def packed(self) -> np.ndarray | None:
        """The bytes in the weight file, uint8, mapped; None for a value in the program itself."""
        return self._packed() if self._packed else None

    @cached_property
    def _value(self) -> Any:
        array = self.array()
        return array.item() if array.ndim == 0 else array.tolist()

    @property
    def value(self) -> Any:
        """The value as a Python value: a scalar, a string, or a list of the caller's own.

        One in the program itself is decoded once: all layers ask for the same axes and shapes.
        """
        if self.blob:
            return self.array().tolist()
        return self._value[:] if isinstance(self._value, list) else self._value


def read_type(message, where: str) -> TensorType:
    """Convert a MIL ValueType to a TensorType."""
    kind = message.WhichOneof("type")
    if kind == "stateType":
        return _wrapped(message.stateType.wrappedType, "state", where)
    if kind == "listType":
        return _wrapped(message.listType.type, "list", where)
    if kind == "dictionaryType":  # a classifier's probabilities by label
        return _wrapped(message.dictionaryType.valueType, "dictionary", where)
    if kind != "tensorType":
        raise InvalidPackage(f"{where}: values of kind {kind} are not supported")
    tensor = message.tensorType
    dtype = DTYPES.get(tensor.dataType)
    if dtype is None:
        raise InvalidPackage(f"{where}: dtype code {tensor.dataType} is unknown")
    type_ = TensorType(dtype, tuple([_size(dimension) for dimension in tensor.dimensions]))
    if len(type_.shape) > MAX_RANK:
        axes = len(type_.shape)
        raise InvalidPackage(f"{where}: a tensor of {axes} axes; {MAX_RANK} are the most")
    if type_.nbytes > MAX_BYTES:
        raise InvalidPackage(f"{where}: a tensor {type_} is too large to be real")
    return type_


def _size(dimension) -> int | None:
    return dimension.constant.size if dimension.HasField("constant") else None


def _wrapped(message, kind: str, where: str) -> TensorType:
    """The type of the tensors in a state, a list or a dictionary."""
    if message.WhichOneof("type") != "tensorType":
        raise InvalidPackage(f"{where}: a {kind} of anything but tensors is not supported")
    inner = read_type(message, where)
    return TensorType(inner.dtype, inner.shape, kind)


def decode(value, type_: TensorType, where: str) -> np.ndarray:
    """Decode an immediate value to an array.

    Raises InvalidPackage if it is not of the declared type.
    """
    try:
        return _immediate(value, type_, where)
    except (ValueError, OverflowError, TypeError) as error:
        raise InvalidPackage(f"{where}: its value is no {type_} ({error})") from None


def _immediate(value, type_: TensorType, where: str) -> np.ndarray:
    kind = value.WhichOneof("value")
    if kind == "list":
        items = value.list.values
        arrays = [_immediate(v.immediateValue, type_, where) for v in items]
        return np.stack(arrays) if arrays else np.zeros(0)  # `array` would nest arrays of strings
    if kind != "tensor":
        raise InvalidPackage(f"{where}: immediate values of kind {kind} are not supported")
    field_name = value.tensor.WhichOneof("value")
    dtype = NUMPY[type_.dtype]
    if field_name is None:
        return np.zeros(type_.sizes, dtype)
    values = getattr(value.tensor, field_name).values
    if (field_name == "strings") != (type_.dtype == "string"):
        raise InvalidPackage(f"{where}: {field_name} are given for {type_}")
    if field_name == "strings" and max(map(len, values), default=0) * len(values) > MAX_TEXT:
        raise InvalidPackage(f"{where}: its strings are too long to be real")
    shape = type_.sizes
    count = prod(shape)
    if field_name == "bytes" and type_.dtype in SUB_BYTE:
        packed, signed = np.frombuffer(values, np.uint8), type_.dtype.startswith("int")
        array = unpack_bits(packed, SUB_BYTE[type_.dtype], count, signed)
    elif field_name == "bytes":
        array = np.frombuffer(values, dtype if type_.dtype != "bool" else np.uint8).astype(dtype)
    else:
        array = np.array(values)
        if array.dtype.kind == "i" and not np.array_equal(array, array.astype(dtype)):
            raise InvalidPackage(f"{where}: its value is no {type_} (integers beyond its range)")
        array = array.astype(dtype)
    if array.size == 1 and count > 1:  # a splat: one value for the whole tensor
        return np.broadcast_to(array, shape)
    if array.size != count:
        raise InvalidPackage(f"{where}: {array.size} values are given for {type_}")
    return array.reshape(shape)
