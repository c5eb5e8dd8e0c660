"""Write a bundle: step by step into a folder beside its place, then renamed.

Every step leaves a finished file or nothing, so a conversion that was killed goes on where it
stopped. Weights are read one layer at a time. The golden numbers come from the same pass: each
layer, as soon as its weights are read, also runs in PyTorch (float32) on the golden tokens.
"""

from collections.abc import Callable, Iterator
from importlib.metadata import version
import json
from pathlib import Path
import platform
import shutil

from ane_book.bundle import Bundle, Head, Manifest, Recipe, Shard, Source, Tokenizer
from ane_book.config import DecoderConfig, causal_mask, rope_tables
from ane_book.conversion.decoder import lower_blocks, write_head, write_shard
from ane_book.conversion.shards import head_splits, layer_ranges
from ane_book.errors import InvalidWeights
from ane_book.models import decoder
from ane_book.weights import WeightSource
import numpy as np
import torch
from torch import Tensor

__all__ = ["BundleBuilder"]

Progress = Callable[[str, int, int], None]  # description, steps done, steps in all


class BundleBuilder:
    """Builds one bundle in the folder `partial`; `build` renames it to `target`."""

    def __init__(
        self,
        name: str,
        source: WeightSource,
        config: DecoderConfig,
        recipe: Recipe,
        progress: Progress = lambda description, done, total: None,
    ):
        self.name, self.source, self.config, self.recipe = name, source, config, recipe
        self.report = progress
        self.ranges = layer_ranges(config, recipe.shard_bytes)
        self.splits = head_splits(config.vocab_size, recipe.head_rows)
        self.steps = config.num_layers + 3  # embedding, lowering, layers, head
        self.done = 0

    def build(self, target: Path, key: str) -> Bundle:
        """Build the bundle, or finish one that was interrupted; `key` names source and recipe."""
        self.partial = target.with_name(f"{target.name}.partial")
        stamp = self.partial / "key"
        if not stamp.is_file() or stamp.read_text() != key:
            shutil.rmtree(self.partial, ignore_errors=True)
            self.partial.mkdir(parents=True)
            stamp.write_text(key)
        self._whole("embedding.npy", self._write_embedding)
        self._advance("embedding")
        self._write_layers()
        self._whole("head.mlpackage", self._write_head)
        self._advance("head")
        self._whole("tokenizer.json", lambda path: path.write_text(self.tokenizer.json))
        for leftover in (stamp, *self.partial.glob("hidden_*.npy")):
            leftover.unlink()
        self._whole("manifest.json", self._write_manifest)
        self.partial.rename(target)
        return Bundle.open(target)

    def _advance(self, description: str, steps: int = 1) -> None:
        self.done += steps
        self.report(description, self.done, self.steps)

    def _whole(self, name: str, write: Callable[[Path], object]) -> None:
        """Write a file or folder of the bundle under another name, then rename it; once."""
        final = self.partial / name
        if final.exists():
            return
        unfinished = final.with_name(f"unfinished_{name}")
        if unfinished.is_dir():
            shutil.rmtree(unfinished)
        write(unfinished)
        unfinished.rename(final)

    # --- weights ------------------------------------------------------------------------------

    def _read(self, name: str) -> np.ndarray:
        """A tensor rounded to fp16, the dtype of the package, in float32."""
        half = self.source.tensor(name).astype(np.float16)
        if not np.isfinite(half).all():
            raise InvalidWeights(
                f"tensor {name} has values that are not finite in fp16 (beyond 65,504, inf or NaN)"
            )
        return half.astype(np.float32)

    def _write_embedding(self, path: Path) -> None:
        with path.open("wb") as file:
            np.save(file, self._read("model.embed_tokens.weight").astype(np.float16))

    # --- layers -------------------------------------------------------------------------------

    def _write_layers(self) -> None:
        names = [_package_name(layers) for layers in self.ranges]
        if all((self.partial / name).exists() for name in names):
            self._advance("layers", self.config.num_layers + 1)
            return
        pieces = lower_blocks(self.config, self.recipe)
        self._advance("lowering")
        for layers, name in zip(self.ranges, names, strict=True):
            if (self.partial / name).exists():
                self._advance("layers", len(layers))
                continue
            golden = _GoldenPass(self, layers)
            self._whole(
                name,
                lambda path, layers=layers, golden=golden: write_shard(
                    path, self.config, self.recipe, pieces, layers, golden.weights()
                ),
            )

    def _write_head(self, path: Path) -> None:
        weights = decoder.head_weights(self.config, self.splits, self._read)
        hidden = torch.from_numpy(np.load(self.partial / self._hidden(self.config.num_layers)))
        self._whole("golden.npz", lambda golden: self._write_golden(golden, weights, hidden))
        write_head(path, self.config, self.recipe, self.splits, weights)

    # --- golden numbers -----------------------------------------------------------------------

    def _hidden(self, layer: int) -> str:
        return f"hidden_{layer:03d}.npy"

    @property
    def golden_tokens(self) -> np.ndarray:
        """Token ids that are spread over the vocabulary, the same for every model of its size."""
        steps = np.arange(1, self.recipe.prefill + 1, dtype=np.int64)
        return steps * 7919 % self.config.vocab_size  # 7919 is prime

    def _write_golden(self, path: Path, weights: dict[str, Tensor], hidden: Tensor) -> None:
        head = decoder.Head(self.config, self.splits)
        head.load_state_dict(weights, assign=True)
        with torch.inference_mode():
            logits = torch.cat(head(hidden), dim=1)[0, :, 0]  # (V, T)
        with path.open("wb") as file:
            np.savez(
                file,
                tokens=self.golden_tokens,
                logits=logits[:, -1].numpy(),
                argmax=logits.argmax(dim=0).numpy(),
            )

    # --- manifest -----------------------------------------------------------------------------

    @property
    def tokenizer(self):
        return self.source.tokenizer()

    def _write_manifest(self, path: Path) -> None:
        files, tokenizer = self.source.files, self.tokenizer
        manifest = Manifest(
            name=self.name,
            config=self.config,
            recipe=self.recipe,
            source=Source(
                kind=self.source.kind,
                files=[file.name for file in files],
                fingerprint=self.source.fingerprint(),
            ),
            shards=[Shard(package=_package_name(r), layers=(r.start, r.stop)) for r in self.ranges],
            head=Head(package="head.mlpackage", splits=list(self.splits)),
            tokenizer=Tokenizer(
                chat_template=tokenizer.chat_template,
                eos_token_ids=tokenizer.eos_token_ids,
                bos_token_id=tokenizer.bos_token_id,
                bos_token=tokenizer.bos_token,
                eos_token=tokenizer.eos_token,
            ),
            files=dict(_sizes(self.partial)),
            tools={name: version(name) for name in ("coremltools", "torch", "numpy")}
            | {"python": platform.python_version()},
        )
        path.write_text(json.dumps(manifest.model_dump(mode="json"), indent=2) + "\n")


