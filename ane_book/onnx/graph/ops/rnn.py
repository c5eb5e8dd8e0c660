"""Recurrent layers, an op of MIL for each direction.

x is (S, B, I), or (B, S, I) in layout 1: S steps, B sequences, I inputs, H units, D directions.
"""

from collections.abc import Callable

import numpy as np

from . import Constant, Unsayable, operator
from ._common import Tensor, mb, sliced

DIRECTIONS = {b"forward": [False], b"reverse": [True], b"bidirectional": [False, True]}
ACTIVATIONS = {b"Sigmoid": "sigmoid", b"Tanh": "tanh", b"Relu": "relu"}


def _activations(names, default: list[bytes], way: int) -> list[str]:
    """MIL's names of the activations of one direction."""
    count = len(default)
    chosen = [name.title() for name in (names or default * 2)[way * count : (way + 1) * count]]
    if unknown := [name for name in chosen if name not in ACTIVATIONS]:
        raise Unsayable(f"activation {unknown[0].decode()}")
    return [ACTIVATIONS[name] for name in chosen]


def _run(
    x: Tensor, states: list[Tensor | None], hidden: int, step: Callable, lengths: Constant | None,
    *, direction=b"forward", layout=0, clip=None, input_forget=0, activation_alpha=None,
    activation_beta=None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Each direction by `step` (x, its states, its number), stacked as ONNX has them."""
    if lengths is not None and not np.all(lengths == int(x.shape[1 if layout else 0])):
        raise Unsayable("sequences of different lengths")
    refused = {
        "clipping": clip is not None,
        "coupled gates": input_forget,
        "activations with parameters": activation_alpha,
    }
    if asked := [name for name, value in refused.items() if value]:
        raise Unsayable(asked[0])
    x = mb.transpose(x=x, perm=[1, 0, 2]) if layout else x
    sequences, lasts = [], []
    for way, is_back in enumerate(DIRECTIONS[direction]):
        begin = [_state(state, way, int(x.shape[1]), hidden, layout) for state in states]
        turned = mb.reverse(x=x, axes=[0]) if is_back else x
        sequence, *last = step(turned, begin, way)
        sequences.append(mb.reverse(x=sequence, axes=[0]) if is_back else sequence)
        lasts.append(last)
    y = mb.stack(values=sequences, axis=1)  # (S, D, B, H)
    ends = [mb.stack(values=list(end), axis=0) for end in zip(*lasts, strict=True)]  # (D, B, H)
    if layout:
        y = mb.transpose(x=y, perm=[2, 0, 1, 3])
        ends = [mb.transpose(x=end, perm=[1, 0, 2]) for end in ends]
    return (y, *ends)


def _state(state: Tensor | None, way: int, batch: int, hidden: int, layout: int) -> Tensor:
    """(B, H) of one direction; zeros where none is given."""
    if state is None:
        return np.zeros((batch, hidden), np.float32)
    axis = 1 if layout else 0
    if isinstance(state, np.ndarray):
        return np.asarray(state.take(way, axis), np.float32)
    return mb.squeeze(x=sliced(state, axis, way, way + 1), axes=[axis])


def _ordered(matrix: np.ndarray, hidden: int, order: list[int]) -> np.ndarray:
    """The gates' rows in another order."""
    parts = np.asarray(matrix, np.float32).reshape(-1, hidden, *matrix.shape[1:])
    return parts[order].reshape(-1, *matrix.shape[1:])


def _biases(b: np.ndarray | None, way: int, gates: int, hidden: int) -> np.ndarray:
    """Of the input and of the state, (2, gates * H)."""
    if b is None:
        return np.zeros((2, gates * hidden), np.float32)
    return np.asarray(b[way], np.float32).reshape(2, -1)


@operator("LSTM", since=7)
def lstm(
    x: Tensor, w: Constant, r: Constant, b: Constant | None = None,
    sequence_lens: Constant | None = None, initial_h: Tensor | None = None,
    initial_c: Tensor | None = None, p: Constant | None = None, *, activations=None,
    hidden_size=None, **layer,
) -> tuple[Tensor, ...]:  # fmt: skip
    """ONNX's gates are i o f c, MIL's i f o c."""
    hidden, order = r.shape[-1], [0, 2, 1, 3]

    def step(x: Tensor, states: list[Tensor], way: int) -> tuple[Tensor, ...]:
        gate, cell, out = _activations(activations, [b"Sigmoid", b"Tanh", b"Tanh"], way)
        extra = {} if p is None else {"peephole": _ordered(p[way], hidden, [0, 2, 1])}
        return mb.lstm(
            x=x, initial_h=states[0], initial_c=states[1], output_sequence=True,
            weight_ih=_ordered(w[way], hidden, order), weight_hh=_ordered(r[way], hidden, order),
            bias=_ordered(_biases(b, way, 4, hidden).sum(0), hidden, order),
            recurrent_activation=gate, cell_activation=cell, activation=out, **extra,
        )  # fmt: skip

    return _run(x, [initial_h, initial_c], hidden, step, sequence_lens, **layer)


@operator("GRU", since=7)
def gru(
    x: Tensor, w: Constant, r: Constant, b: Constant | None = None,
    sequence_lens: Constant | None = None, initial_h: Tensor | None = None, *, activations=None,
    hidden_size=None, linear_before_reset=0, **layer,
) -> tuple[Tensor, ...]:  # fmt: skip
    """ONNX's gates are z r h, MIL's r h z; a bias of the input and one of the state."""
    hidden, order = r.shape[-1], [1, 2, 0]

    def step(x: Tensor, states: list[Tensor], way: int) -> tuple[Tensor, ...]:
        gate, out = _activations(activations, [b"Sigmoid", b"Tanh"], way)
        of_input, of_state = (_ordered(v, hidden, order) for v in _biases(b, way, 3, hidden))
        return mb.gru(
            x=x, initial_h=states[0], output_sequence=True,
            weight_ih=_ordered(w[way], hidden, order), weight_hh=_ordered(r[way], hidden, order),
            bias=of_state, input_bias=of_input, recurrent_activation=gate, activation=out,
            reset_after=bool(linear_before_reset),
        )  # fmt: skip

    return _run(x, [initial_h], hidden, step, sequence_lens, **layer)


@operator("RNN", since=7)
def rnn(
    x: Tensor, w: Constant, r: Constant, b: Constant | None = None,
    sequence_lens: Constant | None = None, initial_h: Tensor | None = None, *,
    activation_alpha=None, activation_beta=None, activations=None, hidden_size=None, **layer,
) -> tuple[Tensor, ...]:  # fmt: skip
    hidden = r.shape[-1]

    def step(x: Tensor, states: list[Tensor], way: int) -> tuple[Tensor, ...]:
        (out,) = _activations(activations, [b"Tanh"], way)
        return mb.rnn(
            x=x, initial_h=states[0], output_sequence=True, weight_ih=np.asarray(w[way]),
            weight_hh=np.asarray(r[way]), bias=_biases(b, way, 1, hidden).sum(0), activation=out,
        )  # fmt: skip

    return _run(x, [initial_h], hidden, step, sequence_lens, **layer)
