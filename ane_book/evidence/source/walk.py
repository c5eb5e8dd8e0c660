"""Hold a source to a package node by node, and find the first that parts.

Each node of the source is run on the package's own values, as far as they are known, and what it
makes is looked for among the package's values. So an error is that of one node (or of a few, which
the converter joined): it does not grow along the network, and a deep network needs no wider
tolerance than a flat one.

A value that the package does not have is no fault by itself: converters join ops. It is one where a
path leads from it to an output without a value that the package has.
"""

from collections.abc import Collection, Mapping
from typing import Any

from ane_book.evidence.source.graph import SourceGraph, SourceNode
from ane_book.evidence.source.match import MASKED, PackageValue, ValueIndex, ValueMatch, align
import numpy as np

__all__ = ["Walk", "rounded"]

#: The largest error of an op of which nothing was rounded: only the order of sums differs.
TIGHT = 5e-5


def rounded(array: np.ndarray) -> np.ndarray:
    """To half precision, but for what it does not hold."""
    with np.errstate(over="ignore"):
        half = array.astype(np.float16).astype(array.dtype)
    return np.where(np.isfinite(half) & ((half != 0) | (array == 0)), half, array)


def _is_size(node: SourceNode, made: Mapping[str, Any]) -> bool:
    """Whether a node only says how large its operand is, which is no number to compare."""
    whole = all(isinstance(value, int) for value in made.values())
    return whole or node.op in ("Shape", "Size")


class Walk:
    """A source along a package.

    values: every value of the source. matches: of those that the package has. live: the names that
    depend on an input. ends: each output of the source that is compared, and the package's value
    that has to equal it (None: any value may). stored: the package's constants that the
    source computes with as well. half: whether numbers are stored in half precision.
    """

    def __init__(
        self,
        source: SourceGraph,
        index: ValueIndex,
        inputs: Mapping[str, np.ndarray],
        constants: Mapping[str, np.ndarray],
        ends: Mapping[str, PackageValue | None],
        stored: Collection[str] = (),
        half: bool = False,
    ):
        self.source, self.index, self.ends = source, index, dict(ends)
        self.stored, self.half = set(stored), half
        self.values: dict[str, Any] = dict(constants) | dict(inputs)
        self.own: dict[str, Any] = {}  # what a node made, before the package's stood in its place
        self.matches: dict[str, ValueMatch] = {}
        self.live = set(inputs)
        self.named = {value.name: value for value in index.values}
        for name, array in inputs.items():
            if found := index.find(name, array):
                self.matches[name] = found
        for node in source.nodes:
            self._step(node)
        self.open = self._open()

    def _step(self, node: SourceNode) -> None:
        made = self.source.run_node(node, self.values, self._settings(node))
        self.values |= made
        if not self.live.intersection(node.inputs) or _is_size(node, made):
            return
        self.live.update(made)
        for name, array in made.items():
            if not isinstance(array, np.ndarray):
                continue
            self.own[name] = array
            if found := self._find(name, array):
                self.matches[name] = found
                if array.dtype.kind == "f" and not (array <= MASKED).any():
                    self.values[name] = np.asarray(found.aligned, array.dtype)

    def _settings(self, node: SourceNode) -> dict[str, Any] | None:
        """A node's settings with its numbers in half precision, as a package in it stores them."""
        numbers = {
            name: float(rounded(np.array(value)))
            for name, value in node.settings.items()
            if self.half and isinstance(value, float)
        }
        return {**node.settings, **numbers} if numbers else None

    def _find(self, name: str, array: np.ndarray) -> ValueMatch | None:
        """The package's value, exact but for the order of sums; roughly, where there is a reason.
        """
        close = self.index.find(name, array, tolerance=self.tight)
        return close or self.index.find(name, array, self._is_rounded)

    @property
    def tight(self) -> float:
        return min(TIGHT, self.index.tolerance)

    def _is_rounded(self, value: PackageValue) -> bool:
        """Whether behind a value of the package, and past none that agrees, is a constant that the
        converter may have computed or rounded, and the source has not."""
        known = {match.package.name for match in self.matches.values()}
        todo, seen = [value], set[str]()
        while todo:
            each = todo.pop()
            if not self.stored.issuperset(each.constants):
                return True
            new = {n for n in each.operands if n not in known and n not in seen}
            seen |= new
            todo += [self.named[n] for n in new if n in self.named]
        return False

    def agrees(self, name: str) -> bool:
        """Whether an output is what the package's output is, as it stands."""
        end, array = self.ends[name], self.own.get(name)
        if array is None:  # an input or a constant that is an output
            array = self.values[name]
        if end is None or (name in self.own and name not in self.matches):
            return name in self.matches
        return align(array, end.array, self.index.tolerance, reorder=False) is not None

    def _open(self) -> set[str]:
        """The values from which a path leads to an output that parts, past no value that agrees."""
        wrong = {name for name in self.ends if not self.agrees(name)}
        found = set(wrong)
        for node in self.source.nodes[::-1]:
            if not self.live.intersection(node.outputs):
                continue
            blocked = all(n in self.matches and n not in wrong for n in node.outputs)
            if found.intersection(node.outputs) and not blocked:
                found.update(
                    n for n in node.inputs if n in self.live and n not in self.matches
                )
        return found

    @property
    def parted(self) -> list[SourceNode]:
        """The nodes whose results part, in order; the first one reads only what agrees."""
        return [node for node in self.source.nodes if self.open.intersection(node.outputs)]

    @property
    def parted_inputs(self) -> list[str]:
        """The inputs of the source that the package has nowhere, and should have."""
        return [name for name in self.source.inputs if name in self.open]

    def agreeing(self, nodes: Collection[SourceNode]) -> list[ValueMatch]:
        """The values that agree and that these nodes read, in the source's order."""
        order = {name: at for at, name in enumerate(self.values)}
        names = {name for node in nodes for name in node.inputs if name in self.matches}
        return [self.matches[name] for name in sorted(names, key=lambda name: order[name])]

    def fresh(self) -> set[str]:
        """The package's values that no value of the source has."""
        taken = {match.package for match in self.matches.values()}
        unmatched = {value.name for value in self.index.values if value not in taken and value.op}
        return unmatched - {value.name for value in self.index.values if self._copies(value)}

    def _copies(self, value: PackageValue) -> bool:
        """Whether a value has the numbers of one that agrees: a cast, or another layout of it."""
        return any(
            align(match.package.array, value.array, self.index.tolerance)
            for match in self.matches.values()
            if match.package.array.size == value.array.size
            and match.package.summary.near(value.summary, self.index.tolerance)
        )
