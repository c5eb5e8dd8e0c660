"""Random ops against their laws; what Apple's tests of recurrent ops leave out."""

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


def test_more_initial_states_than_a_batch_has():
    """The first ones count: coremltools writes one a step for packed sequences."""
    torch.manual_seed(0)
    layer = torch.nn.LSTM(4, 3)
    stacked = (torch.cat([p.chunk(4)[i] for i in (0, 1, 3, 2)]) for p in layer.parameters())
    w_ih, w_hh, b_ih, b_hh = (p.detach().numpy() for p in stacked)  # gates in MIL's order
    named = {"weight_ih": w_ih, "weight_hh": w_hh, "bias": b_ih + b_hh}
    x, h, c = normal(7, 2, 4), normal(7, 3, seed=1), normal(7, 3, seed=2)
    first = tuple(torch.from_numpy(state[None, :2]) for state in (h, c))
    expected = layer(torch.from_numpy(x), first)[0].detach().numpy()
    for rows in (2, 5, 7):
        states = {"initial_h": h[:rows], "initial_c": c[:rows]}
        found = run("lstm", x=x, **states, **named, output_sequence=True)
        close(found[0], expected, np.float32)
        assert found[1].shape == found[2].shape == (2, 3)
