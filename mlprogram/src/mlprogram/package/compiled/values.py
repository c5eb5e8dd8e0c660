"""Parse the tokens, types and values of MIL's text form; reader.py parses its statements."""

from collections.abc import Iterator
import re

from mlprogram.errors import InvalidPackage
from mlprogram.package.files import proto
from mlprogram.package.values import DTYPES, MAX_RANK
from mlprogram.package.weight_file import NUMPY, SUB_BYTE, pack_bits
import numpy as np

CODES = {name: code for code, name in DTYPES.items()}
PLACE = "@model_path/"  # stands for the model's folder in names of weight files
MAX_DEPTH = 32  # the deepest nesting of types, and of blocks

SPACE = re.compile(r"\s*")
WORD = re.compile(r"[A-Za-z_][\w@]*")
TENSOR = re.compile(r"tensor\s*<\s*(\w+)\s*,\s*\[([^\[\]<>]*)\]\s*>")
SIZE = re.compile(r"\d{1,19}|\?")
STRING = re.compile(r'"((?:[^"\\]|\\.)*)"', re.S)
FLAT = re.compile(r"\[([^\[\]\"(){}]*)\]")  # the innermost list of numbers
SCALAR = re.compile(r"[-+\w.]+")
TOKEN = re.compile(r"\w+|\W|$")
ESCAPE = re.compile(r"\\(.)", re.S)
ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}


