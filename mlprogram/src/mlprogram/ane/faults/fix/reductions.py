"""Exact rewrites of ops over axes: bands, norms, sums of exponentials, attention."""

from math import sqrt

from mlprogram.ane.faults.fix.edit import Typed
from mlprogram.ane.faults.fix.mend import FINITE, At, Mend, Rewrite, Unmended
import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

CLOSED = -40_000.0  # what a mask adds to a score that does not count
DEFAULT_EPSILON = 1e-5  # what coremltools writes where torch's rms_norm is given none
SCORES = (0.0, 1.0, -1.0, 0.5, -2.5, 10.0, -10.0, 100.0, -100.0)


def band_infinite(at: At) -> Mend:
    """x - band_part(x) -> select by the band; what is dropped gives 0, an infinity too."""
    band, x = at.maker("y", at.operation), at.value("x")
    if band.type != "band_part" or at.value("x", band) != x:
        raise Unmended("it is not x less a band of x")
    lower, upper = (int(at.setting(key, -1, band)) for key in ("lower", "upper"))
    if min(lower, upper) >= 0 or None in x.type.shape:
        raise Unmended("its band has two edges, or the size of its input is open")
    ones, zeros = _full(at, x, 1.0), _full(at, x, 0.0)
    inside = at.make.op("band_part", {"x": ones, "lower": lower, "upper": upper})
    cond = at.make.op("cast", {"x": inside, "dtype": "bool"}, "bool")
    result = at.make.op("select", {"cond": cond, "a": zeros, "b": x}, x.type.dtype)

    def meant(x):
        return torch.triu(x, upper + 1) if upper >= 0 else torch.tril(x, -lower - 1)

    return at.mend(result, [x], meant)


def _full(at: At, like: Typed, value: float) -> Typed:
    shape = np.array(like.type.sizes, np.int32)
    given = {"shape": shape, "value": value}
    return at.make.op("fill", given, like.type.dtype, like.type.shape)


def rms_norm_epsilon(at: At) -> Mend:
    """x / (m sqrt(mean((x / m)^2) + eps)), m the largest |x| -> with eps / m^2 in place of eps.

    m is taken as at least 1: less needs no scaling, and 0 cannot be divided by.
    """
    at.operation = at.back_to("add", 3)
    mean, eps = at.maker("x", at.operation), at.setting("y")
    if mean.type != "reduce_mean" or not isinstance(eps, float):
        raise Unmended("its ops are not those of coremltools 9.0's rms_norm")
    if np.isclose(eps, DEFAULT_EPSILON, rtol=1e-3, atol=0):
        raise Unmended("its epsilon of 1e-5 may stand for torch's default, 1.19e-7")
    scaled = at.maker("x", at.maker("x", mean))
    x, axes = at.value("x", scaled), at.setting("axes", None, mean)
    for kind in ("sqrt", "mul", "real_div"):
        at.operation = at.reader(kind)
    make, over = at.make, {"axes": np.array(axes, np.int32), "keep_dims": True}
    kept = mean.outputs[0][1].shape
    largest = make.op("reduce_max", {"x": make.op("abs", {"x": x}), **over}, shape=kept)
    scale = make.op("maximum", {"x": largest, "y": 1.0})
    square = make.op("square", {"x": make.op("real_div", {"x": x, "y": scale})})
    power = make.op("reduce_mean", {"x": square, **over}, shape=kept)
    share = make.op("square", {"x": make.op("real_div", {"x": sqrt(eps), "y": scale})})
    root = make.op("sqrt", {"x": make.op("add", {"x": power, "y": share})})
    length = make.op("mul", {"x": root, "y": scale})
    result = make.op("real_div", {"x": x, "y": length})

    def meant(x):
        return x * torch.rsqrt(x.square().mean(axes, keepdim=True) + eps)

    return at.mend(result, [x], meant, values={x.name: FINITE}, ulps=8)


