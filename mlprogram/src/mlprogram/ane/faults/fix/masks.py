"""Masks of infinities, and of numbers that half precision makes infinite -> finite ones."""

from collections.abc import Callable
from typing import Any

from mlprogram.ane.faults.fix.edit import Maker
from mlprogram.ane.faults.fix.mend import At, Mend, Unmended
from mlprogram.package.function import Operation

#: A closed score after the mask is added, and what scores are raised to: both are finite in half
#: precision, and a score of up to their difference stays closed.
CLOSED, LOWEST = -60_000.0, -30_000.0
SCORES = (0.0, 1.0, -1.0, 0.5, -2.5, 10.0, -10.0, 100.0, -100.0)

#: Ops that hand a masked score on, each element for itself.
BETWEEN = frozenset(
    ["add", "cast", "concat", "expand_dims", "identity", "reshape", "select", "slice_by_index",
     "squeeze", "transpose", "sub"]
)  # fmt: skip


def mask_infinite(at: At) -> list[Mend]:
    """An op with a constant of less than half precision has -> a finite constant, and a bound
    before each softmax that it reaches, so that rows closed altogether stay even."""
    softmaxes = _softmaxes(at)
    return [_bounded(at), *(_raised(at, softmax) for softmax in softmaxes)]


def _bounded(at: At) -> Mend:
    import torch

    lowest, kind = torch.finfo(torch.float32).min, at.operation.type
    compute: dict[str, Callable] = {
        "add": torch.add, "mul": torch.mul, "select": torch.where, "sub": torch.sub
    }  # fmt: skip
    if kind not in compute:
        raise Unmended(f"a {kind} of a mask is not rewritten")
    keys = ("cond", "a", "b") if kind == "select" else ("x", "y")
    given: dict[str, Any] = {}
    inputs = [at.value(key) for key in keys]
    for key, value in zip(keys, inputs, strict=True):
        constant = at.graph.constant(value.name)
        given[key] = value
        if constant is not None and value.type.dtype != "bool":
            array = constant.array()
            if array.ndim == 0:
                given[key] = max(float(array), CLOSED)
            elif array.min() < CLOSED:
                given[key] = at.make.op("maximum", {"x": value, "y": CLOSED})
    result = at.make.op(kind, given, at.type.dtype, at.type.shape)

    def meant(*tensors):
        finite = [t.clamp(min=lowest) if t.is_floating_point() else t for t in tensors]
        return compute[kind](*finite)

    flags = tuple(value.name for value in inputs) if kind == "mul" else ()
    values = {v.name: (0.0, 1.0) if flags else SCORES for v in inputs if v.type.dtype != "bool"}
    return at.mend(result, inputs, meant, values=values, flags=flags, least=CLOSED)


def _raised(at: At, softmax: Operation) -> Mend:
    import torch

    make = Maker(f"{softmax.name}_mended", {*at.graph.types})
    here = At(at.graph, softmax, make)
    x, axis = here.value("x"), int(here.setting("axis", -1))
    raised = make.op("maximum", {"x": x, "y": LOWEST})
    result = make.op("softmax", {"x": raised, "axis": axis})
    values = {x.name: (*SCORES, CLOSED)}
    return here.mend(result, [x], lambda x: torch.softmax(x, axis), values=values, sums=True)


def _softmaxes(at: At) -> list[Operation]:
    """The softmax ops that the mask reaches. Raises Unmended if it reaches anything else."""
    found: dict[str, Operation] = {}
    seen, names = set(), [at.operation.name]
    for name in names:
        if name in at.graph.outputs:
            raise Unmended("its mask is an output of the function")
        for reader in at.graph.readers.get(name, []):
            if reader.type == "softmax":
                found[reader.name] = reader
            elif reader.type not in BETWEEN:
                raise Unmended(f"its mask is read by {reader.type}, not by a softmax alone")
            elif reader.name not in seen:
                seen.add(reader.name)
                names.append(reader.name)
    if not found:
        raise Unmended("its mask reaches no softmax")
    return [*found.values()]


REWRITES = {"mask-infinite": mask_infinite}
