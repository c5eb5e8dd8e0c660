"""A linear layer in ANE form, and its slot for a LoRA adapter (`ane_book.models.base.lora`).

Letters: see `ane_book.models.base`; P pairs of A and B in a slot of rank R.
"""

import torch
from torch import Tensor, nn


class Projection(nn.Conv2d):
    """A linear layer in ANE form: a 1x1 convolution over (1, inputs, 1, T).

    slot: A (1, P*R, 1, inputs) and B (1, outputs, 1, R) of P pairs that add B (A x), each to its
    own rows of the result, and how many rows those are; None for no pairs (`lora.py`).
    """

    slot: tuple[Tensor, Tensor, list[int]] | None = None

    def __init__(self, inputs: int, outputs: int, bias: bool = False):
        super().__init__(inputs, outputs, kernel_size=1, bias=bias)

    def forward(self, input: Tensor) -> Tensor:
        y = super().forward(input)
        return y if self.slot is None else y + low_rank(*self.slot, input)


def low_rank(a: Tensor, b: Tensor, rows: list[int], x: Tensor) -> Tensor:
    """B (A x) of each pair, below each other: x (1, C_in, 1, T) -> (1, C_out, 1, T).

    A and B are no constants, so these are products of activations by channels, the form in which
    Apple's rules write attention (`apple.py`); we know of nobody who ran a convolution with a
    weight that is an input on the engine, though MIL has it.
    """
    low = torch.einsum("nchw,nwhu->nchu", a, x)  # (1, P*R, 1, T)
    if len(rows) == 1:
        return torch.einsum("nchw,nwhu->nchu", b, low)
    pairs = zip(b.split(rows, dim=1), low.chunk(len(rows), dim=1), strict=True)
    return torch.cat([torch.einsum("nchw,nwhu->nchu", up, part) for up, part in pairs], dim=1)


class Slotted(nn.Module):
    """A block whose projections have slots for an adapter: takes A and B of each behind its own
    arguments.

    rows: by the name of a projection's module, the rows of each pair. Names of parameters have
    "block." in front.
    """

    def __init__(self, block: nn.Module, rows: dict[str, list[int]]):
        super().__init__()
        self.block, self.rows = block, rows

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        own = len(given) - 2 * len(self.rows)
        pairs = zip(given[own::2], given[own + 1 :: 2], self.rows.items(), strict=True)
        for a, b, (name, rows) in pairs:
            module = self.block.get_submodule(name)
            assert isinstance(module, Projection), f"{name} is a {type(module).__name__}"
            module.slot = a, b, rows
        return self.block(*given[:own])
