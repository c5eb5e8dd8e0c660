"""Build the bundles of encoders, which make vectors of texts, or label tokens.

An encoder has no KV cache. What comes after all layers is in its last program, but for what is of a
text's pooled column, which is a program of its own. Where the model has position embeddings, the
host gets a table of them. The golden result is a vector, or the logits of all tokens.
"""

from functools import cached_property
from pathlib import Path
from typing import Any

from ane_book.bundle.parts import Embedding, Tags, Vectors
from ane_book.conversion.build import BundleBuilder
from ane_book.conversion.encoding import rounded
from ane_book.conversion.golden import GoldenPass, end_module
from ane_book.conversion.plan.wired import encode_functions
from ane_book.conversion.write.head import write_pooled
from ane_book.host import pool, text_mask
from ane_book.layout import CallShape
from ane_book.models import find
from ane_book.models.base.decoder import end_weights
import numpy as np
import torch
from torch import Tensor


def settings(config: Any) -> dict[str, Any]:
    """What a manifest says of vectors beside the rows that the host adds."""
    names = "pooling", "prompts", "default_prompt", "dimensions"
    own = {name: getattr(config, name) for name in names}
    return {"causal": find(config.architecture).causal} | own


class EncoderPass(GoldenPass):
    """The golden pass of an encoder of texts; the golden tokens are one text."""

    def _given(self, tokens: np.ndarray) -> Tensor:
        hidden, file = super()._given(tokens), self.folder / "positions.npy"
        if "positions" not in find(self.config.architecture).outer(self.config):
            return hidden
        return hidden + torch.from_numpy(np.load(file)[: len(tokens)].astype(np.float32).T[:, None])

    @cached_property
    def _feeds(self) -> dict[str, Tensor]:
        T, causal = len(self.tokens), find(self.config.architecture).causal
        tables = self._host.tables(np.arange(T), self.recipe.context)
        arrays = tables | self._host.text_masks([T], T, causal=causal)
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def _ended(self, values: dict[str, Tensor], layer: int) -> dict[str, Tensor]:
        last = end_module(self.config, "last", self.read)
        if layer < self.config.num_layers or last is None:
            return values
        with torch.inference_mode():
            return {"hidden": last(values["hidden"])}

    def _results(self) -> dict[str, np.ndarray]:
        """The vector (E,), of length 1."""
        columns = self._hidden(self.config.num_layers)[0, :, 0].numpy()  # (C, T)
        vector = pool(columns, self.config.pooling)
        if (pooled := end_module(self.config, "pooled", self.read)) is not None:
            with torch.inference_mode():
                vector = pooled(torch.from_numpy(vector)[None, :, None, None]).numpy().ravel()
        return {"vector": vector / np.linalg.norm(vector)}


class TaggerPass(EncoderPass):
    """The golden pass of a model that labels tokens."""

    @cached_property
    def _feeds(self) -> dict[str, Tensor]:
        T = len(self.tokens)
        tables = self._host.tables(np.arange(T), T)
        arrays = tables | {"mask": text_mask([T], T, self.config.sliding_window)}
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def _ended(self, values: dict[str, Tensor], layer: int) -> dict[str, Tensor]:
        return values  # the labels' logits are no hidden state

    def _results(self) -> dict[str, np.ndarray]:
        """The logits of the tokens, (N, T)."""
        last = end_module(self.config, "last", self.read)
        assert last is not None, "a tagger ends in the scores of its labels"
        with torch.inference_mode():
            return {"logits": last(self._hidden(self.config.num_layers))[0, :, 0].numpy()}


class EncoderBuilder(BundleBuilder):
    """Builds the bundle of an encoder of texts."""

    golden_pass: type[GoldenPass] = EncoderPass

    @property
    def vectors(self) -> Vectors | None:
        config, positions = self.config, None
        if "positions" in self._outer:
            shape = self.recipe.context, config.hidden_size
            positions = Embedding(file="positions.npy", shape=shape)
        return Vectors(positions=positions, **settings(config))

    @cached_property
    def functions(self) -> dict[str, int]:
        """A function for each length of a call."""
        return encode_functions(self.recipe.context)

    @property
    def calls(self) -> dict[str, CallShape]:
        return {name: CallShape(T) for name, T in self.functions.items()}

    def write_positions(self, path: Path) -> None:
        """Write the position embeddings, float16 (P, C), with that of token type 0 added."""
        names = [self._outer[part].name for part in ("positions", "types")]
        positions, types = (self.source.tensor(name) for name in names)
        first = self.config.skipped
        positions = positions[first : first + self.recipe.context]
        with path.open("wb") as file:
            np.save(file, rounded(names[0], positions + types[0]))

    def _prepare(self) -> None:
        super()._prepare()
        if "positions" in self._outer:
            self._whole("positions.npy", self.write_positions)

    def _write_head(self) -> None:
        for program in self.plan.pooled:
            self._whole(program.package, self.write_pooled)
        self._whole("golden.npz", self.golden.write)

    def write_pooled(self, path: Path) -> None:
        """Write the package of what is of pooled columns."""
        weights = end_weights(self.config, "pooled", self.read)
        write_pooled(path, self.config, self.functions, weights)


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
