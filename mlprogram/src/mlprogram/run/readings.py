"""Which ops of a function are computed by another reading than the one in `OPS`.

`arithmetic.toml` has the readings and each row's default; `semantics` overrides it.
"""

from mlprogram.analysis.touched import Facts, touches
from mlprogram.arithmetic import Semantics, rows
from mlprogram.ops import OTHERS, Op
from mlprogram.package.function import Function


def chosen_readings(function: Function, semantics: Semantics | None) -> dict[int, Op]:
    """By the id of an op, what computes it instead; most functions have none.

    An op that touches no row stays as it is, so that its kernels do.
    """
    wanted = {
        name: other
        for name, other in OTHERS.items()
        if other.reading == (semantics or rows()[other.row].default)
    }
    operations = [o for o in function.operations() if o.type in wanted]
    if not operations:
        return {}
    facts = Facts(function)
    return {id(o): wanted[o.type].op for o in operations if touches(wanted[o.type].row, o, facts)}
