"""Both numbers of a fault: what comes out of an op, and what should, on a few example values.

    from mlprogram.ane.faults import numbers

    both = numbers.of("model.mlpackage", finding)     # a finding of `laws.check`
    print(both.text() if both else "")                # y 3 gives 9, not 8

The op, or the few that make up the fault, runs alone, as the executor has it: as Core ML is
reported to compute. What should come out is torch's computation of what was converted.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice, product
from math import prod
from pathlib import Path
from typing import Any

from mlprogram.ane.faults.fix.edit import blocks_of
from mlprogram.ane.faults.fix.mend import Mend, Unmended
from mlprogram.ane.faults.fix.rewrites import mends_of
from mlprogram.ane.laws.graph import ProgramGraph
from mlprogram.ane.laws.report import LawReport
from mlprogram.ane.laws.rule import Finding
from mlprogram.errors import InvalidPackage, MLProgramError
from mlprogram.package.container import Container, open_container
from mlprogram.package.description import NUMPY
from mlprogram.package.reader import Package
import numpy as np

#: Values to try everywhere in an input, those first that a reader knows the results of.
TRIED = (3.0, -2.0, 0.5, 0.0, 1.0, -1.0, 2.0, 10.0, -10.0, 100.0, -100.0, 1e-3, -1e-3, 3e4, -3e4,
         -np.inf, np.inf)  # fmt: skip
WHOLE = (-1, 3, -2, 0, 1, 2, 5)  # integers
EXAMPLES = 3
SMALL = 2  # the size of axes that are longer, so that an op of any size runs at once
MOST = 1 << 20  # elements of an op that cannot be made smaller


@dataclass(frozen=True)
class Numbers:
    """Examples of a fault: each has a value for every input, everywhere in it, and two results.

    inputs: by name. gives: what comes out. should: what was meant. The results are those of the
    first element that differs.
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
        inputs = {name: _plain(values) for name, values in self.inputs.items()}
        return {"in": inputs, "gives": _plain(self.gives), "should": _plain(self.should)}


def _listed(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value + 0.0:.4g}" for value in values)


def _plain(values: tuple[float, ...]) -> list[float | str]:
    return [value if np.isfinite(value) else str(value) for value in values]


def of(package: str | Path | Container, finding: Finding) -> Numbers | None:
    """Both numbers at the first place of a finding in a package.

    None where they cannot be computed, or do not differ on the values that are tried: of a fault
    that only a Mac shows, of a refusal, of an op that is too large. Raises InvalidPackage.
    """
    container = package if isinstance(package, Container) else open_container(package)
    place, opened = finding.places[0], Package(container)
    if place.function not in opened.functions:
        return None
    graph = ProgramGraph(opened, opened.functions[place.function])
    operation = graph.makers.get(place.name)
    try:
        mend = mends_of(finding.rule.id, graph, operation)[0]
        return _examples(container, place.function, mend)
    except (Unmended, MLProgramError):
        return None


def add(report: LawReport) -> None:
    """Give each finding of a report on files its numbers, where they can be computed."""
    for found in report.findings:
        with suppress(InvalidPackage):  # a part of a pipeline, whose own file is not opened
            found.numbers = of(report.file(found.places[0]), found)


def _examples(container: Container, function: str, mend: Mend) -> Numbers | None:
    from mlprogram.ane.faults.fix.prove import alone, opened

    model = alone(container, function, mend.operation, mend.inputs)
    for spec in (_shrunk(model.spec), model.spec):
        program = opened(replace(model, spec=spec), "main", "fp16")
        size = max(prod(size or 1 for size in t.shape) for t in program.inputs.values())
        if size <= MOST and (found := [*islice(_parting(program, mend), EXAMPLES)]):
            values, gives, should = zip(*found, strict=True)
            inputs = {name: tuple(v[name] for v in values) for name in program.inputs}
            return Numbers(inputs, gives, should)
    return None


def _parting(program, mend: Mend) -> Iterator[tuple[dict[str, float], float, float]]:
    """Values of the inputs, what comes out and what should, where these differ."""
    from mlprogram.ane.faults.fix.prove import meant

    ((name, _),) = mend.operation.outputs
    types = program.inputs
    shapes = {n: tuple(SMALL if s is None else s for s in t.shape) for n, t in types.items()}
    dtypes = {n: np.dtype(NUMPY.get(t.dtype, t.dtype)) for n, t in types.items()}
    tried = [_known_first(mend.values.get(n), d.kind == "f") for n, d in dtypes.items()]
    for chosen in product(*tried):
        values = dict(zip(types, chosen, strict=True))
        arrays = {n: np.full(shapes[n], value, dtypes[n]) for n, value in values.items()}
        try:
            found = program.predict(arrays)[name]
            wanted = meant(mend, arrays, found.dtype)
        except (MLProgramError, RuntimeError, IndexError):  # the executor's, torch's
            continue
        if found.shape != wanted.shape:
            continue
        pairs = zip(found.flat, wanted.flat, strict=True)
        if apart := [(float(a), float(b)) for a, b in pairs if f"{a:.3g}" != f"{b:.3g}"]:
            yield values, *apart[0]


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
