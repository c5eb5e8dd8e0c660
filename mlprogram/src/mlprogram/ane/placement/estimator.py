"""Reproduce the segmenter's estimate of an op's time on each backend, in ms, as a range.

Its estimator has a decision tree for some types of op and a roofline for all others
(`EstimatorMILDecisionTree`; the features that it computes are in the `[CostModelFeature]` lines of
its log). A leaf of a tree is a rate, and the time is the op's operations divided by that rate. The
trees are not published, but their leaves show in published estimates: `costs.json` holds trees that
`research/experiments/fit_segmenter.py` fitted to them, with a cross-validation over two halves.

An op like those in the data gets the rate of its leaf. One between two leaves gets the range of
both, and one far larger, such as a product with a weight of 30 MB, the range of its leaf and the
roofline. An op with a flexible size gets the range from one element to the longest possible axis. A
chip whose estimates are not published borrows another's, each time widened by how far those of
other chips lie from it (`widening` in `support.toml`): 0.33 to 2.06 on the ANE, 0.63 to 2.11 on the
CPU, in the ten that are published of other chips and differ.

Sources: 751K/Apple-Neural-Engine-Microarchitecture-Study-M6@b5625d5 notes/coreml_dispatch.md, 2.4,
and data/03_compile/opdispatch/aotcost (features, roofline, chips).
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
import json
from math import prod
from pathlib import Path

from mlprogram.ane.claims import find
from mlprogram.ane.placement.graph import GraphOp, bytes_of, elements
from mlprogram.ane.placement.path import ANE
from mlprogram.ane.placement.support import table
from mlprogram.errors import InvalidInput
from mlprogram.machine import chip_key

Range = tuple[float, float]  # (least, most) ms
MARGIN = 2.0  # an op up to so many times as large as those in the data counts as like them


@dataclass(frozen=True)
class OpWork:
    """The work of an op. flops: as the segmenter counts them. bytes: of values and constants."""

    flops: float
    bytes: float

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.bytes if self.bytes else 0.0


@dataclass(frozen=True)
class Roof:
    """The roofline of a backend: peak GFLOP/s and GiB/s."""

    gflops: float
    gibs: float

    def ms(self, work: OpWork) -> float:
        return 1e3 * max(work.flops / (self.gflops * 1e9), work.bytes / (self.gibs * 2**30))


@dataclass(frozen=True)
class Leaf:
    """GFLOP/s by backend; the roofline is used for a backend that is absent."""

    rates: dict[str, float]

    def ms(self, backend: str, needed: OpWork, roof: Roof) -> float:
        rate = self.rates.get(backend)
        return needed.flops / (rate * 1e6) if rate else roof.ms(needed)


@dataclass(frozen=True)
class Node:
    """A split on a feature of an op: `below` up to `low`, `above` from `high` on.

    The data have no op between the two; such an op may go either way.
    """

    feature: str
    low: float
    high: float
    below: "Node | Leaf"
    above: "Node | Leaf"


@dataclass(frozen=True)
class Tree:
    """The decision tree of a type of op. bytes, least: of the largest and the smallest op seen."""

    root: Node | Leaf
    bytes: float
    least: float = 0.0

    def leaves(self, op: GraphOp, needed: OpWork) -> list[Leaf]:
        """Every leaf that an op with this work may fall into."""
        todo, found, given = [self.root], [], features(op, needed)
        while todo:
            node = todo.pop()
            if isinstance(node, Leaf):
                found.append(node)
                continue
            value = given[node.feature]
            todo += [node.below] * (value < node.high) + [node.above] * (value > node.low)
        return found


@dataclass(frozen=True)
class Estimator:
    """The estimates of one chip; roofs: by backend, trees: by type of op.

    own: the trees of its ANE where another chip's are taken for the rest. widening: what the least
    and the most of a time are multiplied by, for "ane" and "cpu" if they are another chip's, and
    for the chip's "own" if their scale is not known.
    """

    chip: str
    roofs: dict[str, Roof]
    trees: dict[str, Tree]
    own: dict[str, Tree] = field(default_factory=dict)
    widening: dict[str, Range] = field(default_factory=dict)

    @classmethod
    def of(cls, chip: str) -> "Estimator":
        """The estimator of a chip, "m4-max" or "Apple M4 Max"; raises InvalidInput for others."""
        given, chip = chip, chip_key(chip)
        if chip not in chips():
            known = ", ".join(sorted(chips()))
            raise InvalidInput(
                f"no estimates are known for the chip {given!r}, but for {known}; any takes the "
                "lowest limits of all"
            )
        known = table()["chips"][chip]
        if "figures" not in known:
            return cls.made_of(chip, _facts())
        own = cls.trees_of(_facts(), chip)
        widening = table()["widening"] | ({"own": known["scale"]} if "scale" in known else {})
        lent = cls.made_of(known["figures"], _facts())
        return replace(lent, chip=chip, own=own, widening=widening)

    @classmethod
    def made_of(cls, chip: str, facts: dict) -> "Estimator":
        """The estimator of a chip from the content of a `costs.json`."""
        roofs = {backend: Roof(**roof) for backend, roof in facts["chips"][chip]["roofs"].items()}
        return cls(chip, roofs, _trees(facts["trees"]))

    @staticmethod
    def trees_of(facts: dict, chip: str) -> dict[str, Tree]:
        """The trees of a chip's own ANE in the content of a `costs.json`, {} if it has none."""
        return _trees(facts["own"].get(chip, {}))

    def times(self, op: GraphOp) -> dict[str, Range]:
        """The time by backend, whether or not it takes the op: `support` says that."""
        most = find("axis-most").number if op.flexible else 1  # an open size counts as 1 so far
        needed, times = work(op), {}
        for backend in self.roofs:
            low, high = self._range(backend, op, needed)
            times[backend] = low, high * most
        return times

    def _range(self, backend: str, op: GraphOp, needed: OpWork) -> Range:
        """The least and the most ms of an op on a backend, an open size counted as 1."""
        # of an einsum no estimate is published: between the rates of a convolution and the roofline
        type_, roof = "conv" if op.type == "einsum" else op.type, self.roofs[backend]
        own = self.own.get(type_) if backend == ANE else None
        own = own if own and MARGIN * needed.bytes >= own.least else None
        tree = own or self.trees.get(type_)
        found = [leaf.ms(backend, needed, roof) for leaf in tree.leaves(op, needed)] if tree else []
        if tree is None or op.type == "einsum" or needed.bytes > MARGIN * tree.bytes:
            counts = [needed, packed(op, needed)] if op.compressed else [needed]
            found += map(roof.ms, counts)
        whose = "own" if own else "ane" if backend == ANE else "cpu"
        least, most = self.widening.get(whose, (1.0, 1.0))
        return least * min(found), most * max(found)


