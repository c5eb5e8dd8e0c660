"""Attention as one kernel, in the forms in which converters write it.

Scores are q K^T; or K q^T, with softmax over the last axis but one. They may be scaled, a mask may
be added, softmax may be one op or five, or all of attention one op. Keys and values come in one
part or in two (the cache and the new rows). A key head that several query heads share is broadcast,
or repeated by ops that only move data; then the kernel reads it before the repetition.

A slot of the cache that holds only zeros, and to whose score -30,000 or less is added, is skipped:
its weight is e^-30,000.

Letters: B key heads, R query heads that share one, T queries, N slots, D head size.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from math import prod

from mlprogram.kernels.graph import Graph, Match, Unfit, split_sizes
from mlprogram.kernels.native import ops as native_ops
from mlprogram.kernels.native.ops import Rounding
from mlprogram.kernels.pattern import Axis, Const, Named, Via, either, op
from mlprogram.kernels.pattern import OpPattern as Pattern
from mlprogram.kernels.plainly import plainly
from mlprogram.ops import OPS
from mlprogram.package.function import Operation
import torch
from torch import Tensor

#: Ops that only move data. If their parameters are not constant, the search for a head stops there.
MOVES = frozenset(["expand_dims", "reshape", "squeeze", "tile", "transpose"])

Shape = tuple[int, ...]


# --- keys and values that are repeated ------------------------------------------------------------


def repeated(graph: Graph, item: object) -> Iterator[tuple[str, list[Operation], int]]:
    """Yield a value that has each key head once, the ops that repeat it, and how many times."""
    shape, base, found = graph.shape(item), item, None
    path: list[Operation] = []
    steps: tuple[tuple, ...] = ()
    while shape is not None and (step := _step(graph, base)) is not None:
        operation, base, how = step
        path, steps = [*path, operation], (how, *steps)
        times = _times(graph.shape(base), steps, shape)
        if times is not None and times > 1:
            found = (base, path, times)
    if found:
        yield found


def _step(graph: Graph, item: object) -> tuple[Operation, str, tuple] | None:
    """The op that only moves data to make a value, its input, and a key of type and parameters."""
    operation, _ = graph.maker.get(item, (None, 0)) if isinstance(item, str) else (None, 0)
    if operation is None or operation.type not in MOVES or "x" not in operation.inputs:
        return None
    parameters = {key: graph.value(operation, key) for key in operation.inputs if key != "x"}
    before = operation.inputs["x"][0]
    if None in parameters.values() or graph.shape(before) is None:
        return None
    hashable = tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in parameters.items())
    return operation, before, (operation.type, hashable)


@lru_cache(maxsize=256)  # a model's layers repeat the same steps
def _times(shape: Shape | None, steps: tuple, result: Shape) -> int | None:
    """How often each head (.., N, D) is repeated in a row; None if the steps do anything else."""
    if shape is None or len(shape) < 2 or shape[-2:] != result[-2:]:
        return None
    heads, times = prod(shape[:-2]), prod(result[:-2]) // prod(shape[:-2])
    try:  # without memory at first, which an op may want more of than it declares
        if _moved(torch.empty(shape, device="meta"), steps).shape != result:
            return None
    except (IndexError, RuntimeError, TypeError, ValueError):
        return None
    places = torch.arange(heads * shape[-2]).reshape(*shape[:-1], 1)
    wanted = places.reshape(heads, 1, shape[-2], 1).expand(heads, times, *shape[-2:])
    return (
        times if torch.equal(_moved(places.expand(shape), steps), wanted.reshape(result)) else None
    )


def _moved(x: Tensor, steps: tuple) -> Tensor:
    for type_, parameters in steps:
        given = {key: list(v) if isinstance(v, tuple) else v for key, v in parameters}
        x = OPS[type_].function(x, **given)
    return x


# --- the forms ------------------------------------------------------------------------------------


def _weights(scores: Pattern, axis: int) -> object:
    """The pattern of a softmax of scores that may be scaled and masked."""
    scaled = either(
        op("mul", "scaled", x=scores, y=Const("scale")),
        op("real_div", "scaled", x=scores, y=Const("divisor")),
        scores,
    )
    masked = Named("masked", either(op("add", "sum", x=scaled, y="mask"), scaled))
    minus_top = op(
        "sub", x=masked, y=op("reduce_max", "top", x="masked", axes=Axis(axis), keep_dims=True)
    )
    total = op("reduce_sum", "total", x="raised", axes=Axis(axis), keep_dims=True)
    return either(
        op("softmax", "weights", x=masked, axis=Axis(axis)),
        op("real_div", "weights", x=op("exp", "raised", x=minus_top), y=total),
    )


KEYS, VALUES = Via("keys", repeated), Via("values", repeated)

BY_ROWS = op(
    "matmul",
    x=_weights(op("matmul", "scores", x="query", y=KEYS), -1),
    y=VALUES,
    transpose_x=False,
    transpose_y=False,
)

BY_COLUMNS = op(
    "matmul",
    x=_weights(op("matmul", "columns", x=KEYS, y="query", transpose_x=False), -2),
    y=VALUES,
    transpose_x=True,
    transpose_y=False,
)


def _part(index: int) -> Pattern:
    scores = [
        op("matmul", f"scores{i or ''}", x="query", y=f"keys{i or ''}", transpose_y=True)
        for i in range(2)
    ]
    joined = op("concat", values=scores, axis=Axis(-1), interleave=False)
    split = op("split", "split", index, x=_weights(joined, -1), axis=Axis(-1))
    return op("matmul", x=split, y=f"values{index or ''}", transpose_x=False, transpose_y=False)


IN_TWO_PARTS = op("add", x=_part(0), y=_part(1))

AS_ONE_OP = op("scaled_dot_product_attention", "weights", query="query", key=KEYS, value=VALUES)

ATTENTION = (BY_ROWS, BY_COLUMNS, IN_TWO_PARTS, AS_ONE_OP)


# --- conditions, and the kernel -------------------------------------------------------------------

OPERANDS = ("query", "keys", "keys1", "values", "values1", "mask")

SIZES = 64  # that are remembered where a program leaves them open


def prepare(match: Match) -> tuple[list, Callable]:
    """The operands of a matched group, and the kernel; raises Unfit if none fits."""
    if match.named["weights"].type == "scaled_dot_product_attention":
        match = _mask_of_one(match)
    names = [name for name in OPERANDS if name in match]
    types = [match.graph.types[match[name]] for name in names]
    made = match.graph.types[match.result]
    if made.dtype not in ("fp16", "fp32") or any(type_.dtype != made.dtype for type_ in types):
        raise Unfit("its operands differ in dtype, or are no floats")
    dtype, operands = match.graph.constants.dtype(made), [match[name] for name in names]
    if any(None in type_.shape for type_ in types):
        return operands, _for_open_sizes(match, names, dtype)
    shapes = {name: type_.sizes for name, type_ in zip(names, types, strict=True)}
    layout = _Layout(match, shapes)
    declared = match.graph.types[match.named["weights"].outputs[0][0]].shape
    if layout.rows != made.shape or layout.weights != declared:
        raise Unfit(f"it makes {made} by way of {declared}, of queries {layout.rows}")
    return operands, native_ops.fixed(None, layout.run(dtype), dtype, *shapes.values())


def _for_open_sizes(match: Match, names: list[str], dtype: torch.dtype) -> Callable[..., Tensor]:
    """A function that chooses the kernel in each call by the sizes of its operands."""
    plain = plainly(match, [match[name] for name in names])
    prepared: dict[tuple[torch.Size, ...], Callable[..., Tensor]] = {}

    def run(*operands: Tensor) -> Tensor:
        key = tuple(x.shape for x in operands)
        attend = prepared.get(key)
        if attend is None:
            try:
                layout = _Layout(match, dict(zip(names, key, strict=True)))
                attend = native_ops.fixed(plain, layout.run(dtype), dtype, *key)
            except Unfit:
                attend = plain
            if len(prepared) == SIZES:
                prepared.clear()
            prepared[key] = attend
        return attend(*operands)

    return run


def _mask_of_one(match: Match) -> Match:
    """The match of a `scaled_dot_product_attention`, with the mask if it has one."""
    items = match.last.inputs.get("attn_mask")
    if not items:
        return match
    if match.graph.constants.find(items[0]) is not None:
        raise Unfit("its mask is a constant")
    return replace(match, values=match.values | {"mask": items[0]})


class _Layout:
    """How to reshape operands of these shapes for the kernel; raises Unfit if that is impossible.

    rows: the shape of the queries as rows, (.., T, D), and of the result. weights: the shape of the
    softmax's result; that of the whole result if all of attention is one op.
    """

    def __init__(self, match: Match, shapes: dict[str, Shape]):
        self.match, self.shapes = match, shapes
        self.by_columns = "columns" in match.named
        self.as_one = not {"scores", "columns"} & match.named.keys()
        query, keys = shapes["query"], shapes["keys"]
        if any(len(shape) < 2 or 0 in shape for shape in shapes.values()):
            raise Unfit("some of it is empty, or a vector")
        self.turned = self._is_turned()
        self.rows = (*query[:-2], query[-1], query[-2]) if self.turned else query
        self.slots = self._slots()
        self.times = self._times(keys)
        self.mask_rows = self._mask_rows()
        weights = (*self.rows[:-1], sum(self.slots))
        turned = (*weights[:-2], weights[-1], weights[-2]) if self.by_columns else weights
        self.weights = self.rows if self.as_one else turned

    def _is_turned(self) -> bool:
        """Whether queries are columns; raises Unfit if keys are."""
        if self.as_one:
            return False
        if self.by_columns:
            return not self._flag("columns", "transpose_y")
        if not self._flag("scores", "transpose_y"):
            raise Unfit("its keys are columns")
        scores = {"scores", "scores1"} & self.match.named.keys()
        turned = {self._flag(name, "transpose_x") for name in scores}
        if len(turned) > 1:
            raise Unfit("one part reads its queries as rows, the other as columns")
        return turned.pop()

    def _flag(self, name: str, key: str) -> bool:
        """A boolean parameter of a named op; raises Unfit if it is none, or is computed."""
        value = self.match.get(name, key, False)
        if not isinstance(value, bool):
            raise Unfit(f"{key} of its {name} is no constant boolean")
        return value

    def _slots(self) -> tuple[int, ...]:
        """N of each part."""
        shapes, notes = self.shapes, self.match.notes
        parts = [(shapes["keys"], shapes["values"])]
        if "keys1" in shapes:
            parts.append((shapes["keys1"], shapes["values1"]))
        (*heads, _, _), depth = shapes["keys"], self.rows[-1]
        if any(k != v or [*k[:-2]] != heads or k[-1] != depth for k, v in parts):
            raise Unfit(f"keys and values {parts} do not go with queries {self.rows}")
        if notes.get("keys") != notes.get("values"):
            raise Unfit("its keys are repeated and its values are not, or the other way round")
        slots = tuple(keys[-2] for keys, _ in parts)
        if len(slots) == 2 and split_sizes(self.match, "split") != [*slots]:
            raise Unfit("its weights are split elsewhere than its scores are joined")
        return slots

    def _times(self, keys: Shape) -> int:
        """R: how many query heads share one key head."""
        heads, own = self.rows[:-2], keys[:-2]
        times, noted = prod(heads) // prod(own), self.match.notes.get("keys")
        if noted is not None:
            fits = noted == times and prod(own) * times == prod(heads)
        else:  # the last of its axes of heads are broadcast
            kept = next((i for i, n in enumerate(own) if (n,) != heads[i : i + 1]), len(own))
            fits = len(own) == len(heads) and set(own[kept:]) <= {1}
        if not fits:
            raise Unfit(f"keys {keys} do not go with queries {self.rows}")
        return times

    def _mask_rows(self) -> int:
        if "mask" not in self.shapes:
            return 0
        shape = self.shapes["mask"]
        if set(shape[:-2]) - {1} or len(shape) > len(self.rows):
            raise Unfit(f"its mask {shape} is not one for all heads")
        rows, slots = shape[-2:][::-1] if self.by_columns else shape[-2:]
        if slots != sum(self.slots) or rows not in (1, self.rows[-2]):
            raise Unfit(f"its mask {shape} is not for {self.rows[-2]} queries and all slots")
        return rows

    def _scale(self) -> float:
        if self.as_one:
            return self.rows[-1] ** -0.5
        if "divisor" in self.match:
            divisor = self.match.number("divisor")
            if not divisor:
                raise Unfit("it divides scores by 0")
            return 1 / divisor
        return self.match.number("scale") if "scale" in self.match else 1.0

    def run(self, dtype: torch.dtype) -> Callable[..., Tensor]:
        """The function that computes the result from the operands, in the order of `OPERANDS`."""
        tokens, depth = self.rows[-2:]
        heads = prod(self.rows[:-2]) // self.times
        weights = self.match.named["weights"].type
        rounding = {"softmax": Rounding.AS_OPS, "real_div": Rounding.SPELLED_OUT}
        attend = native_ops.attention(
            (heads, self.times * tokens, depth), self.slots, self.mask_rows, dtype,
            rounding.get(weights, Rounding.AS_ONE), self._scale(),
        )  # fmt: skip
        rows, parts, masked = self.rows, 2 * len(self.slots), self.mask_rows > 0
        turn = self.turned and tokens > 1
        turn_mask = self.by_columns and self.mask_rows > 1

        def run(query: Tensor, *others: Tensor) -> Tensor:
            cache, mask = others[:parts], others[-1] if masked else None
            query = query.mT.contiguous() if turn else query
            mask = mask.mT.contiguous() if turn_mask and mask is not None else mask
            return attend(query, mask, *cache).view(rows)

        return run
