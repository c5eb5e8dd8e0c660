"""An encoder's bundle: what differs from a decoder's in the way it is built.

The host has a second table, of positions; there is no head; the golden number is a vector.
"""

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from ane_book.bundle.manifest import Embedding, Vectors
from ane_book.conversion.build import BundleBuilder
from ane_book.conversion.golden import GoldenPass
from ane_book.conversion.write.encoder import lower_encoder, write_encoder
from ane_book.models import find
import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["EncoderBuilder"]


class EncoderPass(GoldenPass):
    """The golden tokens on their way, one text of them."""

    def _hidden(self, layer: int) -> Tensor:
        if layer:
            return super()._hidden(layer)
        first = find(self.config.architecture).first(self.config)
        first.load_state_dict(first_weights(self.config, self.read))
        with torch.inference_mode():
            return first(self._given(self.tokens))

    def _given(self, tokens: np.ndarray) -> Tensor:
        positions = np.load(self.folder / "positions.npy")[: len(tokens)]
        return super()._given(tokens) + torch.from_numpy(positions.astype(np.float32).T[:, None])

    def _step(self, block: nn.Module, hidden: Tensor, kind: str) -> Tensor:
        T = len(self.tokens)
        return block(hidden, torch.zeros(1, 1, T, T))

    def write(self, path: Path) -> None:
        """golden.npz: the tokens, and their vector (C,) of length 1."""
        rows = self._hidden(self.config.num_layers)[0, :, 0].numpy()  # (C, T)
        vector = rows[:, 0] if self.config.pooling == "cls" else rows.mean(axis=1)
        vector = vector / np.linalg.norm(vector)
        with path.open("wb") as file:
            np.savez(file, tokens=self.tokens, hidden=self.hidden(), vector=vector)


def first_weights(config, read) -> dict[str, Tensor]:
    """The parameters of what comes before the first layer, as a state dict."""
    architecture = find(config.architecture)
    shapes = {name: p.shape for name, p in architecture.first(config).named_parameters()}
    outer = architecture.outer(config)
    return {
        name: torch.from_numpy(read(outer[f"first.{name}"].name)).view(shape)
        for name, shape in shapes.items()
    }


class EncoderBuilder(BundleBuilder):
    """Builds the bundle of an encoder."""

    golden_pass = EncoderPass

    @property
    def vectors(self) -> Vectors:
        shape = self.recipe.context, self.config.hidden_size
        positions = Embedding(file="positions.npy", shape=shape)
        return Vectors(positions=positions, pooling=self.config.pooling)

    @cached_property
    def functions(self) -> dict[str, int]:
        """A function for each length of a call: 32 tokens, four times as many, up to all."""
        most, lengths = self.recipe.context, []
        while (length := 32 * 4 ** len(lengths)) < most:
            lengths.append(length)
        return {f"encode_{length}": length for length in [*lengths, most]}

    def write_positions(self, path: Path) -> None:
        """A row for each position, float16 (P, C), which has that of the one type in it."""
        names = [self._outer[part].name for part in ("positions", "types")]
        positions, types = (self.source.tensor(name) for name in names)
        with path.open("wb") as file:
            np.save(file, self._rounded(names[0], (positions + types[0])[: self.recipe.context]))

    def lower(self) -> dict:
        return lower_encoder(self.config, self.functions)

    def _write_layers(self) -> None:
        self._whole("positions.npy", self.write_positions)
        super()._write_layers()

    def shard(self, path: Path, pieces: dict, layers: range, weights: Iterable[dict]) -> None:
        first = {} if layers.start else first_weights(self.config, self.read)
        own = self.config, self.functions, self.recipe.quant, pieces, layers, first
        write_encoder(path, *own, weights)

    def _write_head(self) -> None:
        self._whole("golden.npz", self.golden.write)
