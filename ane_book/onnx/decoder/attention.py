"""Attention as ONNX Runtime's operators have it, read strictly.

`GroupQueryAttention` rotates queries and keys, writes the cache and masks by itself;
`MultiHeadAttention` comes after `RotaryEmbedding` of both, with keys and values joined to the cache
and repeated for the queries that share them, and may take a mask (`mask`). What they can do beyond
our architectures, such as a cap on the scores or a sink, is refused by its name.

Reference: onnxruntime, docs/ContribOperators.md.
"""

from typing import TYPE_CHECKING

from ane_book.errors import UnsupportedModel
from ane_book.onnx.decoder.products import Linear, rows_of
from ane_book.onnx.file import attribute, describe

if TYPE_CHECKING:
    from ane_book.onnx.decoder.recognise import DecoderWalk, Norm, OnnxAttention

__all__ = ["attention_of"]

GROUPED, MULTI = "GroupQueryAttention", "MultiHeadAttention"

#: Attributes of which one value only is ours -> that value, and what another would mean.
FIXED = {
    "softcap": (0.0, "a cap on the scores of attention"),
    "smooth_softmax": (0, "a softmax with one more in its denominator"),
    "causal": (1, "attention to later tokens"),
    "rotary_interleaved": (0, "rotary pairs next to each other"),
    "qk_output": (0, "an output of scores"),
    "k_quant_type": ("NONE", "a cache of keys in integers"),
    "v_quant_type": ("NONE", "a cache of values in integers"),
}
#: Inputs of GroupQueryAttention by their place that have to be absent.
ABSENT = {10: "attention_bias", 11: "head_sink", 12: "k_scale", 13: "v_scale"}

#: How MultiHeadAttention's keys and values are made of those of the key/value heads, backwards.
REPEAT = ("Reshape", "Transpose", "Reshape", "Expand", "Unsqueeze")


def attention_of(walk: "DecoderWalk", name: str) -> "OnnxAttention":
    """The attention that a value is the result of; raises UnsupportedModel."""
    node = walk.node(name)
    if node is not None and node.op_type == GROUPED:
        return _grouped(walk, node)
    if node is not None and node.op_type == MULTI:
        return _multi(walk, node)
    walk.refuse(node, f"attention, {GROUPED} or {MULTI}")


def _grouped(walk: "DecoderWalk", node) -> "OnnxAttention":
    inputs = [*node.input, *[""] * 16][:16]
    _check(walk, node, inputs)
    heads, kv_heads = attribute(node, "num_heads", 0), attribute(node, "kv_num_heads", 0)
    if heads <= 0 or kv_heads <= 0:
        walk.refuse(node, "attention of so many heads")
    packed = not inputs[1]
    if packed:
        found = rows_of(walk, inputs[0])
        if found is None:
            walk.refuse(node, "attention of a projection to queries, keys and values")
        parts, norms, rotary = _unpacked(walk, node, found, heads, kv_heads), {}, []
    else:
        parts, norms, rotary = _separate(walk, node, inputs[:3])
    norms |= _fused_norms(walk, node, inputs)
    tables = tuple(inputs[7:9]) if attribute(node, "do_rotary", 0) else _tables(walk, node, rotary)
    if rotary and attribute(node, "do_rotary", 0):
        walk.refuse(node, "attention that rotates once: RotaryEmbedding comes before do_rotary")
    window = attribute(node, "local_window_size", -1)
    scale = attribute(node, "scale", 0.0)
    return _attention(walk, node, parts, norms, heads, kv_heads, scale, window, tables, "")


def _check(walk: "DecoderWalk", node, inputs: list[str]) -> None:
    for name, (ours, meaning) in FIXED.items():
        value = attribute(node, name, ours)
        if value != ours and not (name == "smooth_softmax" and value == -1):
            raise UnsupportedModel(
                f"{walk.graph.path}: {describe(node)}: {name} = {value}, {meaning}, is not "
                "supported"
            )
    for place, name in ABSENT.items():
        if inputs[place]:
            raise UnsupportedModel(
                f"{walk.graph.path}: {describe(node)}: its input {name} is not supported"
            )


def _multi(walk: "DecoderWalk", node) -> "OnnxAttention":
    inputs = [*node.input, *[""] * 8][:8]
    if not inputs[1] or not inputs[2] or inputs[3] or inputs[4]:
        walk.refuse(node, "attention of queries, keys and values apart, without bias and padding")
    if not inputs[5] and not attribute(node, "unidirectional", 0):
        walk.refuse(node, "attention to earlier tokens: it has no mask")
    heads = attribute(node, "num_heads", 0)
    names = [inputs[0], *(_from_cache(walk, node, name) for name in inputs[1:3])]
    parts, norms, rotary = _separate(walk, node, names)
    width = parts["q"][0].shape[0] // max(heads, 1)
    kv_heads = parts["k"][0].shape[0] // max(width, 1)
    scale, tables = attribute(node, "scale", 0.0), _tables(walk, node, rotary)
    return _attention(walk, node, parts, norms, heads, kv_heads, scale, -1, tables, inputs[5])


