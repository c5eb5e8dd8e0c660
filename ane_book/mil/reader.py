"""Read a `.mlpackage`: manifest, protobuf and weight file, straight from the files.

Opening a package through coremltools' `MLModel` rewrites its `Manifest.json`; this reader leaves
every file as it is, needs no Mac, and treats what it reads as untrusted. What comes out are small
records that the executor compiles and that `ane-book inspect` counts.

Format: `mlmodel/format/Model.proto` and `MIL.proto` of apple/coremltools.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
import importlib
import importlib.util
import json
from pathlib import Path
import sys
from types import ModuleType

from ane_book.errors import InvalidPackage
from ane_book.mil.blob import NUMPY, SUB_BYTE, BlobFile, unpack_bits
from google.protobuf.message import DecodeError
import numpy as np

__all__ = ["Block", "Constant", "Function", "Operation", "Package", "TensorType", "proto"]

MAX_ELEMENTS = 1 << 40  # a tensor beyond this is damage or an attack, never a model


def proto(name: str) -> ModuleType:
    """A protobuf module of coremltools, such as "Model_pb2", without importing coremltools itself.

    `import coremltools` takes seconds and is needed to convert, not to read.
    """
    if "coremltools" in sys.modules:
        return importlib.import_module(f"coremltools.proto.{name}")
    package = "ane_book.mil._coremltools_proto"
    if package not in sys.modules:
        spec = importlib.util.find_spec("coremltools")
        module = ModuleType(package)
        module.__path__ = [str(Path(spec.origin).parent / "proto")]
        sys.modules[package] = module
    return importlib.import_module(f"{package}.{name}")


@dataclass(frozen=True)
class TensorType:
    """dtype in MIL's spelling ("fp16", "int32", ...) and shape; None stands for a flexible size."""

    dtype: str
    shape: tuple[int | None, ...]
    kind: str = "tensor"  # or "state", "list"

    def __str__(self) -> str:
        sizes = ", ".join("?" if size is None else str(size) for size in self.shape)
        return f"{self.dtype}({sizes})"


@dataclass
class Constant:
    """A value known at load time; `array()` reads it, from the weight file where it lies there."""

    type: TensorType
    _read: Callable[[], np.ndarray] = field(repr=False)
    blob: tuple[str, int] | None = None  # weight file and offset; None for a value in the program
    stored_bytes: int = 0

    def array(self) -> np.ndarray:
        return self._read()

    @property
    def value(self):
        """The value as plain Python: a scalar, a string, or a list."""
        array = self.array()
        return array.item() if array.ndim == 0 else array.tolist()


@dataclass
class Operation:
    """One op: inputs are names of values or constants, in order; outputs have declared types."""

    type: str
    name: str
    inputs: dict[str, list]  # each list holds str (a value's name) or Constant
    outputs: list[tuple[str, TensorType]]
    blocks: list["Block"]


@dataclass
class Block:
    inputs: list[tuple[str, TensorType]]
    operations: list[Operation]
    outputs: list[str]


@dataclass
class Function:
    name: str
    opset: str
    inputs: dict[str, TensorType]
    states: dict[str, TensorType]
    block: Block

    @property
    def outputs(self) -> dict[str, TensorType]:
        """The declared type of each output."""
        types = dict(self.inputs) | self.states
        for operation in self.block.operations:
            types.update(operation.outputs)
        return {name: types[name] for name in self.block.outputs}

    def operations(self) -> Iterator[Operation]:
        """Every op, those of nested blocks included."""
        stack = [self.block]
        while stack:
            block = stack.pop()
            for operation in block.operations:
                yield operation
                stack.extend(operation.blocks)


