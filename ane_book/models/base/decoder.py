"""The vocabulary head, and the state dicts of blocks, head and ends."""

from collections.abc import Callable, Collection
from functools import lru_cache

from ane_book.models import DecoderConfig, find
from ane_book.models.base.projection import Projection
import numpy as np
import torch
from torch import Tensor, nn


class Head(nn.Module):
    """Final norm and vocabulary projection, split along the vocabulary.

    splits: vocabulary rows V_i of each part. The ANE takes no axis over 65,536, and converters
    prefer 16,384.
    """

    def __init__(self, config: DecoderConfig, splits: tuple[int, ...]):
        super().__init__()
        ends = find(config.architecture).ends(config)
        self.norm, self.bound = ends["norm"], ends.get("bound", nn.Identity())
        self.parts = nn.ModuleList(Projection(config.hidden_size, rows) for rows in splits)

    def forward(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """hidden (1, C, 1, T) -> the logits (1, V_i, 1, T) of each part."""
        hidden = self.norm(hidden)
        return tuple(self.bound(part(hidden)) for part in self.parts)


class Winner(nn.Module):
    """Argmax over the logits of all parts: each part's winner, then the winner of those.

    So no axis spans the vocabulary. Of equal logits the first wins, as in `torch.argmax`. The
    winner is taken by a sum: coremltools casts what a gather reads to 16 bits (its fault
    gather-narrowed), which hold no token from 32,768 on.
    """

    def __init__(self, splits: tuple[int, ...]):
        super().__init__()
        self.offsets = [sum(splits[:i]) for i in range(len(splits))]
        self.places = torch.arange(len(splits), dtype=torch.int32).view(1, -1, 1, 1)

    def forward(self, *logits: Tensor) -> Tensor:
        """Parts (1, V_i, 1, T) -> token ids, int32 (1, T)."""
        best = torch.cat([part.max(dim=1, keepdim=True).values for part in logits], dim=1)
        tokens = [part.argmax(dim=1, keepdim=True).to(torch.int32) for part in logits]
        tokens = [ids + offset for ids, offset in zip(tokens, self.offsets, strict=True)]
        winner = best.argmax(dim=1, keepdim=True).to(torch.int32)  # (1, 1, 1, T)
        chosen = torch.eq(self.places, winner).to(torch.int32)
        return (torch.cat(tokens, dim=1) * chosen).sum(1, dtype=torch.int32).view(1, -1)


def block_weights(
    config: DecoderConfig,
    layer: int,
    read: Callable[[str], np.ndarray],
    names: Collection[str] | None = None,
) -> dict:
    """The state dict of layer `layer`'s block, in storage order.

    read(name) returns a tensor by its `transformers` name: float32, (out, in). names: the only
    parameters to read; None for all.
    """
    architecture = find(config.architecture)
    kind = architecture.kinds(config)[layer]
    prefix = f"{architecture.checkpoint(config).layers}.{layer}"
    with torch.device("meta"):  # shapes alone, no memory
        shapes = dict(architecture.block(config, kind).named_parameters())
    read = lru_cache(maxsize=1)(read)  # consecutive experts come from the same stacked tensor
    weights = {}
    for name, parts in architecture.parameters(config, kind).items():
        if names is not None and name not in names:
            continue
        rows = [part.rows(read(f"{prefix}.{part.name}")) for part in parts]
        whole = np.concatenate(rows) if len(rows) > 1 else np.ascontiguousarray(rows[0])
        weights[name] = torch.from_numpy(whole).view(shapes[name].shape)
    return weights


def head_weights(
    config: DecoderConfig, splits: tuple[int, ...], read: Callable[[str], np.ndarray]
) -> dict:
    """The state dict of `Head`; a tied head reads the embedding."""
    outer = find(config.architecture).outer(config)
    matrix = outer.get("head", outer["embedding"])
    parts = torch.from_numpy(read(matrix.name))[:, :, None, None].split(list(splits))
    weights = {f"parts.{i}.weight": part for i, part in enumerate(parts)}
    norm = outer["norm"].rows(read(outer["norm"].name))
    return {"norm.weight": torch.from_numpy(norm).view(1, -1, 1, 1)} | weights


def end_weights(config, end: str, read: Callable[[str], np.ndarray]) -> dict[str, Tensor]:
    """The state dict of one of `Architecture.ends`; {} where there is none."""
    architecture = find(config.architecture)
    with torch.device("meta"):
        module = architecture.ends(config).get(end)
    shapes = {name: p.shape for name, p in module.named_parameters()} if module else {}
    outer = architecture.outer(config)
    given = [(name, shape, outer[f"{end}.{name}"]) for name, shape in shapes.items()]
    return {
        name: torch.from_numpy(tensor.rows(read(tensor.name))).view(shape)
        for name, shape, tensor in given
    }


def ends_of(
    config, layers: range, read: Callable[[str], np.ndarray]
) -> dict[str, dict[str, Tensor]]:
    """The state dicts of the modules before and behind all layers that these layers reach."""
    has = {"first": layers.start == 0, "last": layers.stop == config.num_layers}
    return {end: end_weights(config, end, read) for end, here in has.items() if here}
