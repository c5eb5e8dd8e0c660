"""Recurrent layers, step by step: the program has every step of the sequence, in single precision.

Letters: S steps, B batch, I inputs, H hidden units, as in `mlprogram.ops.recurrent`, whose order of
gates and of a reversed sequence these are.
"""

from collections.abc import Callable
from typing import Any

from coreai import authoring as ai
import numpy as np

from . import op
from .activation import sigmoid_hard
from .common import counts, like, reshaped, shape_of
from .elementwise import clip as clipped
from .products import linear

#: Each step is written out, some ten ops; beyond this a program is too large to be of use.
STEPS = 512

_ACTIVATIONS: dict[str, Callable] = {
    "hard_sigmoid": lambda x: sigmoid_hard(x, 0.2, 0.5), "linear": lambda x: x,
    "relu": lambda x: ai.relu(x), "scaled_tanh": lambda x: ai.tanh(x),
    "sigmoid": lambda x: ai.sigmoid(x), "sigmoid_hard": lambda x: sigmoid_hard(x, 0.2, 0.5),
    "tanh": lambda x: ai.tanh(x),
}  # fmt: skip

_add, _mul = (lambda x, y: ai.broadcasting_add(x, y)), (lambda x, y: ai.broadcasting_mul(x, y))


def _single(x: Any) -> Any:
    return None if x is None else ai.cast(x, np.float32)


def _parts(x: Any, count: int, axis: int = -1) -> list[Any]:
    axis %= len(shape_of(x))
    return list(ai.split(x, counts(*[shape_of(x)[axis] // count] * count), np.int32(axis)))


def _projected(x: Any, weight: Any, bias: Any, backward: bool) -> list[Any]:
    """The inputs' part of the gates of each step, (B, gates * H), in the order of computation."""
    steps, batch, _ = shape_of(x)
    if steps > STEPS:
        raise ValueError(f"{steps} steps, which are written out here: {STEPS} at most")
    made = linear(_single(x), _single(weight), _single(bias))
    rows = [reshaped(row, [batch, shape_of(made)[2]]) for row in _parts(made, steps, 0)]
    return rows[::-1] if backward else rows


def _stacked(rows: list[Any]) -> Any:
    return ai.concat(np.int32(0), [reshaped(row, [1, *shape_of(row)]) for row in rows])


def _lstm_pass(
    gates: list[Any], h: Any, c: Any, weight_hh: Any, peephole: Any, functions: list, clip: Any
) -> tuple[list[Any], Any]:
    """One direction: the h of each step, and the last c."""
    gate, cell, out = functions
    holes = [None] * 3 if peephole is None else _parts(_single(peephole), 3)
    seen, rows = (lambda part, hole, c: part if hole is None else _add(part, _mul(hole, c))), []
    for step in gates:
        i, f, o, z = _parts(_add(step, linear(h, weight_hh)), 4)
        kept, new = _mul(gate(seen(f, holes[1], c)), c), _mul(gate(seen(i, holes[0], c)), cell(z))
        c = _add(kept, new)
        c = c if clip is None else clipped(c, -clip, clip)
        h = _mul(gate(seen(o, holes[2], c)), out(c))
        rows.append(h)
    return rows, c


@op()
def lstm(
    x: Any, initial_h: Any, initial_c: Any, weight_ih: Any, weight_hh: Any, bias: Any = None,
    peephole: Any = None, weight_ih_back: Any = None, weight_hh_back: Any = None,
    bias_back: Any = None, peephole_back: Any = None, direction: str = "forward",
    output_sequence: bool = False, recurrent_activation: str = "sigmoid",
    cell_activation: str = "tanh", activation: str = "tanh", clip: float | None = None,
) -> Any:  # fmt: skip
    functions = [
        _ACTIVATIONS[n.lower()] for n in (recurrent_activation, cell_activation, activation)
    ]
    ways = 2 if direction == "bidirectional" else 1
    if shape_of(initial_h)[0] != shape_of(x)[1]:  # as coremltools writes packed sequences
        raise ValueError("initial states with other rows than the batch")
    start = [_parts(_single(state), ways) for state in (initial_h, initial_c)]
    gates = _projected(x, weight_ih, bias, direction == "reverse")
    rows, c = _lstm_pass(
        gates, start[0][0], start[1][0], _single(weight_hh), peephole, functions, clip
    )
    h = rows[-1]
    if ways == 2:
        gates = _projected(x, weight_ih_back, bias_back, True)
        back, c_back = _lstm_pass(
            gates, start[0][1], start[1][1], _single(weight_hh_back), peephole_back, functions, clip
        )
        h, c = ai.concat(np.int32(1), [h, back[-1]]), ai.concat(np.int32(1), [c, c_back])
        rows = [ai.concat(np.int32(1), [*pair]) for pair in zip(rows, back[::-1], strict=True)]
    outputs = _stacked(rows if output_sequence else [h])
    return [ai.cast(y, x.type.dtype) for y in (outputs, h, c)]


@op()
def gru(
    x: Any, initial_h: Any, weight_ih: Any, weight_hh: Any, bias: Any = None,
    direction: str = "forward", output_sequence: bool = False,
    recurrent_activation: str = "sigmoid", activation: str = "tanh", reset_after: bool = False,
    input_bias: Any = None,
) -> Any:  # fmt: skip
    gate, out = _ACTIVATIONS[recurrent_activation.lower()], _ACTIVATIONS[activation.lower()]
    gates = _projected(x, weight_ih, input_bias, direction == "reverse")
    (w_r, w_o, w_z) = _parts(_single(weight_hh), 3, 0)
    b_r, b_o, b_z = [None] * 3 if bias is None else _parts(_single(bias), 3)
    h, rows = _single(initial_h), []
    for r, o, z in (_parts(step, 3) for step in gates):
        reset, update = gate(_add(r, linear(h, w_r, b_r))), gate(_add(z, linear(h, w_z, b_z)))
        if reset_after:
            new = out(_add(o, _mul(reset, linear(h, w_o, b_o))))
        else:
            new = out(_add(o, linear(_mul(reset, h), w_o, b_o)))
        h = _add(_mul(ai.broadcasting_sub(like(update, 1), update), new), _mul(update, h))
        rows.append(h)
    return [ai.cast(y, x.type.dtype) for y in (_stacked(rows if output_sequence else [h]), h)]


@op()
def rnn(
    x: Any, initial_h: Any, weight_ih: Any, weight_hh: Any, bias: Any = None,
    direction: str = "forward", output_sequence: bool = False, activation: str = "tanh",
) -> Any:  # fmt: skip
    out, weight_hh = _ACTIVATIONS[activation.lower()], _single(weight_hh)
    h, rows = _single(initial_h), []
    for step in _projected(x, weight_ih, bias, direction == "reverse"):
        h = out(_add(step, linear(h, weight_hh)))
        rows.append(h)
    return [ai.cast(y, x.type.dtype) for y in (_stacked(rows if output_sequence else [h]), h)]
