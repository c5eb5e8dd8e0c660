"""Torch modules to ML Programs: lower one block, stamp it for every layer.

The layers of a decoder are equal but for their weights, so one of them goes through coremltools
(trace, graph passes, fp16), and its ops are copied for each layer with other weights: what takes
coremltools half a minute for thirty layers takes it half a second for one. The copies are made in
the program's protobuf (`MIL.proto`); weights stream into the weight files one layer at a time, and
all functions of a package refer to the same bytes.

`lowering.lower` makes a piece of one module; `PackageWriter` links the pieces. A test holds the
result to the usual path on the whole model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
import uuid

from ane_book.conversion.quantize.encoded import Encoded, encode
from ane_book.conversion.quantize.schemes import SCHEMES, Scheme
from ane_book.conversion.write.lowering import OPSET, LoweredBlock
from mlprogram.package.container import write_manifest
from mlprogram.package.files import proto
from mlprogram.package.messages import file_value, immediate, value_type
from mlprogram.package.weight_files import WeightFiles
import numpy as np
from torch import Tensor

SPECIFICATION_VERSION = 9


@dataclass(frozen=True)
class StoredWeight:
    """A weight in a weight file: its shape, the op that gives it, the blobs of its operands."""

    shape: tuple[int, ...]
    op: str
    operands: dict[str, tuple[str, tuple[int, ...], str, int]]  # dtype, shape, file, offset

    def fill(self, operation) -> None:
        """Make a MIL_pb2.Operation, whose output type is set, the op that gives this weight."""
        operation.type = self.op
        operation.attributes.pop("val", None)
        for key, (dtype, shape, file, offset) in self.operands.items():
            if self.op == "const":  # coremltools drops axes of size 1 from some
                sizes = operation.outputs[0].type.tensorType.dimensions
                shape = tuple(size.constant.size for size in sizes)
                value = operation.attributes[key]
            else:
                value = operation.inputs[key].arguments.add().value
            value.CopyFrom(file_value(dtype, shape, file, offset))


class FunctionWriter:
    """Builds one function of a package, from stamped pieces and a few ops of its own."""

    def __init__(self, name: str, program, description):
        self.name = name
        self._function = program.functions[name]
        self._function.opset = OPSET
        self._block = self._function.block_specializations[OPSET]
        self._description = description.functions.add(name=name)
        self._stamped: dict[int, dict[str, str]] = {}  # constants already there, per piece
        self._types: dict[str, object] = {}

    def input(self, name: str, dtype: str, shape: tuple[int, ...]) -> str:
        type_ = value_type(dtype, shape)
        self._function.inputs.add(name=name, type=type_)
        self._types[name] = type_
        feature = self._description.input.add(name=name)
        _describe(feature.type.multiArrayType, type_)
        return name

    def state(self, name: str, shape: tuple[int, ...]) -> str:
        """An fp16 state; Core ML has no other kind."""
        type_ = value_type("fp16", shape)
        self._function.inputs.add(name=name).type.stateType.wrappedType.CopyFrom(type_)
        _describe(self._description.state.add(name=name).type.stateType.arrayType, type_)
        return name

    def op(
        self, type_: str, name: str, dtype: str = "", shapes: Sequence = (), /, **inputs
    ) -> list[str]:
        """Add one op; inputs are value names (or lists of them) and constants as numpy arrays.

        Returns the names of its results, one for each of `shapes`.
        """
        bindings = {}
        for key, value in inputs.items():
            if isinstance(value, np.ndarray | np.generic):  # first: np.str_ is a str as well
                value = self.constant(f"{name}_{key}", value)
            bindings[key] = [value] if isinstance(value, str) else value
        operation = self._block.operations.add(type=type_)  # after its constants, as MIL wants it
        for key, names in bindings.items():
            for value in names:
                operation.inputs[key].arguments.add(name=value)
        results = [name] if len(shapes) == 1 else [f"{name}_{i}" for i in range(len(shapes))]
        for result, shape in zip(results, shapes, strict=True):
            operation.outputs.add(name=result, type=value_type(dtype, shape))
            self._types[result] = operation.outputs[-1].type
        operation.attributes["name"].CopyFrom(immediate(name))
        return results

    def constant(self, name: str, value) -> str:
        """Add a constant (numpy scalar or array)."""
        made = immediate(value)
        self._add_constant(name, made.type).attributes["val"].CopyFrom(made)
        return name

    def weight(self, name: str, stored: StoredWeight) -> str:
        """Add an fp16 constant whose bytes are in the weight file."""
        stored.fill(self._add_constant(name, value_type("fp16", stored.shape)))
        return name

    def _add_constant(self, name: str, type_):
        operation = self._block.operations.add(type="const")
        operation.outputs.add(name=name, type=type_)
        operation.attributes["name"].CopyFrom(immediate(name))
        return operation

    def stamp(
        self,
        piece: LoweredBlock,
        prefix: str,
        feeds: dict[str, str],
        weights: dict[str, StoredWeight],
        names: dict[str, str] | None = None,
    ) -> list[str]:
        """Copy a piece into this function; returns the names of its outputs.

        feeds: value for each input of the piece. weights: what `write_weights` gave for each
        parameter. names: final names for outputs that leave the function.
        """
        rename = feeds | self._stamped.setdefault(id(piece), {}) | (names or {})
        for operation in piece.operations:
            output = operation.outputs[0].name
            plain_constant = operation.type == "const" and output not in piece.parameters
            if plain_constant and output in self._stamped[id(piece)]:
                continue  # axes, shapes and the like are the same for every layer
            copy = self._block.operations.add()
            copy.CopyFrom(operation)
            for result in copy.outputs:
                new = rename.get(result.name) or f"{prefix}_{result.name}"
                if plain_constant:
                    self._stamped[id(piece)][result.name] = new
                rename[result.name] = new
                result.name = new
                self._types[new] = result.type
            for argument in copy.inputs.values():
                for binding in argument.arguments:
                    binding.name = rename[binding.name]
            if output in piece.parameters:
                weights[piece.parameters[output]].fill(copy)
            copy.attributes["name"].CopyFrom(immediate(copy.outputs[0].name))
        return [rename[name] for name in piece.outputs]

    def finish(self, outputs: Sequence[str]) -> None:
        """Declare the function's outputs, in order."""
        for name in outputs:
            self._block.outputs.append(name)
            feature = self._description.output.add(name=name)
            _describe(feature.type.multiArrayType, self._types[name])


