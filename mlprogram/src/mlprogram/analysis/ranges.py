"""Between which numbers the values of a function lie, as far as its ops tell without an input.

Intervals of real numbers, worked out op by op: a remainder whose operands are sizes is of numbers
that are not negative, an index that `argmax` gives is below the axis it looks along. A value that
nothing bounds has the numbers of its dtype. NaN lies in no interval and is left out of all of them.
"""

from collections.abc import Callable
from functools import cached_property
from math import inf, isnan, prod

from mlprogram.package.function import Function, Operation
from mlprogram.package.values import Constant, TensorType
import numpy as np

Interval = tuple[float, float]

UNKNOWN = TensorType("", ())  # of a value that nothing makes, which is refused before it is run

#: Constants with more elements are weights; their numbers are not looked at.
MOST_ELEMENTS = 1 << 16

#: Axes that a program leaves open are taken to be shorter; Core ML's own limits are far below.
LONGEST_AXIS = 1 << 22

WHOLE: dict[str, Interval] = {
    "bool": (0, 1), "int8": (-(1 << 7), (1 << 7) - 1), "uint8": (0, (1 << 8) - 1),
    "int16": (-(1 << 15), (1 << 15) - 1), "uint16": (0, (1 << 16) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1), "uint32": (0, (1 << 32) - 1),
}  # fmt: skip

#: Beyond its greatest number a dtype has infinity.
GREATEST = {
    "fp16": float(np.finfo(np.float16).max), "fp32": float(np.finfo(np.float32).max),
    "bf16": float(np.finfo(np.float32).max),
}  # fmt: skip

#: Ops whose results are some of the numbers that these inputs hold.
PASSING = {
    "identity": ["x"], "reshape": ["x"], "transpose": ["x"], "squeeze": ["x"], "expand_dims": ["x"],
    "slice_by_index": ["x"], "slice_by_size": ["x"], "split": ["x"], "tile": ["x"], "gather": ["x"],
    "gather_along_axis": ["x"], "gather_nd": ["x"], "reverse": ["x"], "flatten2d": ["x"],
    "reshape_like": ["x"], "reduce_max": ["x"], "reduce_min": ["x"], "reduce_mean": ["x"],
    "stack": ["values"], "concat": ["values"], "select": ["a", "b"],
    "slice_update": ["x", "update"], "range_1d": ["start", "end"],  # or between them
}  # fmt: skip

SUMS = ("reduce_sum", "cumsum")

#: Ops whose results are places along an axis.
PLACES = ("reduce_argmax", "reduce_argmin", "argsort", "non_zero", "shape")

FIXED: dict[str, Interval] = {
    "sigmoid": (0, 1), "softmax": (0, 1), "relu6": (0, 6), "sigmoid_hard": (0, 1), "tanh": (-1, 1),
    "sin": (-1, 1), "cos": (-1, 1), "sign": (-1, 1), "erf": (-1, 1), "exp": (0, inf),
    "exp2": (0, inf), "sqrt": (0, inf), "rsqrt": (0, inf), "softplus": (0, inf),
    "reduce_l1_norm": (0, inf), "reduce_l2_norm": (0, inf), "reduce_sum_square": (0, inf),
}  # fmt: skip


