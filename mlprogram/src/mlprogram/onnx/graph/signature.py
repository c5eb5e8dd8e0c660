"""The signature of a graph: its inputs and outputs in the types of Core ML.

Core ML's inputs and outputs are fp16, fp32 or int32 of rank 1 to 5 and known shape: a boolean
becomes int32, and a scalar gets shape (1,).
"""

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

from mlprogram.errors import InvalidInput, UnsupportedModel
from mlprogram.onnx.file import dimensions
from mlprogram.onnx.graph.ops import Unsayable
from mlprogram.onnx.graph.ops._common import (
    MOST_AXES,
    MOST_NUMBERS,
    Var,
    in_mil,
    is_bool,
    is_float,
    mb,
    mil_dtype,
    types,
)
from mlprogram.onnx.graph.translate import GraphWalk, accepted
from mlprogram.onnx.graph.values import Value
import numpy as np
from onnx import ValueInfoProto, helper


class GraphSignature:
    """The inputs and outputs of the graph that a `GraphWalk` converts."""

    def __init__(self, walk: GraphWalk, shapes: Mapping[str, tuple[int, ...]], precision: str):
        self._walk, self._real = walk, {"fp16": types.fp16, "fp32": types.fp32}[precision]
        features = [f for f in walk.graph.input if f.name not in walk.values]
        if unknown := shapes.keys() - {f.name for f in features}:
            there = ", ".join(f.name for f in features)
            raise InvalidInput(f"{walk.path}: no input {min(unknown)!r}; there are: {there}")
        if not features:
            raise UnsupportedModel(f"{walk.path}: nothing is left to compute: it has no inputs")
        self._inputs = {f.name: _declared(f, shapes.get(f.name), walk.path) for f in features}
        self._outputs = [*dict.fromkeys(f.name for f in walk.graph.output)]
        ports = [("input", name) for name in self._inputs]
        ports += [("output", name) for name in self._outputs]
        ports.sort(key=lambda port: accepted(port[1]) != port[1])  # a good name stays its owner's
        self._names = {port: walk.name(port[1]) for port in ports}

    def renamed(self) -> list[tuple[str, str, str]]:
        """Kind, name in the graph, and name in the package, of what Core ML has by another name."""
        return [(*port, name) for port, name in self._names.items() if name != port[1]]

    def placeholders(self) -> dict:
        """The program's input for each input of the graph."""
        return {
            self._names["input", name]: mb.placeholder(
                shape or (1,), self._real if mil_dtype(dtype).kind == "f" else types.int32
            )
            for name, (dtype, shape) in self._inputs.items()
        }

    def enter(self, function) -> None:
        """Cast and reshape the function's inputs to what the walk computes with."""
        for name, (dtype, shape) in self._inputs.items():
            x = function.inputs[self._names["input", name]]
            if dtype.kind == "b":
                x = mb.not_equal(x=x, y=np.int32(0))
            elif self._real is types.fp16 and is_float(x):
                x = mb.cast(x=x, dtype="fp32")
            x = x if shape else mb.squeeze(x=x)
            self._walk.values[name] = Value(x, dtype, frozenset({name}))

    def leave(self) -> list[Var]:
        """Cast and reshape the outputs for Core ML, and name them."""
        for name in self._outputs:
            if name not in self._walk.values:
                raise UnsupportedModel(f"{self._walk.path}: nothing gives output {name!r}")
        return [self._output(name, self._walk.values[name]) for name in self._outputs]

    def _output(self, name: str, value: Value) -> Var:
        where = f"{self._walk.path}: output {name!r}"
        if 0 in value.shape or len(value.shape) > MOST_AXES:
            raise UnsupportedModel(
                f"{where} has shape {value.shape}; Core ML gives tensors of rank 1 to {MOST_AXES} "
                "that are not empty"
            )
        try:
            x = mb.const(val=in_mil(value.data)) if value.is_known else value.data
        except Unsayable as error:
            raise UnsupportedModel(f"{where}: {error}") from None
        x = x if value.shape else mb.expand_dims(x=x, axes=[0])
        x = mb.cast(x=x, dtype="int32") if is_bool(x) else x
        dtype = "fp16" if self._real is types.fp16 else "fp32"
        x = mb.cast(x=x, dtype=dtype) if is_float(x) else mb.identity(x=x)
        x.name = self._names["output", name]
        return x


def _declared(
    feature: ValueInfoProto, given: tuple[int, ...] | None, path: Path
) -> tuple[np.dtype, tuple[int, ...]]:
    """The dtype and shape of an input, from the graph or from the caller."""
    where, tensor = f"{path}: input {feature.name!r}", feature.type.tensor_type
    if feature.type.WhichOneof("value") != "tensor_type":
        raise UnsupportedModel(f"{where} is no tensor")
    try:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        mil_dtype(dtype)
    except (KeyError, Unsayable):
        raise UnsupportedModel(
            f"{where} is of type {tensor.elem_type}, which Core ML does not take"
        ) from None
    declared, is_open = dimensions(feature), not tensor.HasField("shape")
    if given is not None and not is_open:
        pairs = zip(declared, given, strict=False)
        if len(given) != len(declared) or any(isinstance(d, int) and d != g for d, g in pairs):
            raise InvalidInput(
                f"{where} has shape {_listed(declared)}, and {_listed(given)} was asked for"
            )
    sizes = declared if given is None else list(given)
    numbers = [int(size) for size in sizes if not isinstance(size, str)]
    if len(numbers) < len(sizes) or (is_open and not given):
        example = ",".join(str(s) if isinstance(s, int) else "1" for s in sizes)
        raise InvalidInput(
            f"{where} has shape {_listed(declared)}; Core ML's graph is built for known sizes: "
            f"give them, as in --shape {feature.name}={example}"
        )
    if len(numbers) > MOST_AXES or min(numbers, default=1) < 1 or prod(numbers) > MOST_NUMBERS:
        raise UnsupportedModel(
            f"{where} has shape {_listed(sizes)}; Core ML takes tensors of rank 1 to {MOST_AXES} "
            f"that are not empty, of up to {MOST_NUMBERS:,} numbers"
        )
    return dtype, tuple(numbers)


def _listed(sizes: Sequence[int | str]) -> str:
    return f"({', '.join(map(str, sizes))})"
