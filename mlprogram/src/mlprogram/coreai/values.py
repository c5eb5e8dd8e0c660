"""Types and constants of ML Programs in Core AI's terms."""

from typing import Any

from coreai import authoring
from coreai._compiler.dialects.coreai.constant import ConstantOp, create_elements_attr
from coreai._compiler.ir import Location
from coreai.authoring import TensorType as Declared
from coreai.authoring.constant import constant as whole
from mlprogram.errors import InvalidInput
from mlprogram.package.values import Constant, TensorType
from mlprogram.package.weight_file import pack_bits
import numpy as np

#: MIL's dtypes as Core AI names them; 3 and 6 bits take the next width that it has.
NAMES = {
    "bool": "bool_", "fp16": "float16", "fp32": "float32", "int8": "int8", "int16": "int16",
    "int32": "int32", "int4": "int4", "uint2": "uint2", "uint3": "uint4", "uint4": "uint4",
    "uint6": "uint8", "uint8": "uint8", "uint16": "uint16", "uint32": "uint32",
}  # fmt: skip


def dtype_of(name: str, lift: bool = False) -> Any:
    """Core AI's dtype for one of MIL's. Raises InvalidInput for one that it has not."""
    name = "fp32" if lift and name == "fp16" else name
    if name not in NAMES:
        raise InvalidInput(f"Core AI has no dtype for {name}")
    return getattr(authoring, NAMES[name])


def declared(type_: TensorType, lift: bool) -> Any:
    """The TensorType of Core AI for a declared type of MIL."""
    if None in type_.shape:
        raise InvalidInput(f"a flexible size, {type_}: sizes are fixed in an asset made here")
    return Declared(type_.sizes, dtype_of(type_.dtype, lift))


def as_value(value: Constant, lift: bool) -> Any:
    """A constant as a value of the graph; half precision is widened where asked for."""
    array, kind = value.array(), value.type.dtype
    if lift and kind == "fp16":
        array = array.astype(np.float32)
    return constant(array, dtype_of(kind, lift))


def constant(array: np.ndarray, dtype: Any = None) -> Any:
    """An array as a value, by default of the array's own dtype.

    Elements of less than a byte have to be handed over packed, low bits first, which the package's
    own `constant` does not do: given an int4 array it takes every byte for two elements, and reads
    beyond the end (coreai-core 1.0.0b3).
    """
    array = np.asarray(array, order="C")
    if dtype not in (authoring.int4, authoring.uint4, authoring.uint2):
        return whole(array, dtype=dtype)
    kind = authoring.TensorType(array.shape, dtype)._to_mlir_type()
    packed = pack_bits(array, 2 if dtype == authoring.uint2 else 4)
    attribute = create_elements_attr(Location.current, kind, packed)
    return authoring.Value._from_mlir(ConstantOp(value=attribute).result)


def lifted(value: Any, lift: bool) -> Any:
    """Half precision widened to single, where asked for; what is wide is rounded to half first."""
    return authoring.cast(authoring.cast(value, np.float16), np.float32) if lift else value
