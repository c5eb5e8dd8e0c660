"""Build the bundles of encoders, which make sentence vectors or label tokens.

An encoder has no KV cache, and its head, if any, is in its last program. For sentence vectors the
host also gets a table of position embeddings, and the golden result is a vector; for labels it is
the logits of all tokens.
"""

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from ane_book.bundle.parts import Embedding, Tags, Vectors
from ane_book.conversion.build import BundleBuilder
from ane_book.conversion.encoding import rounded
from ane_book.conversion.golden import GoldenPass, end_module
from ane_book.conversion.plan import Program
from ane_book.conversion.plan.wired import encode_functions
from ane_book.conversion.write.encoder import lower_encoder, write_encoder, write_encoder_trunk
from ane_book.host import text_mask
from ane_book.models.base.decoder import end_weights
import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["BUILDERS", "EncoderBuilder", "TaggerBuilder"]


class EncoderPass(GoldenPass):
    """The golden pass of a sentence encoder; the golden tokens are one text."""

    def _given(self, tokens: np.ndarray) -> Tensor:
        positions = np.load(self.folder / "positions.npy")[: len(tokens)]
        return super()._given(tokens) + torch.from_numpy(positions.astype(np.float32).T[:, None])

    def _step(self, block: nn.Module, values: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
        T = len(self.tokens)
        return {"hidden": block(values["hidden"], torch.zeros(1, 1, T, T))}

    def _results(self) -> dict[str, np.ndarray]:
        """The sentence vector (C,), of length 1."""
        rows = self._hidden(self.config.num_layers)[0, :, 0].numpy()  # (C, T)
        vector = rows[:, 0] if self.config.pooling == "cls" else rows.mean(axis=1)
        return {"vector": vector / np.linalg.norm(vector)}


class TaggerPass(GoldenPass):
    """The golden pass of a model that labels tokens."""

    def _step(self, block: nn.Module, values: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
        T = len(self.tokens)
        tables = self._host.tables(np.arange(T), T).values()
        mask = text_mask([T], T, self.config.sliding_window)
        return {"hidden": block(values["hidden"], *map(torch.from_numpy, (*tables, mask)))}

    def _results(self) -> dict[str, np.ndarray]:
        """The logits of the tokens, (N, T)."""
        last = end_module(self.config, "last", self.read)
        assert last is not None, "a tagger ends in the scores of its labels"
        with torch.inference_mode():
            return {"logits": last(self._hidden(self.config.num_layers))[0, :, 0].numpy()}


class EncoderBuilder(BundleBuilder):
    """Builds the bundle of an encoder of sentences."""

    golden_pass: type[GoldenPass] = EncoderPass

    @property
    def vectors(self) -> Vectors | None:
        shape = self.recipe.context, self.config.hidden_size
        positions = Embedding(file="positions.npy", shape=shape)
        return Vectors(positions=positions, pooling=self.config.pooling)

    @cached_property
    def functions(self) -> dict[str, int]:
        """A function for each length of a call."""
        return encode_functions(self.recipe.context)

    def called(self, program: Program) -> dict[str, tuple[int, int | None]]:
        return {name: (T, None) for name, T in self.functions.items()}

    def write_positions(self, path: Path) -> None:
        """Write the position embeddings, float16 (P, C), with that of token type 0 added."""
        names = [self._outer[part].name for part in ("positions", "types")]
        positions, types = (self.source.tensor(name) for name in names)
        with path.open("wb") as file:
            np.save(file, rounded(names[0], (positions + types[0])[: self.recipe.context]))

    def lower(self) -> dict:
        return lower_encoder(self.config, self.functions)

    def _prepare(self) -> None:
        super()._prepare()
        if self.vectors:
            self._whole("positions.npy", self.write_positions)

    def shard(self, path: Path, pieces: dict, layers: range, weights: Iterable[dict]) -> None:
        ends = self._ends(layers.start, layers.stop)
        write_encoder(
            path,
            config=self.config,
            functions=self.functions,
            quant=self.recipe.quant,
            pieces=pieces,
            layers=layers,
            ends=ends,
            weights=weights,
        )

    def _ends(self, first: int, last: int) -> dict[str, dict[str, Tensor]]:
        """State dicts of the modules before the first layer and after the last, where [first, last)
        reaches that end of the model."""
        has = {"first": first == 0, "last": last == self.config.num_layers}
        return {e: end_weights(self.config, e, self.read) for e, here in has.items() if here}

    def trunk(self, path: Path, layer: int, pieces: dict, state: dict[str, Tensor]) -> None:
        behind = self.behind(layer - 1, pieces) if layer else {}
        write_encoder_trunk(
            path,
            config=self.config,
            functions=self.functions,
            quant=self.recipe.quant,
            pieces=pieces,
            layer=layer,
            states=(behind, state),
            ends=self._ends(layer, layer),
        )

    def _write_head(self) -> None:
        self._whole("golden.npz", self.golden.write)


class TaggerBuilder(EncoderBuilder):
    """Builds the bundle of a model that labels tokens."""

    golden_pass = TaggerPass

    @property
    def vectors(self) -> None:
        return None

    @property
    def tags(self) -> Tags:
        return Tags(labels=list(self.config.labels), window=self.config.sliding_window)


#: The builder of each task.
BUILDERS: dict[str, type[BundleBuilder]] = {
    "text-generation": BundleBuilder,
    "embedding": EncoderBuilder,
    "token-classification": TaggerBuilder,
}
