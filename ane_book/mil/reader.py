"""Read a `.mlpackage`: manifest, protobuf and weight file, straight from the files.

Opening a package through coremltools' `MLModel` rewrites its `Manifest.json`; this reader leaves
every file as it is, needs no Mac, and treats what it reads as untrusted. What comes out are small
records that the executor compiles and that `ane-book inspect` counts.

Format: `mlmodel/format/Model.proto` and `MIL.proto` of apple/coremltools.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
import importlib
import importlib.util
import json
from pathlib import Path
import sys
from types import ModuleType

from ane_book.errors import InvalidPackage
from ane_book.mil.blob import BlobFile, stored_bytes
from ane_book.mil.validate import validate
from ane_book.mil.values import Constant, TensorType, decode, read_type
from google.protobuf.message import DecodeError

__all__ = ["Block", "Constant", "Function", "Operation", "Package", "TensorType", "proto"]

MAX_MANIFEST, MAX_MODEL = 1 << 20, (1 << 31) - 1  # bytes; the second is protobuf's own limit


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


class Package:
    """An `.mlpackage` that holds an ML Program, opened for reading.

    Raises InvalidPackage, with the reason, for anything else.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if not self.path.exists():
            raise InvalidPackage(f"{self.path}: no such package")
        self._folder, self._blobs = self.path.resolve(), {}
        file = self._locate_model()
        self._weights_base = file.parent
        model = proto("Model_pb2").Model()
        try:
            model.ParseFromString(_read(file, MAX_MODEL))
        except DecodeError as error:
            raise InvalidPackage(f"{self.path}: the model file is damaged ({error})") from None
        self._read_program(model)

    @classmethod
    def from_spec(cls, spec, weights_dir: str | Path | None) -> "Package":
        """A package from a model still in memory: its protobuf and its folder of weights."""
        package = cls.__new__(cls)
        package.path = Path(weights_dir or ".")
        package._folder = package._weights_base = package.path.resolve().parent
        package._blobs = {}
        package._read_program(spec)
        return package

    def _locate_model(self) -> Path:
        what = f"{self.path} is not a .mlpackage:"
        manifest = _read(_inside(self._folder, self._folder / "Manifest.json", what), MAX_MANIFEST)
        try:
            entries = json.loads(manifest)
            item = entries["itemInfoEntries"][entries["rootModelIdentifier"]]["path"]
            file = self._folder / "Data" / item
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InvalidPackage(
                f"{what} Manifest.json is damaged ({error!r}); give the folder that coremltools' "
                "save() wrote"
            ) from None
        return _inside(self._folder, file, f"{self.path}: the model file")

    def _read_program(self, model) -> None:
        kind = model.WhichOneof("Type")
        if kind != "mlProgram":
            mend = 'convert it with convert_to="mlprogram"'
            if (kind or "").startswith("pipeline"):
                mend = "convert the models in it by themselves, and give one of those packages"
            raise InvalidPackage(
                f"{self.path}: holds a {kind or 'nothing'}, not an ML Program; {mend}"
            )
        self.description, self.specification_version = model.description, model.specificationVersion
        self.default_function = model.description.defaultFunctionName or "main"
        self.functions = {
            name: self._read_function(name, function)
            for name, function in sorted(model.mlProgram.functions.items())
        }
        if not self.functions:
            raise InvalidPackage(f"{self.path}: its program has no function")
        if self.default_function not in self.functions:
            self.default_function = next(iter(self.functions))

    def _read_function(self, name: str, function) -> Function:
        where = f"{self.path}, function {name!r}"
        if function.opset not in function.block_specializations:
            raise InvalidPackage(f"{where}: no block for its opset {function.opset!r}")
        given = self._read_names(function.inputs, where)
        types = dict(given)
        if len(types) != len(given):
            raise InvalidPackage(f"{where}: two of its inputs have one name")
        states = {key: t for key, t in types.items() if t.kind == "state"}
        inputs = {key: t for key, t in types.items() if t.kind != "state"}
        block = self._read_block(function.block_specializations[function.opset], where)
        function = Function(name, function.opset, inputs, states, block)
        validate(function, where)
        return function

    def _read_names(self, named, where: str) -> list[tuple[str, TensorType]]:
        return [(n.name, read_type(n.type, f"{where}, value {n.name!r}")) for n in named]

    def _read_block(self, block, where: str) -> Block:
        return Block(
            self._read_names(block.inputs, where),
            [self._read_operation(o, where) for o in block.operations],
            list(block.outputs),
        )

    def _read_operation(self, operation, where: str) -> Operation:
        outputs = self._read_names(operation.outputs, where)
        name = outputs[0][0] if outputs else operation.type
        where = f"{where}, op {operation.type!r} ({name!r})"
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
        inputs = dict(sorted(inputs.items()))  # a protobuf map comes in any order
        blocks = [self._read_block(b, where) for b in operation.blocks]
        return Operation(operation.type, name, inputs, outputs, blocks)

    def _read_value(self, value, where: str) -> Constant:
        type_ = read_type(value.type, where)
        if None in type_.shape:
            raise InvalidPackage(f"{where}: a constant of flexible size, {type_}")
        if value.WhichOneof("value") != "blobFileValue":
            return Constant(type_, lambda: decode(value.immediateValue, type_, where))
        file, offset = value.blobFileValue.fileName, value.blobFileValue.offset
        blob = self._blob(file, where)
        place = (offset, type_.dtype, type_.shape)
        size = stored_bytes(type_.dtype, type_.shape)
        return Constant(
            type_, lambda: blob.read(*place), (file, offset), size, lambda: blob.packed(*place)
        )

    def _blob(self, name: str, where: str) -> BlobFile:
        if name not in self._blobs:
            path = self._weights_base / name.removeprefix("@model_path/")
            self._blobs[name] = BlobFile(_inside(self._folder, path, f"{where}: its weight file"))
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


def _inside(folder: Path, path: Path, what: str) -> Path:
    """`path` without links, if it is a regular file below `folder`, which has none itself."""
    try:
        found = path.resolve()
        if found.is_relative_to(folder) and found.is_file():
            return found
    except (OSError, ValueError, RuntimeError):  # too long, with a null byte, a loop of links
        pass
    raise InvalidPackage(f"{what} {path.name!r} is not in the package as a regular file")


def _read(file: Path, limit: int) -> bytes:
    """All bytes of a file of at most `limit` bytes."""
    try:
        size = file.stat().st_size
        if size > limit:
            raise InvalidPackage(f"{file}: {size:,} bytes are more than such a file can have")
        return file.read_bytes()
    except OSError as error:
        raise InvalidPackage(f"{file}: cannot be read ({error.strerror})") from None