class ValueReader:
    """A recursive-descent parser; `at` is its position in the text.

    below: the folder, with its slash, that names of weight files are relative to.
    """

    def __init__(self, text: str, where: str, below: str):
        self.text, self.where, self.below, self.at = text, where, below, 0
        self.mil = proto("MIL_pb2")
        self.types: dict[str, object] = {}  # spelled out -> ValueType; a program repeats few

    # --- tokens -------------------------------------------------------------------------------

    def error(self, message: str, at: int | None = None) -> InvalidPackage:
        at = self.at if at is None else at
        line, column = self.text.count("\n", 0, at) + 1, at - self.text.rfind("\n", 0, at)
        return InvalidPackage(f"{self.where}, line {line}, column {column}: {message}")

    def skip(self) -> None:
        spaces = SPACE.match(self.text, self.at)
        self.at = spaces.end() if spaces else self.at

    def take(self, token: str) -> bool:
        """Read `token` if it comes next."""
        self.skip()
        found = self.text.startswith(token, self.at)
        self.at += len(token) * found
        return found

    def expect(self, token: str) -> None:
        if not self.take(token):
            raise self.error(f"{token!r} expected, not {self.next()}")

    def next(self) -> str:
        """The next token, for a message."""
        token = TOKEN.match(self.text, self.at)
        return repr(token[0][:40]) if token and token[0] else "the end of the text"

    def match(self, pattern: re.Pattern, what: str) -> re.Match:
        self.skip()
        found = pattern.match(self.text, self.at)
        if found is None:
            raise self.error(f"{what} expected, not {self.next()}")
        self.at = found.end()
        return found

    def word(self, what: str) -> str:
        return self.match(WORD, what)[0]

    def string(self) -> str:
        found = self.match(STRING, "a string")[1]
        return ESCAPE.sub(lambda one: ESCAPED.get(one[1], one[1]), found)

    def separated(self, end: str) -> Iterator[None]:
        """Yield before each item of a list that is separated by commas and ends with `end`."""
        if self.take(end):
            return
        yield
        while not self.take(end):
            self.expect(",")
            yield

    # --- types --------------------------------------------------------------------------------

    def type(self, depth: int = 0):
        """Parse a type to a ValueType; equal tensor types share one, which must not be changed."""
        if depth > MAX_DEPTH:
            raise self.error(f"types in types, {depth} deep")
        self.skip()
        start, found = self.at, TENSOR.match(self.text, self.at)
        if found:
            self.at = found.end()
            if found[0] not in self.types:
                self.types[found[0]] = self.tensor_type(found[1], found[2], start)
            return self.types[found[0]]
        name, type_ = self.word("a type"), self.mil.ValueType()
        if name in CODES:
            type_.tensorType.dataType = CODES[name]
            return type_
        if name not in ("state", "list", "dict", "tuple"):
            raise self.error(f"a type expected, not {name!r}", start)
        self.expect("<")
        self.wrapped(name, type_, depth + 1)
        self.expect(">")
        return type_

    def wrapped(self, name: str, type_, depth: int) -> None:
        """Parse the inside of the angle brackets of a type that contains types."""
        if name == "state":
            type_.stateType.wrappedType.CopyFrom(self.type(depth))
        elif name == "list":
            type_.listType.type.CopyFrom(self.type(depth))
            self.expect(",")
            self.size(type_.listType.length, self.match(SIZE, "a length")[0])
        elif name == "dict":
            type_.dictionaryType.keyType.CopyFrom(self.type(depth))
            self.expect(",")
            type_.dictionaryType.valueType.CopyFrom(self.type(depth))
        else:
            type_.tupleType.types.add().CopyFrom(self.type(depth))
            while self.take(","):
                type_.tupleType.types.add().CopyFrom(self.type(depth))

    def tensor_type(self, dtype: str, sizes: str, at: int):
        if dtype not in CODES:
            raise self.error(f"a dtype expected, not {dtype!r}", at)
        type_ = self.mil.ValueType()
        type_.tensorType.dataType = CODES[dtype]
        for size in sizes.split(",") if sizes.strip() else ():
            if not SIZE.fullmatch(size.strip()):
                raise self.error(f"a size expected, not {size.strip()[:40]!r}", at)
            self.size(type_.tensorType.dimensions.add(), size.strip())
        type_.tensorType.rank = len(type_.tensorType.dimensions)
        return type_

    def size(self, dimension, text: str) -> None:
        if text == "?":
            dimension.unknown.SetInParent()
        elif int(text) >= 1 << 63:
            raise self.error(f"a size of {text}")
        else:
            dimension.constant.size = int(text)

    # --- values -------------------------------------------------------------------------------

    def value(self, value) -> None:
        """`type(literal)`, or `type(BLOBFILE(path = ..., offset = ...))`."""
        type_ = self.type()
        value.type.CopyFrom(type_)
        self.expect("(")
        self.skip()
        if self.text.startswith("BLOBFILE", self.at):
            self.blob(value.blobFileValue)
        elif not self.text.startswith(")", self.at):
            self.literal(value.immediateValue, type_)
        self.expect(")")

    def blob(self, blob) -> None:
        self.expect("BLOBFILE")
        self.expect("(")
        for key, kind in (("path", "strings"), ("offset", None)):
            self.expect(key)
            self.expect("=")
            at, value = self.at, self.mil.Value()
            self.value(value)
            tensor = value.immediateValue.tensor
            try:
                if kind:
                    (name,) = tensor.strings.values
                    blob.fileName = f"{PLACE}{self.below}{name.removeprefix(PLACE)}"
                else:
                    (blob.offset,) = np.frombuffer(tensor.bytes.values, np.uint64).tolist()
            except ValueError:
                what = "a string" if kind else "a number, uint64,"
                raise self.error(f"{what} expected as the {key} of a blob", at) from None
            if kind:
                self.expect(",")
        self.expect(")")

    def literal(self, value, type_) -> None:
        """Parse a value without its type: lists, pairs and tuples name the type of items once."""
        kind = type_.WhichOneof("type")
        if kind == "tensorType":
            self.tensor(value.tensor, type_.tensorType)
        elif kind == "listType":
            value.list.SetInParent()
            self.expect("[")
            for _ in self.separated("]"):
                self.part(value.list.values.add(), type_.listType.type)
        elif kind == "dictionaryType":
            value.dictionary.SetInParent()
            self.expect("{")
            for _ in self.separated("}"):
                pair = value.dictionary.values.add()
                self.expect("{")
                self.part(pair.key, type_.dictionaryType.keyType)
                self.expect(",")
                self.part(pair.value, type_.dictionaryType.valueType)
                self.expect("}")
        elif kind == "tupleType":
            value.tuple.SetInParent()
            self.expect("(")
            for index, _ in enumerate(self.separated(")")):
                if index >= len(type_.tupleType.types):
                    raise self.error("more values than the tuple has types")
                self.part(value.tuple.values.add(), type_.tupleType.types[index])
        else:
            raise self.error("a state has no value")

    def part(self, value, type_) -> None:
        value.type.CopyFrom(type_)
        self.literal(value.immediateValue, type_)

    def tensor(self, tensor, type_) -> None:
        self.skip()
        at, dtype = self.at, DTYPES[type_.dataType]
        items: list = []
        shape = self.items(items, dtype, 0)
        sizes = [d.constant.size if d.HasField("constant") else None for d in type_.dimensions]
        open_or_same = len(shape) == len(sizes) and all(
            size in (None, given) for size, given in zip(sizes, shape, strict=True)
        )
        if not open_or_same and shape and 0 not in sizes:  # of nothing, less is written
            raise self.error(f"values of shape {shape} for a tensor of shape {sizes}", at)
        try:
            _store(tensor, dtype, items)
        except (ValueError, OverflowError) as error:
            raise self.error(f"no values of {dtype} ({error})"[:200], at) from None

    def items(self, items: list, dtype: str, depth: int) -> list[int]:
        """Read nested lists of literals, row by row into `items`; returns their shape."""
        if depth > MAX_RANK:
            raise self.error(f"lists in lists, {depth} deep")
        self.skip()
        flat = FLAT.match(self.text, self.at) if dtype != "string" else None
        if flat:
            self.at = flat.end()
            found = flat[1].split(",") if flat[1].strip() else []
            items.extend(found)
            return [len(found)]
        if not self.take("["):
            items.append(self.string() if dtype == "string" else self.match(SCALAR, "a value")[0])
            return []
        count = 0
        inner: list[int] = []
        for count, _ in enumerate(self.separated("]"), 1):
            shape = self.items(items, dtype, depth + 1)
            if count > 1 and shape != inner:
                raise self.error(f"rows of shapes {inner} and {shape} in one list")
            inner = shape
        return [count, *inner]


