"""Projections and look-ups: which matrix a node multiplies by or takes rows of."""

from dataclasses import dataclass
import math
from typing import TYPE_CHECKING

from ane_book.errors import InvalidWeights, UnsupportedModel
from ane_book.onnx.decoder.matrices import Blocks, Matrix, MatrixPart, Plain
from ane_book.onnx.file import StoredTensor, attribute, describe
import numpy as np

if TYPE_CHECKING:
    from ane_book.onnx.decoder.recognise import DecoderWalk

__all__ = ["Linear", "embedding_of", "linear_of", "matrix_of_nbits", "rows_of", "table_of"]


@dataclass(frozen=True)
class Linear:
    """A projection of the value `source`: by a matrix (out, in), with a bias or without."""

    source: str
    matrix: Matrix
    bias: StoredTensor | None = None

    def pieces(self, start: int, stop: int) -> tuple[MatrixPart, MatrixPart | None]:
        """Some rows of the matrix, and what the bias has for them."""
        bias = None if self.bias is None else MatrixPart(self.bias, start, stop)
        return MatrixPart(self.matrix, start, stop), bias

    def whole(self) -> tuple[MatrixPart, MatrixPart | None]:
        return self.pieces(0, self.matrix.shape[0])


def linear_of(walk: "DecoderWalk", name: str) -> Linear | None:
    """The projection that a value is, with the bias that is added to it."""
    node = walk.node(name)
    if node is None or node.op_type != "Add":
        return _product_of(walk, node)
    for value, bias in (tuple(node.input), tuple(node.input)[::-1]):
        stored = walk.graph.constant(bias)
        linear = _product_of(walk, walk.node(value)) if stored is not None else None
        if linear is not None and linear.bias is None:
            return Linear(linear.source, linear.matrix, _checked_bias(walk, stored, linear.matrix))
    return None


def _product_of(walk: "DecoderWalk", node) -> Linear | None:
    if node is None:
        return None
    if node.op_type == "MatMul":
        matrix = _plain(walk, node.input[1], turned=True)
        return matrix and Linear(walk.value(node.input[0]), matrix)
    if node.op_type == "Gemm":
        return _gemm(walk, node)
    if node.op_type == "MatMulNBits":
        matrix, bias = matrix_of_nbits(walk.graph, node)
        bias = bias and _checked_bias(walk, bias, matrix)
        return Linear(walk.value(node.input[0]), matrix, bias)
    return None


def _gemm(walk: "DecoderWalk", node) -> Linear | None:
    scaled = attribute(node, "alpha", 1.0) != 1 or attribute(node, "beta", 1.0) != 1
    if scaled or attribute(node, "transA", 0):
        walk.refuse(node, "a projection: Gemm with alpha and beta 1, A as it is")
    matrix = _plain(walk, node.input[1], turned=not attribute(node, "transB", 0))
    if matrix is None:
        return None
    bias = walk.graph.constant(node.input[2]) if len(node.input) > 2 else None
    bias = bias and _checked_bias(walk, bias, matrix)
    return Linear(walk.value(node.input[0]), matrix, bias)


def _checked_bias(walk: "DecoderWalk", bias: StoredTensor, matrix: Matrix) -> StoredTensor:
    if bias.shape != (matrix.shape[0],):
        raise InvalidWeights(
            f"{walk.graph.path}: tensor {bias.name} of shape {list(bias.shape)} is no bias of "
            f"{matrix.shape[0]} rows"
        )
    return bias


def _plain(walk: "DecoderWalk", name: str, turned: bool) -> Plain | None:
    """A stored matrix, as it is or transposed on the way."""
    name = walk.value(name)
    stored, node = walk.graph.constant(name), walk.graph.producer(name)
    if stored is None and node is not None and node.op_type == "Transpose":
        stored, turned = walk.graph.constant(node.input[0]), not turned
    if stored is None or len(stored.shape) != 2:
        return None
    stored.numbers()
    return Plain(stored, turned)


def matrix_of_nbits(graph, node) -> tuple[Blocks, StoredTensor | None]:
    """The matrix of a `MatMulNBits`, checked, and its bias."""
    if attribute(node, "weight_prepacked", 0):
        raise UnsupportedModel(
            f"{graph.path}: {describe(node)}: its weights are prepacked for one kind of GPU; "
            "export the model with matmulnbits_weights_prepacked=0"
        )
    names = [*node.input, "", "", "", "", ""][:6]
    data, scales, zeros, order, bias = (_stored(graph, node, name) for name in names[1:])
    if data is None or scales is None:
        raise InvalidWeights(f"{graph.path}: {describe(node)}: no data or no scales")
    bits, block = attribute(node, "bits", 4), attribute(node, "block_size", 0)
    check_bits(graph, node, bits)
    shape = attribute(node, "N", 0), attribute(node, "K", 0)
    if min(shape) <= 0:
        raise InvalidWeights(f"{graph.path}: {describe(node)}: N and K are {shape}")
    matrix = Blocks(data, scales, zeros, shape, bits, block, middle=1 << (bits - 1))
    matrix.check()
    if order is not None and not _is_identity(order, matrix):
        raise UnsupportedModel(
            f"{graph.path}: {describe(node)}: g_idx puts columns in an order of its own (GPTQ's "
            "act-order); only the order as it is can be read"
        )
    return matrix, bias


