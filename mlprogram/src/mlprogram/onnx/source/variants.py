"""What may be changed of a node: its settings, its weights, the order of its operands' axes.

Each change has a kind, the word by which conversions go wrong in reports: axis, epsilon, padding,
align_corners, layout, weights, bias and so on. Numbers that may stand in a setting's place are
those that the package stores, so that an epsilon or a limit is the package's own.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import permutations, product
from math import erf, pi, prod, sqrt
from typing import Any

from mlprogram.onnx.source.graph import SourceNode
import numpy as np

Numbers = list[float]  # that a package stores


@dataclass(frozen=True)
class Variant:
    """A change to a node: other settings, or other values of what it reads, by name."""

    kind: str
    text: str
    settings: Mapping[str, Any] | None = None
    values: Mapping[str, np.ndarray] = field(default_factory=dict)


#: Settings that choose among words -> the words, of ATen and of ONNX.
WORDS = {
    "approximate": ("none", "tanh"),
    "mode": (
        "constant", "reflect", "replicate", "circular", "edge", "wrap", "nearest", "linear",
        "cubic", "bilinear", "bicubic",
    ),
    "coordinate_transformation_mode": (
        "half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "tf_crop_and_resize",
    ),
    "nearest_mode": ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    "rounding_mode": ("floor", "trunc"),
    "auto_pad": ("SAME_UPPER", "SAME_LOWER", "VALID"),
    "direction": ("forward", "reverse"),
}  # fmt: skip

#: Settings that are off or on; in ONNX 0 or 1.
SWITCHES = {
    "align_corners", "ceil_mode", "count_include_pad", "keepdims", "exclusive", "reverse",
    "transA", "transB", "linear_before_reset", "center_point_box", "largest",
}  # fmt: skip

#: Settings -> the word for what is wrong with them.
KINDS = {
    "approximate": "activation", "eps": "epsilon", "epsilon": "epsilon", "dim": "axis",
    "axis": "axis", "axes": "axis", "coordinate_transformation_mode": "align_corners",
    "align_corners": "align_corners", "ceil_mode": "rounding of the size",
    "nearest_mode": "rounding", "rounding_mode": "rounding", "mode": "mode", "pads": "padding",
    "padding": "padding", "pad": "padding", "auto_pad": "padding", "stride": "stride",
    "strides": "stride", "dilation": "dilation", "dilations": "dilation", "min": "limits",
    "max": "limits", "min_val": "limits", "max_val": "limits", "value": "constant",
    "transA": "layout", "transB": "layout", "divisor_override": "average",
    "count_include_pad": "average", "kernel_size": "kernel", "kernel_shape": "kernel",
    "negative_slope": "slope", "alpha": "slope", "other": "constant",
}  # fmt: skip
EPSILONS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-12, 0.0)


def _each(function: Callable) -> Callable:
    return np.vectorize(function, otypes=[np.float64])


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(x, -700, 700)))


#: What a package may compute in an activation's place; x is float64.
ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "GELU by tanh": lambda x: x / 2 * (1 + np.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))),
    "GELU by erf": lambda x: x / 2 * (1 + _each(erf)(x / sqrt(2))),
    "GELU by sigmoid": lambda x: x * _sigmoid(1.702 * x),
    "SiLU": lambda x: x * _sigmoid(x),
    "hard swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "Mish": lambda x: x * np.tanh(np.logaddexp(0, x)),
    "ELU": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
    "softplus": lambda x: np.logaddexp(0, x),
    "ReLU6": lambda x: np.clip(x, 0, 6),
    "ReLU": lambda x: np.maximum(x, 0),
    "leaky ReLU (0.01)": lambda x: np.where(x > 0, x, 0.01 * x),
    "hard sigmoid (x / 6 + 1/2)": lambda x: np.clip(x / 6 + 0.5, 0, 1),
    "hard sigmoid (x / 5 + 1/2)": lambda x: np.clip(x / 5 + 0.5, 0, 1),
    "the sigmoid": _sigmoid,
    "tanh": np.tanh,
    "softmax over the last axis": lambda x: np.exp(x - x.max(-1, keepdims=True))
    / np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True),
}


def setting_variants(
    node: SourceNode, numbers: Numbers
) -> Iterator[tuple[dict[str, Any], str, str]]:
    """(settings, kind, text) for every change to one setting, or to two that belong together."""
    for name, old in node.settings.items():
        for new in _others(node.settings, name, numbers):
            if new != old:
                kind = KINDS.get(name, name)
                text = f"the package computes it with {name} {_said(new)}, the source has " \
                    f"{_said(old)}"
                yield {**node.settings, name: new}, kind, text
    yield from _windows(node)


def _windows(node: SourceNode) -> Iterator[tuple[dict[str, Any], str, str]]:
    """Another dilation with the padding that keeps the size."""
    for dilation, padding in (("dilation", "padding"), ("dilations", "pads")):
        old, sides = node.settings.get(dilation), node.settings.get(padding)
        if isinstance(old, list) and isinstance(sides, list) and old:
            for d, p in product((1, 2, 3), range(5)):
                new = {dilation: [d] * len(old), padding: [p] * len(sides)}
                if new[dilation] != old:
                    text = f"the package computes it with {dilation} {d}, the source has {old}"
                    yield {**node.settings, **new}, "dilation", text


def _others(settings: Mapping[str, Any], name: str, numbers: Numbers) -> Iterable[Any]:
    """What may stand in a setting's place."""
    old = settings[name]
    if name in SWITCHES and old in (0, 1):
        return [type(old)(1 - old)]
    if isinstance(old, bool):  # such as whether an LSTM has biases, which its operands decide
        return []
    if name == "divisor_override" and old is None:
        kernel = settings["kernel_size"]
        return [prod(kernel if len(kernel) > 1 else 2 * kernel)]
    if isinstance(old, str):
        return WORDS.get(name, ())
    if name in ("eps", "epsilon"):
        return [*numbers, *EPSILONS]
    if name in ("dim", "axis") and isinstance(old, int):
        return range(-4, 4)
    if name in ("dim", "axes") and isinstance(old, list) and len(old) == 1:
        return [[axis] for axis in range(-4, 4)]
    if isinstance(old, list) and old and all(isinstance(each, int) for each in old):
        return _sizes(old)
    if isinstance(old, float) or (old is not None and name in ("value", "min", "max")):
        return [*numbers, -old, 1.0, 0.0]
    return []


