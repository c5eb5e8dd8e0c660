"""Exact rewrites of ops that go element by element."""

from math import inf, pi

from mlprogram.ane.faults.fix.mend import FINITE, At, Mend, Rewrite, Unmended
from mlprogram.package.function import Operation
import numpy as np
import torch

LARGEST = float(np.finfo(np.float32).max)  # what stands for no bound in single precision
WHOLE = (-7, -3, -2, -1, 0, 1, 2, 3, 7)
#: The ops that follow the `atan` of coremltools 9.0's atan2.
AFTER_ATAN = ("add", "sub", "mul", "add", "mul", "add")


def pow_two(at: At) -> Mend:
    """pow(2, y) -> exp2(y), an op that coremltools' own tests hold to 2 to the power y."""
    y, shape = at.value("y"), at.type.shape
    ones = at.value("x").type.sizes
    result = at.make.op("exp2", {"x": y})
    if result.type.shape != shape:  # a base with more elements than y
        result = at.make.op("mul", {"x": result, "y": np.ones(ones)})
    return at.mend(result, [y], lambda y: torch.pow(torch.full(ones, 2.0), y))


def mod_sign(at: At) -> Mend:
    """mod(x, y) -> the remainder with the sign of y, from a mod of what is not negative."""
    x, y, make = at.value("x"), at.value("y"), at.make
    zero = 0 if y.type.dtype == "int32" else 0.0
    divisor = at.array("y")
    above = divisor is not None and bool((divisor > 0).all())
    size = y if above else make.op("abs", {"x": y})
    rest = make.op("mod", {"x": make.op("abs", {"x": x}), "y": size})
    rest = make.op("mul", {"x": rest, "y": make.op("sign", {"x": x})})
    wrong = make.op("less", {"x": rest, "y": zero}, "bool")
    if not above:
        below = make.op("less", {"x": y, "y": zero}, "bool")
        apart = make.op("logical_xor", {"x": wrong, "y": below})
        some = make.op("not_equal", {"x": rest, "y": zero}, "bool")
        wrong = make.op("logical_and", {"x": apart, "y": some})
    moved = make.op("add", {"x": rest, "y": y})
    result = make.op("select", {"cond": wrong, "a": moved, "b": rest}, moved.type.dtype)
    values = {x.name: WHOLE, y.name: tuple(one for one in WHOLE if one)}
    return at.mend(
        result, [x, y], torch.remainder, values=values if y.type.dtype == "int32" else {}
    )


def reciprocal_epsilon(at: At) -> Mend:
    """inverse(x), which adds an epsilon -> 1 / x."""
    x = at.value("x")
    result = at.make.op("real_div", {"x": 1.0, "y": x})
    return at.mend(result, [x], torch.reciprocal)


def infinite_clip(at: At) -> Mend:
    """clip(x) with a bound that is infinite, or the largest number -> maximum or minimum."""
    x, low, high = at.value("x"), at.setting("alpha", -inf), at.setting("beta", inf)
    bounds = {"maximum": low, "minimum": high}
    finite = {kind: bound for kind, bound in bounds.items() if abs(bound) < LARGEST}
    if len(finite) == 2:
        raise Unmended("its bounds are finite")
    # Not an identity, which stands for another fault.
    result = x if finite else at.make.op("mul", {"x": x, "y": 1.0})
    for kind, bound in finite.items():
        result = at.make.op(kind, {"x": x, "y": float(bound)})
    return at.mend(result, [x], lambda x: torch.clamp(x, low, high), values={x.name: FINITE})


def atan2(at: At) -> Mend:
    """coremltools 9.0's ops of atan2(y, x) -> others, right where y is 0 or x near it.

    The sign of a zero is not read: atan2(-0.0, -1) is pi, as Apple's later converter has it.
    """
    divided = _end_of_atan2(at)
    y, x = at.value("x", divided), at.value("x", at.maker("y", divided))
    make, dtype = at.make, at.type.dtype
    upright = make.op("equal", {"x": x, "y": 0.0}, "bool")
    at_pole = make.op("cast", {"x": upright, "dtype": dtype}, dtype)
    safe = make.op("add", {"x": x, "y": at_pole})  # 1 in place of 0
    angle = make.op("atan", {"x": make.op("real_div", {"x": y, "y": safe})})
    below, left = (make.op("less", {"x": one, "y": 0.0}, "bool") for one in (y, x))
    below, left = (make.op("cast", {"x": one, "dtype": dtype}, dtype) for one in (below, left))
    turn = make.op("add", {"x": make.op("mul", {"x": below, "y": -2 * pi}), "y": pi})
    around = make.op("add", {"x": angle, "y": make.op("mul", {"x": left, "y": turn})})
    half = make.op("mul", {"x": make.op("sign", {"x": y}), "y": pi / 2})
    elsewhere = make.op("mul", {"x": around, "y": make.op("sub", {"x": 1.0, "y": at_pole})})
    result = make.op("add", {"x": elsewhere, "y": make.op("mul", {"x": half, "y": at_pole})})
    tiny = (*FINITE, 1e-9, -1e-9)
    return at.mend(result, [y, x], lambda y, x: torch.atan2(y + 0.0, x + 0.0),
                   values={y.name: tiny, x.name: tiny})  # fmt: skip


def _end_of_atan2(at: At) -> Operation:
    """Move from the `atan` of an atan2, or one after it, to its last op; returns its division."""
    angle = at.back_to("atan", len(AFTER_ATAN))
    at.operation = angle
    for kind in AFTER_ATAN:
        at.operation = at.reader(kind)
    divided = at.maker("x", angle)
    if divided.type != "real_div" or at.maker("y", divided).type != "add":
        raise Unmended("its ops are not those of coremltools 9.0's atan2")
    return divided


def root_of_square(at: At) -> Mend:
    """The identity that coremltools makes of sqrt(x ** 2) -> abs(x), if it is that one."""
    x = at.value("x")
    return at.mend(at.make.op("abs", {"x": x}), [x], torch.abs)


REWRITES: dict[str, Rewrite] = {
    "pow-two": pow_two, "mod-sign": mod_sign, "roll-negative": mod_sign,
    "reciprocal-epsilon": reciprocal_epsilon, "atan2-zero": atan2,
    "root-of-square": root_of_square,
}  # fmt: skip
