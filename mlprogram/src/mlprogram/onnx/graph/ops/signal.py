"""Fourier transforms, as products with constant matrices, which the ANE supports."""

import numpy as np

from . import Constant, Unsayable, operator
from ._common import Tensor, along, check_constant, first, mb, one_axis, rank, reshaped, sliced


def _turns(size: int, count: int, inverse: bool) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines (count, size) of a transform of length `count` whose input has `size`."""
    check_constant(size, count)
    angle = 2 * np.pi / count * np.outer(np.arange(count), np.arange(size) % count)
    scale = 1 / count if inverse else 1.0
    cos, sin = np.cos(angle) * scale, np.sin(angle) * scale * (1 if inverse else -1)
    return cos.astype(np.float32), sin.astype(np.float32)


@operator("DFT", since=17)
def dft(
    x: Tensor, dft_length: Constant | None = None, axis: Constant | None = None, *, inverse=0,
    onesided=0, since: int,
) -> Tensor:  # fmt: skip
    """x (..., 1 or 2), whose last axis holds the real and imaginary parts."""
    named = (1 if since < 20 else -2) if axis is None else int(axis)
    at, parts = one_axis(named, rank(x)), int(x.shape[-1])
    if onesided and inverse:
        raise Unsayable("an inverse transform of one side")
    size = int(x.shape[at])
    count = size if dft_length is None else first(dft_length)
    if count < 1:
        raise Unsayable(f"a transform of length {count}")
    if count < size:
        x, size = sliced(x, at, 0, count), count
    cos, sin = _turns(size, count, bool(inverse))
    kept = count // 2 + 1 if onesided else count
    last = rank(x) - 1
    real = sliced(x, last, 0, 1)
    a, b = along(real, at, cos[:kept]), along(real, at, sin[:kept])
    if parts == 2:
        other = sliced(x, last, 1, 2)
        a = mb.sub(x=a, y=along(other, at, sin[:kept]))
        b = mb.add(x=b, y=along(other, at, cos[:kept]))
    return mb.concat(values=[a, b], axis=last)


@operator("STFT")
def stft(
    signal: Tensor, frame_step: Constant, window: Constant | None = None,
    frame_length: Constant | None = None, *, onesided=1,
) -> Tensor:  # fmt: skip
    """STFT of signal (B, L, 1) as a convolution with each frequency's windowed cosine and sine."""
    if rank(signal) == 3 and int(signal.shape[-1]) != 1:
        raise Unsayable("a complex signal")
    batch, size = int(signal.shape[0]), int(signal.shape[1])
    asked, step = None if frame_length is None else first(frame_length), first(frame_step)
    frame = asked if window is None else len(window)
    if frame is None or asked not in (None, frame) or not 0 < frame <= size or step < 1:
        raise Unsayable(f"frames of {asked or frame} every {step} of {size} samples")
    shape = np.ones(frame) if window is None else window
    cos, sin = _turns(frame, frame, False)
    kept = frame // 2 + 1 if onesided else frame
    parts = np.concatenate([cos[:kept], sin[:kept]]) * np.asarray(shape, np.float32)
    made = mb.conv(
        x=reshaped(signal, [batch, 1, size]), weight=parts[:, None], strides=[step],
        pad_type="valid",
    )  # fmt: skip
    made = reshaped(made, [batch, 2, kept, -1])  # (B, 2, F, frames)
    return mb.transpose(x=made, perm=[0, 3, 2, 1])
