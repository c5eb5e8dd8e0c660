"""Exact rewrites of ops that go element by element."""

from math import inf, pi

from mlprogram.ane.faults.fix.mend import FINITE, At, Mend, Unmended
from mlprogram.package.function import Operation
import numpy as np

LARGE = 10.0  # past it softplus(x) is x, to the rounding of half precision
#: The ops that follow the `atan` of coremltools 9.0's atan2.
AFTER_ATAN = ("add", "sub", "mul", "add", "mul", "add")


def pow_two(at: At) -> Mend:
    """pow(2, y) -> exp2(y), an op that coremltools' own tests hold to 2 to the power y."""
    import torch

    y, shape = at.value("y"), at.type.shape
    ones = at.value("x").type.sizes
    result = at.make.op("exp2", {"x": y})
    if result.type.shape != shape:  # a base with more elements than y
        result = at.make.op("mul", {"x": result, "y": np.ones(ones)})
    return at.mend(result, [y], lambda y: torch.pow(torch.full(ones, 2.0), y))


def mod_sign(at: At) -> Mend:
    """mod(x, y) -> the remainder with the sign of y, whichever sign the op gives it."""
    import torch

    x, y = at.value("x"), at.value("y")
    zero = 0 if y.type.dtype == "int32" else 0.0
    rest = at.make.op("mod", {"x": x, "y": y})
    wrong = at.make.op("less", {"x": rest, "y": zero}, "bool")
    divisor = at.array("y")
    if divisor is None or not (divisor > 0).all():
        below = at.make.op("less", {"x": y, "y": zero}, "bool")
        apart = at.make.op("logical_xor", {"x": wrong, "y": below})
        some = at.make.op("not_equal", {"x": rest, "y": zero}, "bool")
        wrong = at.make.op("logical_and", {"x": apart, "y": some})
    moved = at.make.op("add", {"x": rest, "y": y})
    choice = {"cond": wrong, "a": moved, "b": rest}
    result = at.make.op("select", choice, moved.type.dtype)
    divisors = {y.name: (-7, -3, -2, -1, 1, 2, 3, 7)} if zero == 0 else {}
    return at.mend(result, [x, y], torch.remainder, values=divisors)


def reciprocal_epsilon(at: At) -> Mend:
    """inverse(x), which adds an epsilon -> 1 / x."""
    import torch

    x = at.value("x")
    result = at.make.op("real_div", {"x": 1.0, "y": x})
    return at.mend(result, [x], torch.reciprocal)


def infinite_clip(at: At) -> Mend:
    """clip(x) with an infinite bound -> maximum or minimum with the finite one."""
    import torch

    x, low, high = at.value("x"), at.setting("alpha", -inf), at.setting("beta", inf)
    finite = {"maximum": low, "minimum": high}
    finite = {kind: bound for kind, bound in finite.items() if np.isfinite(bound)}
    if len(finite) == 2:
        raise Unmended("its bounds are finite")
    result = at.make.op("identity", {"x": x}) if not finite else x
    for kind, bound in finite.items():
        result = at.make.op(kind, {"x": x, "y": float(bound)})
    return at.mend(result, [x], lambda x: torch.clamp(x, low, high))


def softplus_large(at: At) -> Mend:
    """softplus(x) -> the larger of x and softplus(min(x, 10))."""
    import torch

    x = at.value("x")
    small = at.make.op("minimum", {"x": x, "y": LARGE})
    result = at.make.op("maximum", {"x": x, "y": at.make.op("softplus", {"x": small})})
    return at.mend(result, [x], lambda x: torch.logaddexp(x, torch.zeros(())))


def atan2_zero(at: At) -> Mend:
    """coremltools 9.0's ops of atan2(y, x) -> fewer ops, right where y is 0 and x negative.

    The sign of a zero is not read: atan2(-0.0, -1) is pi, as Apple's later converter has it.
    """
    import torch

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
    values = {y.name: FINITE, x.name: FINITE}
    return at.mend(result, [y, x], lambda y, x: torch.atan2(y + 0.0, x + 0.0), values=values)


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


REWRITES = {
    "pow-two": pow_two, "mod-sign": mod_sign, "reciprocal-epsilon": reciprocal_epsilon,
    "infinite-clip": infinite_clip, "softplus-large": softplus_large, "atan2-zero": atan2_zero,
}  # fmt: skip