def _sizes(old: list[int]) -> list[list[int]]:
    """Strides, paddings and the like: all equal, the other way round, or unequal on two sides."""
    half = len(old) // 2
    same = [[size] * len(old) for size in range(5)]
    one_sided = [[a] * half + [b] * half for a, b in product(range(3), repeat=2)] if half else []
    return [*same, old[::-1], old[half:] + old[:half], *one_sided]


def value_variants(
    node: SourceNode,
    values: Mapping[str, Any],
    constants: set[str],
    numbers: Numbers,
) -> Iterator[Variant]:
    """Changes to what a node reads: its constants, then the values that are computed."""
    arrays = {n: values[n] for n in node.inputs if isinstance(values.get(n), np.ndarray)}
    real = {n: a for n, a in arrays.items() if a.dtype.kind == "f"}
    for name, array in real.items():
        if name in constants:
            yield from _of_constant(name, array, numbers)
    if "lstm" in node.op.lower() or "gru" in node.op.lower():
        weights = {name: real[name] for name in real if name in constants}
        yield from (*_half_biases(weights), *_gates(weights))
    yield from _exchanged(arrays)
    computed = {name: array for name, array in real.items() if name not in constants}
    for name, array in computed.items():
        yield from _of_operand(name, array)


def _of_constant(name: str, array: np.ndarray, numbers: Numbers) -> Iterator[Variant]:
    if np.squeeze(array).ndim <= 1:
        text = f"the package leaves {name!r} out, or has zeros for it"
        yield Variant("bias" if array.size > 1 else "constant", text, None,
                      {name: np.zeros_like(array)})
    for order, moved in reordered(array):
        text = f"the package has {name!r} with its axes by {order}"
        yield Variant("weights", text, None, {name: moved})
    for axis in range(array.ndim):
        if array.shape[axis] > 1:
            text = f"the package has {name!r} in reverse along axis {axis}"
            yield Variant("order", text, None, {name: np.flip(array, axis).copy()})
    yield Variant("sign", f"the package has {name!r} with the other sign", None, {name: -array})
    distinct = np.unique(array)
    if len(distinct) <= 2:  # a number, or a mask of two
        for number in numbers:
            changed = np.where(array == distinct[0], number, array).astype(array.dtype)
            text = f"the package has {number:.6g} for {distinct[0]:.6g} in {name!r}"
            yield Variant("constant", text, None, {name: changed})