def _describe(array_type, value_type) -> None:
    """Fill an ArrayFeatureType of the model's description from a MIL type."""
    dtypes = proto("FeatureTypes_pb2").ArrayFeatureType.ArrayDataType
    tensor = value_type.tensorType
    array_type.shape.extend(d.constant.size for d in tensor.dimensions)
    half = tensor.dataType == proto("MIL_pb2").FLOAT16
    array_type.dataType = dtypes.FLOAT16 if half else dtypes.INT32


class PackageWriter:
    """Writes a multifunction `.mlpackage`: weights first, as they come, then the functions."""

    def __init__(self, path: Path):
        self.path = path
        self._data = path / "Data" / "com.apple.CoreML"
        (self._data / "weights").mkdir(parents=True)
        self._files = WeightFiles(self._data / "weights")
        self._model = proto("Model_pb2").Model(specificationVersion=SPECIFICATION_VERSION)
        self._model.mlProgram.version = 1

    def write_weights(
        self, state: Mapping[str, Tensor | Encoded], scheme: Scheme = SCHEMES["none"]
    ) -> dict[str, StoredWeight]:
        """Append tensors to the weight files, projections by the scheme and all others as fp16.

        An `Encoded` is written as it is. Raises InvalidInput for a weight that fits in no file.
        """
        stored = {}
        for name, weight in state.items():
            encoded = weight if isinstance(weight, Encoded) else encode(weight, scheme)
            operands = {
                key: (dtype, array.shape, *self._files.write(name, dtype, array))
                for key, (dtype, array) in encoded.operands.items()
            }
            stored[name] = StoredWeight(encoded.shape, encoded.op, operands)
        return stored

    def function(self, name: str) -> FunctionWriter:
        return FunctionWriter(name, self._model.mlProgram, self._model.description)

    def finish(self, default_function: str, description: str) -> None:
        """Write the model file and the manifest; the package is complete after this."""
        self._model.description.defaultFunctionName = default_function
        self._model.description.metadata.shortDescription = description
        (self._data / "model.mlmodel").write_bytes(
            self._model.SerializeToString(deterministic=True)
        )
        # Identifiers are fixed, so that equal models are equal bytes.
        write_manifest(self.path, lambda n: str(uuid.uuid5(uuid.NAMESPACE_URL, f"ane-book/{n}")))
