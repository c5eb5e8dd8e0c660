"""What finds a fault in a function, by subject: a generator, named as the fault.

A fault of Core ML that is a row of the arithmetic table is found where an op touches the row.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from mlprogram.analysis.touched import touches
from mlprogram.ane.faults.patterns import converter, coreml, loading, narrowing
from mlprogram.ane.faults.patterns.known import among
from mlprogram.ane.laws.graph import ProgramGraph, Seen
from mlprogram.arithmetic import rows


def pattern(fault: str, row: str = "") -> Callable[[ProgramGraph], Iterable[Seen]]:
    """What finds a fault, or, if it is named, what touches a row of the table."""
    if row:
        return partial(_touching, row)
    name = fault.replace("-", "_")
    modules = (converter, narrowing, coreml, loading)
    return next(vars(module)[name] for module in modules if name in vars(module))


def _touching(row: str, graph: ProgramGraph) -> Iterator[Seen]:
    for operation in among(graph, rows()[row].ops):
        if touches(row, operation, graph.facts):
            yield Seen(rows()[row].topic, operation)