def read_type(message, where: str) -> TensorType:
    """A MIL ValueType as a TensorType."""
    kind = message.WhichOneof("type")
    if kind == "stateType":
        inner = read_type(message.stateType.wrappedType, where)
        return TensorType(inner.dtype, inner.shape, "state")
    if kind == "listType":
        inner = read_type(message.listType.type, where)
        return TensorType(inner.dtype, inner.shape, "list")
    if kind != "tensorType":
        raise InvalidPackage(f"{where}: values of kind {kind} are not supported")
    tensor = message.tensorType
    dtype = _dtypes().get(tensor.dataType)
    if dtype is None:
        raise InvalidPackage(f"{where}: unknown dtype code {tensor.dataType}")
    shape, elements = [], 1
    for dimension in tensor.dimensions:
        size = dimension.constant.size if dimension.HasField("constant") else None
        elements *= 1 if size is None else max(size, 1)
        shape.append(size)
    if elements > MAX_ELEMENTS:
        raise InvalidPackage(f"{where}: a tensor of shape {shape} is too large to be real")
    return TensorType(dtype, tuple(shape))


_DTYPES: dict[int, str] = {}


def _dtypes() -> dict[int, str]:
    if not _DTYPES:
        spelling = {"FLOAT16": "fp16", "FLOAT32": "fp32", "FLOAT64": "fp64", "BFLOAT16": "bf16"}
        for name, code in proto("MIL_pb2").DataType.items():
            _DTYPES[code] = spelling.get(name, name.lower())
    return _DTYPES


def _immediate(value, type_: TensorType, where: str) -> np.ndarray:
    """The array of an immediate value."""
    kind = value.WhichOneof("value")
    if kind == "list":
        return np.array([_immediate(v.immediateValue, type_, where) for v in value.list.values])
    if kind != "tensor":
        raise InvalidPackage(f"{where}: immediate values of kind {kind} are not supported")
    field_name = value.tensor.WhichOneof("value")
    if field_name is None:
        return np.zeros(type_.shape, NUMPY.get(type_.dtype, np.uint8))
    values = getattr(value.tensor, field_name).values
    count = int(np.prod(type_.shape, dtype=np.int64))
    if field_name == "bytes" and type_.dtype in SUB_BYTE:
        packed, signed = np.frombuffer(values, np.uint8), type_.dtype.startswith("int")
        array = unpack_bits(packed, SUB_BYTE[type_.dtype], count, signed)
    elif field_name == "bytes":
        array = np.frombuffer(values, NUMPY[type_.dtype])
    else:
        array = np.array(values, dtype=NUMPY[type_.dtype])
    if array.size == 1 and count > 1:  # a splat: one value for the whole tensor
        return np.broadcast_to(array, type_.shape)
    if array.size != count:
        raise InvalidPackage(f"{where}: {array.size} values given for {type_}")
    return array.reshape(type_.shape)


