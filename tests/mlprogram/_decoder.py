"""A decoder as small as one can be that has all that makes a real one fast: `decoder` writes it.

Three layers of rotary attention with grouped heads and of a gated unit, channels first; the cache
is two states, into which the rows of the new tokens go at `position`, after both were read.

Letters: C channels, D head size, G key-value heads, P positions in the cache.
"""

from pathlib import Path

from _foreign import AS_IT_STANDS, build
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
import numpy as np

C, D, G, P = 64, 16, 2, 32
HEADS, HIDDEN, LAYERS = 4, 96, 3


def norm(x, rng):
    """RMS norm: [x, -x] has mean 0, so its layer norm is it."""
    pair = mb.concat(values=[x, mb.mul(x=x, y=np.float16(-1))], axis=1)
    normed = mb.layer_norm(x=pair, axes=[1], epsilon=np.float16(1e-5))
    own = mb.slice_by_index(x=normed, begin=[0, 0, 0, 0], end=[1, C, 1, x.shape[3]])
    return mb.mul(x=own, y=rng.uniform(0.5, 1.5, (1, C, 1, 1)).astype(np.float16))


def linear(x, channels: int, rng):
    weight = rng.normal(0, 0.1, (channels, x.shape[1], 1, 1)).astype(np.float16)
    return mb.conv(x=x, weight=weight, pad_type="valid")


def rotated(x, cos, sin):
    first, second = mb.split(x=x, num_splits=2, axis=3)
    turned = mb.concat(values=[second, first], axis=3)  # `sin` has the minus
    return mb.add(x=mb.mul(x=x, y=cos), y=mb.mul(x=turned, y=sin))


def attended(q, cached, new, mask):
    """q (1, G, rows, D) over the cache and the new rows, each of them keys and values."""
    scores = [mb.matmul(x=q, y=keys, transpose_y=True) for keys, _ in (cached, new)]
    shares = mb.softmax(x=mb.add(x=mb.concat(values=scores, axis=3), y=mask), axis=3)
    parts = mb.split(x=shares, split_sizes=[P, new[0].shape[2]], axis=3)
    found = [mb.matmul(x=part, y=v) for part, (_, v) in zip(parts, (cached, new), strict=True)]
    return mb.add(x=found[0], y=found[1])


def decoder(path: Path, tokens: int = 1) -> Path:
    """A package that takes so many tokens at once; `mask` is (1, 1, tokens, P + tokens)."""
    rng = np.random.default_rng(0)
    shapes = (1, C, 1, tokens), *[(1, 1, tokens, D)] * 2, (1, 1, tokens, P + tokens)
    inputs = [(shape, types.fp16) for shape in shapes]

    @build(path, *inputs, ((1,), types.int32), states=[(LAYERS, G, P, D)] * 2, **AS_IT_STANDS)
    def made(hidden, rope_cos, rope_sin, mask, position, keys, values):
        x, news = hidden, []
        before = [mb.read_state(input=state) for state in (keys, values)]
        layers = zip(*(mb.split(x=y, num_splits=LAYERS, axis=0) for y in before), strict=True)
        rows = mb.tile(x=mask, reps=(1, 1, HEADS // G, 1)) if tokens > 1 else mask
        for cached in layers:
            qkv = linear(norm(x, rng), (HEADS + 2 * G) * D, rng)
            qkv = mb.reshape(x=qkv, shape=(1, HEADS + 2 * G, D, tokens))
            qkv = mb.transpose(x=qkv, perm=(0, 1, 3, 2))
            qk, v = mb.split(x=qkv, split_sizes=[HEADS + G, G], axis=1)
            q, k = mb.split(x=rotated(qk, rope_cos, rope_sin), split_sizes=[HEADS, G], axis=1)
            news.append((k, v))
            q = mb.reshape(x=q, shape=(1, G, HEADS // G * tokens, D))
            y = mb.reshape(x=attended(q, cached, (k, v), rows), shape=(1, HEADS, tokens, D))
            y = mb.reshape(x=mb.transpose(x=y, perm=(0, 1, 3, 2)), shape=(1, HEADS * D, 1, tokens))
            x = mb.add(x=x, y=linear(y, C, rng))
            gate, up = mb.split(x=linear(norm(x, rng), 2 * HIDDEN, rng), num_splits=2, axis=1)
            x = mb.add(x=x, y=linear(mb.mul(x=mb.silu(x=gate), y=up), C, rng))
        begin = mb.concat(values=[[0, 0], position, [0]], axis=0)
        end = mb.add(x=begin, y=np.int32([LAYERS, G, tokens, D]))
        for state, old, new in zip((keys, values), before, zip(*news, strict=True), strict=True):
            new = mb.concat(values=list(new), axis=0)
            after = mb.slice_update(x=old, update=new, begin=begin, end=end)
            mb.coreml_update_state(state=state, value=after)
        return mb.identity(x=x, name="hidden_out")

    return made
