"""Hold a source to a package node by node, and find the first that parts.

Each node of the source is run on the package's own values, as far as they are known, and what it
makes is looked for among the package's values. So an error is that of one node (or of a few, which
the converter joined): it does not grow along the network, and a deep network needs no wider
tolerance than a flat one.

A value that the package does not have is no fault by itself: converters join ops. It is one where a
path leads from it to an output without a value that the package has, and where those that the
package has do not show it: a softmax of small numbers, an argmax or a norm agrees whatever it reads
(`_hidden`).
"""

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property, partial
from typing import Any

from mlprogram.onnx.source.graph import SourceGraph, SourceNode
from mlprogram.onnx.source.match import (
    LARGEST,
    MASKED,
    PackageValue,
    ValueIndex,
    ValueMatch,
    align,
    gap,
    nearest,
)
import numpy as np

#: The largest error of an op of which nothing was rounded: only the order of sums differs.
TIGHT = 5e-5
#: The largest error of an op whose weights are stored in fewer than 16 bits, where it is not seen
#: that they are the source's. Of those that a norm may be folded into, each bit below 6 doubles it.
COMPRESSED = 3e-2
#: How far a value is put off to see whether what follows shows it, in tolerances of an op.
NUDGE = 5
EXACT = 2e-7  # an error of single precision


def rounded(array: np.ndarray) -> np.ndarray:
    """To half precision, but for what it does not hold."""
    with np.errstate(over="ignore"):
        half = array.astype(np.float16).astype(array.dtype)
    return np.where(np.isfinite(half) & ((half != 0) | (array == 0)), half, array)


