"""A weight as the operands of a MIL op: integers with scales, or palettes.

Letters: O output channels, C input channels, G groups of output channels, B blocks of input
channels, P = 2^bits entries of a palette, n weights of a group.
"""

from dataclasses import dataclass

from ane_book.conversion.quantize.kmeans import centres, middles
from ane_book.conversion.quantize.schemes import Scheme
from ane_book.weights import Integers
import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Encoded:
    """A weight as the operands of a MIL op: each has a dtype in MIL's spelling, and an array.

    The first operand has the weight's shape. Integers of fewer than eight bits come one to a byte;
    the weight file packs them.
    """

    op: str
    operands: dict[str, tuple[str, np.ndarray]]

    @classmethod
    def linear(cls, bits: int, data: np.ndarray, scale: np.ndarray) -> "Encoded":
        """w = scale * data."""
        operands = {"data": (f"int{bits}", data), "scale": ("fp16", scale)}
        return cls("constexpr_blockwise_shift_scale", operands)

    @classmethod
    def stored(cls, matrix: Integers) -> "Encoded":
        """w = scale * (data - offset), the integers as they are."""
        kind = f"{'u' if matrix.data.dtype == np.uint8 else ''}int{matrix.bits}"
        operands = {"data": (kind, matrix.data), "scale": ("fp16", matrix.scale.astype(np.float16))}
        if matrix.zero is not None:
            operands["offset"] = kind, matrix.zero
        operands = {key: (dtype, a[:, :, None, None]) for key, (dtype, a) in operands.items()}
        return cls("constexpr_blockwise_shift_scale", operands)

    @classmethod
    def palette(cls, bits: int, indices: np.ndarray, lut: np.ndarray) -> "Encoded":
        """w = lut[index]."""
        operands = {"indices": (f"uint{bits}", indices), "lut": ("fp16", lut)}
        return cls("constexpr_lut_to_dense", operands)

    @property
    def shape(self) -> tuple[int, ...]:
        return next(iter(self.operands.values()))[1].shape

    def weight(self) -> Tensor:
        """The weight that the op gives back: fp16 numbers, as float32."""
        from mlprogram.ops import OPS  # all of them, and a conversion needs none

        arrays = {key: torch.from_numpy(array) for key, (_, array) in self.operands.items()}
        return (arrays["val"] if self.op == "const" else OPS[self.op].function(**arrays)).float()


def encode(weight: Tensor, scheme: Scheme) -> Encoded:
    """Encode a parameter by a scheme; all but projections (O, C, 1, 1) become fp16."""
    projection = weight.dim() == 4 and len(weight) > 1 and weight.shape[2:] == (1, 1)
    if scheme.form in ("plain", "stored") or not projection:  # norms are (1, C, 1, 1)
        return Encoded("const", {"val": ("fp16", weight.half().numpy())})
    groups = scheme.groups(len(weight))
    if scheme.form == "linear":
        blocks = scheme.blocks(weight.shape[1])
        return Encoded.linear(scheme.bits, *quantize(weight, groups, blocks, scheme.bits))
    return Encoded.palette(scheme.bits, *palettize(weight, groups, scheme.bits))


def quantize(
    weight: Tensor, groups: int, blocks: int = 1, bits: int = 8
) -> tuple[np.ndarray, np.ndarray]:
    """weight (O, C, 1, 1) -> data int8 (O, C, 1, 1), scale fp16 (G, B, 1, 1), symmetric.

    B blocks of input channels. With L = 2^(bits - 1) - 1 the scale of a group's block is its
    max |w| / L, rounded up to fp16 so that nothing is clipped, and data = round(w / scale); hence
    |w - scale * data| <= scale / 2 and |data| <= L.
    """
    outputs, inputs = weight.shape[:2]
    parts = weight.float().reshape(groups, outputs // groups, blocks, inputs // blocks)
    most, least = parts.amax(dim=(1, 3), keepdim=True), parts.amin(dim=(1, 3), keepdim=True)
    exact = torch.maximum(most, -least).numpy() / np.float32(2 ** (bits - 1) - 1)  # (G, 1, B, 1)
    scale = exact.astype(np.float16)
    low = scale.astype(np.float32) < exact
    scale[low] = np.nextafter(scale[low], np.float16(np.inf))
    scale[scale == 0] = 1  # a group of zeros
    data = (parts / torch.from_numpy(scale.astype(np.float32))).round_().to(torch.int8)
    return data.reshape(weight.shape).numpy(), scale.reshape(groups, blocks, 1, 1)


def palettize(weight: Tensor, groups: int, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """weight (O, C, 1, 1) -> indices uint8 (O, C, 1, 1), lut fp16 (G, 1, 1, 1, P, 1), ascending.

    The palette of a group is its k-means centres, rounded to fp16; an index is that of the nearest
    entry.
    """
    rows = weight.float().reshape(groups, -1)  # (G, n)
    lut = centres(rows, 1 << bits).half()
    indices = torch.searchsorted(middles(lut.float()), rows).to(torch.uint8)
    return indices.reshape(weight.shape).numpy(), lut.reshape(groups, 1, 1, 1, -1, 1).numpy()
