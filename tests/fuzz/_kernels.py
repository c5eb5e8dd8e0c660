"""Packages whose ops run as compiled kernels, which read memory by addresses.

Products with weights in every form that stays as it is stored (single, half, int8 by row, palettes
of 4 bits), for several tokens and for one; attention over a cache and without; RMS norm; the gate
of SwiGLU. A group that the executor takes for one op is here as the book's converter writes it.
"""

from collections.abc import Callable

from _pymil import IOS18, config, convert, spec, weights
import coremltools as ct
from coremltools.converters.mil import Builder as mb
import coremltools.optimize.coreml as cto

T, P, D = 2, 12, 16  # query rows, positions in the cache, head size


def products(**options):
    """A convolution and a linear layer of 4 tokens, then a product of the last one."""

    @mb.program(input_specs=[spec(1, 32, 1, 4)], opset_version=IOS18)
    def program(x):
        h = mb.conv(x=x, weight=weights(64, 32, 1, 1), bias=weights(64))
        h = mb.transpose(x=mb.squeeze(x=h, axes=[2]), perm=[0, 2, 1])  # -> (1, 4, 64)
        h = mb.relu(x=mb.linear(x=h, weight=weights(96, 64), bias=weights(96)))
        last = mb.slice_by_size(x=h, begin=[0, 3, 0], size=[1, 1, 96])
        return mb.matmul(x=last, y=weights(24, 96), transpose_y=True, name="y")

    return convert(program, **options)


def int8():
    quantizer = cto.OpLinearQuantizerConfig(mode="linear_symmetric", weight_threshold=64)
    return cto.linear_quantize_weights(products(), config(quantizer))


def palettes(**options):
    palette = cto.OpPalettizerConfig(mode="uniform", nbits=4, weight_threshold=64, **options)
    return cto.palettize_weights(products(), config(palette))


def rms_norm(x, axis):
    """The layer norm of [x, -x], whose first half it is, times a weight."""
    shape, rank = list(x.shape), len(x.shape)
    doubled = mb.concat(values=[x, mb.mul(x=x, y=-1.0)], axis=axis)
    normed = mb.layer_norm(x=doubled, axes=[axis], epsilon=1e-5)
    half = mb.slice_by_index(x=normed, begin=[0] * rank, end=shape)
    weight = weights(shape[axis]) + 1
    return mb.mul(x=half, y=weight.reshape([-1 if i == axis else 1 for i in range(rank)]))


def cached():
    """Few query rows over a cache and their own keys: attention in two parts."""
    inputs = [spec(1, 2, T, D), spec(1, 2, P, D), spec(1, 2, P, D), spec(1, 1, T, P + T)]

    @mb.program(input_specs=inputs, opset_version=IOS18)
    def program(x, keys, values, mask):
        q = rms_norm(x, 3)
        scores = [mb.matmul(x=q, y=part, transpose_y=True) for part in (keys, x)]
        masked = mb.add(x=mb.concat(values=scores, axis=-1), y=mask)
        old, new = mb.split(x=mb.softmax(x=masked), split_sizes=[P, T], axis=-1)
        return mb.add(x=mb.matmul(x=old, y=values), y=mb.matmul(x=new, y=x), name="y")

    return convert(program)


def whole():
    """Many query rows, channels first: attention in one part, and a norm that is no group."""

    @mb.program(input_specs=[spec(1, 32, 1, P), spec(1, 1, P, P)], opset_version=IOS18)
    def program(x, mask):
        heads = mb.reshape(x=rms_norm(x, 1), shape=[1, 2, D, P])
        q = mb.transpose(x=heads, perm=[0, 1, 3, 2])  # -> (1, 2, P, D)
        scores = mb.add(x=mask, y=mb.matmul(x=q, y=q, transpose_y=True))
        h = mb.matmul(x=mb.softmax(x=scores, axis=3), y=q)
        h = mb.mul(x=mb.silu(x=h), y=q)
        h = mb.layer_norm(x=h, axes=[3], gamma=weights(D), beta=weights(D))
        return mb.softmax(x=h, name="y")

    return convert(program)


KERNELS: dict[str, Callable] = {
    "products": products,
    "products-fp32": lambda: products(compute_precision=ct.precision.FLOAT32),
    "products-int8": int8,
    "products-palette": palettes,
    "products-palettes": lambda: palettes(granularity="per_grouped_channel", group_size=8),
    "cached": cached,
    "whole": whole,
}