def _from_cache(walk: "DecoderWalk", node, name: str) -> str:
    """The keys or values of this call, of those joined to the cache and repeated."""
    maker = walk.node(name)
    for kind in REPEAT:
        if maker is None or maker.op_type != kind:
            break
        maker = walk.node(maker.input[0])
    if maker is not None and maker.op_type == "Concat" and len(maker.input) == 2:
        past, new = maker.input
        turned = walk.node(new)
        if past in walk.graph.inputs and turned is not None and turned.op_type == "Transpose":
            shaped = walk.node(turned.input[0])
            if shaped is not None and shaped.op_type == "Reshape":
                return shaped.input[0]
    walk.refuse(maker or node, "keys or values joined to those of the cache")


def _separate(walk: "DecoderWalk", node, names: list[str]) -> tuple[dict, dict, list]:
    """Of queries, keys and values apart: their pieces, norms and what rotates them."""
    parts, norms, rotary, sources = {}, {}, [], set()
    for part, name in zip("qkv", names, strict=True):
        maker = walk.node(name)
        if maker is not None and maker.op_type == "RotaryEmbedding" and part != "v":
            rotary.append(maker)
            name = maker.input[0]
        norm = _head_norm(walk, name)
        if norm is not None and part != "v":
            norms[part], name = norm
        found = rows_of(walk, name)
        if found is None:
            walk.refuse(walk.node(name) or node, f"the projection to {part}")
        parts[part] = found[0].pieces(*found[1:])
        sources.add(found[0].source)
    if len(sources) > 1:
        walk.refuse(node, "attention of three projections of one value")
    return {"source": sources.pop(), **parts}, norms, rotary


def _head_norm(walk: "DecoderWalk", name: str) -> "tuple[Norm, str] | None":
    """The norm of each head that a value is, shaped to heads and back; and what it is of."""
    back = walk.node(name)
    norm = walk.norm(back.input[0]) if back is not None and back.op_type == "Reshape" else None
    to = walk.node(norm.source) if norm is not None else None
    if to is None or to.op_type != "Reshape":
        return None
    return norm, to.input[0]


def _unpacked(
    walk: "DecoderWalk", node, found: tuple[Linear, int, int], heads: int, kv: int
) -> dict:
    """Queries, keys and values of one projection, whose rows follow each other."""
    linear, start, stop = found
    D, rest = divmod(stop - start, heads + 2 * kv)
    if rest:
        walk.refuse(node, f"attention of {heads} heads and {kv} key/value heads")
    parts = {"source": linear.source}
    for part, size in (("q", heads * D), ("k", kv * D), ("v", kv * D)):
        parts[part] = linear.pieces(start, start + size)
        start += size
    return parts


def _fused_norms(walk: "DecoderWalk", node, inputs: list[str]) -> dict:
    """The norms of queries and keys that are inputs of the attention itself."""
    from ane_book.onnx.decoder.recognise import Norm

    epsilon, norms = attribute(node, "qk_norm_epsilon", 1e-6), {}
    for part, name in zip("qk", inputs[14:16], strict=True):
        stored = walk.graph.constant(name) if name else None
        if stored is not None:
            norms[part] = Norm("", stored, epsilon)
        elif name:
            walk.refuse(node, "attention with stored norms of queries and keys")
    return norms


def _tables(walk: "DecoderWalk", node, rotary: list) -> tuple[str, str]:
    """cos and sin of the nodes that rotate queries and keys."""
    tables = {tuple(maker.input[2:4]) for maker in rotary}
    if len(rotary) != 2 or len(tables) != 1:
        walk.refuse(node, "attention of queries and keys that RotaryEmbedding rotates")
    for maker in rotary:
        if attribute(maker, "interleaved", 0) or attribute(maker, "scale", 1.0) != 1:
            walk.refuse(maker, "a rotation of halves: interleaved 0, scale 1")
    return tables.pop()


def _attention(
    walk, node, parts, norms, heads, kv_heads, scale, window, tables, mask
) -> "OnnxAttention":
    from ane_book.onnx.decoder.recognise import OnnxAttention

    source = parts.pop("source")
    D = parts["q"][0].shape[0] // max(heads, 1)
    sizes = tuple(parts[part][0].shape[0] for part in "qkv")
    if D <= 0 or sizes != (heads * D, kv_heads * D, kv_heads * D):
        walk.refuse(node, f"attention of {heads} and {kv_heads} heads of one size, not {sizes}")
    return OnnxAttention(
        source, parts, norms, heads, kv_heads, scale, window if window > 0 else None, tables, mask
    )
