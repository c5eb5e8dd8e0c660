"""Recognise a graph as a decoder, walking from the logits back to the embedding.

Each block has to be a pre-norm one: norm, attention, residual sum, norm, feed-forward, residual
sum.

    hidden -> norm -> q, k, v -> attention -> projection -+-> norm -> gate, up -> down -+-> hidden
       `----------------------------------------------- +-'---------------------------- +-'
"""

from dataclasses import dataclass

from ane_book.errors import UnsupportedModel
from ane_book.weights.onnx.attention import OnnxAttention, attention_of
from ane_book.weights.onnx.matrices import Matrix, MatrixPart
from ane_book.weights.onnx.products import Linear, embedding_of, linear_of
from ane_book.weights.onnx.steps import DecoderWalk, Norm


@dataclass(frozen=True)
class OnnxBlock:
    """A block: its norms, and its matrices and biases by their `transformers` names."""

    before: Norm
    attention: OnnxAttention
    after: Norm
    weights: dict[str, MatrixPart]  # "self_attn.o_proj.weight" and the like, of q, k and v too


@dataclass(frozen=True)
class OnnxDecoder:
    """A decoder as recognised in its graph."""

    embedding: Matrix
    blocks: list[OnnxBlock]
    norm: Norm
    head: Linear


def decoder_of(walk: DecoderWalk) -> OnnxDecoder:
    """Recognise the whole graph; raises UnsupportedModel."""
    graph = walk.graph
    if "logits" not in graph.outputs:
        raise UnsupportedModel(
            f"{graph.path}: no output `logits`, but {', '.join(graph.outputs[:5])}: not a language "
            "model's decoder"
        )
    head = linear_of(walk, "logits")
    if head is None:
        walk.refuse(walk.node("logits"), "the projection to the vocabulary")
    # Some graphs gather the last token's hidden state before the head.
    last = walk.node_of(head.source, "Unsqueeze")
    gather = walk.node_of(last.input[0] if last is not None else head.source, "Gather")
    norm = walk.norm(gather.input[0] if gather is not None else head.source)
    if norm is None:
        walk.refuse(walk.node(head.source), "the norm before the projection to the vocabulary")
    blocks: list[OnnxBlock] = []
    hidden = norm.source
    while walk.sum(hidden) and len(blocks) <= len(graph.nodes):
        blocks.append(_block(walk, hidden))
        hidden = blocks[-1].before.source
    if not blocks:
        walk.refuse(walk.node(hidden), "the sum that ends a block")
    return OnnxDecoder(embedding_of(walk, hidden), blocks[::-1], norm, head)


def _block(walk: DecoderWalk, hidden: str) -> OnnxBlock:
    """Recognise the block whose output is `hidden`, from its end."""
    down, middle = _added(walk, hidden, "the feed-forward's last projection")
    gate, up = _gated(walk, down.source)
    after = _norm(walk, gate.source, middle)
    out, first = _added(walk, middle, "attention's last projection")
    attention = attention_of(walk, out.source)
    before = _norm(walk, attention.parts["q"].source, first)
    parts = {f"self_attn.{name}_proj": linear for name, linear in attention.parts.items()}
    parts |= {"self_attn.o_proj": out, "mlp.down_proj": down}
    parts |= {"mlp.gate_proj": gate, "mlp.up_proj": up}
    weights = {f"{name}.weight": linear.weight for name, linear in parts.items()}
    biases = {f"{name}.bias": part.bias for name, part in parts.items() if part.bias is not None}
    return OnnxBlock(before, attention, after, weights | biases)


def _added(walk: DecoderWalk, hidden: str, part: str) -> tuple[Linear, str]:
    """The projection in a residual sum, and the value that it is added to. part: what the
    projection is, for errors."""
    pair = walk.sum(hidden)
    if pair is None:
        walk.refuse(walk.node(hidden), "the sum of a hidden state and a projection")
    for added, other in (pair, pair[::-1]):
        linear = linear_of(walk, added)
        if linear is not None:
            return linear, other
    walk.refuse(walk.node(pair[1]), part)


def _norm(walk: DecoderWalk, name: str, hidden: str) -> Norm:
    """The norm that computes a value of the hidden state that its block is added to."""
    norm = walk.norm(name)
    if norm is None:
        walk.refuse(walk.node(name), "a norm of the hidden state")
    if norm.source != hidden:
        walk.refuse(walk.node(name), f"a norm of {hidden!r}, which the block is added to")
    return norm


def _gated(walk: DecoderWalk, product: str) -> tuple[Linear, Linear]:
    """gate and up in silu(gate) * up, two projections of one value."""
    node, parts = walk.node(product), {}
    for name in node.input if node is not None and node.op_type == "Mul" else ():
        gate = _silu(walk, name)
        linear = linear_of(walk, name if gate is None else gate)
        if linear is not None:
            parts["up" if gate is None else "gate"] = linear
    if len(parts) < 2 or parts["gate"].source != parts["up"].source:
        walk.refuse(node, "silu(gate) * up, two projections of one norm")
    return parts["gate"], parts["up"]


def _silu(walk: DecoderWalk, name: str) -> str | None:
    """The name of x if the value is x * sigmoid(x), else None."""
    node = walk.node_of(name, "Mul")
    for x, gate in zip(node.input, node.input[::-1], strict=True) if node is not None else ():
        sigmoid = walk.node_of(gate, "Sigmoid")
        if sigmoid is not None and walk.value(sigmoid.input[0]) == walk.value(x):
            return walk.value(x)
    return None
