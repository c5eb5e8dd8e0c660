"""Recurrent layers over a sequence; evaluated in float32, rounded once at the end.

Letters: S steps, B batch, I inputs, H hidden units. Gate order in the stacked weights: i f o z for
`lstm`, r o z for `gru`. Direction "reverse" yields its outputs in the order in which it computes
them, last input first; "bidirectional" puts the backward outputs beside those of the same input.
The last h is a copy, not a view of the outputs: `analysis/aliases.py` takes an op's results to
be apart.

Reference: coremltools `defs/iOS15/recurrent.py`, `defs/iOS18/recurrent.py`; where a docstring there
is silent, the numpy models in `ops/tests/iOS14/test_recurrent.py` (order of a reversed sequence,
clip of the cell state, peepholes, default slopes).
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from . import op

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "hard_sigmoid": lambda x: (0.2 * x + 0.5).clamp(0.0, 1.0),
    "linear": lambda x: x,
    "relu": torch.relu,
    "scaled_tanh": torch.tanh,  # with its default scales, which are 1
    "sigmoid": torch.sigmoid,
    "sigmoid_hard": lambda x: (0.2 * x + 0.5).clamp(0.0, 1.0),
    "tanh": torch.tanh,
}


def _project(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x @ weight.T + bias in float32, for all steps at once."""
    return F.linear(x.float(), weight.float(), None if bias is None else bias.float())


def _lstm_pass(
    gates: Tensor,
    h: Tensor,
    c: Tensor,
    weight_hh: Tensor,
    peephole: Tensor | None,
    activations: list[Callable],
    clip: float | None,
) -> tuple[Tensor, Tensor]:
    """One direction. gates (S, B, 4H): the inputs' part -> h of all steps (S, B, H), last c."""
    gate, cell, out = activations
    weight_hh, h, c = weight_hh.float(), h.float(), c.float()
    p_i, p_f, p_o = (0.0, 0.0, 0.0) if peephole is None else peephole.float().chunk(3)
    steps = []
    for step in gates:
        i, f, o, z = (step + F.linear(h, weight_hh)).chunk(4, -1)  # each (B, H)
        c = gate(f + p_f * c) * c + gate(i + p_i * c) * cell(z)
        if clip is not None:
            c = c.clamp(-clip, clip)
        h = gate(o + p_o * c) * out(c)
        steps.append(h)
    return torch.stack(steps), c


@op()
def lstm(
    x: Tensor,
    initial_h: Tensor,
    initial_c: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor | None = None,
    peephole: Tensor | None = None,
    weight_ih_back: Tensor | None = None,
    weight_hh_back: Tensor | None = None,
    bias_back: Tensor | None = None,
    peephole_back: Tensor | None = None,
    direction: Literal["forward", "reverse", "bidirectional"] = "forward",
    output_sequence: bool = False,
    recurrent_activation: str = "sigmoid",
    cell_activation: str = "tanh",
    activation: str = "tanh",
    clip: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """x (S, B, I), initial_h and initial_c (B, H), weight_ih (4H, I), weight_hh (4H, H),
    bias (4H,), peephole (3H,) in order i f o -> outputs (S or 1, B, H), last h, last c (B, H).

    "bidirectional" takes and gives 2H units, forward ones first. Of initial states the first B rows
    count: for packed sequences coremltools writes as many as there are steps.
    """
    named = (recurrent_activation, cell_activation, activation)
    functions = [_ACTIVATIONS[name.lower()] for name in named]
    batch, ways = x.shape[1], 2 if direction == "bidirectional" else 1
    h0, c0 = (state[:batch].chunk(ways, -1) for state in (initial_h, initial_c))
    gates = _project(x, weight_ih, bias)
    gates = gates.flip(0) if direction == "reverse" else gates
    sequence, c = _lstm_pass(gates, h0[0], c0[0], weight_hh, peephole, functions, clip)
    h = sequence[-1]
    if ways == 2:
        if weight_ih_back is None or weight_hh_back is None:
            raise ValueError("direction='bidirectional' needs weight_ih_back and weight_hh_back")
        gates = _project(x, weight_ih_back, bias_back).flip(0)
        back, c_back = _lstm_pass(
            gates, h0[1], c0[1], weight_hh_back, peephole_back, functions, clip
        )
        h, c = torch.cat([h, back[-1]], -1), torch.cat([c, c_back], -1)
        sequence = torch.cat([sequence, back.flip(0)], -1)
    outputs = sequence if output_sequence else h[None]
    return outputs.to(x.dtype), h.to(x.dtype, copy=True), c.to(x.dtype)


@op()
def gru(
    x: Tensor,
    initial_h: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor | None = None,
    direction: Literal["forward", "reverse"] = "forward",
    output_sequence: bool = False,
    recurrent_activation: str = "sigmoid",
    activation: str = "tanh",
    reset_after: bool = False,
    input_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """x (S, B, I), initial_h (B, H), weight_ih (3H, I), weight_hh (3H, H), biases (3H,) ->
    outputs (S or 1, B, H), last h (B, H).

    The reset gate multiplies h before its product with W_ho; with `reset_after` it multiplies the
    product and its bias, as in torch. coremltools' docstring states it the other way round in both
    places, its tests (`ops/tests/iOS14`, `iOS18/test_recurrent.py`) this way.
    """
    gate, out = _ACTIVATIONS[recurrent_activation.lower()], _ACTIVATIONS[activation.lower()]
    gates = _project(x, weight_ih, input_bias)  # (S, B, 3H)
    gates = gates.flip(0) if direction == "reverse" else gates
    w_r, w_o, w_z = weight_hh.float().chunk(3)  # each (H, H)
    b_r, b_o, b_z = (None, None, None) if bias is None else bias.float().chunk(3)
    h, steps = initial_h.float(), []
    for r, o, z in (step.chunk(3, -1) for step in gates):
        reset = gate(r + F.linear(h, w_r, b_r))
        if reset_after:
            new = out(o + reset * F.linear(h, w_o, b_o))
        else:
            new = out(o + F.linear(reset * h, w_o, b_o))
        update = gate(z + F.linear(h, w_z, b_z))
        h = (1.0 - update) * new + update * h
        steps.append(h)
    outputs = torch.stack(steps) if output_sequence else h[None]
    return outputs.to(x.dtype), h.to(x.dtype, copy=True)


@op()
def rnn(
    x: Tensor,
    initial_h: Tensor,
    weight_ih: Tensor,
    weight_hh: Tensor,
    bias: Tensor | None = None,
    direction: Literal["forward", "reverse"] = "forward",
    output_sequence: bool = False,
    activation: str = "tanh",
) -> tuple[Tensor, Tensor]:
    """x (S, B, I), initial_h (B, H), weight_ih (H, I), weight_hh (H, H), bias (H,) ->
    outputs (S or 1, B, H), last h (B, H)."""
    out = _ACTIVATIONS[activation.lower()]
    inputs = _project(x, weight_ih, bias)
    inputs = inputs.flip(0) if direction == "reverse" else inputs
    h, weight_hh, steps = initial_h.float(), weight_hh.float(), []
    for step in inputs:
        h = out(step + F.linear(h, weight_hh))
        steps.append(h)
    outputs = torch.stack(steps) if output_sequence else h[None]
    return outputs.to(x.dtype), h.to(x.dtype, copy=True)
