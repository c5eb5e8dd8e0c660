"""Whether an op touches a row of `arithmetic.toml`: what is in question there can happen in it.

Each row has a predicate on an op of one of its types, by the row's id. It looks at declared types,
constants, and between which numbers values lie (`ranges.py`), and says no only where no input
comes that far.
"""

from collections.abc import Callable
from itertools import zip_longest
from math import inf
from typing import Any

from mlprogram.analysis.ranges import Ranges
from mlprogram.errors import InvalidPackage
from mlprogram.package.function import Function, Operation
from mlprogram.package.values import Constant
import numpy as np

FLOATS = ("fp16", "fp32", "bf16")
WHOLE_IN_SINGLE = 1 << 24  # up to here single precision has every whole number
SOFTPLUS_LIMIT = 10.4  # where the engine's exponential no longer fits, by the reports


class Facts(Ranges):
    """What is known of a function's values without an input."""

    def __init__(self, function: Function):
        super().__init__(function)
        version = function.opset.removeprefix("CoreML")
        self.opset = int(version) if version.isdigit() else 0

    def value(self, operation: Operation, key: str, default: object = None) -> Any:
        """A parameter as a Python value; `default` if it is absent, None if it is computed."""
        if key not in operation.inputs:
            return default
        constant = self.constant(operation.inputs[key][0])
        return None if constant is None else constant.value

    def item(self, operation: Operation, key: str = "x") -> str | Constant:
        """The value or the constant that an op reads as `key`."""
        return operation.inputs[key][0]

    def shape(self, operation: Operation, key: str = "x") -> tuple[int | None, ...]:
        return self.type(self.item(operation, key)).shape


def touches(row: str, operation: Operation, facts: Facts) -> bool:
    """Whether an op of one of a row's types comes to what the row is about. Raises InvalidPackage
    for an op whose inputs it cannot have."""
    predicate = PREDICATES.get(row)
    try:
        return predicate is None or predicate(operation, facts)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise InvalidPackage(
            f"op {operation.type!r} ({operation.name!r}) has inputs that it cannot have ({error})"
        ) from error


def _operands(operation: Operation) -> list[str | Constant]:
    return [operation.inputs[key][0] for key in ("x", "y")]


def _base_two(operation: Operation, facts: Facts) -> bool:
    """The condition of coremltools' pass `decompose_const_base2_pow` (its pull request 2742)."""
    base = facts.constant(facts.item(operation))
    if base is None or base.type.dtype not in ("fp16", "fp32"):
        return False
    return bool((base.array() == 2).all())


def _beyond_single(operation: Operation, facts: Facts) -> bool:
    if operation.outputs[0][1].dtype != "int32":
        return False
    found = [facts.of(item) for item in (*_operands(operation), operation.outputs[0][0])]
    return any(max(abs(low), abs(high)) > WHOLE_IN_SINGLE for low, high in found)


def _windows(operation: Operation, facts: Facts) -> list[tuple[float, int, int, int]]:
    """Of each axis that a pool's windows move along: its size, the padding before and after it, and
    where its last window begins, counted from the padding. An open size gives infinity."""
    kernel = facts.value(operation, "kernel_sizes") or []
    strides = facts.value(operation, "strides", [1] * len(kernel)) or [1] * len(kernel)
    pad_type = str(facts.value(operation, "pad_type", "valid")).lower()
    pad = facts.value(operation, "pad") if pad_type == "custom" else None
    pads = pad or [0] * (2 * len(kernel))
    sizes, made = facts.shape(operation)[2:], operation.outputs[0][1].shape[2:]
    found = []
    for i, (size, count, stride) in enumerate(zip(sizes, made, strides, strict=False)):
        last = (count - 1) * stride if count else 0
        found.append((size or inf, pads[2 * i], pads[2 * i + 1], last))
    return found


