"""Golden numbers: what PyTorch says of the same weights, computed while they pass by.

Conversion reads every layer once; each, as soon as it is read, also runs on the golden tokens, in
float32. Between two programs the hidden state waits in a file, so that an interrupted conversion
goes on from there. Where experts are programs, what they are given and say is noted as well.

Letters: C hidden size, E experts, L layers, T golden tokens, S slots of the cache, V vocabulary.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

from ane_book.host import Host, causal_mask
from ane_book.models import DecoderConfig, find
from ane_book.models.base import decoder
from ane_book.models.base.experts.layers import Mixture
from ane_book.options import Recipe
import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["GoldenPass", "end_module", "loaded"]

EXPERTS = "experts_{}.npz"  # of each layer, in the unfinished bundle

Made = TypeVar("Made", bound=nn.Module)


def loaded(make: Callable[[], Made], weights: dict[str, Tensor]) -> Made:
    """A module with the weights of a state dict, which take no memory twice."""
    with torch.device("meta"):  # none for parameters that are given
        module = make()
    module.load_state_dict(weights, assign=True)
    return module


def end_module(
    config: DecoderConfig, end: str, read: Callable[[str], np.ndarray]
) -> nn.Module | None:
    """What comes before the "first" layer or after the "last", with its weights, if anything."""
    weights = decoder.end_weights(config, end, read)
    make = getattr(find(config.architecture), end)
    return loaded(partial(make, config), weights) if weights else None


class GoldenPass:
    """The pass of one conversion, whose unfinished bundle is `folder`.

    read(name) gives a tensor under its `transformers` name, float32, with the values of fp16.
    """

    def __init__(
        self,
        config: Any,
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
        values, architecture = self._values(layers.start), find(self.config.architecture)
        kinds = architecture.kinds(self.config)
        if layers.start == 0 and (first := end_module(self.config, "first", self.read)):
            with torch.inference_mode():
                values = {"hidden": first(values["hidden"])}
        for layer in layers:
            state = decoder.block_weights(self.config, layer, self.read)
            block = loaded(partial(architecture.block, self.config, kinds[layer]), state)
            with torch.inference_mode(), _listening(block, self.folder, layer):
                values = self._step(block, values, kinds[layer])
            yield state
        final = self.file(layers.stop)
        unfinished = final.with_name(f"unfinished_{final.name}")
        arrays: dict[str, Any] = {name: value.numpy() for name, value in values.items()}
        np.savez(unfinished, **arrays)
        unfinished.rename(final)

    def _step(self, block: nn.Module, values: dict[str, Tensor], kind: str) -> dict[str, Tensor]:
        """What a block of this kind hands to the next one: `hidden` (1, C, 1, T), and what the
        architecture says is `carried`."""
        architecture = find(self.config.architecture)
        hidden, *carried = values.values()
        feeds = [self._feeds[name] for name in architecture.host_inputs(kind)]
        hidden, *new = block(hidden, *feeds, *self._kept, *carried)
        handed = new[len(self._kept) :]
        return {"hidden": hidden} | dict(
            zip(architecture.carried(self.config), handed, strict=True)
        )

    def file(self, layer: int) -> Path:
        """Where what the blocks before a layer hand to it waits."""
        return self.folder / f"hidden_{layer:03d}.npz"

    def _values(self, layer: int) -> dict[str, Tensor]:
        if layer == 0:
            return {"hidden": self._given(self.tokens)}
        with np.load(self.file(layer)) as file:
            return {name: torch.from_numpy(array) for name, array in file.items()}

    def _hidden(self, layer: int) -> Tensor:
        return self._values(layer)["hidden"]

    def _given(self, tokens: np.ndarray) -> Tensor:
        """What the host gives to the first program for T tokens, (1, C, 1, T)."""
        embedding = np.load(self.folder / "embedding.npy", mmap_mode="r")
        rows = embedding[tokens].astype(np.float32) * self._host.embedding_scale  # (T, C)
        return torch.from_numpy(rows.T[None, :, None, :].copy())  # (1, C, 1, T)

    @property
    def _host(self) -> Host:
        return find(self.config.architecture).host(self.config)

    @cached_property
    def _feeds(self) -> dict[str, Tensor]:
        """The host's tables and masks of a first call, masks with a row for each of G * T."""
        T, S, host = self.recipe.prefill, self.recipe.context, self._host
        tables = host.tables(np.arange(T), S)
        masks = {n: causal_mask(0, T, S, window) for n, window in host.masks.items()}
        masks = {n: np.tile(mask, (1, 1, self.config.group, 1)) for n, mask in masks.items()}
        return {name: torch.from_numpy(array) for name, array in (tables | masks).items()}

    @property
    def _kept(self) -> list[Tensor]:
        """Nothing before the first token: keys, values, and tails."""
        cache = 1, self.config.num_kv_heads, self.recipe.context, self.config.head_dim
        tails = find(self.config.architecture).tails(self.config).values()
        shapes = [cache, cache, *((1, rows, 1, W) for rows, W in tails)]
        return [torch.zeros(shape) for shape in shapes]

    def head(self, splits: tuple[int, ...], weights: dict[str, Tensor]) -> None:
        """The next parts of the vocabulary; `weights` is the state dict of a `Head` with them."""
        head = loaded(partial(decoder.Head, self.config, splits), weights)
        with torch.inference_mode():
            self._logits += head(self._hidden(self.config.num_layers))  # (1, V_i, 1, T) each

    def write(self, path: Path) -> None:
        """golden.npz, once all layers and all parts of the vocabulary have passed."""
        hidden, carried = [self._given(self.tokens)], dict[str, np.ndarray]()
        for layer in sorted(int(file.stem[7:]) for file in self.folder.glob("hidden_*.npz")):
            values = self._values(layer)
            hidden.append(values.pop("hidden"))
            if layer < self.config.num_layers:
                carried |= {f"{n}_{layer}": value[0, :, 0].numpy() for n, value in values.items()}
        states = torch.cat(hidden)[:, :, 0].numpy()  # (n + 1, C, T)
        results: dict[str, Any] = self._results() | (_heard(self.folder) or carried)
        with path.open("wb") as file:
            np.savez(file, tokens=self.tokens, hidden=states, **results)

    def _results(self) -> dict[str, np.ndarray]:
        """The last token's logits (V,), and every token's likeliest next one (T,)."""
        logits = torch.cat(self._logits, dim=1)[0, :, 0]  # (V, T)
        return {"logits": logits[:, -1].numpy(), "argmax": logits.argmax(dim=0).numpy()}


@contextmanager
def _listening(block: nn.Module, folder: Path, layer: int) -> Iterator[None]:
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
        np.savez(folder / EXPERTS.format(f"{layer:03d}"), **arrays)

    hook = mixture.register_forward_hook(note)
    try:
        yield
    finally:
        hook.remove()


def _heard(folder: Path) -> dict[str, np.ndarray]:
    """Of all layers: `x` (L, C, T), `gates` (L, E, T) and their sum `y` (L, C, T); `experts` (L, E,
    C) is what each says of the first token with a gate of 1."""
    layers = []
    for file in sorted(folder.glob(EXPERTS.format("*"))):
        with np.load(file) as arrays:
            layers.append(dict(arrays))
    return {name: np.stack([own[name] for own in layers]) for name in (layers or [{}])[0]}
