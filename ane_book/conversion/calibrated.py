"""A bundle whose weights are stored with a text at hand: what differs in the way it is built.

The schemes of its matrices are chosen, and written to `schemes.json`, before the first program;
what calibration has found stays in the unfinished bundle until the last one.
"""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from ane_book.conversion.build import BundleBuilder
from ane_book.conversion.quantize.allotment import Allotment

__all__ = ["CalibratedBuilder"]


class CalibratedBuilder(BundleBuilder):
    """Builds the bundle of a decoder whose `quant` is a budget."""

    def __init__(self, *args):
        super().__init__(*args)
        self.steps += Allotment.steps(self.config)

    @cached_property
    def _allotment(self) -> Allotment:
        return Allotment(self.plan, self.partial, self.read)

    def _write_layers(self) -> None:
        if (self.partial / Allotment.file).exists():
            self._advance("schemes", Allotment.steps(self.config))
        self._whole(Allotment.file, lambda path: self._allotment.make(path, self._advance))
        super()._write_layers()

    def _states(self, layers: range) -> Iterator[dict]:
        for layer, state in zip(layers, super()._states(layers), strict=True):
            yield self._allotment.layer(layer, state)

    def head(self, path: Path, splits: dict[int, int], weights: dict) -> None:
        super().head(path, splits, self._allotment.parts(list(splits), weights))

    def _write_head(self) -> None:
        super()._write_head()
        self._allotment.remove()
