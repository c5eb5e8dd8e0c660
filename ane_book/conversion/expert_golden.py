"""What experts that are programs are given by PyTorch, and what they say: golden numbers of theirs.

Letters: C hidden size, E experts, L layers, T golden tokens.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ane_book.models.base.experts.layers import Mixture
import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["heard", "listening"]

FILES = "experts_{}.npz"  # of each layer, in the unfinished bundle


@contextmanager
def listening(block: nn.Module, folder: Path, layer: int) -> Iterator[None]:
    """While a block runs, write what its experts are given and say, if they are programs."""
    mixture = getattr(block, "mixture", None)
    if mixture is None or not mixture.apart:
        yield
        return

    def note(module: Mixture, given: tuple[Tensor, Tensor], y: Tensor) -> None:
        x, gates = given
        one, full = x[..., :1], torch.ones(1, 1, 1, 1)
        said = torch.cat([expert(one, full) for expert in module.groups], dim=3)  # (1, C, 1, E)
        tensors = {"x": x, "gates": gates, "y": y, "experts": said.transpose(1, 3)}
        arrays: dict[str, Any] = {n: value[0, :, 0].numpy() for n, value in tensors.items()}
        np.savez(folder / FILES.format(f"{layer:03d}"), **arrays)

    hook = mixture.register_forward_hook(note)
    try:
        yield
    finally:
        hook.remove()


def heard(folder: Path) -> dict[str, np.ndarray]:
    """Of all layers: `x` (L, C, T), `gates` (L, E, T) and their sum `y` (L, C, T); `experts` (L, E,
    C) is what each says of the first token with a gate of 1."""
    layers = []
    for file in sorted(folder.glob(FILES.format("*"))):
        with np.load(file) as arrays:
            layers.append(dict(arrays))
    return {name: np.stack([own[name] for own in layers]) for name in (layers or [{}])[0]}
