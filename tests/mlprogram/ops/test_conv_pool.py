"""Convolutions and pools, against windows in numpy and against torch."""

from itertools import product
from math import ceil

from _oracle import FLOATS, close, declared_shape, few, normal, run
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
import torch
from torch.nn import functional as F


def windows(x, extent, strides, dilations=None, pads=None, value=0.0):
    """Views of all windows: (N, C, *D) in float64 -> (N, C, *D_out, *K)."""
    rank = x.ndim - 2
    pads = pads or [(0, 0)] * rank
    padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *pads], constant_values=value)
    every = np.lib.stride_tricks.sliding_window_view(padded, extent, tuple(range(2, rank + 2)))
    steps = [slice(None, None, s) for s in (*strides, *(dilations or [1] * rank))]
    return every[:, :, *steps]


def same_pads(sizes, extent, strides, lower):
    """TensorFlow's SAME: as many outputs as strides fit into the input, begun."""
    total = [
        max((ceil(d / s) - 1) * s + k - d, 0)
        for d, k, s in zip(sizes, extent, strides, strict=True)
    ]
    return [(t - t // 2, t // 2)[:: 1 if lower else -1] for t in total]


CONVOLUTIONS = [  # D, K, strides, dilations, custom pad, C_in, C_out, groups
    ((9,), (4,), [2], [1], [1, 2], 4, 6, 2),
    ((7, 8), (2, 3), [2, 1], [1, 2], [0, 1, 2, 0], 3, 5, 1),
    ((7, 8), (3, 2), [1, 3], [1, 1], [1, 1, 2, 2], 4, 4, 4),
    ((5, 6, 4), (2, 3, 2), [1, 2, 2], [2, 1, 1], [1, 0, 0, 1, 1, 1], 2, 4, 2),
    ((6, 5), (1, 1), [2, 2], [1, 1], [0, 1, 2, 0], 3, 4, 1),
    ((1, 6), (1, 1), [1, 1], [1, 1], [0, 0, 0, 0], 8, 5, 1),
    ((1, 1), (1, 1), [1, 1], [1, 1], [0, 0, 0, 0], 8, 5, 1),
    ((3,), (1,), [1], [1], [0, 0], 4, 6, 2),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("pad_type", ["valid", "custom", "same", "same_lower"])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_conv(case, pad_type, batch, dtype):
    sizes, kernel, strides, dilations, pad, c_in, c_out, groups = case
    x, bias = normal(batch, c_in, *sizes, dtype=dtype), normal(c_out, dtype=dtype, seed=2)
    weight = normal(c_out, c_in // groups, *kernel, dtype=dtype, seed=1)
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = same_pads(sizes, extent, strides, pad_type == "same_lower")
    pads = {"valid": None, "custom": [*zip(pad[::2], pad[1::2], strict=True)]}.get(pad_type, pads)
    seen = windows(x, extent, strides, dilations, pads)
    seen = seen.reshape(batch, groups, c_in // groups, *seen.shape[2:])  # N G C *D_out *K
    filters = weight.astype(np.float64).reshape(groups, c_out // groups, c_in // groups, *kernel)
    out, inner = "xyz"[: len(kernel)], "uvw"[: len(kernel)]
    expected = np.einsum(f"ngc{out}{inner},goc{inner}->ngo{out}", seen, filters)
    expected = expected.reshape(batch, c_out, *expected.shape[3:])
    inputs = {"strides": strides, "dilations": dilations, "groups": groups, "pad_type": pad_type}
    inputs |= {"pad": pad} if pad_type == "custom" else {}
    assert expected.shape == declared_shape("conv", x, weight=weight.astype(np.float32), **inputs)
    close(run("conv", x=x, weight=weight, **inputs), expected, dtype, atol=1e-5)
    expected += bias.reshape(-1, *[1] * len(sizes))
    close(run("conv", x=x, weight=weight, bias=bias, **inputs), expected, dtype, atol=1e-5)


@few
@given(
    rank=st.integers(1, 3),
    groups=st.integers(1, 2),
    dtype=st.sampled_from(FLOATS),
    seed=st.integers(0, 99),
)
def test_conv_quantized(rank, groups, dtype, seed):
    rng = np.random.default_rng(seed)
    bounds = ((5, 8), (1, 4), (1, 3), (1, 3))
    sizes, extent, strides, dilations = (rng.integers(*b, rank).tolist() for b in bounds)
    x = normal(2, 2 * groups, *sizes, dtype=dtype)
    quantized = rng.integers(0, 256, (3 * groups, 2, *extent), np.uint8)
    scale, offset, table = (normal(n, dtype=dtype) / 64 for n in (3 * groups, 3 * groups, 256))
    wide = quantized * scale.astype(np.float64).reshape(-1, *[1] * (rank + 1))
    wide += offset.reshape(-1, *[1] * (rank + 1))
    meanings = {
        "linear": (scale, offset, wide),
        "lut": (table, np.zeros((), dtype), table[quantized].astype(np.float64)),
    }
    for kind, (first, second, weight) in meanings.items():
        stored = {"quantization_type": kind, "quant_scale": first, "quant_bias": second}
        steps = {"strides": strides, "dilations": dilations, "groups": groups}
        y = run("conv_quantized", x=x, weight=quantized, **stored, **steps)
        conv = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
        exact = torch.from_numpy(x.astype(np.float64)), torch.from_numpy(weight)
        want = conv(*exact, stride=strides, dilation=dilations, groups=groups)
        close(y, want, dtype, atol=1e-4)


@pytest.mark.parametrize("pad_type", ["valid", "custom", "same"])
@pytest.mark.parametrize("case", CONVOLUTIONS[:4])
def test_conv_transpose_is_the_adjoint_of_conv(case, pad_type):
    """<conv_transpose(a), b> == <a, conv(b)> fixes every element of the transposed convolution."""
    sizes, kernel, strides, dilations, pad, c_in, c_out, groups = case
    inputs = {"strides": strides, "dilations": dilations, "groups": groups, "pad_type": pad_type}
    inputs |= {"pad": pad} if pad_type == "custom" else {}
    weight = normal(c_out, c_in // groups, *kernel)
    b = normal(1, c_in, *sizes)
    forward = run("conv", x=b, weight=weight, **inputs)
    a = normal(*forward.shape, seed=5)
    back = run("conv_transpose", x=a, weight=weight, output_shape=list(b.shape), **inputs)
    assert back.shape == b.shape
    np.testing.assert_allclose(np.vdot(back, b), np.vdot(a, forward), rtol=1e-4)
    # without output_shape: as declared, equal where both are, and the bias on top
    bias, half = normal(c_in), np.float16
    free = run("conv_transpose", x=a, weight=weight, bias=bias, **inputs)
    assert free.shape == declared_shape("conv_transpose", a, weight=weight, **inputs)
    if pad_type != "same":  # where the cut depends on the size
        both = tuple(slice(0, min(s)) for s in zip(free.shape, back.shape, strict=True))
        np.testing.assert_allclose(
            free[both] - bias.reshape(-1, *[1] * len(sizes)), back[both], atol=1e-5
        )
    rounded = run("conv_transpose", x=a.astype(half), weight=weight.astype(half), **inputs)
    wide = [v.astype(half).astype(np.float32) for v in (a, weight)]
    close(rounded, run("conv_transpose", x=wide[0], weight=wide[1], **inputs), half, atol=1e-5)


CEIL = [
    (size, kernel, stride, pad)
    for size, kernel, stride, pad in product([7, 8, 10], [2, 3], [2, 3], [0, 1])
    if pad or stride <= kernel  # else MIL may declare a window that sees nothing of the input
]


@pytest.mark.parametrize("size, kernel, stride, pad", CEIL)
def test_pool_with_ceil_mode(size, kernel, stride, pad):
    x = normal(1, 2, size, 9)
    k, s, p = [kernel] * 2, [stride] * 2, [pad] * 2
    inputs = {
        "kernel_sizes": k,
        "strides": s,
        "pad_type": "custom",
        "pad": [pad] * 4,
        "ceil_mode": True,
    }
    wide, result = torch.from_numpy(x), run("max_pool", x=x, **inputs)
    assert result.shape == declared_shape("max_pool", x, **inputs)
    close(result, F.max_pool2d(wide, k, s, p, ceil_mode=True), np.float32)
    result = run("avg_pool", x=x, **inputs, exclude_padding_from_average=True)
    close(result, F.avg_pool2d(wide, k, s, p, True, count_include_pad=False), np.float32)
    counted = run("avg_pool", x=x, **inputs, exclude_padding_from_average=False)
    filled = F.pad(wide, (pad, pad + s[0], pad, pad + s[0]))  # the overhang holds zeros that count
    high, long = counted.shape[2:]
    close(counted, F.avg_pool2d(filled, k, s)[:, :, :high, :long], np.float32)


def test_an_average_over_the_edge_is_what_core_ml_was_seen_to_give():
    """The outputs that coremltools' pull request 2844 prints of Core ML; torch gives others."""
    x = np.arange(49, dtype=np.float32).reshape(1, 1, 7, 7)
    inputs = {"kernel_sizes": [2, 2], "strides": [3, 3], "pad_type": "valid", "ceil_mode": True}
    seen = [[4, 7, 4.75], [25, 28, 15.25], [21.25, 22.75, 12]]
    assert run("avg_pool", x=x, **inputs)[0, 0].tolist() == seen
    row = run("avg_pool", x=x[:, :, 0], kernel_sizes=[2], strides=[3], pad_type="valid",
              ceil_mode=True)  # fmt: skip
    assert row.tolist() == [[[0.5, 3.5, 3]]]


def test_same_lower_pads_before():
    inputs = {"x": np.float32([[[1, 2]]]), "kernel_sizes": [2]}
    assert run("avg_pool", **inputs, pad_type="same_lower").tolist() == [[[0.5, 1.5]]]
    assert run("avg_pool", **inputs, pad_type="same").tolist() == [[[1.5, 1.0]]]