def _overhangs(operation: Operation, facts: Facts) -> bool:
    """A last window of `ceil_mode` reaches beyond the padding, and all of it counts."""
    if not facts.value(operation, "ceil_mode", False):
        return False
    kernel = facts.value(operation, "kernel_sizes") or []
    spans = zip(_windows(operation, facts), kernel, strict=False)
    return any(
        size == inf or last + k > before + size + after for (size, before, after, last), k in spans
    )


def _padding_alone(operation: Operation, facts: Facts) -> bool:
    """A window begins behind the last element, by the declared shape."""
    return any(last >= before + size for size, before, _, last in _windows(operation, facts))


def _unchecked(operation: Operation, facts: Facts) -> bool:
    """Indices are declared not to be checked."""
    return facts.value(operation, "validate_indices") is False


def _below(operation: Operation, facts: Facts) -> bool:
    return _unchecked(operation, facts) and facts.of(facts.item(operation, "indices"))[0] < 0


def _beyond(operation: Operation, facts: Facts) -> bool:
    if not _unchecked(operation, facts):
        return False
    sizes = facts.shape(operation, "x" if "x" in operation.inputs else "data")
    if operation.type in ("gather_nd", "scatter_nd"):
        first = facts.value(operation, "batch_dims", 0) or 0
        depth = facts.shape(operation, "indices")[-1] or len(sizes)
        looked = sizes[first : first + depth]
    else:
        axis = facts.value(operation, "axis", 0)
        looked = sizes if not isinstance(axis, int) else (sizes[axis],)
    return facts.of(facts.item(operation, "indices"))[1] >= min((n or 0 for n in looked), default=0)


def _unsaid_validation(operation: Operation, facts: Facts) -> bool:
    """From iOS 17 on, a parameter that is documented as optional is left out."""
    return facts.opset >= 7 and not {"validate_indices", "axis"} <= {
        *operation.inputs, *(["axis"] if operation.type == "gather_nd" else [])
    }  # fmt: skip


def _closed_row(operation: Operation, facts: Facts) -> bool:
    """A mask leaves nothing open in some row, or may."""
    if "attn_mask" not in operation.inputs:
        return False
    mask = facts.array(facts.item(operation, "attn_mask"))
    if mask is None:
        return True
    return bool((~mask if mask.dtype == bool else np.isneginf(mask)).all(-1).any())


def _range_ends(operation: Operation, facts: Facts) -> bool:
    """An end that is computed, or no number in between."""
    given = [facts.value(operation, key) for key in ("start", "end", "step")]
    return None in given or (given[1] - given[0]) * given[2] <= 0


def _fractions(operation: Operation, facts: Facts) -> bool:
    step = facts.value(operation, "step")
    is_whole = step is not None and float(step).is_integer()
    return operation.outputs[0][1].dtype in FLOATS and not is_whole


def _cast_from(dtypes: tuple[str, ...]) -> Callable[[Operation, Facts], bool]:
    """A cast of these dtypes to whole numbers, of values that its result may not have."""

    def predicate(operation: Operation, facts: Facts) -> bool:
        item, made = facts.item(operation), operation.outputs[0][1].dtype
        if facts.type(item).dtype not in dtypes or made == "bool" or made in FLOATS:
            return False
        low, high = facts.of(item)
        bits = int(made.removeprefix("u").removeprefix("int"))
        least, most = (0, 2**bits) if made[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1))
        return low <= least - 1 or high >= most

    return predicate


def _order_of_ends(operation: Operation, facts: Facts) -> bool:
    low, high = (facts.value(operation, key) for key in ("alpha", "beta"))
    return low is not None and high is not None and low >= high