def _exchanged(arrays: Mapping[str, np.ndarray]) -> Iterator[Variant]:
    for a, b in permutations(arrays, 2):
        if a < b and arrays[a].shape == arrays[b].shape and arrays[a].dtype == arrays[b].dtype:
            text = f"the package has {a!r} and {b!r} in each other's place"
            yield Variant("operands", text, None, {a: arrays[b], b: arrays[a]})


def _half_biases(weights: Mapping[str, np.ndarray]) -> Iterator[Variant]:
    """ONNX keeps the biases of the input and of the state side by side, (directions, 2 x rows)."""
    for name, array in weights.items():
        for half, what in enumerate(("input", "state")):
            if array.ndim == 2 and array.shape[1] % 2 == 0:
                changed = array.copy()
                np.split(changed, 2, axis=1)[half][:] = 0
                text = f"the package leaves the bias of the {what} in {name!r} out"
                yield Variant("bias", text, None, {name: changed})


def _gates(weights: Mapping[str, np.ndarray]) -> Iterator[Variant]:
    """Blocks of rows in another order: in each of an LSTM's or GRU's weights, and in all."""
    for count in (4, 3):
        for order in list(permutations(range(count)))[1:]:
            moved = {
                name: np.concatenate([np.split(array, count, axis)[gate] for gate in order], axis)
                for name, array in weights.items()
                for axis in [max(0, array.ndim - 2) if array.ndim > 2 else 0]
                if array.shape[axis] % count == 0
            }
            text = f"the package has the gates in the order {order}"
            yield from (Variant("gates", text, None, {n: a}) for n, a in moved.items())
            yield Variant("gates", text, None, moved)


def _of_operand(name: str, array: np.ndarray) -> Iterator[Variant]:
    for order, moved in reordered(array):
        text = f"the package reads {name!r} with its axes by {order}"
        yield Variant("layout", text, None, {name: moved})
    for axis in range(array.ndim):
        if array.shape[axis] > 1:
            text = f"the package reads {name!r} backwards along axis {axis}"
            yield Variant("order", text, None, {name: np.flip(array, axis).copy()})
    text = f"the package reads {name!r} with the other sign"
    yield Variant("sign", text, None, {name: -array})


def reordered(array: np.ndarray) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """An array with its axes in another order, read in the shape that it has."""
    squeezed = array.reshape([size for size in array.shape if size != 1])
    if not 2 <= squeezed.ndim <= 4:
        return
    for order in permutations(range(squeezed.ndim)):
        if list(order) != sorted(order):
            moved = squeezed.transpose(order).reshape(array.shape)
            yield order, np.ascontiguousarray(moved)


def compared_weights(theirs: np.ndarray, ours: np.ndarray) -> tuple[str, str]:
    """How a package's weights differ from the source's: a kind and words."""
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    for axis in range(b.ndim):
        others = tuple(other for other in range(b.ndim) if other != axis)
        power = np.maximum((b**2).sum(axis=others, keepdims=True), 1e-30)
        factor = (a * b).sum(axis=others, keepdims=True) / power
        if b.size > b.shape[axis] and np.abs(a - factor * b).max() <= 0.02 * np.abs(a).max():
            low, high = float(factor.min()), float(factor.max())
            times = " to ".join(dict.fromkeys([f"{low:.4g}", f"{high:.4g}"]))
            return "scale", f"it is {times} times as large along axis {axis}"
    apart = np.abs(a - b) > 1e-3 * np.abs(b).max()
    return "weights", f"{int(apart.sum()):,} of {b.size:,} numbers differ"


def _said(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
