"""RMS norm as one kernel, in the forms in which converters write it, and the gate of SwiGLU.

RMS norm is written as the first half of the layer norm of [x, -x], whose mean is zero; or as
square, mean, root and product, in half precision, or in single between casts. A weight may follow.
The kernel rounds where the ops round.
"""

from collections.abc import Callable
from typing import cast

from mlprogram.kernels.graph import Match, Unfit, is_halved, is_stretch
from mlprogram.kernels.native import ops as native_ops
from mlprogram.kernels.native.ops import Rounding
from mlprogram.kernels.pattern import Const, Named, either, op
from mlprogram.kernels.plainly import plainly
import torch

Shape = tuple[int | None, ...]

PAIR = op("concat", "pair", values=["x", op("mul", x="x", y=-1.0)], interleave=False)
NORM = op("layer_norm", "norm", x=PAIR, gamma=None, beta=None)
MOVED = op("layer_norm", "norm", x=op("transpose", "there", x=PAIR), gamma=None, beta=None)
HALVES = [
    op(*how, x=normal)
    for how in (("slice_by_index", "half"), ("split", "half"))
    for normal in (NORM, op("transpose", "back", x=MOVED))
]
NORM_OF_PAIR = (op("mul", x=either(*HALVES), y=Const("weight")), *HALVES)

SQUARE = either(op("pow", x="wide", y=2.0), op("mul", x="wide", y="wide"), op("square", x="wide"))
MEAN = op("reduce_mean", "mean", x=SQUARE, keep_dims=True)
ROOT = op("rsqrt", "root", x=either(op("add", x=MEAN, y=Const("added")), MEAN))
WIDE = Named("wide", either(op("cast", "widened", x="x"), "x"))
NORMAL = op("mul", "normal", x=WIDE, y=ROOT)
NARROW = op("cast", "narrowed", x=NORMAL)
SPELLED_OUT = (
    op("cast", "narrowed_last", x=op("mul", x=NORMAL, y=Const("weight"))),
    op("mul", x=either(NARROW, NORMAL), y=Const("weight")),
    NARROW,
    NORMAL,
)

GATED = (op("mul", x=op("silu", "silu", x="gate"), y="x"),)


def prepare_pair(match: Match) -> tuple[list, Callable]:
    """Prepare the first half of the layer norm of [x, -x]; raises Unfit for anything else."""
    x, made = match.shape("x"), match.made("norm")
    axes, epsilon = match.get("norm", "axes"), match.get("norm", "epsilon", 1e-5)
    if epsilon is None or not isinstance(axes, list) or len(axes) != 1:
        raise Unfit("it goes over several axes, or some that are known at run time only")
    if len(made) != len(x):
        raise Unfit(f"it makes {made} of {x}")
    axis = axes[0] % len(made)
    if "there" in match.named:
        there, back = match.get("there", "perm"), match.get("back", "perm")
        if there is None or back is None or [there[i] for i in back] != [*range(len(x))]:
            raise Unfit("it is not moved back to where it was")
        axis = there[axis]
    if match.get("pair", "axis") not in (axis, axis - len(x)):
        raise Unfit("it goes over another axis than x and -x are joined at")
    if not _is_first_half(match, x, axis):
        raise Unfit("what is taken of it is not its first half")
    dtype = match.graph.constants.dtype(match.graph.types[match.result])
    run = native_ops.rms_norm(x[axis:], dtype, _weight(match, x, axis), epsilon)
    return [match["x"]], native_ops.fixed(None, run, dtype, x)


def _is_first_half(match: Match, x: tuple[int, ...], axis: int) -> bool:
    """Whether the result is the first half, along `axis`, of a value of [x, -x]'s shape."""
    half = match.named["half"]
    doubled = tuple(n * 2 if i == axis else n for i, n in enumerate(x))
    if match.graph.shape(half.inputs["x"][0]) != doubled:
        return False
    if half.type == "split":
        return is_halved(match, "half", doubled, axis)
    return is_stretch(match, "half", doubled, axis, 0, x[axis])


def prepare_root(match: Match) -> tuple[list, Callable]:
    """Prepare x / sqrt(mean of squares); raises Unfit for anything else."""
    types, constants = match.graph.types, match.graph.constants
    given, made = types[match["x"]], types[match.result]
    x, inner = given.shape, types[match["wide"]].dtype
    axes, epsilon = match.get("mean", "axes"), match.get("root", "epsilon", 1e-12)
    if epsilon is None or not isinstance(axes, list) or len(axes) != 1:
        raise Unfit("it goes over several axes, or some that are known at run time only")
    axis = axes[0] % len(x)
    if given.dtype != made.dtype or x != made.shape or x[axis] is None:
        raise Unfit(f"it makes {made} of {given}")
    if None in x and axis != len(x) - 1:
        raise Unfit("sizes are open, and it does not go over the last axis")
    rounding = Rounding.SPELLED_OUT
    if inner != given.dtype:
        if inner != "fp32":
            raise Unfit(f"it computes in {inner}")
        rounding = Rounding.AS_ONE if "narrowed_last" in match.named else Rounding.AS_OPS
    added = match.number("added") if "added" in match else 0.0
    dtype = constants.dtype(made)
    weight = _weight(match, x, axis)
    sizes = cast("tuple[int, ...]", x[axis:])  # an open size is refused above, or before `axis`
    run = native_ops.rms_norm(sizes, dtype, weight, epsilon, rounding, added)
    return [match["x"]], native_ops.fixed(None, run, dtype, x)


def _weight(match: Match, shape: Shape, axis: int) -> torch.Tensor | None:
    """The constant that scales x along `axis`, as a vector; None if there is none."""
    if "weight" not in match:
        return None
    size = match.known("weight").type.shape
    aligned = (1,) * (len(shape) - len(size)) + size
    if aligned != tuple(n if i == axis else 1 for i, n in enumerate(shape)):
        raise Unfit(f"its factor has the shape {size}")
    return match.constant("weight").reshape(-1)


def prepare_gate(match: Match) -> tuple[list, Callable]:
    """Prepare silu(gate) * x, both of one shape."""
    types = [match.graph.types[match[name]] for name in ("gate", "x")]
    if types[0] != types[1] or types[0].dtype not in ("fp16", "fp32"):
        raise Unfit(f"a gate of {types[0]} and a value of {types[1]}")
    dtype, shape = match.graph.constants.dtype(types[0]), types[0].shape
    operands = [match["gate"], match["x"]]
    plain = plainly(match, operands)
    same = native_ops.fixed(plain, native_ops.gated(dtype), dtype, shape, shape)
    if None not in shape:
        return operands, same
    return operands, lambda g, x: (same if g.shape == x.shape else plain)(g, x)
