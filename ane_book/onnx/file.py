"""An `.onnx` file: its graph, and the tensors that are stored beside it.

The file is a protobuf, which the package `onnx` reads; it holds at most 2 GB, so larger models
keep their tensors in other files, "external data", each by its place there. Those files are mapped
into memory, and a tensor is read when it is asked for. Nothing in a file is trusted: data lie in
the model's folder and have the length that their type and shape ask for.

Reference: https://github.com/onnx/onnx/blob/main/docs/ExternalData.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
import math
import mmap
from pathlib import Path
from typing import TYPE_CHECKING

from ane_book.errors import InvalidWeights, UnsupportedModel
from ane_book.extras import missing
from ane_book.weights.source import Shape, check_file
import numpy as np

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

__all__ = ["ModelFile", "OnnxGraph", "StoredTensor", "attribute", "describe"]

PROTOBUF_BYTES = (1 << 31) - 1  # protobuf has no larger message
MOST_DIMENSIONS = 8

#: Types of stored tensors that we read, by ONNX's names -> bits of an element, and numpy's dtype.
TYPES = {
    "FLOAT": (32, np.float32),
    "FLOAT16": (16, np.float16),
    "BFLOAT16": (16, np.uint16),
    "UINT8": (8, np.uint8),
    "INT8": (8, np.int8),
    "UINT4": (4, np.uint8),
    "INT4": (4, np.uint8),
    "INT32": (32, np.int32),
    "INT64": (64, np.int64),
    "BOOL": (8, np.uint8),
}


def load_onnx():
    """The package `onnx`, which only who reads such files needs; raises UnsupportedModel."""
    try:
        import onnx
    except ImportError:
        raise UnsupportedModel(missing("to read ONNX files", "onnx", "onnx")) from None
    return onnx


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as it is stored: `shape` and ONNX's name of its type, `kind`."""

    graph: "OnnxGraph"
    tensor: "TensorProto"

    @property
    def name(self) -> str:
        return self.tensor.name

    @cached_property
    def kind(self) -> str:
        number = self.tensor.data_type
        names = load_onnx().TensorProto.DataType
        return names.Name(number) if number in names.values() else f"type {number}"

    @cached_property
    def shape(self) -> Shape:
        return tuple(self.tensor.dims)

    def bytes(self) -> np.ndarray:
        """Its bytes (n,) uint8, little endian: a view of the mapped file where it is external."""
        if self.kind not in TYPES:
            raise UnsupportedModel(
                f"{self.graph.path}: tensor {self.name} is of type {self.kind}; "
                f"supported: {', '.join(TYPES)}"
            )
        if len(self.shape) > MOST_DIMENSIONS or min(self.shape, default=0) < 0:
            raise InvalidWeights(f"{self.graph.path}: tensor {self.name} has shape {self.shape}")
        size = -(-math.prod(self.shape) * TYPES[self.kind][0] // 8)
        data = self._external(size) if self.tensor.data_location else self._inline()
        if len(data) != size:
            raise InvalidWeights(
                f"{self.graph.path}: tensor {self.name} of {self.kind} {list(self.shape)} takes "
                f"{size:,} bytes, but has {len(data):,}; get the file again"
            )
        return data

    def array(self) -> np.ndarray:
        """As numpy has it, mapped where it can be; bfloat16 widened to float32, two numbers of four
        bits in a byte left so, flat."""
        bits, dtype = TYPES.get(self.kind, (8, np.uint8))
        data = self.bytes()
        if bits < 8:
            return data
        array = np.frombuffer(data, dtype).reshape(self.shape)
        if self.kind == "BFLOAT16":
            return (array.astype(np.uint32) << 16).view(np.float32)
        return array

    def numbers(self) -> np.ndarray:
        """The same of a tensor that has to be of floating point."""
        if self.kind not in ("FLOAT", "FLOAT16", "BFLOAT16"):
            raise UnsupportedModel(
                f"{self.graph.path}: tensor {self.name} is of {self.kind}, not of floating point"
            )
        return self.array()

    def _inline(self) -> np.ndarray:
        if self.tensor.HasField("raw_data"):
            return np.frombuffer(self.tensor.raw_data, np.uint8)
        if TYPES[self.kind][0] < 8:
            return np.array(self.tensor.int32_data, np.int32).astype(np.uint8)
        try:
            array = load_onnx().numpy_helper.to_array(self.tensor)
        except (ValueError, TypeError, OverflowError) as error:
            raise InvalidWeights(f"{self.graph.path}: tensor {self.name}: {error}") from None
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def _external(self, size: int) -> np.ndarray:
        entry = {item.key: item.value for item in self.tensor.external_data}
        place = f"{self.graph.path}: tensor {self.name}"
        try:
            offset, length = int(entry.get("offset", 0)), int(entry.get("length", size))
        except ValueError:
            raise InvalidWeights(f"{place}: its place is no number: {entry}") from None
        data = self.graph.data_file(entry.get("location", ""), place)
        if offset < 0 or length < 0 or offset + length > len(data):
            raise InvalidWeights(
                f"{place}: bytes {offset:,} to {offset + length:,} of {entry['location']}, which "
                f"has {len(data):,}; it is cut short, get it again"
            )
        return data[offset : offset + length]


class ModelFile:
    """An `.onnx` file: its model, and the files beside it that tensors lie in."""

    def __init__(self, path: Path):
        """Reads the model; raises InvalidWeights or UnsupportedModel."""
        self.path = path
        self._maps: dict[str, mmap.mmap] = {}
        self.model = _read(path)

    def data_file(self, location: str, place: str) -> np.ndarray:
        """The bytes of a file of external data, mapped; it has to lie in the model's folder."""
        if location not in self._maps:
            path = self._locate(location, place)
            if not path.exists():
                raise InvalidWeights(f"{place}: its file {location} is missing; get it")
            check_file(path)
            try:
                with path.open("rb") as file:
                    self._maps[location] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:  # ValueError: the file is empty
                raise InvalidWeights(f"{path}: cannot be mapped into memory: {error}") from None
        return np.frombuffer(self._maps[location], np.uint8)

    def let_go(self) -> None:
        """Give the memory back that what was read of the mapped files takes; it is read again when
        it is asked for."""
        for mapped in self._maps.values() if hasattr(mmap, "MADV_DONTNEED") else ():
            mapped.madvise(mmap.MADV_DONTNEED)

    def _locate(self, location: str, place: str) -> Path:
        """Where a file of external data is: in the folder, also where a link leads there.

        In the hub's cache the model and its data are both links to another folder, that of blobs.
        """
        try:
            folders = {self.path.parent.resolve(), self.path.resolve().parent}
            path = self.path.parent / location
            real = path.resolve()
        except (OSError, RuntimeError, ValueError) as error:
            raise InvalidWeights(f"{place}: its file {location!r}: {error}") from None
        outside = not any(folder in real.parents for folder in folders)
        if not location or Path(location).is_absolute() or ".." in Path(location).parts or outside:
            raise InvalidWeights(
                f"{place}: its data are in {location!r}, outside of the folder of the model"
            )
        return path


class OnnxGraph(ModelFile):
    """The graph of an `.onnx` file: what computes each value, and what is stored."""

    def __init__(self, path: Path):
        """Reads the graph; raises InvalidWeights or UnsupportedModel."""
        super().__init__(path)
        graph = self.model.graph
        self.nodes: list[NodeProto] = list(graph.node)
        self.inputs = {value.name: _dimensions(value) for value in graph.input}
        self.outputs = [value.name for value in graph.output]
        self.stored = {tensor.name: StoredTensor(self, tensor) for tensor in graph.initializer}
        self.producers = {
            name: (number, place)
            for number, node in enumerate(self.nodes)
            for place, name in enumerate(node.output)
            if name
        }
        self.files = [path, *self._data_files()]

    def producer(self, name: str) -> "NodeProto | None":
        """The node that computes a value; None of an input and of what is stored."""
        found = self.producers.get(name)
        return self.nodes[found[0]] if found else None

    def constant(self, name: str) -> StoredTensor | None:
        """What is stored under a name, or is a node `Constant`."""
        if name in self.stored:
            return self.stored[name]
        node = self.producer(name)
        if node is not None and node.op_type == "Constant":
            return self.constant_of(node)
        return None

    def constant_of(self, node: "NodeProto") -> StoredTensor | None:
        """The tensor of a node `Constant`."""
        for item in node.attribute:
            if item.name == "value":
                return StoredTensor(self, item.t)
        return None

    def _data_files(self) -> Iterator[Path]:
        """The files of external data that the tensors name, which are checked to be there."""
        for stored in self.stored.values():
            stored.bytes()
        yield from (self.path.parent / location for location in sorted(self._maps))


def _read(path: Path) -> "ModelProto":
    """The protobuf of a file, without external data, of an opset that `onnx` knows."""
    onnx = load_onnx()
    from google.protobuf.message import DecodeError

    check_file(path)
    size = path.stat().st_size
    if size > PROTOBUF_BYTES:
        raise InvalidWeights(
            f"{path}: {size:,} bytes; a protobuf has at most {PROTOBUF_BYTES:,}: save the model "
            "with external data"
        )
    model = onnx.ModelProto()
    try:
        model.ParseFromString(path.read_bytes())
    except (DecodeError, OSError, ValueError) as error:
        raise InvalidWeights(f"{path}: cut short or no ONNX file ({error}); get it again") from None
    if not model.graph.node or not model.opset_import:
        raise InvalidWeights(f"{path}: no ONNX file: it has no graph")
    if not all(isinstance(text, str) for text in (*_texts(model.graph), *_domains(model))):
        raise InvalidWeights(f"{path}: damaged: a name in it is no text in UTF-8; get it again")
    known = onnx.defs.onnx_opset_version()
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx") and entry.version > known:
            raise UnsupportedModel(
                f"{path}: opset {entry.version}; the package onnx here knows up to {known}: "
                "update it, or save the model by an earlier opset"
            )
    return model


def _texts(graph) -> Iterator[str | bytes]:
    """The names in a graph; protobuf gives bytes for one that is no UTF-8."""
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        for item in node.attribute:
            yield item.name
            if item.HasField("g"):
                yield from _texts(item.g)
    for tensor in graph.initializer:
        yield tensor.name
        for entry in tensor.external_data:
            yield from (entry.key, entry.value)
    for value in (*graph.input, *graph.output):
        yield value.name
        yield from (d.dim_param for d in value.type.tensor_type.shape.dim)


def _domains(model) -> Iterator[str | bytes]:
    return (entry.domain for entry in model.opset_import)


def _dimensions(value) -> tuple:
    """The shape of an input: numbers, and names of what may vary."""
    dimensions = value.type.tensor_type.shape.dim
    return tuple(d.dim_value if d.HasField("dim_value") else d.dim_param for d in dimensions)


def attribute(node: "NodeProto", name: str, default):
    """An attribute of a node, of the default's type; raises InvalidWeights for another type."""
    onnx = load_onnx()
    for item in node.attribute:
        if item.name == name:
            value = onnx.helper.get_attribute_value(item)
            if isinstance(value, bytes):
                value = value.decode("utf-8", "replace")
            if not isinstance(value, type(default)):
                raise InvalidWeights(f"{describe(node)}: attribute {name} is {value!r}")
            return value
    return default


def describe(node: "NodeProto") -> str:
    """A node in an error: its kind, its name and its inputs."""
    kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    return f"node {node.name or '(no name)'} ({kind} of {', '.join(node.input) or 'nothing'})"