class Ranges:
    """The intervals of one function's values; `of(item)` is that of a value or a constant."""

    def __init__(self, function: Function):
        self.function = function
        self.types: dict[str, TensorType] = function.inputs | function.states
        self.constants: dict[str, Constant] = {}
        for operation in function.operations():
            self.types |= operation.outputs
            for block in operation.blocks:
                self.types |= block.inputs
            if operation.type == "const":
                self.constants[operation.outputs[0][0]] = operation.inputs["val"][0]

    @cached_property
    def known(self) -> dict[str, Interval]:
        """The intervals of all values that ops make; worked out when the first is asked for."""
        self.known = found = {}  # which the later ops read
        for operation in self.function.operations():
            for index, (name, type_) in enumerate(operation.outputs):
                if operation.type != "const":
                    found[name] = self._fitting(self._made(operation, index), type_)
        return found

    def type(self, item: str | Constant) -> TensorType:
        """The declared type of a value or a constant."""
        return self.types.get(item, UNKNOWN) if isinstance(item, str) else item.type

    def constant(self, item: str | Constant) -> Constant | None:
        """A constant that is stored as it is; None of a compressed one, a value, or one whose file
        is not there."""
        constant = self.constants.get(item) if isinstance(item, str) else item
        return constant if constant is not None and constant.is_there else None

    def array(self, item: str | Constant) -> np.ndarray | None:
        """The numbers of a constant that is no weight; None of any other value."""
        constant = self.constant(item)
        if constant is None or constant.type.dtype == "string":
            return None
        return None if prod(constant.type.sizes) > MOST_ELEMENTS else constant.array()

    def of(self, item: str | Constant) -> Interval:
        """The least and the greatest number that a value may hold."""
        array = self.array(item)
        if array is not None and array.size:
            with np.errstate(all="ignore"):
                low, high = float(np.nanmin(array)), float(np.nanmax(array))
            return (-inf, inf) if isnan(low) else (low, high)
        if isinstance(item, Constant) or item in self.constants:
            return -inf, inf
        return self.known.get(item) or WHOLE.get(self.type(item).dtype, (-inf, inf))

    def _fitting(self, found: Interval, type_: TensorType) -> Interval:
        """The interval, or all numbers of the dtype where whole numbers may wrap around; what is
        beyond the greatest float is infinite."""
        if (most := GREATEST.get(type_.dtype)) is not None:
            low, high = found  # either may be NaN, of infinity less infinity
            return low if low >= -most else -inf, high if high <= most else inf
        low, high = WHOLE.get(type_.dtype, (-inf, inf))
        fits = low <= found[0] and found[1] <= high and type_.dtype != "bool"
        return found if fits else (low, high)

    def _made(self, operation: Operation, index: int) -> Interval:
        """What an op makes of the intervals of its inputs."""
        type_ = operation.type
        if type_ in FIXED:
            return FIXED[type_]
        if type_ in PLACES or (type_ == "topk" and index == 1):
            return self._place(operation)
        if type_ in SUMS:
            return self._sum(operation)
        if type_ in PASSING:
            given = [operation.inputs.get(key, []) for key in PASSING[type_]]
            return _union([self.of(item) for items in given for item in items])
        rule = RULES.get(type_)
        if rule is None or not {"x"} <= operation.inputs.keys():
            return -inf, inf
        x = self.of(operation.inputs["x"][0])
        return rule(x, self.of(operation.inputs["y"][0])) if "y" in operation.inputs else rule(x, x)

    def _place(self, operation: Operation) -> Interval:
        """Of places along an axis, and of sizes: up to the longest axis of x."""
        (item,) = operation.inputs["x"]
        longest = max((n or LONGEST_AXIS for n in self.type(item).shape), default=1)
        return 0, longest if operation.type == "shape" else max(longest - 1, 0)

    def _sum(self, operation: Operation) -> Interval:
        """Of up to all elements of x, at least one of them."""
        (item,) = operation.inputs["x"]
        (low, high), count = self.of(item), prod(n or LONGEST_AXIS for n in self.type(item).shape)
        return min(low, low * count), max(high, high * count)


def _union(intervals: list[Interval]) -> Interval:
    if not intervals:
        return -inf, inf
    return min(low for low, _ in intervals), max(high for _, high in intervals)


def _products(x: Interval, y: Interval) -> Interval:
    found = [0.0 if 0 in (a, b) else a * b for a in x for b in y]  # not 0 * inf
    return min(found), max(found)


def _remainder(x: Interval, y: Interval) -> Interval:
    """Of either sign's reading: below the divisor in magnitude, and 0 or more if both are."""
    most = max(abs(y[0]), abs(y[1]))
    return (0, min(x[1], y[1])) if min(x[0], y[0]) >= 0 else (-most, most)


def _quotient(x: Interval, y: Interval) -> Interval:
    """Of a division by 1 or more, which moves numbers towards 0; floored, down to -1."""
    if y[0] >= 1:
        return min(float(np.floor(x[0])), 0), max(x[1], 0)
    return (0 if min(x[0], y[0]) >= 0 else -inf), inf


def _whole(x: Interval, _: Interval) -> Interval:
    """Of any rounding to whole numbers."""
    return float(np.floor(x[0])), float(np.ceil(x[1]))


#: By op, the interval of a result from those of x and y.
RULES: dict[str, Callable[[Interval, Interval], Interval]] = {
    "add": lambda x, y: (x[0] + y[0], x[1] + y[1]),
    "sub": lambda x, y: (x[0] - y[1], x[1] - y[0]),
    "mul": _products,
    "mod": _remainder,
    "floor_div": _quotient,
    "real_div": _quotient,
    "maximum": lambda x, y: (max(x[0], y[0]), max(x[1], y[1])),
    "minimum": lambda x, y: (min(x[0], y[0]), min(x[1], y[1])),
    "relu": lambda x, _: (max(x[0], 0), max(x[1], 0)),
    "abs": lambda x, _: (0 if x[0] <= 0 <= x[1] else min(map(abs, x)), max(map(abs, x))),
    "square": lambda x, _: (0, max(abs(x[0]), abs(x[1])) ** 2),
    **dict.fromkeys(["floor", "ceil", "round", "cast"], _whole),
}