class Walk:
    """A source along a package.

    values: every value of the source. matches: of those that the package has. live: the names that
    depend on an input. ends: each output of the source that is compared, and the package's value
    that has to equal it (None: any value may). stored: the package's constants that the
    source computes with as well. half: whether numbers are stored in half precision. compressed:
    the bits of its constants in fewer. loosest: the largest error of an op that is no fault.
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
        compressed: Mapping[str, int] | None = None,
    ):
        self.source, self.index, self.ends = source, index, dict(ends)
        self.stored, self.half = set(stored), half
        folds = any("batch" in n.op.lower() and "norm" in n.op.lower() for n in source.nodes)
        self.rooms = {
            name: COMPRESSED * 2 ** (max(0, 6 - bits) * folds)
            for name, bits in (compressed or {}).items()
            if name not in self.stored
        }
        self.loosest = max([index.tolerance, *self.rooms.values()])
        self.values: dict[str, Any] = dict(constants) | dict(inputs)
        self.own: dict[str, Any] = {}  # what a node made, before the package's stood in its place
        self.matches: dict[str, ValueMatch] = {}
        self.exact = set[SourceNode]()  # those whose numbers the package did not round
        self.plain: dict[str, Any] = dict(source.constants)  # as the source has them
        self.live = set(inputs)
        self.named = {value.name: value for value in index.values}
        for name, array in inputs.items():
            if found := index.find(name, array):
                self.matches[name] = found
        for node in source.nodes:
            self._step(node)
        self.makers = {name: node for node in source.nodes for name in node.outputs}
        self.open = self._open()
        self.hidden = self._hidden()
        self.open |= self.hidden

    def _step(self, node: SourceNode) -> None:
        made = self.source.run_node(node, self.values, self._settings(node))
        # one that only says how large its operand is makes no number to compare
        is_size = node.op in ("Shape", "Size") or all(isinstance(v, int) for v in made.values())
        if not self.live.intersection(node.inputs) or is_size:
            if other := self._otherwise(node):
                self.plain |= self.source.run_node(node, self.values | other)
            self.values |= made
            return
        found = self._matched(made)
        lost = any(isinstance(made[n], np.ndarray) for n in made.keys() - found.keys())
        for constants in self._unrounded(node) if lost else ():
            again = self.source.run_node(node, self.values | constants)
            if found.keys() < (better := self._matched(again)).keys():
                made, found = again, better
                self.exact.add(node)
                self.values |= constants
        self.live.update(made)
        self.values |= made
        self.own |= {name: array for name, array in made.items() if isinstance(array, np.ndarray)}
        self.matches |= found
        for name, match in found.items():
            array = made[name]
            if array.dtype.kind == "f" and not (array <= MASKED).any():
                self.values[name] = np.asarray(match.aligned, array.dtype)

    def _matched(self, made: Mapping[str, Any]) -> dict[str, ValueMatch]:
        arrays = {name: array for name, array in made.items() if isinstance(array, np.ndarray)}
        found = {name: self._find(name, array) for name, array in arrays.items()}
        return {name: match for name, match in found.items() if match is not None}

    def _settings(self, node: SourceNode) -> dict[str, Any] | None:
        """A node's settings with its numbers in half precision, as a package in it stores them."""
        numbers = {
            name: float(rounded(np.array(value)))
            for name, value in node.settings.items()
            if self.half and isinstance(value, float) and node not in self.exact
        }
        return {**node.settings, **numbers} if numbers else None

    def _unrounded(self, node: SourceNode) -> Iterator[dict[str, np.ndarray]]:
        """The constants that a node is run with where its settings are as the source has them, then
        where these are as well: a package in half precision has some numbers in single precision.
        """
        if self._settings(node) is not None:
            yield {}
        if constants := self._otherwise(node):
            yield constants

    def _otherwise(self, node: SourceNode) -> dict[str, np.ndarray]:
        """Those of a node's constants that the source has in other numbers than it is run with."""
        own = {name: self.plain[name] for name in node.inputs if name in self.plain}
        return {name: array for name, array in own.items() if array is not self.values[name]}

    def _find(self, name: str, array: np.ndarray) -> ValueMatch | None:
        """The package's value, exact but for the order of sums; roughly, where there is a reason.
        """
        for room in sorted({self.tight, self.index.tolerance, self.loosest}):
            if found := self.index.find(name, array, partial(self._allows, room), room):
                return found
        return None

    def _allows(self, room: float, value: PackageValue) -> bool:
        return room <= self.tight or self._room(value) >= room

    @property
    def tight(self) -> float:
        return min(TIGHT, self.index.tolerance)

    def _room(self, value: PackageValue) -> float:
        """How far a value of the package may be off: by what the converter may have computed,
        rounded or compressed behind it and past none that agrees, and the source has not."""
        constants = {name for each in self._behind(value)[1] for name in each.constants}
        usual = self.index.tolerance if constants - self.stored else self.tight
        return max([usual, *(self.rooms[name] for name in constants & self.rooms.keys())])

    def _behind(self, value: PackageValue) -> tuple[set[str], list[PackageValue]]:
        """The values of the package that agree and that one is made of; and what lies between, the
        value itself first."""
        known = {match.package.name for match in self.matches.values()}
        agree, passed = set[str](), {value.name: value}
        todo = [value]
        while todo:
            reads = set(todo.pop().operands)
            agree |= reads & known
            new = {n: self.named[n] for n in reads - known - passed.keys() if n in self.named}
            passed |= new
            todo += new.values()
        return agree, [*passed.values()]

    def agrees(self, name: str) -> bool:
        """Whether an output is what the package's output is, as it stands."""
        end, array = self.ends[name], self.own.get(name)
        if array is None:  # an input or a constant that is an output
            array = self.values[name]
        if end is None or (name in self.own and name not in self.matches):
            return name in self.matches
        room = max(self.index.tolerance, self.matches[name].error if name in self.matches else 0)
        return align(array, end.array, room, reorder=False) is not None

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

    def _hidden(self) -> set[str]:
        """The first value that the package has otherwise though every output agrees, and what
        follows from it. Empty where another parts before."""
        for node in self.source.nodes:
            if self.open.intersection(node.outputs):
                break
            for name in node.outputs:
                lost = name in self.own and name not in self.matches and name in self.needed
                if lost and not (self._shows(name) and self.stand_in(name) is None):
                    return {name, *self._following({name: self.own[name]})[1]}
        return set()

    @cached_property
    def needed(self) -> set[str]:
        """The values that an output is made of."""
        found = set(self.ends)
        for node in self.source.nodes[::-1]:
            if found.intersection(node.outputs):
                found.update(node.inputs)
        return found

    def _shows(self, name: str) -> bool:
        """Whether a value that agrees would be farther off than it is, were this one a little off.

        Only floating-point numbers can be a little off, and whole numbers hardly show it.
        """
        array = self.own[name]
        if array.dtype.kind != "f":
            return True
        largest = float(np.abs(array).max(initial=0, where=array > MASKED)) or 1.0
        size = NUDGE * self.loosest * min(largest, LARGEST)
        noise = np.random.default_rng(0).uniform(-size, size, array.shape)
        nudged = np.where(array > MASKED, array + noise, array).astype(array.dtype)
        if array.min(initial=0) >= 0:  # for a root or a logarithm
            nudged = np.abs(nudged)
        agree = self._following({name: nudged})[0]
        return not agree or any(
            self.own[n].dtype.kind == "f"
            and gap(made, self.own[n]) > max(self.matches[n].error, EXACT)
            for n, made in agree.items()
        )

    def stand_in(self, name: str) -> PackageValue | None:
        """The package's value in the place of one that it does not have: made of the same values,
        otherwise, and what follows in the package follows from it."""
        array = self.own[name]
        for value in self.beside(self.makers[name]):
            if value.array.size != array.size or align(array, value.array, self._room(value)):
                continue
            agree = self._following({name: nearest(value.array, array)})[0]
            if agree and all(
                gap(self.matches[n].aligned, made) <= max(self.tight, self.matches[n].error)
                for n, made in agree.items()
            ):
                return value
        return None

    def beside(self, node: SourceNode) -> list[PackageValue]:
        """The package's values that no value of the source has, and that are made of what this node
        reads, directly or past values that do not agree either."""
        reads, todo = set[str](), list(node.inputs)
        for name in todo:
            if name in self.matches:
                reads.add(self.matches[name].package.name)
            elif name in self.makers and name in self.live:
                todo += [n for n in self.makers[name].inputs if n not in todo]
        return [v for v in self.fresh if self._behind(v)[0] & reads]

    def _following(self, changed: dict[str, Any]) -> tuple[dict[str, Any], set[str]]:
        """What the source makes of changed values: the next values that agree, and the names of
        those before them. Nothing if it cannot be run."""
        values, agree = self.values | changed, dict[str, Any]()
        new = set[str]()
        for node in self.source.nodes:
            if not (changed.keys() | new).intersection(node.inputs):
                continue
            try:
                made = self.source.run_node(node, values, self._settings(node))
            except Exception:  # of any kind: what is changed may not fit
                return {}, new
            agree |= {n: made[n] for n in made if n in self.matches}
            values |= {n: made[n] for n in made if n not in self.matches}
            new.update(n for n in made if n not in self.matches)
        return agree, new

    @property
    def parted(self) -> list[SourceNode]:
        """The nodes whose results part, in order; the first one reads only what agrees."""
        return [node for node in self.source.nodes if self.open.intersection(node.outputs)]

    def agreeing(self, nodes: Collection[SourceNode]) -> list[ValueMatch]:
        """The values that agree and that these nodes read, in the source's order."""
        order = {name: at for at, name in enumerate(self.values)}
        names = {name for node in nodes for name in node.inputs if name in self.matches}
        return [self.matches[name] for name in sorted(names, key=lambda name: order[name])]

    @cached_property
    def fresh(self) -> list[PackageValue]:
        """The package's values that no value of the source has."""
        taken = {match.package for match in self.matches.values()}
        unmatched = [value for value in self.index.values if value not in taken and value.op]
        return [value for value in unmatched if not self._copies(value)]

    def _copies(self, value: PackageValue) -> bool:
        """Whether a value has the numbers of one that agrees: a cast, or another layout of it."""
        return any(
            align(match.package.array, value.array, self.index.tolerance)
            for match in self.matches.values()
            if match.package.array.size == value.array.size
            and match.package.summary.near(value.summary, self.index.tolerance)
        )
