"""Read an ML Program from a `.mlpackage` or a `.mlmodelc` into the records of function.py.

The reader needs no Mac, changes no file, and treats what it reads as untrusted.

Format: `mlmodel/format/Model.proto` and `MIL.proto` of apple/coremltools.
"""

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mlprogram.errors import AbsentFile, InvalidPackage
from mlprogram.package.container import Container, open_container, refuse
from mlprogram.package.files import inside
from mlprogram.package.function import Block, Function, Operation
from mlprogram.package.validation.validate import validate
from mlprogram.package.values import Constant, TensorType, decode, read_type
from mlprogram.package.weight_file import BlobFile, stored_bytes

VERSION = 1  # of a `MIL.proto` Program, the newest there is; what does not say one is older


class Package:
    """An ML Program in a `.mlpackage`, a `.mlmodelc` or a single `.mlmodel`, opened for reading.

    weights: whether the files of its weights have to be there. Without one, `absent` says why by
    its name, and only the types of what is in it are known.
    Raises InvalidPackage, with the reason, for anything else.
    """

    def __init__(self, path: str | Path | Container, weights: bool = True):
        self._needs_weights, self.absent = weights, dict[str, str]()
        container = path if isinstance(path, Container) else open_container(path)
        self.path, self._folder = container.path, container.folder
        self._weights_base = container.base
        self._blobs: dict[str, BlobFile] = {}
        self._types: dict[bytes, TensorType] = {}
        self._read_program(container.spec)

    @classmethod
    def from_spec(cls, spec, weights_dir: str | Path | None) -> "Package":
        """A package from a model still in memory: its protobuf and its folder of weights."""
        path = Path(weights_dir or ".")
        folder = path.resolve().parent
        return cls(Container(path, folder, folder, spec))

    def _read_program(self, model) -> None:
        kind = model.WhichOneof("Type")
        if kind != "mlProgram":
            raise refuse(kind, self.path)
        if (version := model.mlProgram.version) > VERSION:
            raise InvalidPackage(
                f"{self.path}: version {version} of ML Programs; {VERSION} is the one that is read"
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
        return [(n.name, self._read_type(n.type, where, n.name)) for n in named]

    def _read_type(self, message, where: str, name: str = "") -> TensorType:
        """A value's type; a program has few that differ, and each is read once."""
        key = message.SerializeToString()
        if key not in self._types:
            place = f"{where}, value {name!r}" if name else where
            self._types[key] = read_type(message, place)
        return self._types[key]

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
        type_ = self._read_type(value.type, where)
        if None in type_.shape:
            raise InvalidPackage(f"{where}: a constant of flexible size, {type_}")
        dtype, shape = type_.dtype, type_.sizes
        if value.WhichOneof("value") != "blobFileValue":
            return Constant(type_, lambda: decode(value.immediateValue, type_, where))
        file, offset = value.blobFileValue.fileName, value.blobFileValue.offset
        if (blob := self._blob(file, where)) is None:
            return Constant(type_, None, (file, offset), stored_bytes(dtype, shape))
        return Constant(
            type_,
            lambda: blob.read(offset, dtype, shape),
            (file, offset),
            stored_bytes(dtype, shape),
            lambda: blob.packed(offset, dtype, shape),
        )

    def _blob(self, name: str, where: str) -> BlobFile | None:
        """A weight file; None if it is not there and need not be."""
        if name not in self._blobs and name not in self.absent:
            path = self._weights_base / name.removeprefix("@model_path/")
            try:
                path = inside(self._folder, path, f"{where}: its weight file")
                self._blobs[name] = BlobFile(path)
            except AbsentFile as error:
                if self._needs_weights:
                    raise
                self.absent[name] = str(error)
        return self._blobs.get(name)

    @property
    def weight_files(self) -> list[Path]:
        """The files of weights that the program reads from."""
        return [blob.path for blob in self._blobs.values()]

    def described(self, function: str, part: str) -> dict[str, Any]:
        """The description of a function's features by name. part: "input" or "output".

        The values are messages of FeatureTypes.proto. A package with several functions has a
        description of each.
        """
        of_all = [self.description] if function == self.default_function else []
        own = [each for each in self.description.functions if each.name == function]
        features = [feature for each in (own or of_all) for feature in getattr(each, part)]
        return {feature.name: feature.type for feature in features}

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


def read_programs(path: str | Path | Container) -> list[Package]:
    """The program of a package, or those of a pipeline's parts, with its weights or without.

    Raises InvalidPackage.
    """
    container = path if isinstance(path, Container) else open_container(path)
    kind = container.spec.WhichOneof("Type")
    if kind != "pipeline":
        return [Package(container, weights=False)]
    programs = [part for part in container.spec.pipeline.models if part.HasField("mlProgram")]
    if not programs:
        raise refuse(kind, container.path)
    return [Package(replace(container, spec=part), weights=False) for part in programs]