def log_sum_exp(at: At) -> Mend:
    """reduce_log_sum_exp(x) -> m + log(sum(exp(x - m))), m the largest of x."""
    x, keep = at.value("x"), bool(at.setting("keep_dims", False))
    axes = at.setting("axes") or [*range(len(x.type.shape))]
    make, over = at.make, {"axes": np.array(axes, np.int32), "keep_dims": True}
    axes = [axis % len(x.type.shape) for axis in axes]
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(x.type.shape))
    largest = make.op("reduce_max", {"x": x, **over}, shape=kept)
    powers = make.op("exp", {"x": make.op("sub", {"x": x, "y": largest})})
    total = make.op("reduce_sum", {"x": powers, **over}, shape=kept)
    log = make.op("log", {"x": total, "epsilon": np.float32(0)})
    result = make.op("add", {"x": largest, "y": log})
    if not keep:
        shape = at.type.shape
        result = make.op("squeeze", {"x": result, "axes": over["axes"]}, shape=shape)

    def meant(x):
        return torch.logsumexp(x, axes, keep)

    return at.mend(result, [x], meant, values={x.name: FINITE}, size=1.0)


def attention(at: At) -> Mend:
    """scaled_dot_product_attention -> products and a softmax, the mask finite.

    Scores beyond 65,504 overflow, as in all attention that is written out in half precision. A row
    that the mask closes altogether gets the mean of the values, where the description gives NaN and
    PyTorch 2.13 gives 0.
    """
    query, key, value = (at.value(name) for name in ("query", "key", "value"))
    size = query.type.shape[-1]
    if size is None:
        raise Unmended("the size of its heads is open")
    make, dtype = at.make, at.type.dtype
    scaled = make.op("mul", {"x": query, "y": 1 / sqrt(size)})
    shape = (*query.type.shape[:-1], key.type.shape[-2])
    flags = {"transpose_x": False, "transpose_y": True}
    scores = make.op("matmul", {"x": scaled, "y": key, **flags}, shape=shape)
    given = [query, key, value]
    if at.graph.item(at.operation, "attn_mask") is not None:
        mask = at.value("attn_mask")
        given.append(mask)
        if mask.type.dtype == "bool":
            opened = make.op("cast", {"x": mask, "dtype": dtype}, dtype)
            closed = make.op("sub", {"x": opened, "y": 1.0})
            mask = make.op("mul", {"x": closed, "y": -CLOSED})
        scores = make.op("add", {"x": scores, "y": mask})
    shares = make.op("softmax", {"x": scores, "axis": -1})
    flags = {"transpose_x": False, "transpose_y": False}
    result = make.op("matmul", {"x": shares, "y": value, **flags}, shape=at.type.shape)
    values = {one.name: (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0) for one in given}
    return at.mend(result, given, scaled_dot_product_attention, values=values, sums=True, ulps=8)


def log_softmax(at: At) -> Mend:
    """log(softmax(x)) -> x - m - log(sum(exp(x - m))), m the largest of x."""
    softmax = at.maker("x", at.operation)
    x, axis = at.value("x", softmax), int(at.setting("axis", -1, softmax))
    rank = len(x.type.shape)
    kept = tuple(1 if i == axis % rank else size for i, size in enumerate(x.type.shape))
    make, over = at.make, {"axes": np.array([axis], np.int32), "keep_dims": True}
    moved = make.op("sub", {"x": x, "y": make.op("reduce_max", {"x": x, **over}, shape=kept)})
    total = make.op("reduce_sum", {"x": make.op("exp", {"x": moved}), **over}, shape=kept)
    log = make.op("log", {"x": total, "epsilon": np.float32(0)})
    result = make.op("sub", {"x": moved, "y": log})
    values = {x.name: SCORES}
    return at.mend(result, [x], lambda x: torch.log_softmax(x, axis), values=values, size=1.0)


REWRITES: dict[str, Rewrite] = {
    "band-infinite": band_infinite,
    "rms-norm-epsilon": rms_norm_epsilon, "log-sum-exp": log_sum_exp,
    "log-of-softmax": log_softmax, "attention-mask-ignored": attention,
    "attention-large-heads": attention, "attention-cpu": attention,
    "attention-mask-flexible": attention,
}  # fmt: skip
