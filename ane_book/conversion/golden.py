"""Golden numbers: PyTorch's results for the same weights, computed while layers are converted.

Conversion reads every layer once; as soon as a layer is read, it also runs on the golden tokens in
float32, which for an encoder are one text. Between two programs the hidden state is kept in a file,
from which an interrupted conversion goes on. Where experts are programs, their inputs and outputs
are recorded as well.

Letters: C hidden size, E experts, L layers, N labels, T golden tokens, S slots of the cache, V
vocabulary.
"""

from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from ane_book.host import causal_mask, per_layer_columns, pool
from ane_book.layout import PER_LAYER, CallShape
from ane_book.models import find
from ane_book.models.base import decoder
from ane_book.models.base.experts.layers import Mixture
from ane_book.models.base.signature import MaskInput
from ane_book.options import Recipe
import numpy as np
import torch
from torch import Tensor, nn

EXPERTS = "experts_{}.npz"  # of each layer, in the unfinished bundle

Made = TypeVar("Made", bound=nn.Module)


def loaded(make: Callable[[], Made], weights: dict[str, Tensor]) -> Made:
    """Make a module that holds the tensors of a state dict themselves, not copies."""
    with torch.device("meta"):  # no memory for parameters, which are assigned below
        module = make()
    module.load_state_dict(weights, assign=True)
    return module