def chips() -> list[str]:
    """The chips with estimates, published or borrowed."""
    return list(table()["chips"])


@cache
def _facts() -> dict:
    return json.loads(Path(__file__).with_name("costs.json").read_text())


def _trees(facts: dict) -> dict[str, Tree]:
    return {
        type_: Tree(_node(tree["root"]), tree["bytes"], tree.get("least", 0.0))
        for type_, tree in facts.items()
    }


def _node(facts: dict) -> Node | Leaf:
    if "gflops" in facts:
        return Leaf(facts["gflops"])
    below, above = _node(facts["below"]), _node(facts["above"])
    return Node(facts["feature"], facts["low"], facts["high"], below, above)


def features(op: GraphOp, needed: OpWork | None = None) -> dict[str, float]:
    """The features of an op that its rate may depend on, named and computed as in the segmenter.

    needed: the op's work, by default `work(op)`.
    """
    needed, weight = needed or work(op), op.operand("weight")
    return {
        "intensity": needed.intensity,
        "channels": float(weight.shape[0] or 1) if weight and weight.shape else 0.0,
        "operations": needed.flops,
        "bytes": needed.bytes,
    }


# --- work -----------------------------------------------------------------------------------------


def work(op: GraphOp) -> OpWork:
    """The operations and bytes of an op, counted as the segmenter does it."""
    moved = sum(bytes_of(type_) for _, type_ in op.operands) + sum(map(bytes_of, op.outputs))
    count = FLOPS.get(op.type)
    return OpWork(count(op) if count else _elementwise(op), moved)


def packed(op: GraphOp, needed: OpWork) -> OpWork:
    """The work with compressed constants: it is not known which bytes the segmenter counts."""
    dense = sum(bytes_of(type_) for types in op.constants.values() for type_ in types)
    return OpWork(needed.flops, needed.bytes - dense + op.weight_bytes)


def _elementwise(op: GraphOp) -> float:
    """Two operations per element read: the rule for every type without one of its own."""
    return 2.0 * sum(elements(type_) for _, type_ in op.operands if type_.shape)


def _conv(op: GraphOp) -> float:
    """Two operations per product, over the product of the dilations, and one a sum for a bias."""
    weight = op.operand("weight")
    if weight is None or len(weight.shape) < 3:
        return _elementwise(op)
    per_output = prod(size or 1 for size in weight.shape[1:])  # (O, I / groups, kernel)
    sums = elements(op.outputs[0])
    return 2.0 * sums * per_output / prod(op.numbers("dilations")) + sums * ("bias" in op.constants)


def _conv_transpose(op: GraphOp) -> float:
    weight = op.operand("weight")
    if weight is None or len(weight.shape) < 3:
        return _elementwise(op)
    groups = prod(op.numbers("groups"))
    per_output = elements(weight) / (weight.shape[1] or 1) / groups  # (I, O / groups, kernel)
    return 2.0 * elements(op.outputs[0]) * per_output


def _linear(op: GraphOp) -> float:
    """Operations of a linear layer as the segmenter counts them: its weight as if it were square,
    with as many rows as columns. Published with a fourth of the rows, as many, and four times."""
    x = op.operand("x")
    return 2.0 * elements(x) * (x.shape[-1] or 1) if x is not None and x.shape else 0.0


def _matmul(op: GraphOp) -> float:
    x = op.operand("x")
    if x is None or not x.shape:
        return _elementwise(op)
    return 2.0 * elements(op.outputs[0]) * op.depth


def _einsum(op: GraphOp) -> float:
    """Two operations per product of two inputs, whose sums are over the letters that vanish."""
    inputs, equation = op.inputs.get("values", ()), str(op.attributes.get("equation"))
    letters = equation.partition("->")[0].split(",")
    if [len(each) for each in letters] != [len(type_.shape) for type_ in inputs]:
        return _elementwise(op)
    sizes = {name: size for each, t in zip(letters, inputs, strict=True)
             for name, size in zip(each, t.shape, strict=True)}  # fmt: skip
    return 2.0 * prod(size or 1 for size in sizes.values())


FLOPS: dict[str, Callable[[GraphOp], float]] = {
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "einsum": _einsum,
    "linear": _linear,
    "matmul": _matmul,
}
