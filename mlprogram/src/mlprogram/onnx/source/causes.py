"""Why a node parts, by trial: what change to the source gives the package's numbers?

A cause is not guessed from the kind of op. A node is run again with one thing changed (a setting, a
weight, the order of an operand's axes), and what follows it too; if a value comes out that the
package has and the source as it is has not, that change is what the package computes. So a cause
that is named is one that explains the numbers, to the tolerance of the comparison. Where no change
does, a scale or an offset of the values is looked for, and then nothing is said.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
import itertools
from math import nan
from typing import Any

from mlprogram.onnx.source.graph import SourceNode
from mlprogram.onnx.source.match import PackageValue, ValueMatch, align, gap, informative
from mlprogram.onnx.source.variants import (
    ACTIVATIONS,
    Numbers,
    Variant,
    compared_weights,
    reordered,
    setting_variants,
    value_variants,
)
from mlprogram.onnx.source.walk import Walk
import numpy as np

NODES = 12  # the most nodes from the first that parts, of which one may be to blame
FOLLOWING = 12  # the most nodes that are run after a changed one
#: The package's first new values, of which one has to be explained: what comes later hardly shows
#: what is changed, and may be right by chance.
VALUES = 8
ELEMENTS = 16  # of a value that shows anything


@dataclass(frozen=True)
class Cause:
    """What explains a package's numbers. node: the one to blame.

    kind: a word such as "epsilon" or "layout". text: a sentence. match: the value of the source, of
    this node or of one after it, that the package has otherwise, and the package's.
    """

    kind: str
    text: str
    node: SourceNode
    match: ValueMatch


def find_cause(
    walk: Walk, numbers: Numbers, constants: list[tuple[str, np.ndarray]]
) -> Cause | None:
    """The first change, in the order of the nodes, that gives numbers of the package.

    numbers, constants: what the package stores that may not be the source's, numbers and tensors.
    """
    search = CauseSearch(walk, numbers, constants)
    for tolerance in search.tolerances:
        search.tolerance = tolerance
        if found := search.by_trial():
            return found
    return search.by_fit()


class CauseSearch:
    """A search for what a package computes where it parts from a walk along its source."""

    def __init__(self, walk: Walk, numbers: Numbers, constants: list[tuple[str, np.ndarray]]):
        self.constants = constants
        self.walk, self.numbers, self.tolerance = walk, numbers, walk.index.tolerance
        self.tolerances = (walk.tight, walk.index.tolerance)
        self.fresh = [value.name for value in walk.fresh]
        self.first = set(self.fresh[:VALUES])
        self.nodes = walk.parted[:NODES]
        sizes = [walk.own[n].size for n in self.nodes[0].outputs if n in walk.own]
        self.smallest = min(sizes, default=ELEMENTS)
        self.window = walk.parted[: NODES + FOLLOWING]

    def by_trial(self) -> Cause | None:
        """A changed node whose result, or that of a node after it, the package has."""
        for node in self.nodes:
            if found := self._activation(node) or self._layout(node):
                return found
            if found := self._changed(node) or self._weights(node):
                return found
        return None

    def _changed(self, node: SourceNode) -> Cause | None:
        """Of the first kind of change that explains anything the one that does so best."""
        best: Cause | None = None
        for variant in self._variants(node):
            if best is not None and variant.kind != best.kind:
                break
            match = self._explains(node, variant)
            if match and (best is None or match.error < best.match.error):
                best = Cause(variant.kind, variant.text, node, match)
        return best

    def _variants(self, node: SourceNode) -> Iterator[Variant]:
        for settings, kind, text in setting_variants(node, self.numbers):
            yield Variant(kind, text, settings=settings)
        yield from value_variants(node, self.walk.values, self._constants(node), self.numbers)

    def _constants(self, node: SourceNode) -> set[str]:
        """What a node reads that no input changes."""
        return {name for name in node.inputs if name not in self.walk.live}

    def _explains(self, node: SourceNode, variant: Variant) -> ValueMatch | None:
        """The package's value that the changed node, or one after it, makes."""
        values = {**self.walk.values, **variant.values}
        try:
            made = self.walk.source.run_node(node, values, variant.settings)
        except Exception:  # of any kind: most changes do not fit the node
            return None
        if _same(made, self.walk.own):
            return None
        for name, array in made.items():
            if found := self._found(name, array):
                return found
        return self._follow(made, self.window[self.window.index(node) + 1 :])

    def _follow(self, changed: dict[str, Any], nodes: list[SourceNode]) -> ValueMatch | None:
        """The package's value that one of these nodes makes of changed values."""
        values = {**self.walk.values, **changed}
        for node in nodes:
            if not changed.keys() & set(node.inputs):
                continue
            if any(isinstance(a, np.ndarray) and not a.size for a in changed.values()):
                return None  # on an empty sequence ONNX Runtime's GRU ends the process
            try:
                made = self.walk.source.run_node(node, values)
            except Exception:  # of any kind: another shape does not fit
                return None
            values, changed = values | made, changed | made
            for name, array in made.items():
                if name in self.walk.open and (found := self._found(name, array)):
                    return found
        return None

    def _layout(self, node: SourceNode) -> Cause | None:
        """A node before, that only orders axes, and did so otherwise; and its like, as for the
        heads of queries and keys."""
        views = self._views(node)
        for view in views[::-1]:
            own = self.walk.values[view.outputs[0]]
            like = [v for v in views if (v.op, v.settings) == (view.op, view.settings)
                    and self.walk.values[v.outputs[0]].shape == own.shape]  # fmt: skip
            for alike in ([view], like):
                moves = (reordered(self.walk.values[v.outputs[0]]) for v in alike)
                for moved in zip(*moves, strict=True):
                    changed = {v.outputs[0]: array
                               for v, (_, array) in zip(alike, moved, strict=True)}  # fmt: skip
                    rest = [v for v in views if v not in alike]
                    if match := self._follow(changed, [*rest, *self.window]):
                        text = f"the package has its result with the axes by {moved[0][0]}"
                        return Cause("layout", text, view, match)
        return None

    def _views(self, node: SourceNode) -> list[SourceNode]:
        """The nodes before one that only reshape or reorder what it reads, in order."""
        found, todo = [], [node]
        while todo:
            reads = set(todo.pop().inputs)
            for maker in self.walk.source.nodes:
                live = [n for n in maker.inputs if n in self.walk.live]
                if not reads.intersection(maker.outputs) or len(live) != 1 or maker in found:
                    continue
                before, after = (self.walk.values.get(n) for n in (live[0], maker.outputs[0]))
                if (isinstance(before, np.ndarray) and isinstance(after, np.ndarray)
                        and align(after, before, 0) is not None):  # fmt: skip
                    found.append(maker)
                    todo.append(maker)
        return [each for each in self.walk.source.nodes if each in found]

    def _weights(self, node: SourceNode) -> Cause | None:
        """Weights of the package that are not the source's, in their place."""
        for name in self._constants(node):
            array = self.walk.values.get(name)
            if not isinstance(array, np.ndarray) or array.dtype.kind != "f" or array.size < 4:
                continue
            for place, other in self.constants:
                if other.size != array.size or align(array, other, self.tolerance):
                    continue
                for laid_out in (other, other.T):
                    placed = np.asarray(laid_out.reshape(array.shape), array.dtype)
                    match = self._explains(node, Variant("weights", "", None, {name: placed}))
                    if match:
                        kind, text = compared_weights(array, placed)
                        text = f"the package's {place!r} is not the source's {name!r}: {text}"
                        return Cause(kind, text, node, match)
        return None

    def _found(self, name: str, array: Any) -> ValueMatch | None:
        if not isinstance(array, np.ndarray) or not informative(array):
            return None
        if array.size < min(ELEMENTS, self.smallest):
            return None
        own = self.walk.own.get(name)

        def explained(value: PackageValue) -> bool:
            """Fresh, and not near the source's own value, of which the change is none."""
            if value.name not in self.first:
                return False
            return own is None or align(own, value.array, self.tolerance) is None

        return self.walk.index.find(name, array, explained, self.tolerance)

    def _activation(self, node: SourceNode) -> Cause | None:
        """Another activation of what the node reads, such as a GELU by tanh."""
        reads = [n for n in node.inputs if n in self.walk.live and n in self.walk.matches]
        made = self.walk.own.get(node.outputs[0])
        for name in reads:
            x = self.walk.values[name]
            if made is None or made.size != x.size or x.dtype.kind != "f":
                continue
            for title, function in ACTIVATIONS.items():
                if title.split()[0] in node.op.lower():  # a softmax has an axis to be wrong
                    continue
                y = function(np.asarray(x, np.float64))
                if found := self._found(node.outputs[0], y):
                    text = f"the package computes {title} of the value that agrees"
                    return Cause("activation", text, node, found)
        return None

    def by_fit(self) -> Cause | None:
        """A value that is the source's times a number, plus one, or cut off."""
        for node, tolerance in itertools.product(self.nodes, self.tolerances):
            self.tolerance = tolerance
            for relation, (name, array), value in itertools.product(
                RELATIONS, self._arrays(node), self.walk.beside(node)
            ):
                if found := self._fitted(relation, array, value):
                    kind, text, aligned = found
                    return Cause(kind, text, node, ValueMatch(name, value, aligned, "", nan))
        return self._inserted()

    def _inserted(self) -> Cause | None:
        """A scale, an offset or a limit that the package puts between two nodes."""
        for name in self.nodes[0].inputs:
            array = self.walk.own.get(name)
            makers = [node for node in self.walk.source.nodes if name in node.outputs]
            if not makers or array is None or not informative(array):
                continue
            for relation, value in itertools.product(
                (_clipped, _scaled, _shifted), self.walk.index.by_size[array.size]
            ):
                found = self._fitted(relation, array, value) if value.name in self.first else None
                if not found or found[1].startswith("the source"):
                    continue
                if self._follow({name: np.asarray(found[2], array.dtype)}, self.window):
                    match = ValueMatch(name, value, found[2], "", nan)
                    return Cause(found[0], f"{found[1]}, after it", makers[0], match)
        return None

    def _arrays(self, node: SourceNode) -> Iterator[tuple[str, np.ndarray]]:
        for name in node.outputs:
            array = self.walk.own.get(name)
            if array is not None and informative(array):
                yield name, array

    def _fitted(self, relation: Callable, array: np.ndarray, value: PackageValue):
        for shape in {value.array.shape, array.shape}:
            try:
                ours, theirs = value.array.reshape(shape), array.reshape(shape)
            except ValueError:
                continue
            room = min(self.tolerance, gap(ours, theirs) / 5)  # what says as much without is none
            found = relation(ours.astype(np.float64), theirs.astype(np.float64), room)
            if found and room:
                return *found, value.array.reshape(array.shape)
        return None


