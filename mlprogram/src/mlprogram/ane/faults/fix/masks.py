"""Infinite constants, and those that half precision makes infinite: masks and bounds."""

from collections.abc import Callable
from typing import Any

from mlprogram.ane.faults.fix.elementwise import infinite_clip
from mlprogram.ane.faults.fix.mend import At, Mend, Rewrite, Unmended
from mlprogram.ane.faults.fix.reductions import SCORES
from mlprogram.package.function import Operation
from mlprogram.package.values import Constant
import numpy as np
import torch

#: A closed score after the mask is added, and what scores are raised to: half precision holds both,
#: and a score of up to their difference stays closed.
CLOSED, LOWEST = -40_000.0, -20_000.0
HALF_MOST = 65_504.0
MOST = 1 << 22  # bytes of a mask that is written into the program; the weight file keeps its own

#: Ops that hand a masked score on, each element for itself.
BETWEEN = frozenset(
    ["add", "cast", "concat", "expand_dims", "identity", "reshape", "select", "slice_by_index",
     "squeeze", "transpose", "sub"]
)  # fmt: skip


def non_finite(at: At) -> list[Mend]:
    """A constant that is not finite -> what reads it, with a finite one."""
    mends: dict[str, Mend] = {}
    named = at.operation.type == "const"
    for reader in at.graph.readers.get(at.operation.name, []) if named else [at.operation]:
        here = at.near(reader)
        made = [infinite_clip(here)] if reader.type == "clip" else mask_infinite(here)
        mends |= {one.operation.name: one for one in made}
    if not mends:
        raise Unmended("nothing reads it")
    return [*mends.values()]


def sentinel_added(at: At) -> list[Mend]:
    """A softmax of rows that a constant mask closes throughout -> with a finite mask."""
    return mask_infinite(at.near(at.maker("x", at.operation)))


def mask_overflows(at: At) -> list[Mend]:
    """A sum, product or select with a constant that half precision lacks -> with one it has."""
    return mask_infinite(at.near(at.maker("x", at.operation)))


def mask_infinite(at: At) -> list[Mend]:
    """An op with a constant of less than half precision has -> a finite constant, and a bound
    before each softmax that it reaches, so that a row which it closes altogether stays even.

    Where two masks close such a row together, what they give it is not meant, and not proven.
    """
    softmaxes = _softmaxes(at)
    return [_bounded(at), *(_raised(at, softmax) for softmax in softmaxes)]


def _bounded(at: At) -> Mend:
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
        constant = at.constant(value)
        given[key] = value
        if constant is not None and constant.type.dtype != "bool":
            given[key] = _finite(constant)
    result = at.make.op(kind, given, at.type.dtype, at.type.shape)

    def meant(*tensors):
        finite = [t.clamp(min=lowest) if t.is_floating_point() else t for t in tensors]
        return compute[kind](*finite)

    flags = tuple(value.name for value in inputs) if kind == "mul" else ()
    values = {v.name: (0.0, 1.0) if flags else SCORES for v in inputs if v.type.dtype != "bool"}
    return at.mend(result, inputs, meant, values=values, flags=flags, least=CLOSED)


def _finite(constant: Constant) -> np.ndarray:
    """The constant with what is below a mask's closed score raised to it, in single precision."""
    array = constant.array()
    if array.nbytes > MOST:
        raise Unmended(f"its mask of {array.nbytes:,} bytes is in the weight file, which is kept")
    finite = np.maximum(array.astype(np.float32), CLOSED)
    if not (finite < HALF_MOST).all():
        raise Unmended("it has numbers too large for half precision, or none")
    return finite


def _raised(at: At, softmax: Operation) -> Mend:
    here = at.near(softmax)
    x, axis, make = here.value("x"), int(here.setting("axis", -1)), here.make
    raised = make.op("maximum", {"x": x, "y": LOWEST})
    result = make.op("softmax", {"x": raised, "axis": axis})
    values = {x.name: (*SCORES, CLOSED)}
    return here.mend(result, [x], lambda x: torch.softmax(x, axis), values=values, sums=True)


def mask_of_bools(at: At) -> Mend:
    """Attention's mask of 0 and 1 that is added to the scores -> one that closes where it is 0."""
    total, lowest = at.maker("x", at.operation), torch.finfo(torch.float32).min
    scores, mask, axis = at.value("x", total), at.value("y", total), int(at.setting("axis", -1))
    known, make = at.graph.constant(mask.name), at.make
    if known is not None:
        closed = make.constant((known.array().astype(np.float32) - 1) * -CLOSED, mask.type.dtype)
    else:
        mask = at.value("x", at.maker("y", total))
        ones = make.op("cast", {"x": mask, "dtype": scores.type.dtype}, scores.type.dtype)
        closed = make.op("mul", {"x": make.op("sub", {"x": ones, "y": 1.0}), "y": -CLOSED})
    masked = make.op("add", {"x": scores, "y": closed})
    raised = make.op("maximum", {"x": masked, "y": LOWEST})
    result = make.op("softmax", {"x": raised, "axis": axis})

    def meant(scores, mask):
        return torch.softmax(torch.where(mask != 0, scores, lowest), axis)

    return at.mend(result, [scores, mask], meant, values={scores.name: SCORES}, sums=True)


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


REWRITES: dict[str, Rewrite] = {
    "non-finite": non_finite, "sentinel-added": sentinel_added,
    "sentinel-selected": mask_infinite, "sentinel-multiplied": mask_infinite,
    "mask-overflows": mask_overflows, "attention-mask-added": mask_of_bools,
}  # fmt: skip