def _store(tensor, dtype: str, items: list[str]) -> None:
    """Store literals in the field of a TensorValue that coremltools uses for this dtype.

    Raises ValueError or OverflowError for an invalid literal.
    """
    if dtype == "string":
        tensor.strings.values.extend(items)
    elif dtype == "bool":
        values = [item.strip() for item in items]
        if not {*values} <= {"true", "false"}:
            raise ValueError("true and false are")
        tensor.bools.values.extend(value == "true" for value in values)
    elif dtype in ("fp16", "fp32", "fp64", "bf16"):
        _store_floats(tensor, dtype, [_float(item) for item in items])
    elif dtype == "int32":
        tensor.ints.values.extend([int(item) for item in items])
    elif dtype == "int64":
        tensor.longInts.values.extend([int(item) for item in items])
    else:
        array: np.ndarray = np.array([int(item) for item in items], NUMPY[dtype])
        packed = pack_bits(array, SUB_BYTE[dtype]) if dtype in SUB_BYTE else array
        tensor.bytes.values = packed.tobytes()


def _store_floats(tensor, dtype: str, values: list[float]) -> None:
    with np.errstate(over="ignore"):
        if dtype == "fp64":
            tensor.doubles.values.extend(values)
        elif dtype == "fp32":
            tensor.floats.values.extend(np.array(values, np.float32).tolist())
        elif dtype == "fp16":
            tensor.bytes.values = np.array(values, np.float16).tobytes()
        else:  # the upper half of a float32
            tensor.bytes.values = (
                (np.array(values, "<f4").view("<u4") >> 16).astype("<u2").tobytes()
            )


def _float(text: str) -> float:
    return float.fromhex(text) if "x" in text or "X" in text else float(text)
