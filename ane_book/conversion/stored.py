"""A bundle of the integers that its source has: no matrix is widened and quantised again.

Where a source stores a matrix by blocks of integers, with a scale and a zero point each, the
package gets those very integers; scales are rounded to fp16. Matrices of floating point, and those
in a form that Core ML does not have, become fp16. The golden numbers are of the rounded scales.
"""

from collections.abc import Iterator
from pathlib import Path

from ane_book.conversion.build import BundleBuilder
from ane_book.conversion.quantize import STORED, Encoded
from ane_book.errors import InvalidInput
from ane_book.models import find
from ane_book.models.base.architecture import TensorSpec as Named
from ane_book.weights import joined
import numpy as np

__all__ = ["StoredBuilder"]


class StoredBuilder(BundleBuilder):
    """Builds the bundle of a decoder whose `quant` or `quant_head` is "stored"."""

    def __init__(self, *args):
        """Raises InvalidInput for a source that has no integers."""
        super().__init__(*args)
        if not self.source.has_integers():
            raise InvalidInput(
                f"{self.source.files[0]}: stores no integers that Core ML has a form for; with "
                'quant "stored" there is nothing to keep, choose another'
            )

    def _half(self, name: str) -> np.ndarray:
        stored = self.source.integers(name) if self._keeps(name) else None
        return super()._half(name) if stored is None else self._rounded(name, stored.halved())

    def _keeps(self, name: str) -> bool:
        """Whether the integers of a tensor go to the package; those of a tied head do as well."""
        outer = self._outer
        head = outer.get("head", outer["embedding"]).name
        recipe = self.recipe
        if name == head:
            return recipe.quant_head == STORED
        return recipe.quant == STORED and name.startswith(
            find(self.config.architecture).layer_prefix
        )

    def _states(self, layers: range) -> Iterator[dict]:
        for layer, state in zip(layers, super()._states(layers), strict=True):
            yield state | (self._stored(layer) if self.recipe.quant == STORED else {})

    def _stored(self, layer: int) -> dict[str, Encoded]:
        """The matrices of a layer whose parts are all integers, and alike."""
        architecture, found = find(self.config.architecture), {}
        kind = architecture.kinds(self.config)[layer]
        for name, parts in architecture.parameters(self.config, kind).items():
            names = [f"{architecture.layer_prefix}.{layer}.{p.name}" for p in parts]
            whole = joined([self.source.integers(name) for name in names])
            if whole is not None and all(map(_as_it_is, parts)):
                found[name] = Encoded.stored(whole)
        return found

    def head(self, path: Path, splits: dict[int, int], weights: dict) -> None:
        outer, stored = self._outer, {}
        name = outer.get("head", outer["embedding"]).name
        whole = self.source.integers(name) if self.recipe.quant_head == STORED else None
        if whole is not None:
            start = sum(self.plan.splits[: min(splits)])
            for own, rows in enumerate(splits.values()):
                stored[f"parts.{own}.weight"] = Encoded.stored(whole.rows(start, start + rows))
                start += rows
        super().head(path, splits, weights | stored)


def _as_it_is(part: Named) -> bool:
    """Whether our parameter has the rows of a tensor in their order, each once."""
    return (part.repeat, part.times, part.plus, part.pairs) == (1, 1.0, 0.0, 0)
