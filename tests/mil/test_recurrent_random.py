"""Recurrent ops against torch's layers and numpy's loops; random ops against their laws."""

from itertools import product
from math import erf

from _oracle import FLOATS, close, normal, run
import numpy as np
import pytest
import torch

DECLARED = [(torch.float32, np.float32), (torch.float16, np.float16)]


@pytest.mark.parametrize("declared, dtype", DECLARED)
def test_random_distributions(declared, dtype):
    shape, out = [40, 500], [(declared, (40, 500))]
    cases = [
        ("random_uniform", {"low": -1.0, "high": 3.0}, lambda x: (x + 1) / 4),
        (
            "random_normal",
            {"mean": 2.0, "stddev": 0.5},
            lambda x: 0.5 + 0.5 * erf((x - 2) / 0.5 / 2**0.5),
        ),
    ]
    for name, inputs, cumulative in cases:
        draw = run(name, shape=shape, seed=7, **inputs, _out=out)
        assert draw.dtype == dtype and draw.shape == (40, 500)
        exact = run(name, shape=shape, seed=7, **inputs)
        below = np.vectorize(cumulative)(np.sort(exact.ravel()))
        gap = abs(below - np.arange(exact.size) / exact.size).max()
        assert gap < 1.95 / exact.size**0.5  # Kolmogorov and Smirnov at 0.1 %
        close(draw, exact, dtype, atol=2e-3)
        np.testing.assert_array_equal(draw, run(name, shape=shape, seed=7, **inputs, _out=out))
        assert (draw != run(name, shape=shape, seed=8, **inputs, _out=out)).mean() > 0.9
        assert (draw != run(name, shape=shape, **inputs, _out=out)).mean() > 0.9
    assert run("random_uniform", shape=[300000], seed=1, _out=out).max() < 1
    draw = run("random_bernoulli", shape=shape, prob=0.3, seed=7, _out=out)
    assert draw.dtype == dtype and set(draw.ravel()) == {0, 1}
    assert abs(draw.astype(float).mean() - 0.3) < 5 * (0.3 * 0.7 / draw.size) ** 0.5
    assert [run("random_bernoulli", shape=[999], prob=p).mean() for p in (0.0, 1.0)] == [0, 1]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mode", ["logits", "probs"])
def test_random_categorical(mode, dtype):
    probs = np.array([[[0.1, 0.2, 0.7]], [[0.5, 0.0, 0.5]]])
    with np.errstate(divide="ignore"):
        x = (np.log(probs) + 3 if mode == "logits" else probs).astype(dtype)
    draw = run("random_categorical", x=x, mode=mode, size=20000, seed=3)
    assert draw.dtype == dtype and draw.shape == (2, 1, 20000)
    shares = np.stack([(draw == i).mean(-1) for i in range(3)], -1)
    np.testing.assert_allclose(shares, probs, atol=0.02)
    assert run("random_categorical", x=x, mode=mode).shape == (2, 1, 1)


def stacked(parameters, order):
    """torch's stacked gates in MIL's order, as numpy."""
    parts = np.split(parameters.detach().numpy(), len(order))
    return np.concatenate([parts[i] for i in order])


