"""A graph recognised as a decoder, from the logits back to the embedding.

Exporters name nodes as they like, so it is told by what computes what: a block is the sum of a
hidden state and of what attention made of its norm, and the sum of that and of what the
feed-forward made of its norm. What does not fit is refused with the node, its inputs and what
computes those.

    hidden -> norm -> q, k, v -> attention -> projection -+-> norm -> gate, up -> down -+-> hidden
       `----------------------------------------------- +-'---------------------------- +-'

`SkipSimplifiedLayerNormalization` is a sum and the norm of it in one node. Casts and identities are
looked through.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from ane_book.errors import UnsupportedModel
from ane_book.onnx.decoder.matrices import Matrix, MatrixPart
from ane_book.onnx.decoder.products import Linear, embedding_of, linear_of, rows_of
from ane_book.onnx.file import OnnxGraph, StoredTensor, attribute, describe

__all__ = ["DecoderWalk", "Norm", "OnnxAttention", "OnnxBlock", "OnnxDecoder"]

NORMS = ("SimplifiedLayerNormalization", "RMSNormalization")
NEAR = 8  # nodes that an error names
SKIP = "SkipSimplifiedLayerNormalization"


@dataclass(frozen=True)
class Norm:
    """A root mean square norm of what the value `source` is."""

    source: str
    weight: StoredTensor
    epsilon: float


@dataclass(frozen=True)
class OnnxAttention:
    """What computes queries, keys and values of a block, and how they meet."""

    source: str  # what all three are projected from
    parts: dict[str, tuple[MatrixPart, MatrixPart | None]]  # "q", "k", "v" -> weight, bias
    norms: dict[str, Norm]  # "q", "k" -> the norm of each head; or none
    heads: int
    kv_heads: int
    scale: float  # 0 is the root of 1 / head size
    window: int | None
    tables: tuple[str, str]  # the names of cos and sin
    mask: str  # the name of what is added to the scores; "" where attention is causal by itself


@dataclass(frozen=True)
class OnnxBlock:
    """A block: its norms, and the pieces of its matrices and biases by `transformers`' names."""

    before: Norm
    attention: OnnxAttention
    after: Norm
    weights: dict[
        str, MatrixPart
    ]  # "self_attn.o_proj.weight" and the like, those of q, k and v too


@dataclass(frozen=True)
class OnnxDecoder:
    """A decoder, as its graph has it."""

    embedding: Matrix | None  # None: in a file of its own
    blocks: list[OnnxBlock]
    norm: Norm
    head: Linear


