"""A whole decoder in PyTorch, of the library's own blocks, to be held to `transformers`.

Letters: see `ane_book.models.base`.
"""

from collections.abc import Callable

from ane_book.layout import PER_LAYER
from ane_book.models import DecoderConfig, find
from ane_book.models.base.decoder import Head, block_weights, end_weights, head_weights
import numpy as np
import torch
from torch import Tensor, nn


class Decoder(nn.Module):
    """All layers and the head: embeddings in, logits and KV rows out."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.config, architecture = config, find(config.architecture)
        self.signatures = architecture.signatures(config)
        self.first = architecture.ends(config).get("first", nn.Identity())
        kinds = self.signatures.names
        self.layers = nn.ModuleList(architecture.block(config, kind) for kind in kinds)
        self.head = Head(config, (config.vocab_size,))

    @classmethod
    def from_weights(cls, config: DecoderConfig, read: Callable[[str], np.ndarray]) -> "Decoder":
        """Build the decoder and load every parameter; read(name) as in `block_weights`."""
        decoder = cls(config)
        decoder.first.load_state_dict(end_weights(config, "first", read))
        for i, layer in enumerate(decoder.layers):
            layer.load_state_dict(block_weights(config, i, read))
        decoder.head.load_state_dict(head_weights(config, (config.vocab_size,), read))
        return decoder.eval().requires_grad_(False)

    @property
    def inputs(self) -> list[str]:
        """The names of the host's inputs in the order in which `forward` takes them."""
        names = dict.fromkeys(name for own in self.signatures for name in own.host)
        return [*names, *([PER_LAYER] if any(own.own for own in self.signatures) else [])]

    def forward(self, hidden: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        """Run a call of T tokens.

        Arguments: hidden (1,C,1,T); one tensor for each of `inputs`, in most models cos, sin and
        mask, in some what is each layer's own, (L,P,1,T); then one for each name of
        `signatures.holders()`, which n layers keep: the cache's keys and values, (n,K,S,D) each,
        and each tail (n,channels,1,W), of which most models have none.
        Returns logits (1,V,1,T), new keys and values (n,K,T,D), and the tails' new columns
        (n,channels,1,T).
        """
        count = len(self.inputs)
        values = dict(zip(self.inputs, rest[:count], strict=True))
        own = values[PER_LAYER].split(1) if PER_LAYER in values else ()
        parts = zip(self.signatures.holders(), rest[count:], strict=True)
        kept = {name: iter(whole.split(1)) for name, whole in parts}
        new: dict[str, list[Tensor]] = {name: [] for name in kept}
        hidden = self.first(hidden)
        for i, (layer, signature) in enumerate(zip(self.layers, self.signatures, strict=True)):
            values |= {name: next(kept[name]) for name in signature.keeps}
            values |= {PER_LAYER: own[i]} if signature.own else {}
            hidden, *made = layer(hidden, *(values[name] for name in signature.arguments))
            for name, value in zip(signature.keeps, made, strict=False):
                new[name].append(value)
            values |= zip(signature.given, made[len(signature.keeps) :], strict=True)
        (logits,) = self.head(hidden)
        return logits, *map(torch.cat, new.values())
