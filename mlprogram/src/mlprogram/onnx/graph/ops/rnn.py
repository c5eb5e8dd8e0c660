"""Recurrent layers: one MIL op for each direction.

x is (S, B, I), or (B, S, I) in layout 1: S steps, B sequences, I inputs, H units, D directions.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from . import Constant, Unsayable, operator
from ._common import Tensor, mb, sliced

DIRECTIONS = {b"forward": [False], b"reverse": [True], b"bidirectional": [False, True]}
ACTIVATIONS = {b"Sigmoid": "sigmoid", b"Tanh": "tanh", b"Relu": "relu"}

#: Where MIL's gates stand among ONNX's (i o f c to i f o c; z r h to r h z), and what MIL calls
#: their activations, each with the one that it is where none is named.
GATES: dict[str, tuple[list[int], dict[str, bytes]]] = {
    "lstm": (
        [0, 2, 1, 3],
        {"recurrent_activation": b"Sigmoid", "cell_activation": b"Tanh", "activation": b"Tanh"},
    ),
    "gru": ([1, 2, 0], {"recurrent_activation": b"Sigmoid", "activation": b"Tanh"}),
    "rnn": ([0], {"activation": b"Tanh"}),
}


@operator("LSTM", since=7)
def lstm(
    x: Tensor, w: Constant, r: Constant, b: Constant | None = None,
    sequence_lens: Constant | None = None, initial_h: Tensor | None = None,
    initial_c: Tensor | None = None, p: Constant | None = None, **layer,
) -> tuple[Tensor, ...]:  # fmt: skip
    states = {"initial_h": initial_h, "initial_c": initial_c}
    return _layer("lstm", x, w, r, b, sequence_lens, states, p, **layer)


def _without_cell(kind: str) -> Callable:
    def convert(
        x: Tensor, w: Constant, r: Constant, b: Constant | None = None,
        sequence_lens: Constant | None = None, initial_h: Tensor | None = None, **layer,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        return _layer(kind, x, w, r, b, sequence_lens, {"initial_h": initial_h}, **layer)

    return convert


operator("GRU", since=7)(_without_cell("gru"))
operator("RNN", since=7)(_without_cell("rnn"))


def _layer(
    kind: str, x: Tensor, w: np.ndarray, r: np.ndarray, b: np.ndarray | None,
    lengths: np.ndarray | None, states: dict[str, Tensor | None], p: np.ndarray | None = None, *,
    direction=b"forward", layout=0, activations=None, linear_before_reset=0, clip=None,
    input_forget=0, activation_alpha=None, activation_beta=None, hidden_size=None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Build each direction with one MIL op and stack them: all steps, then the last states."""
    refused = {
        "sequences of different lengths": lengths is not None
        and not np.all(lengths == int(x.shape[1 if layout else 0])),
        "clipping": clip is not None,
        "coupled gates": input_forget,
        f"hidden_size {hidden_size}": hidden_size not in (None, r.shape[-1]),
        "activations with parameters": activation_alpha and kind != "rnn",
    }
    if asked := [name for name, value in refused.items() if value]:
        raise Unsayable(asked[0])
    x = mb.transpose(x=x, perm=[1, 0, 2]) if layout else x
    hidden, (order, default) = r.shape[-1], GATES[kind]
    names = [name.title() for name in activations or [*default.values()] * 2]
    if len(names) < len(DIRECTIONS[direction]) * len(default):
        raise Unsayable(f"{len(names)} activations for its directions")
    sequences, lasts = [], []
    for way, is_back in enumerate(DIRECTIONS[direction]):
        how: dict[str, Any] = {}
        for name, state in states.items():
            how[name] = _state(state, way, int(x.shape[1]), hidden, layout)
        for key, activation in zip(default, names[way * len(default) :], strict=False):
            if activation not in ACTIVATIONS:
                raise Unsayable(f"activation {activation.decode()}")
            how[key] = ACTIVATIONS[activation]
        biases = np.zeros((2, len(order) * hidden)) if b is None else b[way].reshape(2, -1)
        of_input, of_state = (_ordered(bias, hidden, order) for bias in biases)
        if kind == "gru":
            how |= {"bias": of_state, "input_bias": of_input}
            how["reset_after"] = bool(linear_before_reset)
        else:
            how["bias"] = of_input + of_state
        if p is not None:
            how["peephole"] = _ordered(p[way], hidden, [0, 2, 1])
        sequence, *last = getattr(mb, kind)(
            x=mb.reverse(x=x, axes=[0]) if is_back else x, output_sequence=True,
            weight_ih=_ordered(w[way], hidden, order), weight_hh=_ordered(r[way], hidden, order),
            **how,
        )  # fmt: skip
        sequences.append(mb.reverse(x=sequence, axes=[0]) if is_back else sequence)
        lasts.append(last)
    y = mb.stack(values=sequences, axis=1)  # (S, D, B, H)
    ends = [mb.stack(values=list(end), axis=0) for end in zip(*lasts, strict=True)]  # (D, B, H)
    if layout:
        y = mb.transpose(x=y, perm=[2, 0, 1, 3])
        ends = [mb.transpose(x=end, perm=[1, 0, 2]) for end in ends]
    return (y, *ends)


def _state(state: Tensor | None, way: int, batch: int, hidden: int, layout: int) -> Tensor:
    """The initial state (B, H) of one direction; zeros if there is none."""
    if state is None:
        return np.zeros((batch, hidden), np.float32)
    axis = 1 if layout else 0
    if isinstance(state, np.ndarray):
        return np.asarray(state.take(way, axis), np.float32)
    return mb.squeeze(x=sliced(state, axis, way, way + 1), axes=[axis])


def _ordered(matrix: np.ndarray, hidden: int, order: list[int]) -> np.ndarray:
    """Reorder the rows of the gates."""
    parts = np.asarray(matrix, np.float32).reshape(-1, hidden, *matrix.shape[1:])
    return parts[order].reshape(-1, *matrix.shape[1:])