class DecoderWalk:
    """Recognises the parts of one graph."""

    def __init__(self, graph: OnnxGraph):
        self.graph = graph

    # --- steps

    def value(self, name: str) -> str:
        """The value that a cast or an identity is of; sums under one name, whoever made them."""
        for _ in self.graph.nodes:
            node = self.graph.producer(name)
            if node is None or node.op_type not in ("Cast", "Identity") or not node.input:
                break
            name = node.input[0]
        node = self.graph.producer(name)
        if node is not None and node.op_type == SKIP and name == _output(node, 3):
            return f"sum of {node.output[0]}"
        return name

    def node(self, name: str):
        """The node that computes a value, behind casts; None of an input."""
        return self.graph.producer(self.value(name).removeprefix("sum of "))

    def sum(self, name: str) -> tuple[str, str] | None:
        """The two values that this one is the sum of."""
        value, node = self.value(name), self.node(name)
        if node is None or (node.op_type == SKIP) != value.startswith("sum of "):
            return None
        if node.op_type not in (SKIP, "Add"):
            return None
        if node.op_type == SKIP and len(node.input) > 3 and node.input[3]:
            self.refuse(node, "a sum of two, without the bias")
        return self.value(node.input[0]), self.value(node.input[1])

    def norm(self, name: str) -> Norm | None:
        """The norm that a value is."""
        node = self.node(name)
        if node is None or self.value(name).startswith("sum of "):
            return None
        epsilon = attribute(node, "epsilon", 1e-5 if node.op_type in NORMS else 1e-12)
        if node.op_type == SKIP:
            source, weight = f"sum of {node.output[0]}", node.input[2]
        elif node.op_type in NORMS:
            if attribute(node, "axis", -1) != -1 or len(node.input) != 2:
                self.refuse(node, "a norm over the last axis")
            source, weight = self.value(node.input[0]), node.input[1]
        else:
            return None
        stored = self.graph.constant(weight)
        if stored is None or len(stored.shape) != 1:
            self.refuse(node, "a norm whose weight is stored")
        return Norm(source, stored, epsilon)

    def refuse(self, node, wanted: str):
        """Raise UnsupportedModel: what stands where one of our architectures has something else."""
        if node is None:
            raise UnsupportedModel(f"{self.graph.path}: {wanted} is missing from the graph")
        near = [found for name in node.input if name and (found := self.node(name))]
        near += [found for n in near for name in n.input if name and (found := self.node(name))]
        said = "; ".join(list(dict.fromkeys(describe(n) for n in near))[:NEAR])
        raise UnsupportedModel(
            f"{self.graph.path}: {describe(node)}: not recognised as {wanted}; "
            f"before it: {said or 'inputs and stored tensors alone'}"
        )

    # --- the decoder

    def decoder(self) -> OnnxDecoder:
        """The whole graph; raises UnsupportedModel."""
        logits = next((name for name in self.graph.outputs if name == "logits"), None)
        if logits is None:
            raise UnsupportedModel(
                f"{self.graph.path}: no output `logits`, but {', '.join(self.graph.outputs[:5])}: "
                "not a language model's decoder"
            )
        head = linear_of(self, logits)
        if head is None:
            self.refuse(self.node(logits), "the projection to the vocabulary")
        norm = self.norm(self._last_token(head.source))
        if norm is None:
            self.refuse(self.node(head.source), "the norm before the projection to the vocabulary")
        blocks, hidden = [], norm.source
        while self.sum(hidden) and len(blocks) <= len(self.graph.nodes):
            block, hidden = self._block(hidden)
            blocks.append(block)
        if not blocks:
            self.refuse(self.node(hidden), "the sum that ends a block")
        return OnnxDecoder(embedding_of(self, hidden), blocks[::-1], norm, head)

    def _last_token(self, name: str) -> str:
        """The hidden states of all tokens, where only the last one's goes on to the head."""
        node = self.node(name)
        if node is not None and node.op_type == "Unsqueeze":
            node = self.node(node.input[0])
        return node.input[0] if node is not None and node.op_type == "Gather" else name

    def _block(self, hidden: str) -> tuple[OnnxBlock, str]:
        """The block whose result is `hidden`, and the hidden state before it."""
        from ane_book.onnx.decoder.attention import attention_of

        down, after = self._branch(hidden, "the feed-forward's last projection")
        gate, up = self._gated(down.source, after)
        middle = self.norm(after).source
        out, normed = self._branch(middle, "attention's last projection", attention_of)
        attention = attention_of(self, out.source)
        weights = {}
        for name, (weight, bias) in attention.parts.items():
            weights |= _named(f"self_attn.{name}_proj", weight, bias)
        weights |= _named("self_attn.o_proj", *out.whole())
        for name, part in (("gate", gate), ("up", up), ("down", down.whole())):
            weights |= _named(f"mlp.{name}_proj", *part)
        before, after = self.norm(normed), self.norm(after)
        return OnnxBlock(before, attention, after, weights), before.source

    def _branch(self, hidden: str, wanted: str, attention_of=None) -> tuple[Linear, str]:
        """Of a sum: the projection that it adds, and the norm of the other summand it is of."""
        pair = self.sum(hidden)
        if pair is None:
            self.refuse(self.node(hidden), "the sum of a hidden state and a projection")
        for added, other in (pair, pair[::-1]):
            linear = linear_of(self, added)
            if linear is None:
                continue
            normed = self._normed(linear, attention_of)
            norm = self.norm(normed)
            if norm is None:
                self.refuse(self.node(normed), "a norm of the hidden state")
            if norm.source != other:
                self.refuse(self.node(normed), f"a norm of {other!r}, which the block is added to")
            return linear, normed
        self.refuse(self.node(pair[1]), wanted)

    def _normed(self, linear: Linear, attention_of) -> str:
        """What a block's half begins with, of its last projection."""
        if attention_of is not None:
            return attention_of(self, linear.source).source
        for name in self._factors(linear.source):
            if (rows := rows_of(self, name)) is not None:
                return rows[0].source
        self.refuse(self.node(linear.source), "the product of silu(gate) and up")

    def _gated(self, product: str, normed: str) -> tuple[tuple, tuple]:
        """gate and up, of silu(gate) * up, each as a weight and a bias."""
        found = {}
        for name in self._factors(product):
            gate = self._silu(name)
            rows = rows_of(self, name if gate is None else gate)
            if rows is None or rows[0].source != normed:
                break
            found["up" if gate is None else "gate"] = rows[0].pieces(*rows[1:])
        if len(found) < 2:
            self.refuse(self.node(product), "silu(gate) * up, two projections of one norm")
        return found["gate"], found["up"]

    def _factors(self, name: str) -> Iterator[str]:
        """The two that a value is the product of; the one that is no silu first."""
        node = self.node(name)
        if node is not None and node.op_type == "Mul":
            yield from sorted(
                (self.value(i) for i in node.input), key=lambda n: bool(self._silu(n))
            )

    def _silu(self, name: str) -> str | None:
        """x, of a value that is x * sigmoid(x)."""
        node = self.node(name)
        if node is None:
            return None
        if node.op_type in ("QuickGelu", "Swish") and attribute(node, "alpha", 1.0) == 1.0:
            return self.value(node.input[0])
        if node.op_type != "Mul":
            return None
        for x, gate in (tuple(node.input), tuple(node.input)[::-1]):
            sigmoid = self.node(gate)
            is_sigmoid = sigmoid is not None and sigmoid.op_type == "Sigmoid"
            if is_sigmoid and self.value(sigmoid.input[0]) == self.value(x):
                return self.value(x)
        return None


def _output(node, place: int) -> str | None:
    return node.output[place] if len(node.output) > place and node.output[place] else None


def _named(name: str, weight: MatrixPart, bias: MatrixPart | None) -> dict[str, MatrixPart]:
    found = {f"{name}.weight": weight}
    return found | ({f"{name}.bias": bias} if bias is not None else {})