def _package_name(layers: range) -> str:
    return f"layers_{layers.start:02d}-{layers.stop:02d}.mlpackage"


def _sizes(folder: Path) -> Iterator[tuple[str, int]]:
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            yield file.relative_to(folder).as_posix(), file.stat().st_size


class _GoldenPass:
    """Hands out the weights of a range of layers, running each in PyTorch as it goes by."""

    def __init__(self, builder: BundleBuilder, layers: range):
        self.builder, self.layers = builder, layers
        self.folder = builder.partial

    def weights(self) -> Iterator[dict[str, Tensor]]:
        """The state dict of each layer; afterwards the hidden states are on disk for the next."""
        builder, config = self.builder, self.builder.config
        hidden = self._start()
        block = decoder.Block(config).eval().requires_grad_(False)
        feeds = self._feeds()
        for layer in self.layers:
            state = decoder.block_weights(config, layer, builder._read)
            block.load_state_dict(state, assign=True)
            with torch.inference_mode():
                hidden = block(hidden, *feeds)[0]
            yield state
            builder._advance(f"layer {layer + 1} of {config.num_layers}")
        np.save(self.folder / builder._hidden(self.layers.stop), hidden.numpy())

    def _start(self) -> Tensor:
        builder = self.builder
        if self.layers.start:
            return torch.from_numpy(np.load(self.folder / builder._hidden(self.layers.start)))
        embedding = np.load(self.folder / "embedding.npy", mmap_mode="r")
        rows = embedding[builder.golden_tokens].astype(np.float32)  # (T, C)
        return torch.from_numpy(rows.T[None, :, None, :].copy())  # (1, C, 1, T)

    def _feeds(self) -> tuple[Tensor, ...]:
        config, recipe = self.builder.config, self.builder.recipe
        T, S = recipe.prefill, recipe.context
        mask = torch.from_numpy(causal_mask(0, T, S)).repeat(1, 1, config.group, 1)
        empty = torch.zeros(1, config.num_kv_heads, S, config.head_dim)
        cos, sin = (torch.from_numpy(t) for t in rope_tables(config, np.arange(T), S))
        return cos, sin, mask, empty, empty
