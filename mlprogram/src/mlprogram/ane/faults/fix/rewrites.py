"""The exact rewrites that there are, by the id of the fault that they mend."""

from collections.abc import Callable

from mlprogram.ane.faults.fix import elementwise
from mlprogram.ane.faults.fix.edit import Maker
from mlprogram.ane.faults.fix.mend import At, Mend, Unmended
from mlprogram.ane.laws.graph import ProgramGraph
from mlprogram.package.function import Operation

#: Each is called with the op that the fault was found at, and raises Unmended where it cannot.
REWRITES: dict[str, Callable[[At], Mend]] = {
    rewrite.__name__.replace("_", "-"): rewrite for rewrite in (*elementwise.REWRITES,)
}


def mend(fault: str, graph: ProgramGraph, operation: Operation | None) -> Mend:
    """The mending of an op with a fault. Raises Unmended, with the reason, where there is none."""
    if fault not in REWRITES or operation is None or len(operation.outputs) != 1:
        raise Unmended("no exact rewrite is known")
    return REWRITES[fault](At(graph, operation, Maker(f"{operation.name}_mended", {*graph.types})))