class Package:
    """An `.mlpackage` that holds an ML Program, opened for reading.

    Raises InvalidPackage, with the reason, for anything else.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._blobs: dict[str, BlobFile] = {}
        self._root = self.path / "Data"
        model = proto("Model_pb2").Model()
        try:
            model.ParseFromString(self._locate_model().read_bytes())
        except DecodeError as error:
            raise InvalidPackage(f"{self.path}: the model file is damaged ({error})") from None
        self._read_program(model)

    @classmethod
    def from_spec(cls, spec, weights_dir: str | Path | None) -> "Package":
        """A package from a model still in memory: its protobuf and its folder of weights."""
        package = cls.__new__(cls)
        package.path = Path(weights_dir or ".")
        package._blobs, package._root = {}, package.path.parent
        package._read_program(spec)
        return package

    def _locate_model(self) -> Path:
        manifest = self.path / "Manifest.json"
        if not self.path.exists():
            raise InvalidPackage(f"{self.path}: no such package")
        try:
            entries = json.loads(manifest.read_text())
            item = entries["itemInfoEntries"][entries["rootModelIdentifier"]]["path"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidPackage(
                f"{self.path}: not a .mlpackage (Manifest.json: {error!r}); give the folder that "
                "coremltools' save() wrote"
            ) from None
        model = (self._root / item).resolve()
        if not model.is_relative_to(self._root.resolve()) or not model.is_file():
            raise InvalidPackage(f"{manifest}: the model file {item!r} is not in the package")
        self._root = model.parent
        return model

    def _read_program(self, model) -> None:
        kind = model.WhichOneof("Type")
        if kind != "mlProgram":
            raise InvalidPackage(
                f"{self.path}: holds a {kind or 'nothing'}, not an ML Program; convert it with "
                'convert_to="mlprogram"'
            )
        self.description, self.specification_version = model.description, model.specificationVersion
        self.default_function = model.description.defaultFunctionName or "main"
        self.functions = {
            name: self._read_function(name, function)
            for name, function in sorted(model.mlProgram.functions.items())
        }
        if self.default_function not in self.functions:
            self.default_function = next(iter(self.functions), "main")

    def _read_function(self, name: str, function) -> Function:
        where = f"{self.path}, function {name}"
        if function.opset not in function.block_specializations:
            raise InvalidPackage(f"{where}: no block for its opset {function.opset!r}")
        types = {i.name: read_type(i.type, f"{where}, input {i.name}") for i in function.inputs}
        states = {key: t for key, t in types.items() if t.kind == "state"}
        inputs = {key: t for key, t in types.items() if t.kind != "state"}
        block = self._read_block(function.block_specializations[function.opset], where)
        return Function(name, function.opset, inputs, states, block)

    def _read_block(self, block, where: str) -> Block:
        return Block(
            [(i.name, read_type(i.type, where)) for i in block.inputs],
            [self._read_operation(o, where) for o in block.operations],
            list(block.outputs),
        )

    def _read_operation(self, operation, where: str) -> Operation:
        outputs = [(o.name, read_type(o.type, f"{where}, {o.name}")) for o in operation.outputs]
        name = outputs[0][0] if outputs else operation.type
        where = f"{where}, op {operation.type} {name!r}"
        inputs = {
            key: [
                binding.name
                if binding.WhichOneof("binding") == "name"
                else self._read_value(binding.value, where)
                for binding in argument.arguments
            ]
            for key, argument in operation.inputs.items()
        }
        for key, value in operation.attributes.items():  # `const` and iOS 16's constexpr ops
            if key != "name":
                inputs[key] = [self._read_value(value, where)]
        blocks = [self._read_block(b, where) for b in operation.blocks]
        return Operation(operation.type, name, inputs, outputs, blocks)

    def _read_value(self, value, where: str) -> Constant:
        type_ = read_type(value.type, where)
        if value.WhichOneof("value") != "blobFileValue":
            return Constant(type_, lambda: _immediate(value.immediateValue, type_, where))
        file, offset = value.blobFileValue.fileName, value.blobFileValue.offset
        blob = self._blob(file, where)
        bits = SUB_BYTE.get(type_.dtype) or 8 * np.dtype(NUMPY[type_.dtype]).itemsize
        size = (int(np.prod(type_.shape)) * bits + 7) // 8
        read = lambda: blob.read(offset, type_.dtype, type_.shape)  # noqa: E731
        return Constant(type_, read, (file, offset), size)

    def _blob(self, name: str, where: str) -> BlobFile:
        if name not in self._blobs:
            path = (self._root / name.removeprefix("@model_path/")).resolve()
            if not path.is_relative_to(self._root.resolve()) or not path.is_file():
                raise InvalidPackage(f"{where}: its weight file {name!r} is not in the package")
            self._blobs[name] = BlobFile(path)
        return self._blobs[name]

    @cached_property
    def weights(self) -> list[tuple[str, Constant]]:
        """Each blob of the weight file once, with the name of the first op that uses it."""
        found: dict[tuple[str, int], tuple[str, Constant]] = {}
        for function in self.functions.values():
            for operation in function.operations():
                for value in (v for values in operation.inputs.values() for v in values):
                    if isinstance(value, Constant) and value.blob:
                        found.setdefault(value.blob, (operation.name, value))
        return list(found.values())
