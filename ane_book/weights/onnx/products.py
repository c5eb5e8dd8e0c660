"""Recognise projections and embedding look-ups, and find their stored matrices."""

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING

from ane_book.errors import InvalidWeights, UnsupportedModel
from ane_book.weights.onnx.matrices import NIBBLES, Blocks, Matrix, MatrixPart, Plain, whole
from ane_book.weights.onnx.steps import DecoderWalk
from ane_book.weights.source import Shape
from mlprogram.onnx.file import OnnxGraph, StoredTensor, attribute
import numpy as np

if TYPE_CHECKING:  # onnx is an extra
    from onnx import NodeProto


@dataclass(frozen=True)
class Linear:
    """A projection of the value `source`: rows of a matrix (out, in), and their bias or None."""

    source: str
    weight: MatrixPart
    bias: MatrixPart | None = None

    def rows(self, start: int, stop: int) -> "Linear":
        """The projection to some of the rows."""
        bias = None if self.bias is None else self.bias.rows(start, stop)
        return Linear(self.source, self.weight.rows(start, stop), bias)


def linear_of(walk: DecoderWalk, name: str) -> Linear | None:
    """The projection that computes a value, of whose rows a Split may have taken some; or None."""
    node = walk.node_of(name, "Split")
    if node is None:
        return _biased(walk, walk.node(name))
    linear = _biased(walk, walk.node(node.input[0]))
    if linear is None or attribute(node, "axis", 0) not in (-1, 2):
        return None
    N, parts = linear.weight.shape[0], len(node.output)
    stored = walk.graph.constants.get(node.input[1]) if len(node.input) > 1 else None
    sizes = [N // parts] * parts if stored is None else stored.array().reshape(-1).tolist()
    if len(sizes) != parts or sum(sizes) != N or min(sizes) <= 0:
        walk.refuse(node, f"a split of {N} rows")
    place = list(node.output).index(walk.value(name))
    return linear.rows(sum(sizes[:place]), sum(sizes[: place + 1]))


def _biased(walk: DecoderWalk, node: "NodeProto | None") -> Linear | None:
    """The projection that a node computes, or to which it adds a bias."""
    if node is None or node.op_type != "Add":
        return _product(walk, node)
    for value, bias in (node.input, node.input[::-1]):
        stored = walk.graph.constants.get(bias)
        linear = _product(walk, walk.node(value)) if stored is not None else None
        if linear is not None and linear.bias is None:
            return _with_bias(linear, stored)
    return None


def _product(walk: DecoderWalk, node: "NodeProto | None") -> Linear | None:
    if node is None or node.op_type not in ("MatMul", "MatMulNBits"):
        return None
    source = walk.value(node.input[0])
    if node.op_type == "MatMulNBits":
        matrix, bias = matrix_of_nbits(walk.graph, node)
        return _with_bias(Linear(source, whole(matrix)), bias)
    plain = _plain(walk, node.input[1], turned=True)
    return None if plain is None else Linear(source, whole(plain))


def _with_bias(linear: Linear, stored: StoredTensor | None) -> Linear:
    if stored is None:
        return linear
    if stored.shape != linear.weight.shape[:1]:
        raise InvalidWeights(
            f"{stored.where} of shape {list(stored.shape)} is no bias of {linear.weight.shape[0]} "
            "rows"
        )
    return Linear(linear.source, linear.weight, whole(Plain(stored)))


def _plain(walk: DecoderWalk, name: str, turned: bool) -> Plain | None:
    """A stored matrix that is used as it is or behind a transpose; or None."""
    name = walk.value(name)
    stored, node = walk.graph.constants.get(name), walk.graph.producer(name)
    if stored is None and node is not None and node.op_type == "Transpose":
        stored, turned = walk.graph.constants.get(node.input[0]), not turned
    if stored is None or len(stored.shape) != 2:
        return None
    stored.numbers()  # raises unless it is of floating point
    return Plain(stored, turned)


def matrix_of_nbits(graph: OnnxGraph, node: "NodeProto") -> tuple[Blocks, StoredTensor | None]:
    """The matrix of a `MatMulNBits`, checked, and its bias or None."""
    where = graph.where(node)
    if attribute(node, "weight_prepacked", 0):
        raise UnsupportedModel(
            f"{where}: its weights are prepacked for one kind of GPU; export the model with "
            "matmulnbits_weights_prepacked=0"
        )
    names = [*node.input, *[""] * 6][1:6]
    data, scales, zeros, order, bias = (_stored(graph, node, n) if n else None for n in names)
    if data is None or scales is None:
        raise InvalidWeights(f"{where}: no data or no scales")
    bits, block = attribute(node, "bits", 4), attribute(node, "block_size", 0)
    _check_bits(graph, node, bits)
    shape = attribute(node, "N", 0), attribute(node, "K", 0)
    if min(shape) <= 0:
        raise InvalidWeights(f"{where}: N and K are {shape}")
    matrix = Blocks(data, scales, zeros, shape, bits, block, middle=1 << (bits - 1))
    columns = np.arange(0 if order is None else order.array().size) // block
    if order is not None and not np.array_equal(order.array().reshape(-1), columns):
        raise UnsupportedModel(
            f"{where}: g_idx puts columns in an order of its own (GPTQ's act-order); only the "
            "order as it is can be read"
        )
    return matrix, bias


def _check_bits(graph: OnnxGraph, node: "NodeProto", bits: int) -> None:
    if bits not in (2, 4, 8):
        raise UnsupportedModel(f"{graph.where(node)}: {bits} bits; 2, 4 and 8 are read")


def _stored(graph: OnnxGraph, node: "NodeProto", name: str) -> StoredTensor:
    stored = graph.constants.get(name)
    if stored is None:
        raise UnsupportedModel(f"{graph.where(node)}: {name} is computed, not stored")
    return stored


def embedding_of(walk: DecoderWalk, name: str) -> Matrix:
    """The embedding matrix whose rows make up a value."""
    node = walk.node(name)
    if node is None:
        walk.refuse(node, "the embedding of tokens")
    if node.op_type == "GatherBlockQuantized":
        return table_of(walk.graph, node)
    if node.op_type == "Gather" and attribute(node, "axis", 0) == 0:
        matrix = _plain(walk, node.input[0], turned=False)
        if matrix is not None:
            return matrix
    walk.refuse(node, "the embedding of tokens, a row of a stored matrix for each")


def table_of(graph: OnnxGraph, node: "NodeProto") -> Blocks:
    """The matrix of a `GatherBlockQuantized` that gathers rows and has its blocks along them."""
    names = [*node.input, "", ""][:4]
    (data, shape), (scales, _) = _reshaped(graph, node, names[0]), _reshaped(graph, node, names[2])
    zeros = _reshaped(graph, node, names[3])[0] if names[3] else None
    narrow = data.kind in NIBBLES  # a number of four bits counts in the shape, not a byte
    bits = 4 if narrow else attribute(node, "bits", 4)
    _check_bits(graph, node, bits)
    N, width = shape if len(shape) == 2 else (0, 0)
    K = width if narrow else width * 8 // bits
    axes = attribute(node, "gather_axis", 0) % 2, attribute(node, "quantize_axis", 1) % 2
    if not (narrow or data.kind == "UINT8") or axes != (0, 1) or not N or K * bits % 8:
        raise UnsupportedModel(
            f"{graph.where(node)}: data of {data.kind} {list(shape)}, gathered along axis "
            f"{axes[0]} and cut into blocks along {axes[1]}; matrices of UINT8, UINT4 and INT4 are "
            "read, whose rows are gathered, and cut along themselves into whole bytes"
        )
    block, middle = attribute(node, "block_size", 128), 0 if narrow else 1 << (bits - 1)
    return Blocks(data, scales, zeros, (N, K), bits, block, middle, data.kind == "INT4")


def _reshaped(graph: OnnxGraph, node: "NodeProto", name: str) -> tuple[StoredTensor, Shape]:
    """A stored tensor that may be behind a Reshape, and its shape after that."""
    maker = graph.producer(name)
    if maker is not None and maker.op_type == "Reshape":
        stored, shape = graph.constants.get(maker.input[0]), graph.constants.get(maker.input[1])
        if stored is not None and shape is not None:
            sizes = tuple(shape.array().reshape(-1).tolist())
            if min(sizes, default=0) > 0 and math.prod(sizes) == math.prod(stored.shape):
                return stored, sizes
    stored = _stored(graph, node, name)
    return stored, stored.shape