class GoldenPass:
    """Runs the golden tokens through the layers of one conversion.

    folder: the unfinished bundle. read(name) gives a tensor under its `transformers` name, float32,
    with the values of fp16.
    """

    def __init__(
        self,
        config: Any,
        recipe: Recipe,
        folder: Path,
        read: Callable[[str], np.ndarray],
    ):
        self.config, self.recipe, self.folder, self.read = config, recipe, folder, read
        self._architecture = find(config.architecture)
        self.signatures = self._architecture.signatures(config)
        self._host = self._architecture.host(config)
        self._logits: list[Tensor] = []  # of the last token, for each part of the vocabulary
        self._best: list[tuple[Tensor, Tensor]] = []  # of every token, the largest and its place

    @property
    def tokens(self) -> np.ndarray:
        """Token ids that are spread over the vocabulary, the same for every model of its size."""
        steps = np.arange(1, self.recipe.golden_tokens + 1, dtype=np.int64)
        return steps * 7919 % self.config.vocab_size  # 7919 is prime

    def layers(self, layers: range) -> Iterator[dict[str, Tensor]]:
        """Run each layer and yield its state dict; at the end, save the hidden state to disk."""
        values = self._values(layers.start)
        if layers.start == 0:
            values["hidden"] = self._after_end("first", values["hidden"])
        for layer in layers:
            block, state = self._block(layer)
            _listen(block, self.folder, layer)
            with torch.inference_mode():
                values = self._step(block, values, layer)
            yield state
        values = {n: values[n] for n in ("hidden", *self.signatures.handed(layers.stop))}
        # The last module of a tagger gives the labels' logits, which are no hidden state.
        if layers.stop == self.config.num_layers and self._architecture.task == "embedding":
            values["hidden"] = self._after_end("last", values["hidden"])
        final = self.file(layers.stop)
        unfinished = final.with_name(f"unfinished_{final.name}")
        arrays: dict[str, Any] = {name: value.numpy() for name, value in values.items()}
        np.savez(unfinished, **arrays)
        unfinished.rename(final)

    def _block(self, layer: int) -> tuple[nn.Module, dict[str, Tensor]]:
        """A layer's block, and the state dict whose tensors it holds."""
        state = decoder.block_weights(self.config, layer, self.read)
        block, kind = self._architecture.block, self.signatures.names[layer]
        return loaded(partial(block, self.config, kind), state), state

    def _after_end(self, end: str, hidden: Tensor) -> Tensor:
        """What one of `Architecture.ends` makes of the hidden state; without one, the same."""
        weights = decoder.end_weights(self.config, end, self.read)
        if not weights:
            return hidden
        module = loaded(lambda: self._architecture.ends(self.config)[end], weights)
        with torch.inference_mode():
            return module(hidden)

    def _step(self, block: nn.Module, values: dict[str, Tensor], layer: int) -> dict[str, Tensor]:
        """Run a layer's block; returns the next one's inputs: `hidden` (1, C, 1, T), and the values
        that layers pass on. What a block keeps or reads is zeros, as before the first token."""
        signature, feeds = self.signatures[layer], values | self._feeds
        if signature.own:
            feeds |= {PER_LAYER: self._per_layer[layer : layer + 1]}
        kept = {**signature.keeps, **signature.reads}
        feeds |= {name: torch.zeros(kind.shape(self._call)) for name, kind in kept.items()}
        result = block(values["hidden"], *(feeds[name] for name in signature.arguments))
        hidden, *made = result if isinstance(result, tuple) else (result,)
        given = zip(signature.given, made[len(signature.keeps) :], strict=True)
        return values | {"hidden": hidden} | dict(given)

    def file(self, layer: int) -> Path:
        """The file that keeps the inputs of a layer, computed by the layers before it."""
        return self.folder / f"hidden_{layer:03d}.npz"

    def _values(self, layer: int) -> dict[str, Tensor]:
        if layer == 0:
            return {"hidden": self._given(self.tokens)}
        with np.load(self.file(layer)) as file:
            return {name: torch.from_numpy(array) for name, array in file.items()}

    def _given(self, tokens: np.ndarray) -> Tensor:
        """The scaled embeddings of T tokens, (1, C, 1, T), as the host gives them to the model."""
        embedding = np.load(self.folder / "embedding.npy", mmap_mode="r")
        rows = embedding[tokens].astype(np.float32) * self._host.embedding_scale  # (T, C)
        if "positions" in self._architecture.outer(self.config):
            rows += np.load(self.folder / "positions.npy")[: len(tokens)]
        return torch.from_numpy(rows.T[None, :, None, :].copy())  # (1, C, 1, T)

    @property
    def _call(self) -> CallShape:
        return CallShape(self.recipe.golden_tokens, self.recipe.context)

    @cached_property
    def _feeds(self) -> dict[str, Tensor]:
        """What the host gives to a call at position 0."""
        T, S = self.recipe.golden_tokens, self.recipe.context
        arrays = self._host.tables(np.arange(T), S)
        if self._architecture.task == "text-generation":
            arrays["real"] = np.ones((1, 1, 1, T), np.float32)
            for name, given in self.signatures.host().items():
                if isinstance(given, MaskInput):
                    mask = causal_mask(0, T, S, self._host.masks[name])
                    arrays[name] = np.tile(mask, (1, 1, given.often(self._call), 1))
        else:
            tagger = self._architecture.task == "token-classification"
            window = self.config.sliding_window if tagger else None
            arrays |= self._host.text_masks([T], T, window, self._architecture.causal)
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    @cached_property
    def _per_layer(self) -> Tensor:
        """The layers' own inputs of the golden tokens, (L, P, 1, T), as the host gives them."""
        rows = np.load(self.folder / "per_layer.npy", mmap_mode="r")[self.tokens]  # (T, L * P)
        return torch.from_numpy(per_layer_columns(rows, self.config.num_layers).astype(np.float32))

    def head(self, rows: int, weights: dict[str, Tensor]) -> None:
        """Compute the logits of the next rows of the vocabulary, and keep what `_results` needs of
        them; `weights`: of their `Head`."""
        head = loaded(partial(decoder.Head, self.config, (rows,)), weights)
        with torch.inference_mode():
            logits = head(self._values(self.config.num_layers)["hidden"])[0][0, :, 0]  # (V_i, T)
            largest, place = logits.max(dim=0)
            self._best.append((largest, place + sum(map(len, self._logits))))
            self._logits.append(logits[:, -1].clone())  # or all tokens' would be kept

    def write(self, path: Path) -> None:
        """Write golden.npz; all layers and all parts of the vocabulary must have run."""
        hidden, carried = [self._given(self.tokens)], dict[str, np.ndarray]()
        for layer in sorted(int(file.stem[7:]) for file in self.folder.glob("hidden_*.npz")):
            values = self._values(layer)
            hidden.append(values.pop("hidden"))
            if layer < self.config.num_layers:
                rows = {n: np.ascontiguousarray(own[0, :, 0]) for n, own in values.items()}
                carried |= {f"{n}_{layer}": array for n, array in rows.items()}
        states = torch.cat(hidden)[:, :, 0].numpy()  # (n + 1, C, T)
        results: dict[str, Any] = self._results() | (_heard(self.folder) or carried)
        with path.open("wb") as file:
            np.savez(file, tokens=self.tokens, hidden=states, **results)

    def _results(self) -> dict[str, np.ndarray]:
        """Of a decoder the last token's logits (V,), and every token's likeliest next one (T,); of
        a tagger the logits of all tokens (N, T); of other encoders a vector of length 1."""
        if self._best:
            largest, tokens = (torch.stack(parts) for parts in zip(*self._best, strict=True))
            argmax = tokens.gather(0, largest.argmax(dim=0)[None])[0]
            return {"logits": torch.cat(self._logits).numpy(), "argmax": argmax.numpy()}
        hidden = self._values(self.config.num_layers)["hidden"]  # (1, C, 1, T)
        if self._architecture.task == "token-classification":
            return {"logits": self._after_end("last", hidden)[0, :, 0].numpy()}
        column = torch.from_numpy(pool(hidden[0, :, 0].numpy(), self.config.pooling))
        vector = self._after_end("pooled", column[None, :, None, None]).numpy().ravel()
        return {"vector": vector / np.linalg.norm(vector)}


def _listen(block: nn.Module, folder: Path, layer: int) -> None:
    """Have a block record the inputs and outputs of its experts if they are programs."""
    mixture = getattr(block, "mixture", None)

    def note(module: Mixture, inputs: tuple[Tensor, Tensor], y: Tensor) -> None:
        x, gates = inputs
        one, full = x[..., :1], torch.ones(1, 1, 1, 1)
        outputs = torch.cat([expert(one, full) for expert in module.groups], dim=3)  # (1, C, 1, E)
        tensors = {"x": x, "gates": gates, "y": y, "experts": outputs.transpose(1, 3)}
        arrays: dict[str, Any] = {n: value[0, :, 0].numpy() for n, value in tensors.items()}
        np.savez(folder / EXPERTS.format(f"{layer:03d}"), **arrays)

    if mixture is not None and mixture.apart:
        mixture.register_forward_hook(note)


def _heard(folder: Path) -> dict[str, np.ndarray]:
    """Read what was recorded of the experts of all layers (`Bundle.golden`); {} if nothing was."""
    layers = []
    for file in sorted(folder.glob(EXPERTS.format("*"))):
        with np.load(file) as arrays:
            layers.append(dict(arrays))
    return {name: np.stack([each[name] for each in layers]) for name in (layers or [{}])[0]}
