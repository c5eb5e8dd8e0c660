"""The exact rewrites that there are, by the id of the fault that they mend."""

from mlprogram.ane.faults.fix import (
    elementwise,
    indices,
    masks,
    products,
    reductions,
    windows,
)
from mlprogram.ane.faults.fix.edit import Maker
from mlprogram.ane.faults.fix.mend import At, Mend, Rewrite, Unmended
from mlprogram.ane.laws.graph import ProgramGraph
from mlprogram.package.function import Operation

REWRITES: dict[str, Rewrite] = {
    **elementwise.REWRITES,
    **indices.REWRITES,
    **masks.REWRITES,
    **products.REWRITES,
    **reductions.REWRITES,
    **windows.REWRITES,
}

#: Faults whose ops may as well be meant as they are, and what only who converted them knows. Their
#: rewrites give the numbers of a finding, and nothing that is written.
UNSURE = {
    "root-of-square": "an identity may stand for sqrt(x ** 2), sqrt(x) ** 2 or itself, and the "
    "package does not say which",
}


def mends_of(fault: str, graph: ProgramGraph, operation: Operation | None) -> list[Mend]:
    """What mends an op with a fault, all of it or nothing.

    Raises Unmended, with the reason, where there is no such.
    """
    if fault not in REWRITES or operation is None or len(operation.outputs) != 1:
        raise Unmended("no exact rewrite is known")
    maker = Maker(f"{operation.name}_mended", {*graph.types})
    try:
        made = REWRITES[fault](At(graph, operation, maker))
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise Unmended(f"its inputs are not those of a sound {operation.type} ({error})") from error
    return made if isinstance(made, list) else [made]


def same_rewrite(fault: str, other: str) -> bool:
    """Whether two faults are mended by one rewrite."""
    return REWRITES[fault] is REWRITES[other]
