"""Golden numbers: what PyTorch says of the same weights, computed while they pass by.

Conversion reads every layer once; each, as soon as it is read, also runs on the golden tokens, in
float32. Between two programs the hidden state waits in a file, so that an interrupted conversion
goes on from there.

Letters: C hidden size, T golden tokens, S slots of the cache, V vocabulary.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from ane_book.bundle import Recipe
from ane_book.config import DecoderConfig, causal_mask, rope_tables
from ane_book.models import decoder
import numpy as np
import torch
from torch import Tensor

__all__ = ["GoldenPass"]


class GoldenPass:
    """The pass of one conversion, whose unfinished bundle is `folder`.

    read(name) gives a tensor under its `transformers` name, float32, with the values of fp16.
    """

    def __init__(
        self,
        config: DecoderConfig,
        recipe: Recipe,
        folder: Path,
        read: Callable[[str], np.ndarray],
    ):
        self.config, self.recipe, self.folder, self.read = config, recipe, folder, read
        self._logits: list[Tensor] = []

    @property
    def tokens(self) -> np.ndarray:
        """Token ids that are spread over the vocabulary, the same for every model of its size."""
        steps = np.arange(1, self.recipe.prefill + 1, dtype=np.int64)
        return steps * 7919 % self.config.vocab_size  # 7919 is prime

    def layers(self, layers: range) -> Iterator[dict[str, Tensor]]:
        """The state dict of each layer, run as it goes by; then the hidden state is on disk."""
        hidden, feeds = self._hidden(layers.start), self._feeds()
        with torch.device("meta"):  # no memory for parameters that are given
            block = decoder.Block(self.config)
        for layer in layers:
            state = decoder.block_weights(self.config, layer, self.read)
            block.load_state_dict(state, assign=True)
            with torch.inference_mode():
                hidden = block(hidden, *feeds)[0]
            yield state
        final = self.file(layers.stop)
        unfinished = final.with_name(f"unfinished_{final.name}")
        np.save(unfinished, hidden.numpy())
        unfinished.rename(final)

    def file(self, layer: int) -> Path:
        """Where the hidden state before a layer waits."""
        return self.folder / f"hidden_{layer:03d}.npy"

    def _hidden(self, layer: int) -> Tensor:
        if layer:
            return torch.from_numpy(np.load(self.file(layer)))
        embedding = np.load(self.folder / "embedding.npy", mmap_mode="r")
        rows = embedding[self.tokens].astype(np.float32)  # (T, C)
        return torch.from_numpy(rows.T[None, :, None, :].copy())  # (1, C, 1, T)

    def _feeds(self) -> tuple[Tensor, ...]:
        config, T, S = self.config, self.recipe.prefill, self.recipe.context
        mask = torch.from_numpy(causal_mask(0, T, S)).repeat(1, 1, config.group, 1)
        empty = torch.zeros(1, config.num_kv_heads, S, config.head_dim)
        cos, sin = (torch.from_numpy(t) for t in rope_tables(config, np.arange(T), S))
        return cos, sin, mask, empty, empty

    def head(self, splits: tuple[int, ...], weights: dict[str, Tensor]) -> None:
        """The next parts of the vocabulary; `weights` is the state dict of a `Head` with them."""
        with torch.device("meta"):
            head = decoder.Head(self.config, splits)
        head.load_state_dict(weights, assign=True)
        with torch.inference_mode():
            self._logits += head(self._hidden(self.config.num_layers))  # (1, V_i, 1, T) each

    def write(self, path: Path) -> None:
        """golden.npz, once all parts of the vocabulary have passed."""
        logits = torch.cat(self._logits, dim=1)[0, :, 0]  # (V, T)
        with path.open("wb") as file:
            np.savez(
                file,
                tokens=self.tokens,
                logits=logits[:, -1].numpy(),
                argmax=logits.argmax(dim=0).numpy(),
            )
