"""Check the declared types of ops with constant parameters against each other.

For most ops torch does that when they run. Constants have to be checked before: a compressed one is
trusted to have its declared type until it is expanded, and the compiled products and norms read a
weight by its address, as far as its declared type says.

Reference: coremltools `defs/iOS16/constexpr_ops.py`, `defs/iOS18/compression.py`, and the types of
parameters in `defs/iOS17/conv.py`, `linear.py` and `defs/iOS15/normalization.py`.
"""

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from mlprogram.errors import InvalidPackage
from mlprogram.package.values import Constant, TensorType

if TYPE_CHECKING:  # the reader imports this module
    from mlprogram.package.function import Operation


#: For each result of a `constexpr_*` op: the input with its shape, and the one with its dtype.
COMPRESSED: dict[str, list[tuple[str | None, str | None]]] = {
    "constexpr_affine_dequantize": [("quantized_data", "scale")],
    "constexpr_blockwise_shift_scale": [("data", "scale")],
    "constexpr_cast": [("source_val", None)],
    "constexpr_lut_to_dense": [("indices", "lut")],
    "constexpr_lut_to_sparse": [("indices_mask", "indices_mask"), (None, "lut")],
    "constexpr_sparse_blockwise_shift_scale": [("data_mask", "data_mask"), (None, "scale")],
    "constexpr_sparse_to_dense": [("mask", "nonzero_data")],
}

#: Ops with a bias -> the input that is the weight (R, ...); the bias has a value per row.
WEIGHTS = {"conv": "weight", "linear": "weight", "matmul": "y"}
WEIGHT_DTYPES = ("fp16", "fp32", "int32")


def check_compressed(
    operation: "Operation", constants: Mapping[str, Constant | TensorType], where: str
) -> None:
    """Raise InvalidPackage if a `constexpr_*` op's result is not what it declares.

    constants: those made before, with their value or, if they are compressed, their type.
    """

    def found(key: str) -> Constant | TensorType:
        items = operation.inputs.get(key, ())
        if len(items) != 1:
            raise InvalidPackage(f"{where}: needs one value for its input {key!r}")
        return constants[items[0]] if isinstance(items[0], str) else items[0]

    vector = _type(found("lut")).sizes[-1:] if "lut" in operation.inputs else (1,)
    for name, declared in operation.outputs:
        if None in declared.shape:
            raise InvalidPackage(f"{where}: a constant of flexible size, {name!r}, {declared}")
    expected = COMPRESSED.get(operation.type, [])
    for (name, declared), (shape, dtype) in zip(operation.outputs, expected, strict=False):
        fits = dtype is None or _type(found(dtype)).dtype == declared.dtype
        if "shape" in operation.inputs:  # iOS 16, where the data are packed
            fits = fits and tuple(_value(found("shape"))) == declared.shape
        elif shape:
            given = _type(found(shape)).sizes
            same = given == declared.shape or vector != (1,)  # vectors lengthen one of the axes
            fits = fits and same and prod(given) * prod(vector) == prod(declared.sizes)
        if operation.type == "constexpr_cast":
            fits = fits and _value(found("output_dtype")) == declared.dtype
        if not fits:
            raise InvalidPackage(f"{where}: {name!r} cannot be the {declared} that is declared")


def check_parameters(
    operation: "Operation",
    constants: Mapping[str, Constant | TensorType],
    types: Mapping[str, TensorType],
    where: str,
) -> None:
    """Raise InvalidPackage if a constant parameter does not fit the op's other operands."""
    given = {
        key: item if isinstance(item, Constant) else constants.get(item)
        for key, (item, *_) in operation.inputs.items()
    }
    if operation.type == "layer_norm":
        return _check_norm(operation, given, types, where)
    weight, bias = given.get(WEIGHTS[operation.type]), given.get("bias")
    if weight is None:
        return None
    if _type(weight).dtype not in WEIGHT_DTYPES:
        raise InvalidPackage(f"{where}: a weight of dtype {_type(weight).dtype}")
    if bias is not None and _type(bias).shape != _type(weight).shape[:1]:
        raise InvalidPackage(f"{where}: a bias {_type(bias)} for a weight {_type(weight)}")
    return None


def _check_norm(
    operation: "Operation", given: dict, types: Mapping[str, TensorType], where: str
) -> None:
    """Check that gamma and beta of a layer norm have as many values as x's normalised axes."""
    x = types.get(operation.inputs["x"][0]) if "x" in operation.inputs else None
    if x is None or None in x.shape:
        return
    axes = _value(given["axes"]) if isinstance(given.get("axes"), Constant) else range(len(x.shape))
    if not all(isinstance(a, int) and -len(x.shape) <= a < len(x.shape) for a in axes):
        raise InvalidPackage(f"{where}: axes {list(axes)} of {x}")
    size = prod(x.sizes[axis] for axis in axes)
    for key in ("gamma", "beta"):
        if given.get(key) is not None and prod(_type(given[key]).sizes) != size:
            raise InvalidPackage(f"{where}: {key} {_type(given[key])} for axes {axes} of {x}")


def _type(value: Constant | TensorType) -> TensorType:
    return value.type if isinstance(value, Constant) else value


def _value(value: Constant | TensorType) -> Any:
    """A constant as a Python value: a number as a list of one, a compressed constant as []."""
    if not isinstance(value, Constant):
        return []
    plain = value.value
    return [plain] if isinstance(plain, int | float) else plain