def _reflected_far(operation: Operation, facts: Facts) -> bool:
    if facts.value(operation, "mode", "constant") != "reflect":
        return False
    pad = facts.value(operation, "pad") or []
    sizes = facts.shape(operation)[::-1]
    pairs = zip_longest(pad[-2::-2], pad[::-2], sizes, fillvalue=0)
    return any(max(a or 0, b or 0) > (n or 0) - 1 for a, b, n in list(pairs)[: len(pad) // 2])


def _kernel_of_three_by_two(operation: Operation, facts: Facts) -> bool:
    pads, strides = (facts.value(operation, key) for key in ("pad", "strides"))
    kernel = facts.shape(operation, "weight")[2:]
    return kernel == (3, 2) and pads == [1] * 4 and strides == [2, 2]


def _kernel_of_seven(operation: Operation, facts: Facts) -> bool:
    said = [facts.value(operation, key) for key in ("kernel_sizes", "strides", "pad")]
    return said == [[7, 7], [4, 4], [3, 3, 3, 3]]


def _cut_result(operation: Operation, facts: Facts) -> bool:
    """The shape that is given is not the one that a transposed convolution has anyhow."""
    if "output_shape" not in operation.inputs:
        return False
    kernel, made = facts.shape(operation, "weight")[2:], operation.outputs[0][1].shape[2:]
    ones, nothing = [1] * len(kernel), [0] * (2 * len(kernel))
    strides, dilations = (facts.value(operation, k, ones) for k in ("strides", "dilations"))
    is_padded = str(facts.value(operation, "pad_type", "valid")).lower() == "custom"
    pad = facts.value(operation, "pad", nothing) if is_padded else nothing
    whole = [
        (n - 1) * s + d * ((k or 0) - 1) + 1 - before - after if n else None
        for n, s, d, k, before, after in zip(
            facts.shape(operation)[2:], strides, dilations, kernel, pad[::2], pad[1::2], strict=True
        )
    ]
    return [*made] != whole


def _is_real(operation: Operation, facts: Facts) -> bool:
    """Its input is of floats that are computed at run time."""
    item = facts.item(operation)
    return facts.constant(item) is None and facts.type(item).dtype in FLOATS


#: By a row's id; a row without a predicate is touched by every op of its types.
PREDICATES: dict[str, Callable[[Operation, Facts], bool]] = {
    "mod-sign": lambda o, facts: any(facts.of(item)[0] < 0 for item in _operands(o)),
    "pow-base-two": _base_two,
    "int32-single": _beyond_single,
    "avg-pool-overhang": _overhangs,
    "max-pool-padding": _padding_alone,
    "avg-pool-seven": _kernel_of_seven,
    "conv-three-by-two": _kernel_of_three_by_two,
    "conv-transpose-shape": _cut_result,
    "sort-nan": _is_real,
    "argmax-nan": _is_real,
    "topk-near-equal": _is_real,
    "log-sum-exp": _is_real,
    "band-part-infinity": _is_real,
    "gather-negative": _below,
    "gather-nd-negative": _below,
    "gather-beyond": _beyond,
    "gather-nd-first": lambda o, facts: facts.constant(facts.item(o, "indices")) is None,
    "gather-validate": _unsaid_validation,
    "gather-bool": lambda o, facts: facts.type(
        facts.item(o, "x" if "x" in o.inputs else "data")
    ).dtype == "bool",
    "matmul-rank-one": lambda o, facts: 1 in [len(facts.type(i).shape) for i in _operands(o)],
    "product-int32": lambda o, facts: facts.type(facts.item(o)).dtype == "int32",
    "attention-closed-row": _closed_row,
    "attention-batch": lambda o, facts: (facts.shape(o, "query")[0] or 10) >= 10,
    "softplus-engine": lambda o, facts: facts.of(facts.item(o))[1] > SOFTPLUS_LIMIT,
    "log-epsilon": lambda o, facts: "epsilon" not in o.inputs and facts.of(facts.item(o))[0] <= 0,
    "inverse-epsilon": lambda o, _: "epsilon" not in o.inputs,
    "select-broadcast": lambda o, facts: len({facts.shape(o, k) for k in ("cond", "a", "b")}) > 1,
    "range-empty": _range_ends,
    "range-fractions": _fractions,
    "cast-outside": _cast_from(FLOATS),
    "cast-int16": _cast_from(("int32",)),
    "clip-order": _order_of_ends,
    "pad-reflect": _reflected_far,
}  # fmt: skip
