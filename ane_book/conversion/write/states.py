"""Write the new rows of a call to the states of a cache: cut in, or by a select over each state.

With state_write="update" each state has one `slice_update`, with "select" one `select`, which
writes it whole. Letters are those of `ane_book.models.base`.
"""

from collections.abc import Iterator, Mapping, Sequence

from ane_book.conversion.write.program import FunctionWriter
from ane_book.layout import CallShape, Rows, Shape, Store
import numpy as np

Names = Mapping[str, str]  # of values, by the names of states


def write_states(
    function: FunctionWriter,
    how: str,
    call: CallShape,
    states: Sequence[Store],
    now: Names,
    rows: Names,
) -> None:
    """Write new rows to the states of a cache at `position`; now: the states as read."""
    write = _by_select if how == "select" else _by_update
    for name, whole in write(function, call, states, now, rows):
        function.op("write_state", f"{name}_write", input=name, data=whole)


def _by_update(
    function: FunctionWriter, call: CallShape, states: Sequence[Store], now: Names, rows: Names
) -> Iterator[tuple[str, str]]:
    """Yield each state's name and its next value: the rows cut in at `position`."""
    zero = function.constant("zero", np.zeros(1, np.int32))
    values = [zero] * 4
    values[call.layout.tokens] = "position"
    (begin,) = function.op(
        "concat", "begin", "int32", [(4,)],
        values=values, axis=np.int32(0), interleave=np.bool_(False),
    )  # fmt: skip
    ends: dict[Shape, str] = {}  # by the shape of new rows
    for store in states:
        name, new = store.name, store.new(call)
        if new not in ends:
            end = f"end_{len(ends)}" if ends else "end"
            ends |= {new: end}
            function.op("add", end, "int32", [(4,)], x=begin, y=np.array(new, np.int32))
        (updated,) = function.op(
            "slice_update", f"{name}_next", "fp16", [store.shape(call)],
            x=now[name], update=rows[name], begin=begin, end=ends[new],
        )  # fmt: skip
        yield name, updated


def _by_select(
    function: FunctionWriter, call: CallShape, states: Sequence[Store], now: Names, rows: Names
) -> Iterator[tuple[str, str]]:
    """Yield each state's name and its next value: a `select` of new and old rows.

    One new row is repeated, and so is what says where it goes: Core ML refuses a `select` that
    broadcasts (fault select-broadcast). Several rows are placed by a product with a matrix of 0
    and 1, which is exact as long as all T rows are finite: 0 times infinity is NaN. A gather would
    bear that, but one by computed indices leaves the engine (law gather-computed).
    """
    line = Rows(1, 1).shape(call)  # S slots on the axis of tokens
    slots, places = np.arange(call.slots, dtype=np.int32).reshape(line), ""
    if call.tokens == 1:
        (is_new,) = function.op("equal", "is_new", "bool", [line], x=slots, y="position")
    else:
        places, is_new = _places(function, call, slots)
    chosen_by: dict[Shape, str] = {}  # by the shape of a state
    for store in states:
        name, shape = store.name, store.shape(call)
        placed = rows[name]
        if shape not in chosen_by:
            of = f"{is_new}_{len(chosen_by)}"
            chosen_by[shape] = _tiled(function, of, "bool", is_new, line, shape)
        if places:
            x, y = (places, placed) if call.layout.tokens == 2 else (placed, places)
            (placed,) = function.op(
                "matmul", f"{name}_placed", "fp16", [shape],
                x=x, y=y, transpose_x=np.bool_(False), transpose_y=np.bool_(False),
            )  # fmt: skip
        else:
            placed = _tiled(function, f"{name}_placed", "fp16", placed, store.new(call), shape)
        (chosen,) = function.op(
            "select", f"{name}_next", "fp16", [shape],
            cond=chosen_by[shape], a=placed, b=now[name],
        )  # fmt: skip
        yield name, chosen


def _tiled(
    function: FunctionWriter, name: str, dtype: str, x: str, shape: Shape, whole: Shape
) -> str:
    """Repeat x along the axes on which it is shorter than `whole`."""
    reps = np.array([all_ // n for n, all_ in zip(shape, whole, strict=True)], np.int32)
    return function.op("tile", name, dtype, [whole], x=x, reps=reps)[0]


def _places(function: FunctionWriter, call: CallShape, slots: np.ndarray) -> tuple[str, str]:
    """Add the matrix of 0 and 1, (1, 1, S, T) or (1, 1, T, S), that has a 1 where a new row goes,
    and whether any goes to a slot; returns the names of both."""
    T, other = call.tokens, 5 - call.layout.tokens  # the axis of the T new rows
    matrix = (*slots.shape[:other], T, *slots.shape[other + 1 :])
    steps = np.arange(T, dtype=np.int32).reshape((T,) if other == 3 else (T, 1))
    (taken,) = function.op("add", "taken", "int32", [steps.shape], x="position", y=steps)
    (equal,) = function.op("equal", "is_slot", "bool", [matrix], x=slots, y=taken)
    (places,) = function.op("cast", "places", "fp16", [matrix], x=equal, dtype=np.str_("fp16"))
    (count,) = function.op(
        "reduce_sum", "count", "fp16", [slots.shape],
        x=places, axes=np.array([other], np.int32), keep_dims=np.bool_(True),
    )  # fmt: skip
    (is_new,) = function.op("cast", "is_new", "bool", [slots.shape], x=count, dtype=np.str_("bool"))
    return places, is_new
