"""Recognise attention in a graph of ONNX Runtime's operators.

`GroupQueryAttention` writes the cache and masks; it applies the rotary embedding itself, or a
`RotaryEmbedding` for queries and one for keys come before it. An option that our architectures
lack, such as a cap on the scores or a sink, is refused by name, and so is `MultiHeadAttention`,
whose mask and cache are made by a hundred nodes around it.

Reference: onnxruntime, docs/ContribOperators.md.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ane_book.errors import UnsupportedModel
from ane_book.weights.onnx.products import Linear, linear_of
from ane_book.weights.onnx.steps import DecoderWalk, Norm
from mlprogram.onnx.file import attribute

if TYPE_CHECKING:  # onnx is an extra
    from onnx import NodeProto


#: Attributes with one supported value -> that value, and what another one would mean.
FIXED: dict[str, tuple[Any, str]] = {
    "softcap": (0.0, "a cap on the scores of attention"),
    "smooth_softmax": (0, "a softmax with one more in its denominator"),
    "causal": (1, "attention to later tokens"),
    "rotary_interleaved": (0, "rotary pairs next to each other"),
    "qk_output": (0, "an output of scores"),
    "k_quant_type": ("NONE", "a cache of keys in integers"),
    "v_quant_type": ("NONE", "a cache of values in integers"),
}
#: Inputs of GroupQueryAttention, by index, that have to be absent.
ABSENT = {
    10: "attention_bias", 11: "head_sink", 12: "k_scale", 13: "v_scale", 14: "q_norm_weight",
    15: "k_norm_weight",
}  # fmt: skip


@dataclass(frozen=True)
class OnnxAttention:
    """The attention of a block: its projections, norms and options."""

    parts: dict[str, Linear]  # "q", "k", "v", projections of one value
    norms: dict[str, Norm]  # "q", "k" -> the per-head norm; or empty
    heads: int
    kv_heads: int
    scale: float  # of the scores; 0 means 1 / sqrt(D)
    window: int | None
    tables: tuple[str, str]  # the names of cos and sin


def attention_of(walk: DecoderWalk, name: str) -> OnnxAttention:
    """Recognise the attention that computes the value `name`; raises UnsupportedModel."""
    node = walk.node(name)
    if node is not None and node.op_type == "MultiHeadAttention":
        raise UnsupportedModel(
            f"{walk.graph.where(node)}: is not read; GroupQueryAttention is, which the exporter "
            "writes for `-e cpu` in fp32, int8 and int4, and for `-e cuda` and `-e dml` in fp16"
        )
    if node is None or node.op_type != "GroupQueryAttention":
        walk.refuse(node, "attention, GroupQueryAttention")
    inputs = [*node.input, *[""] * 16][:16]
    _check(walk, node, inputs)
    heads, kv_heads = attribute(node, "num_heads", 0), attribute(node, "kv_num_heads", 0)
    if heads <= 0 or kv_heads <= 0:
        walk.refuse(node, "attention of so many heads")
    norms: dict[str, Norm] = {}
    rotary: list[NodeProto] = []
    if inputs[1]:
        parts, norms, rotary = _separate(walk, node, inputs[:3])
    else:  # the rows of one projection, which follow each other
        linear = linear_of(walk, inputs[0])
        if linear is None:
            walk.refuse(node, "attention of a projection to queries, keys and values")
        rows = linear.weight.shape[0]
        D = rows // (heads + 2 * kv_heads)
        k, v = heads * D, rows - kv_heads * D
        parts = {"q": linear.rows(0, k), "k": linear.rows(k, v), "v": linear.rows(v, rows)}
    rotates = attribute(node, "do_rotary", 0)
    if rotary and rotates:
        walk.refuse(node, "attention that rotates once: RotaryEmbedding comes before do_rotary")
    if len({linear.source for linear in parts.values()}) > 1:
        walk.refuse(node, "attention of three projections of one value")
    sizes = tuple(parts[part].weight.shape[0] for part in "qkv")
    D = sizes[0] // heads
    if D <= 0 or sizes != (heads * D, kv_heads * D, kv_heads * D):
        walk.refuse(node, f"attention of {heads} and {kv_heads} heads of one size, not {sizes}")
    window = attribute(node, "local_window_size", -1)
    return OnnxAttention(
        parts, norms, heads, kv_heads, attribute(node, "scale", 0.0),
        window=window if window > 0 else None,
        tables=(inputs[7], inputs[8]) if rotates else _tables(walk, node, rotary),
    )  # fmt: skip


def _check(walk: DecoderWalk, node: "NodeProto", inputs: list[str]) -> None:
    """Raise UnsupportedModel for an option of GroupQueryAttention that is not supported."""
    where = walk.graph.where(node)
    for name, (ours, meaning) in FIXED.items():
        value = attribute(node, name, ours)
        if value != ours and not (name == "smooth_softmax" and value == -1):
            raise UnsupportedModel(f"{where}: {name} = {value}, {meaning}, is not supported")
    for place, name in ABSENT.items():
        if inputs[place]:
            raise UnsupportedModel(f"{where}: its input {name} is not supported")


def _separate(
    walk: DecoderWalk, node: "NodeProto", names: list[str]
) -> "tuple[dict[str, Linear], dict[str, Norm], list[NodeProto]]":
    """Queries, keys and values that come as separate inputs: their projections, their norms, and
    the nodes that rotate them."""
    parts, norms, rotary = {}, {}, []
    for part, name in zip("qkv", names, strict=True):
        maker = walk.node_of(name, "RotaryEmbedding")
        if maker is not None and part != "v":
            rotary.append(maker)
            name = maker.input[0]
        # A per-head norm stands between a reshape to heads and a reshape back.
        back = walk.node_of(name, "Reshape")
        norm = walk.norm(back.input[0]) if back is not None else None
        to = walk.node_of(norm.source, "Reshape") if norm is not None else None
        if norm is not None and to is not None and part != "v":
            norms[part], name = norm, to.input[0]
        linear = linear_of(walk, name)
        if linear is None:
            walk.refuse(walk.node(name) or node, f"the projection to {part}")
        parts[part] = linear
    return parts, norms, rotary


def _tables(walk: DecoderWalk, node: "NodeProto", rotary: "list[NodeProto]") -> tuple[str, str]:
    """The names of cos and sin, which the nodes that rotate queries and keys must share."""
    tables = {(maker.input[2], maker.input[3]) for maker in rotary}
    if len(rotary) != 2 or len(tables) != 1:
        walk.refuse(node, "attention of queries and keys that RotaryEmbedding rotates")
    for maker in rotary:
        if attribute(maker, "interleaved", 0) or attribute(maker, "scale", 1.0) != 1:
            walk.refuse(maker, "a rotation of halves: interleaved 0, scale 1")
    return tables.pop()
