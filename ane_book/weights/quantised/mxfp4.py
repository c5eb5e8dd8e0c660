"""MXFP4, as gpt-oss stores its experts: 4-bit floats, 32 of them with one power of two.

    X_blocks (E, out, in / 32, 16) U8: two values a byte, the first in the low half
    X_scales (E, out, in / 32) U8: E8M0, an exponent with a bias of 127; 255 is no number

X itself is (E, in, out), as `transformers` keeps these experts.

References: OCP Microscaling Formats (MX) specification 1.0, sections 5.3.3 and 5.4.1;
`transformers`, integrations/mxfp4.py.
"""

from ane_book.weights.quantised.stored import Stored, WeightRule
import torch

#: E2M1: a sign, two bits of exponent with a bias of 1, a bit of mantissa.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def mxfp4(stored: Stored, settings: dict) -> dict[str, WeightRule]:
    """The rules of `quant_method` "mxfp4"."""
    return {stem: _rule(stored, stem) for stem in stored.stems("_blocks")}


def _rule(stored: Stored, stem: str) -> WeightRule:
    blocks, scales = f"{stem}_blocks", f"{stem}_scales"
    shape = stored.matrix(blocks, ("U8",))
    if len(shape) != 4 or shape[-1] != 16:
        raise stored.error(f"tensor {blocks} has shape {shape}, not (experts, out, in / 32, 16)")
    experts, rows, groups, _ = shape
    stored.part(scales, ("U8",), [shape[:-1]])

    def make() -> torch.Tensor:
        data, exponents = stored.read(blocks), stored.read(scales)
        if (exponents == 255).any():
            raise stored.error(f"tensor {scales} holds 255, which is no power of two")
        made = torch.empty(experts, 32 * groups, rows)
        for e in range(experts):  # one at a time: a stack of gpt-oss's takes 2 GB
            made[e] = _values(data[e], exponents[e]).T  # (out, in) -> (in, out)
        return made

    return WeightRule((experts, 32 * groups, rows), (blocks, scales), make)


def _values(data: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    """Dequantise a matrix: data (out, G, 16), exponents (out, G) -> (out, 32 G) float32."""
    halves = torch.stack((data & 15, data >> 4), dim=-1).flatten(-2)  # (out, G, 32)
    values = torch.tensor(E2M1)[halves.int()]
    return torch.ldexp(values, exponents.int()[..., None] - 127).flatten(-2)
