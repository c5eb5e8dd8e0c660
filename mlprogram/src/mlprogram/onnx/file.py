"""Read an `.onnx` file: its graph, and the tensors that are stored in it or beside it.

The file is a protobuf of at most 2 GB, which the package `onnx` parses. Larger models keep their
tensors in other files ("external data"), which are mapped into memory and read when a tensor is
asked for. Nothing in a file is trusted: external data has to lie in the model's folder, and to have
the length that its type and shape ask for.

Reference: https://github.com/onnx/onnx/blob/main/docs/ExternalData.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
import math
import mmap
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from mlprogram.errors import InvalidWeights, UnsupportedModel
from mlprogram.extras import missing
from mlprogram.files import check_file
import numpy as np

if TYPE_CHECKING:  # onnx is an extra
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto


PROTOBUF_BYTES = (1 << 31) - 1  # protobuf has no larger message
MOST_DIMENSIONS = 8
ONNX_DOMAINS = ("", "ai.onnx")  # the domain of ONNX's own operators
OLDEST = 13  # the oldest opset that is read without conversion to a newer one

#: ONNX's names of the tensor types that are supported -> bits of an element, numpy dtype.
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


T = TypeVar("T")
Shape = tuple[int, ...]


def load_onnx():
    """Import the optional package `onnx`. Raises UnsupportedModel if it is not installed."""
    try:
        import onnx
    except ImportError:
        raise UnsupportedModel(missing("to read ONNX files", "mlprogram[onnx]", "onnx")) from None
    return onnx


@dataclass(frozen=True)
class StoredTensor:
    """A stored tensor, read lazily: `shape`, and `kind`, ONNX's name of its type."""

    graph: "OnnxGraph"
    tensor: "TensorProto"

    @property
    def name(self) -> str:
        return self.tensor.name

    @property
    def where(self) -> str:
        """The beginning of an error message about the tensor."""
        return f"{self.graph.path}: tensor {self.name!r}"

    @cached_property
    def kind(self) -> str:
        number = self.tensor.data_type
        names = load_onnx().TensorProto.DataType
        return names.Name(number) if number in names.values() else f"type {number}"

    @cached_property
    def shape(self) -> Shape:
        return tuple(self.tensor.dims)

    def bytes(self) -> np.ndarray:
        """Its bytes (n,) uint8, little endian; a view of the mapped file if they are external."""
        if self.kind not in TYPES:
            raise UnsupportedModel(
                f"{self.where} is of type {self.kind}; supported: {', '.join(TYPES)}"
            )
        if len(self.shape) > MOST_DIMENSIONS or min(self.shape, default=0) < 0:
            raise InvalidWeights(f"{self.where} has shape {self.shape}")
        bits, _ = TYPES[self.kind]
        size = -(-math.prod(self.shape) * bits // 8)
        if self.tensor.data_location:
            return self.graph.external(self.tensor, size)
        if self.tensor.HasField("raw_data"):
            data = np.frombuffer(self.tensor.raw_data, np.uint8)
        elif bits < 8:
            data = np.array(self.tensor.int32_data, np.int32).astype(np.uint8)
        else:
            try:
                array = load_onnx().numpy_helper.to_array(self.tensor)
            except (ValueError, TypeError, OverflowError) as error:
                raise InvalidWeights(f"{self.where}: {error}") from None
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if len(data) != size:
            raise InvalidWeights(
                f"{self.where} of {self.kind} {list(self.shape)} takes {size:,} bytes, but has "
                f"{len(data):,}; get the file again"
            )
        return data

    def array(self) -> np.ndarray:
        """The tensor as a numpy array, mapped if possible.

        bfloat16 is widened to float32. Four-bit numbers stay packed, two in a byte, in a flat
        array.
        """
        data = self.bytes()
        bits, dtype = TYPES[self.kind]
        if bits < 8:
            return data
        array = np.frombuffer(data, dtype).reshape(self.shape)
        if self.kind == "BFLOAT16":
            return (array.astype(np.uint32) << 16).view(np.float32)
        return array

    def numbers(self) -> np.ndarray:
        """`array` of a floating-point tensor. Raises for another type."""
        if self.kind not in ("FLOAT", "FLOAT16", "BFLOAT16"):
            raise UnsupportedModel(f"{self.where} is of {self.kind}, not of floating point")
        return self.array()


class ModelFile:
    """An `.onnx` file: its model, and the files of external data beside it."""

    def __init__(self, path: Path):
        """Reads the model; raises InvalidWeights or UnsupportedModel."""
        self.path = path
        self._maps: dict[str, mmap.mmap] = {}
        self.model = _read(path)

    def external(self, tensor: "TensorProto", size: int) -> np.ndarray:
        """The mapped bytes (size,) of a tensor in a file of external data."""
        where = f"{self.path}: tensor {tensor.name!r}"
        entry = {item.key: item.value for item in tensor.external_data}
        try:
            offset, length = int(entry.get("offset", 0)), int(entry.get("length", size))
        except ValueError:
            raise InvalidWeights(f"{where}: its place is no number: {entry}") from None
        data = self._data_file(entry.get("location", ""), where)
        if offset < 0 or length != size or offset + size > len(data):
            raise InvalidWeights(
                f"{where} takes {size:,} bytes; {length:,} from {offset:,} on are said to be its, "
                f"of {entry['location']}, which has {len(data):,}: that file is cut short, or "
                "another's; get it again"
            )
        return data[offset : offset + size]

    def _data_file(self, location: str, where: str) -> np.ndarray:
        """Map a file of external data, which has to lie in the model's folder."""
        if location not in self._maps:
            path = self._locate(location, where)
            if not path.exists():
                raise InvalidWeights(f"{where}: its file {location} is missing; get it")
            check_file(path)
            try:
                with path.open("rb") as file:
                    self._maps[location] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:  # ValueError: the file is empty
                raise InvalidWeights(f"{path}: cannot be mapped into memory: {error}") from None
        return np.frombuffer(self._maps[location], np.uint8)

    def let_go(self) -> None:
        """Release the resident pages of the mapped files; they are read again when needed."""
        for mapped in self._maps.values() if hasattr(mmap, "MADV_DONTNEED") else ():
            mapped.madvise(mmap.MADV_DONTNEED)

    def _locate(self, location: str, where: str) -> Path:
        """The path of a file of external data, which has to be in the model's folder, or in that
        of the file that the model's path links to.

        In the hub's cache the model and its data are both links to a folder of blobs.
        """
        try:
            folders = {self.path.parent.resolve(), self.path.resolve().parent}
            path = self.path.parent / location
            real = path.resolve()
        except (OSError, RuntimeError, ValueError) as error:
            raise InvalidWeights(f"{where}: its file {location!r}: {error}") from None
        outside = not any(folder in real.parents for folder in folders)
        if not location or Path(location).is_absolute() or ".." in Path(location).parts or outside:
            raise InvalidWeights(
                f"{where}: its data are in {location!r}, outside of the folder of the model"
            )
        return path


class OnnxGraph(ModelFile):
    """The graph of an `.onnx` file: its nodes, and the stored tensors by name."""

    def __init__(self, path: Path):
        """Reads the graph; raises InvalidWeights or UnsupportedModel."""
        super().__init__(path)
        graph = self.model.graph
        self.nodes: list[NodeProto] = list(graph.node)
        self.inputs = {value.name: dimensions(value) for value in graph.input}
        self.outputs = [value.name for value in graph.output]
        self.constants = {name: StoredTensor(self, t) for name, t in constants_of(graph).items()}
        #: Value -> the index in `nodes` of the node that computes it.
        self.producers = {
            name: number for number, node in enumerate(self.nodes) for name in node.output if name
        }
        for tensor in graph.initializer:
            self.constants[tensor.name].bytes()  # raises where its file is not there
        self.files = [path, *(path.parent / location for location in sorted(self._maps))]

    def producer(self, name: str) -> "NodeProto | None":
        """The node that computes a value; None for an input or an initializer."""
        return self.nodes[self.producers[name]] if name in self.producers else None

    def where(self, node: "NodeProto") -> str:
        """The beginning of an error message about a node."""
        return f"{self.path}: {describe(node)}"


def _read(path: Path) -> "ModelProto":
    """Parse a file's protobuf without its external data, and check that `onnx` knows its opset."""
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
        what = f"truncated, or not an ONNX file ({error}); get it again"
        raise InvalidWeights(f"{path}: {what}") from None
    if not model.graph.node or not model.opset_import:
        raise InvalidWeights(f"{path}: no ONNX file: it has no graph")
    domains = [entry.domain for entry in model.opset_import]
    if not all(isinstance(text, str) for text in (*_texts(model.graph), *domains)):
        raise InvalidWeights(f"{path}: damaged: a name in it is no text in UTF-8; get it again")
    known, opset = onnx.defs.onnx_opset_version(), opset_of(model)
    if opset > known:
        raise UnsupportedModel(
            f"{path}: opset {opset}; the package onnx here knows up to {known}: update it, or save "
            "the model by an earlier opset"
        )
    return model


def _texts(graph: "GraphProto") -> Iterator[str | bytes]:
    """The names in a graph; protobuf returns bytes for one that is not UTF-8."""
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (item.name for item in node.attribute)
        for inner in subgraphs(node):
            yield from _texts(inner)
    for tensor in graph.initializer:
        yield tensor.name
        for entry in tensor.external_data:
            yield from (entry.key, entry.value)
    for value in (*graph.input, *graph.output):
        yield value.name
        yield from (d.dim_param for d in value.type.tensor_type.shape.dim)


def opset_of(model: "ModelProto") -> int:
    """The opset of ONNX's own operators in a model."""
    return max((o.version for o in model.opset_import if o.domain in ONNX_DOMAINS), default=OLDEST)


def subgraphs(node: "NodeProto") -> Iterator["GraphProto"]:
    """The graphs in a node's attributes: the branches of an `If`, the body of a `Loop`."""
    for item in node.attribute:
        if item.HasField("g"):
            yield item.g
        yield from item.graphs


def all_nodes(graph: "GraphProto") -> Iterator["NodeProto"]:
    """The nodes of a graph and of its subgraphs."""
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from all_nodes(inner)


def constants_of(graph: "GraphProto") -> "dict[str, TensorProto]":
    """The tensors of a graph's initializers and `Constant` nodes, by name."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        for item in node.attribute if node.op_type == "Constant" else ():
            if item.name == "value":
                tensors |= dict.fromkeys(node.output, item.t)
    return tensors


def dimensions(value: "ValueInfoProto") -> list[int | str]:
    """The shape of an input: a size, or the name of an open axis. PaddlePaddle's -1 is open too."""
    return [
        d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param or "?"
        for d in value.type.tensor_type.shape.dim
    ]


def attribute(node: "NodeProto", name: str, default: T) -> T:
    """The value of a node's attribute, or `default`. Raises InvalidWeights unless of its type."""
    for item in node.attribute:
        if item.name == name:
            value = load_onnx().helper.get_attribute_value(item)
            if isinstance(value, bytes):
                value = value.decode("utf-8", "replace")
            if not isinstance(value, type(default)):
                raise InvalidWeights(f"{describe(node)}: attribute {name} is {value!r}")
            return value
    return default


def describe(node: "NodeProto", inputs: str = "") -> str:
    """Describe a node in an error: its name, operator, and inputs (or the text `inputs`)."""
    kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    name = f"the node {kind} that makes {', '.join(map(repr, node.output))}"
    if node.name:
        name = f"node {node.name!r} ({kind})"
    return f"{name} of {inputs or ', '.join(node.input) or 'nothing'}"