def torch_layer(kind, order, dtype, **options):
    """A torch layer of 4 inputs and 3 units, and its parameters as MIL names and orders them."""
    torch.manual_seed(0)
    layer = kind(4, 3, **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(parameter.to(getattr(torch, np.dtype(dtype).name)))
    named = {}
    for torch_end, end in (("", ""), ("_reverse", "_back")):
        if f"weight_ih_l0{torch_end}" in layer.state_dict():
            get = {n: getattr(layer, f"{n}_l0{torch_end}") for n in NAMES}
            w_ih, w_hh, b_ih, b_hh = (stacked(get[n], order).astype(dtype) for n in NAMES)
            named |= {f"weight_ih{end}": w_ih, f"weight_hh{end}": w_hh, f"b_ih{end}": b_ih}
            named[f"b_hh{end}"] = b_hh
    return layer, named


NAMES = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
STEPS = dict(argnames="dtype, sequence", argvalues=[*product(FLOATS, [False, True])])


@pytest.mark.parametrize(**STEPS)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_lstm_is_torchs(direction, dtype, sequence):
    both = direction == "bidirectional"
    layer, named = torch_layer(torch.nn.LSTM, [0, 1, 3, 2], dtype, bidirectional=both)
    named["bias"] = (named.pop("b_ih") + named.pop("b_hh")).astype(dtype)
    if both:
        named["bias_back"] = (named.pop("b_ih_back") + named.pop("b_hh_back")).astype(dtype)
    x, h, c = (
        normal(5, 2, 4, dtype=dtype),
        *(normal(1 + both, 2, 3, dtype=dtype, seed=i) for i in (1, 2)),
    )
    wide = [torch.from_numpy(v.astype(np.float32)) for v in (x, h, c)]
    wide[0] = wide[0].flip(0) if direction == "reverse" else wide[0]
    outputs, (h_n, c_n) = layer(wide[0], (wide[1], wide[2]))
    flat = [np.concatenate([*v.detach().numpy()], -1) for v in (h_n, c_n)]
    expected = [outputs.detach().numpy() if sequence else flat[0][None], *flat]
    inputs = {"initial_h": np.concatenate([*h], -1), "initial_c": np.concatenate([*c], -1)}
    found = run("lstm", x=x, **inputs, **named, direction=direction, output_sequence=sequence)
    for result, value in zip(found, expected, strict=True):
        close(result, value, dtype, atol=2e-3 if dtype == np.float16 else 1e-6)


@pytest.mark.parametrize(**STEPS)
@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize("kind", ["gru", "rnn"])
def test_gru_and_rnn_are_torchs(kind, direction, dtype, sequence):
    order = [0, 2, 1] if kind == "gru" else [0]
    layer, named = torch_layer(getattr(torch.nn, kind.upper()), order, dtype)
    b_ih, b_hh = named.pop("b_ih"), named.pop("b_hh")
    more = {"bias": b_hh, "input_bias": b_ih, "reset_after": True}
    named |= more if kind == "gru" else {"bias": b_ih + b_hh}
    x, h = normal(5, 2, 4, dtype=dtype), normal(2, 3, dtype=dtype)
    wide = torch.from_numpy((x[::-1] if direction == "reverse" else x).astype(np.float32))
    outputs, h_n = layer(wide, torch.from_numpy(h.astype(np.float32))[None])
    expected = [outputs.detach().numpy() if sequence else h_n.detach().numpy(), h_n[0].detach()]
    found = run(kind, x=x, initial_h=h, **named, direction=direction, output_sequence=sequence)
    for result, value in zip(found, expected, strict=True):
        close(result, value, dtype, atol=1e-3 if dtype == np.float16 else 1e-6)


ACTIVATIONS = {
    "hard_sigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    "linear": lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "scaled_tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
}


@pytest.mark.parametrize("outer", ACTIVATIONS)
@pytest.mark.parametrize("clip", [None, 0.2])
def test_lstm_with_peepholes_clip_and_activations(outer, clip):
    x, w, u, bias, p = (normal(*s, seed=9) for s in ((4, 2, 5), (12, 5), (12, 3), (12,), (9,)))
    gate, cell = ACTIVATIONS["hard_sigmoid"], ACTIVATIONS["sigmoid"]
    h, c = normal(2, 3), normal(2, 3, seed=1)
    inputs = {"x": x, "initial_h": h, "initial_c": c, "weight_ih": w, "weight_hh": u, "bias": bias}
    named = {
        "recurrent_activation": "hard_sigmoid",
        "cell_activation": "sigmoid",
        "activation": outer,
    }
    found = run("lstm", **inputs, peephole=p, clip=clip, **named, output_sequence=True)
    for t, step in enumerate(x):
        i, f, o, z = np.split(step @ w.T + h @ u.T + bias, 4, -1)
        c = gate(f + c * p[3:6]) * c + gate(i + c * p[:3]) * cell(z)
        c = c if clip is None else np.clip(c, -clip, clip)
        h = gate(o + c * p[6:]) * ACTIVATIONS[outer](c)
        close(found[0][t], h, np.float32)
    close(found[2], c, np.float32)


@pytest.mark.parametrize("inner, outer", [("sigmoid", "tanh"), ("tanh", "sigmoid")])
def test_gru_resets_before_the_product_by_default(inner, outer):
    x, w, u, b, h = (normal(*s, seed=4) for s in ((4, 2, 5), (9, 5), (9, 3), (9,), (2, 3)))
    inputs = {"x": x, "initial_h": h, "weight_ih": w, "weight_hh": u, "bias": b}
    found = run("gru", **inputs, recurrent_activation=inner, activation=outer, output_sequence=True)
    for t, step in enumerate(x):
        r, o, z = np.split(step @ w.T + b, 3, -1)
        r, z = (ACTIVATIONS[inner](g + h @ m.T) for g, m in ((r, u[:3]), (z, u[6:])))
        h = (1 - z) * ACTIVATIONS[outer](o + (h * r) @ u[3:6].T) + z * h
        close(found[0][t], h, np.float32)


def test_more_initial_states_than_a_batch_has():
    """The first ones count: coremltools writes one a step for packed sequences."""
    layer, named = torch_layer(torch.nn.LSTM, [0, 1, 3, 2], np.float32)
    named["bias"] = named.pop("b_ih") + named.pop("b_hh")
    x, h, c = normal(7, 2, 4), normal(7, 3, seed=1), normal(7, 3, seed=2)
    first = tuple(torch.from_numpy(state[None, :2]) for state in (h, c))
    expected = layer(torch.from_numpy(x), first)[0].detach().numpy()
    for rows in (2, 5, 7):
        states = {"initial_h": h[:rows], "initial_c": c[:rows]}
        found = run("lstm", x=x, **states, **named, output_sequence=True)
        close(found[0], expected, np.float32)
        assert found[1].shape == found[2].shape == (2, 3)
