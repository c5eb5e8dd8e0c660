"""Both numbers of a fault: what comes out of an op, and what should, on a few example values.

    from mlprogram.ane.faults import numbers

    both = numbers.of("model.mlpackage", finding)     # a finding of `laws.check`
    print(both.text() if both else "")                # x 3 gives 9, not 8

The op, or the few that make up the fault, runs alone, as the executor has it: as Core ML is
reported to compute. What should come out is torch's computation of what was converted, or the op
as it is described.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice, product
from math import prod
from pathlib import Path
from typing import Any

from mlprogram.ane.faults.fix.edit import Typed, blocks_of
from mlprogram.ane.faults.fix.mend import Mend, Unmended
from mlprogram.ane.faults.fix.prove import alone, meant, opened
from mlprogram.ane.faults.fix.rewrites import mends_of
from mlprogram.ane.laws.graph import ProgramGraph
from mlprogram.ane.laws.report import LawReport
from mlprogram.ane.laws.rule import Finding
from mlprogram.errors import InvalidPackage, MLProgramError
from mlprogram.package.container import Container, open_container
from mlprogram.package.description import NUMPY
from mlprogram.package.function import Operation
from mlprogram.package.reader import Package
from mlprogram.terminal import plain
import numpy as np

#: Values to try everywhere in an input, those first that a reader knows the results of.
TRIED = (3.0, -2.0, 0.5, 0.0, 1.0, -1.0, 2.0, 10.0, -10.0, 100.0, -100.0, 1e-3, -1e-3, 3e4, -3e4,
         -np.inf, np.inf)  # fmt: skip
WHOLE = (-1, 3, -2, 0, 1, 2, 5)  # integers
#: Faults without a rewrite, both readings of which the executor has (`arithmetic.toml`).
READ = ("integers-beyond",)
EXAMPLES, SHOWN = 3, 6
RUNS = 400  # of an op alone, at most
SMALL = 2  # the size of longer axes, cut so that an op of any size runs at once
#: Elements of an op that runs in its own size, and of one that does so if it cannot be cut.
FEW, MOST = 1 << 12, 1 << 20


@dataclass(frozen=True)
class Examples:
    """Examples of a fault: for each a value of every input, everywhere in it, and two results.

    inputs: by name. gives: what comes out. should: what was meant. The results are those of the
    first element that differs. Where it takes unequal elements, there is one example, and they are
    the first elements of its inputs, and of the results those that differ.
    """

    inputs: Mapping[str, tuple[float, ...]]
    gives: tuple[float, ...]
    should: tuple[float, ...]

    def text(self) -> str:
        """ "y 3, 0.5 gives 9, 0.25, not 8, 1.414"."""
        given = "; ".join(f"{name} {_listed(values)}" for name, values in self.inputs.items())
        return f"{given} gives {_listed(self.gives)}, not {_listed(self.should)}"

    def to_json(self) -> dict[str, Any]:
        """The examples in plain JSON values; what is infinite or no number is a text."""
        return plain({"in": dict(self.inputs), "gives": self.gives, "should": self.should})


def _listed(values: tuple[float, ...]) -> str:
    return ", ".join(map(_text, values))


def _text(value: float) -> str:
    """Whole numbers with all their digits, others with four."""
    whole = np.isfinite(value) and value == round(value) and abs(value) < 1e9
    return f"{value:,.0f}" if whole and value else f"{value + 0.0:.4g}"


def of(package: str | Path | Container, finding: Finding) -> Examples | None:
    """Both numbers at the first place of a finding in a package.

    None where they cannot be computed, or do not differ on the values that are tried: of a fault
    that only a Mac shows, of a refusal, of an op that is too large. Raises InvalidPackage.
    """
    place, rule = finding.places[0], finding.rule
    container = package if isinstance(package, Container) else open_container(package)
    opened = Package(container)
    if place.function not in opened.functions or getattr(rule, "refuses", False):
        return None
    graph = ProgramGraph(opened, opened.functions[place.function])
    try:
        sides = _sides(rule.id, graph, graph.makers.get(place.name))
        return sides.examples(container, place.function)
    except (Unmended, MLProgramError):
        return None


def add(report: LawReport) -> None:
    """Give each finding of a report on files its numbers, where they can be computed."""
    opened = cache(open_container)  # each file once, however much is found in it
    for found in report.findings:
        with suppress(InvalidPackage):  # a part of a pipeline, whose own file is not opened
            found.numbers = of(opened(report.file(found.places[0])), found)


def _sides(fault: str, graph: ProgramGraph, operation: Operation | None) -> "Sides":
    """Raises Unmended for a fault whose numbers are not known."""
    if operation is None or fault not in READ:
        mend = mends_of(fault, graph, operation)[0]
        return Sides(mend.operation, mend.inputs, mend)
    inputs = [Typed(name, graph.types[name]) for name in graph.computed(operation)]
    if not inputs:
        raise Unmended("it is computed of constants alone")
    return Sides(operation, tuple(inputs))


@dataclass(frozen=True)
class Sides:
    """An op, or those from `inputs` to it, and what it was meant to give.

    mend: which knows what was; None for the op as it is described.
    """

    operation: Operation
    inputs: tuple[Typed, ...]
    mend: Mend | None = None

    def examples(self, container: Container, function: str) -> Examples | None:
        """Where both sides differ. Raises Unmended or InvalidPackage if the op does not run."""
        model = alone(container, function, self.operation, self.inputs)
        largest = max(prod(size or SMALL for size in one.type.shape) for one in self.inputs)
        own = [model.spec] if largest <= MOST else []
        for spec in [*own, _shrunk(model.spec)] if largest <= FEW else [_shrunk(model.spec), *own]:
            both = self._runners(replace(model, spec=spec))
            if found := [*islice(_parting(both, self._values(both.types)), EXAMPLES)]:
                values, gives, should = zip(*found, strict=True)
                return Examples({n: tuple(v[n] for v in values) for n in both.types}, gives, should)
            if ramp := _on_a_ramp(both):
                return ramp
        return None

    def _runners(self, model: Container) -> "Runners":
        ((name, _),) = self.operation.outputs
        program = opened(model, "main", "fp16")
        described, mend = opened(model, "main", "fp16", "documented"), self.mend
        types = {
            n: (
                tuple(SMALL if s is None else s for s in t.shape),
                np.dtype(NUMPY.get(t.dtype, t.dtype)),
            )
            for n, t in program.inputs.items()
        }

        def should(arrays, dtype):
            return described.predict(arrays)[name] if mend is None else meant(mend, arrays, dtype)

        least = -np.inf if mend is None else mend.least
        return Runners(types, lambda arrays: program.predict(arrays)[name], should, least)

    def _values(self, types: Mapping[str, tuple[tuple[int, ...], np.dtype]]) -> list[list[float]]:
        allowed = self.mend.values if self.mend else {}
        return [_known_first(allowed.get(n), kind.kind == "f") for n, (_, kind) in types.items()]


@dataclass(frozen=True)
class Runners:
    """What runs an op alone: types, the shape and dtype of each input; and both sides.

    least: a score that is closed, as are all below it, which one it is.
    """

    types: Mapping[str, tuple[tuple[int, ...], np.dtype]]
    gives: Callable[[Mapping[str, np.ndarray]], np.ndarray]
    should: Callable[[Mapping[str, np.ndarray], np.dtype], np.ndarray]
    least: float = -np.inf

    def parting(self, arrays: Mapping[str, np.ndarray]) -> list[tuple[float, float]]:
        """The elements that differ to three digits; none where a side does not run."""
        try:
            found = self.gives(arrays)
            wanted = self.should(arrays, found.dtype)
        except (MLProgramError, RuntimeError, IndexError):  # the executor's, torch's
            return []
        if found.size != wanted.size:
            return []
        digits = 3 if found.dtype.kind == "f" else 12
        pairs = zip(found.astype(float).flat, wanted.astype(float).flat, strict=True)
        apart = [(a, b) for a, b in pairs if f"{a:.{digits}g}" != f"{b:.{digits}g}"]
        return [(a, b) for a, b in apart if not (a <= self.least and b <= self.least)]


def _parting(both: Runners, tried: list[list[float]]) -> Iterator[tuple[dict, float, float]]:
    """Values, each everywhere in its input, what comes out and what should, where these differ."""
    for chosen in islice(product(*tried), RUNS):
        values = dict(zip(both.types, chosen, strict=True))
        arrays = {n: np.full(*both.types[n][:1], v, both.types[n][1]) for n, v in values.items()}
        if apart := both.parting(arrays):
            yield values, *apart[0]


def _on_a_ramp(both: Runners) -> Examples | None:
    """Both sides on floats of 1, 2, 3, ... or their hundreds, and on integers of -1, -2, ..., if
    they differ there."""
    for steep in (1, 100):
        arrays = {}
        for name, (shape, dtype) in both.types.items():
            ramp = np.arange(1, prod(shape) + 1).reshape(shape)
            arrays[name] = (ramp * steep if dtype.kind == "f" else -ramp).astype(dtype)
        if apart := both.parting(arrays):
            gives, should = zip(*apart[:SHOWN], strict=True)
            first = {name: tuple(array.flat[:SHOWN].tolist()) for name, array in arrays.items()}
            return Examples(first, gives, should)
    return None


def _known_first(allowed: Iterable[float] | None, floats: bool) -> list[float]:
    """The values to try, those first that a reader knows the results of; zero is of no sign."""
    first = TRIED if floats else WHOLE
    if allowed is None:
        return [*first]
    given = {*allowed}
    return [*(one for one in first if one in given), *sorted(given.difference(first))]


def _shrunk(spec):
    """The model with every axis that is longer than `SMALL` cut to it."""
    made = type(spec)()
    made.CopyFrom(spec)
    function = made.mlProgram.functions["main"]
    types = [one.type for one in function.inputs]
    for block in blocks_of(function):
        types += [o.type for op in block.operations if op.type != "const" for o in op.outputs]
    for type_ in types:
        for dimension in type_.tensorType.dimensions:
            if dimension.HasField("constant") and dimension.constant.size > SMALL:
                dimension.constant.size = SMALL
    return made