def _same(made: dict, own: dict) -> bool:
    return all(
        isinstance(array, np.ndarray) and array.shape == own[name].shape
        and array.tobytes() == own[name].tobytes()
        for name, array in made.items() if name in own
    ) and all(name in own for name in made)


def _scaled(ours: np.ndarray, theirs: np.ndarray, tolerance: float):
    factor = float((ours * theirs).sum() / max((theirs**2).sum(), 1e-30))
    if abs(factor) > 1e-6 and gap(ours, factor * theirs) <= tolerance:
        return "scale", f"the package's values are {factor:.6g} times the source's"
    return None


def _axes(ours: np.ndarray) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Each axis and the others, where a number for each place along it says less than the array."""
    for axis, size in enumerate(ours.shape):
        if ours.size >= 3 * size:
            yield axis, tuple(other for other in range(ours.ndim) if other != axis)


def _shifted(ours: np.ndarray, theirs: np.ndarray, tolerance: float):
    """A constant for each place along one axis is added."""
    for axis, others in _axes(ours):
        offset = (ours - theirs).mean(axis=others, keepdims=True)
        if gap(ours, theirs + offset) <= tolerance:
            largest = float(np.abs(offset).max())
            text = f"the package's values are off by a constant for each place of axis {axis}"
            return "offset", f"{text}, at most {largest:.4g}"
    return None


def _scaled_by_channel(ours: np.ndarray, theirs: np.ndarray, tolerance: float):
    for axis, others in _axes(ours):
        power = (theirs**2).sum(axis=others, keepdims=True)
        factor = (ours * theirs).sum(axis=others, keepdims=True) / np.maximum(power, 1e-30)
        if gap(ours, factor * theirs) <= tolerance:
            low, high = float(factor.min()), float(factor.max())
            text = f"the package's values are {low:.4g} to {high:.4g} times the source's"
            return "scale", f"{text}, by a factor for each place of axis {axis}"
    return None


def _clipped(ours: np.ndarray, theirs: np.ndarray, tolerance: float):
    """One side is the other cut off at its least and its largest value."""
    for cut, whole, who in ((ours, theirs, "package"), (theirs, ours, "source")):
        low, high = float(cut.min()), float(cut.max())
        if low < high and gap(cut, np.clip(whole, low, high)) <= tolerance:
            if ((cut > low) & (cut < high)).sum() < 3:
                continue
            return "limits", f"the {who}'s values are cut off at {low:.6g} and {high:.6g}, the " \
                f"other's are {float(whole.min()):.6g} to {float(whole.max()):.6g}"
    return None


#: What a package's values may be of a source's, the simplest first.
RELATIONS = (_clipped, _scaled, _shifted, _scaled_by_channel)
