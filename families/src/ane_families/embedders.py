"""`DecoderLayers`: encoders of texts that are made of a decoder's layers.

Letters: see `ane_book.models.base`.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from ane_book.models.base.architecture import FULL, GGUF, Checkpoint, Task, TensorSpec
from ane_book.models.base.dense import Dense, OwnConfig
from ane_book.models.base.sentence import TextEncoder, read_sentences
from ane_book.models.base.signature import BlockSignature

if TYPE_CHECKING:
    from torch import nn


class DecoderLayers(TextEncoder, Dense[OwnConfig]):
    """An encoder of texts with a decoder's layers: goes before the decoder's own class.

    There is no KV cache and no vocabulary head; texts share a call as in any encoder, and the final
    norm follows the last layer.
    """

    variant = "embedding"
    task: Task = "embedding"
    gguf: GGUF | None = None

    def read(self, fields: dict) -> dict:
        positions = fields["max_position_embeddings"]
        own = {"tied_embeddings": True}  # no head is read
        return super().read(fields) | read_sentences(fields, positions) | own

    def signature(self, config, kind: str) -> BlockSignature:
        return replace(super().signature(config, kind), keeps={})

    def block(self, config, kind: str = FULL) -> "nn.Module":
        from ane_families.layers import TextBlock

        return TextBlock(super().block(config, kind))

    def ends(self, config) -> "dict[str, nn.Module]":
        found = super().ends(config)
        found["last"] = found.pop("norm")
        return found

    def checkpoint(self, config) -> Checkpoint:
        return replace(super().checkpoint(config), base="model.")

    def outer(self, config) -> dict[str, TensorSpec]:
        tensors = super().outer(config)
        tensors["last.weight"] = tensors.pop("norm")
        return tensors | self.pooled_tensors(config)