def check_bits(graph, node, bits: int) -> None:
    """Raise UnsupportedModel for integers of another width than 2, 4 and 8 bits."""
    if bits not in (2, 4, 8):
        raise UnsupportedModel(f"{graph.path}: {describe(node)}: {bits} bits; 2, 4 and 8 are read")


def _stored(graph, node, name: str) -> StoredTensor | None:
    if not name:
        return None
    stored = graph.constant(name)
    if stored is None:
        raise UnsupportedModel(f"{graph.path}: {describe(node)}: {name} is computed, not stored")
    return stored


def _is_identity(order: StoredTensor, matrix: Blocks) -> bool:
    """Whether column k is in block k / block size."""
    columns = np.arange(order.array().size)
    return np.array_equal(order.array().reshape(-1), columns // matrix.block)


def rows_of(walk: "DecoderWalk", name: str) -> tuple[Linear, int, int] | None:
    """The projection that a value is, or is a part of, and which rows of its matrix they are."""
    value, node = walk.value(name), walk.node(name)
    if node is None or node.op_type != "Split":
        linear = linear_of(walk, name)
        return None if linear is None else (linear, 0, linear.matrix.shape[0])
    linear = linear_of(walk, node.input[0])
    if linear is None or attribute(node, "axis", 0) not in (-1, 2):
        return None
    N, parts = linear.matrix.shape[0], len(node.output)
    stored = walk.graph.constant(node.input[1]) if len(node.input) > 1 else None
    sizes = [N // parts] * parts if stored is None else stored.array().reshape(-1).tolist()
    if len(sizes) != parts or sum(sizes) != N or min(sizes) <= 0:
        walk.refuse(node, f"a split of {N} rows")
    place = list(node.output).index(value)
    return linear, sum(sizes[:place]), sum(sizes[: place + 1])


def embedding_of(walk: "DecoderWalk", name: str) -> Matrix | None:
    """The matrix whose rows a value is; None where it is an input of the graph."""
    if walk.value(name) in walk.graph.inputs:
        return None
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


def table_of(graph, node) -> Blocks:
    """The matrix of a `GatherBlockQuantized` that takes rows, cut into blocks along them."""
    names = [*node.input, "", ""][:4]
    (data, shape), (scales, _) = _reshaped(graph, node, names[0]), _reshaped(graph, node, names[2])
    zeros = _reshaped(graph, node, names[3])[0] if names[3] else None
    bits = attribute(node, "bits", 4)
    check_bits(graph, node, bits)
    axes = attribute(node, "gather_axis", 0), attribute(node, "quantize_axis", 1)
    if data.kind not in ("UINT8", "UINT4", "INT4") or len(shape) != 2:
        raise UnsupportedModel(
            f"{graph.path}: {describe(node)}: data of {data.kind} {list(shape)}; matrices of "
            "UINT8, UINT4 and INT4 are read"
        )
    if axes not in ((0, 1), (0, -1), (-2, 1), (-2, -1)):
        raise UnsupportedModel(
            f"{graph.path}: {describe(node)}: takes from axis {axes[0]} what is cut into blocks "
            f"along {axes[1]}; only rows cut along themselves are read"
        )
    narrow = data.kind != "UINT8"
    K = shape[1] if narrow else shape[1] * 8 // bits
    bits = 4 if narrow else bits
    if K * bits % 8:
        raise UnsupportedModel(f"{graph.path}: {describe(node)}: rows that end inside of a byte")
    block, middle = attribute(node, "block_size", 128), 0 if narrow else 1 << (bits - 1)
    signed = data.kind == "INT4"
    matrix = Blocks(data, scales, zeros, (shape[0], K), bits, block, middle, signed)
    matrix.check()
    return matrix


def _reshaped(graph, node, name: str) -> tuple[StoredTensor, tuple[int, ...]]:
    """A stored tensor, as it is or given another shape on the way; and the shape."""
    stored, made = graph.constant(name), graph.producer(name)
    if stored is not None:
        return stored, stored.shape
    if made is not None and made.op_type == "Reshape":
        stored, shape = graph.constant(made.input[0]), graph.constant(made.input[1])
        if stored is not None and shape is not None:
            sizes = tuple(shape.array().reshape(-1).tolist())
            if min(sizes, default=0) > 0 and math.prod(sizes) == math.prod(stored.shape):
                return stored, sizes
    raise UnsupportedModel(f"{graph.path}: {describe(node)}: {name} is computed, not stored")
