"""Write MIL's protobuf in its text form, as in `model.mil` of a compiled model."""

from collections.abc import Callable, Iterator
import re
from typing import Any

from mlprogram.package.compiled.reader import OPSETS
from mlprogram.package.values import DTYPES, decode, read_type
import numpy as np

IOS18 = 9  # the first specification version whose text has a form for scalars
ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\0": "\\0", '"': '\\"', "\\": "\\\\"}
TEXT_OPSETS = {code: name for name, code in OPSETS.items()}


def write_text(program, specification_version: int) -> str:
    """The text of a `Program` message, in the dialect that the specification version asks for."""
    return "".join(_Writer(specification_version >= IOS18).program(program))


class _Writer:
    """scalars: whether a scalar's type is `int32`, not `tensor<int32, []>`."""

    def __init__(self, scalars: bool):
        self.scalars = scalars

    def program(self, program) -> Iterator[str]:
        yield f"program({'1.3' if self.scalars else '1.0'})\n"
        yield f"{self.attributes(program.attributes)}\n{{\n"
        for name, function in sorted(program.functions.items()):
            opset = TEXT_OPSETS.get(function.opset, function.opset)
            inputs = self.named(function.inputs)
            attributes = self.attributes(function.attributes)
            space = " " if attributes else ""
            yield f"    func {name}<{opset}>({inputs}){space}{attributes} "
            yield from self.block(function.block_specializations[function.opset], 8)
            yield ";\n"
        yield "}"

    def block(self, block, indent: int) -> Iterator[str]:
        yield "{\n"
        for operation in block.operations:
            yield from self.operation(operation, indent + 4)
        yield f"{' ' * indent}}} -> ({', '.join(block.outputs)})"

    def operation(self, operation, indent: int) -> Iterator[str]:
        outputs = self.named(operation.outputs)
        yield " " * indent + (f"{outputs} = " if outputs else "")
        inputs = (
            f"{key} = {self.argument(argument.arguments)}"
            for key, argument in sorted(operation.inputs.items())
        )
        yield f"{operation.type}({', '.join(inputs)}){self.attributes(operation.attributes)}"
        for number, block in enumerate(operation.blocks):
            yield f"\n{' ' * (indent + 2)}block{number}({self.named(block.inputs)}) "
            yield from self.block(block, indent + 2)
        yield ";\n"

    def named(self, values) -> str:
        return ", ".join(f"{self.type(value.type)} {value.name}" for value in values)

    def argument(self, bindings) -> str:
        items = [
            binding.name if binding.WhichOneof("binding") == "name" else self.value(binding.value)
            for binding in bindings
        ]
        return items[0] if len(items) == 1 else f"({', '.join(items)})"

    def attributes(self, attributes) -> str:
        items = [f"{key} = {self.value(value)}" for key, value in sorted(attributes.items())]
        return f"[{', '.join(items)}]" if items else ""

    def type(self, type_) -> str:
        match type_.WhichOneof("type"):
            case "tensorType":
                return self.tensor_type(type_.tensorType)
            case "stateType":
                return f"state<{self.type(type_.stateType.wrappedType)}>"
            case "listType":
                return f"list<{self.type(type_.listType.type)}, {_size(type_.listType.length)}>"
            case "dictionaryType":
                key, value = type_.dictionaryType.keyType, type_.dictionaryType.valueType
                return f"dict<{self.type(key)}, {self.type(value)}>"
            case _:
                return f"tuple<{', '.join(map(self.type, type_.tupleType.types))}>"

    def tensor_type(self, type_) -> str:
        dtype = DTYPES[type_.dataType]
        if self.scalars and not type_.dimensions:
            return dtype
        return f"tensor<{dtype}, [{', '.join(map(_size, type_.dimensions))}]>"

    def value(self, value) -> str:
        type_ = self.type(value.type)
        if value.WhichOneof("value") == "blobFileValue":
            scalar = "{}({})" if self.scalars else "tensor<{}, []>({})"
            path = scalar.format("string", _string(value.blobFileValue.fileName))
            offset = scalar.format("uint64", value.blobFileValue.offset)
            return f"{type_}(BLOBFILE(path = {path}, offset = {offset}))"
        if value.immediateValue.WhichOneof("value") is None:
            return f"{type_}()"
        return f"{type_}({self.literal(value)})"

    def literal(self, value) -> str:
        immediate = value.immediateValue
        match immediate.WhichOneof("value"):
            case "list":
                return f"[{', '.join(map(self.literal, immediate.list.values))}]"
            case "tuple":
                return f"({', '.join(map(self.literal, immediate.tuple.values))})"
            case "dictionary":
                pairs = (
                    f"{{{self.literal(pair.key)}, {self.literal(pair.value)}}}"
                    for pair in immediate.dictionary.values
                )
                return f"{{{', '.join(pairs)}}}"
        return self.tensor(value)

    def tensor(self, value) -> str:
        type_ = read_type(value.type, "a value")
        if None in type_.shape:  # in an attribute, the one list that there is
            tensor = value.immediateValue.tensor
            size = len(getattr(tensor, tensor.WhichOneof("value")).values)
            type_ = type(type_)(type_.dtype, (size,))
        array = decode(value.immediateValue, type_, "a value")
        if type_.dtype == "bf16":
            array = (array.astype("<u4") << 16).view("<f4")
        return _nested(array, _speller(array, type_.dtype))


def _size(dimension) -> str:
    return str(dimension.constant.size) if dimension.HasField("constant") else "?"


def _string(text: str) -> str:
    return '"' + re.sub(r'["\\\n\t\r\0]', lambda found: ESCAPES[found[0]], text) + '"'


def _speller(array: np.ndarray, dtype: str) -> Callable[[Any], str]:
    if dtype == "string":
        return _string
    if dtype == "bool":
        return lambda value: "true" if value else "false"
    return _hex if array.dtype.kind == "f" else str


def _hex(value: float) -> str:
    """C's spelling of a float, without the zeros of Python's: 0x1.8p+1."""
    return re.sub(r"\.?0*p", "p", value.hex()) if np.isfinite(value) else str(value)


def _nested(array: np.ndarray, spell: Callable[[Any], str]) -> str:
    if array.ndim == 0:
        return spell(array.item())
    if array.ndim == 1:
        return f"[{', '.join(map(spell, array.tolist()))}]"
    return f"[{', '.join(_nested(row, spell) for row in array)}]"
