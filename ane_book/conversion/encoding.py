"""How the tensors of a source are encoded in packages: by a scheme, a budget, or as stored.

A builder reads every weight through its encoding. Whatever the encoding, a tensor that is no matrix
is rounded to fp16. A matrix that the encoding leaves as numbers gets the scheme of the recipe when
its program is written (`ane_book.conversion.quantize.encoded.encode`).
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

from ane_book.conversion.plan import Plan
from ane_book.conversion.quantize.encoded import Encoded
from ane_book.conversion.quantize.schemes import STORED
from ane_book.errors import InvalidInput, InvalidWeights
from ane_book.models import find
from ane_book.models.base.architecture import TensorSpec
from ane_book.weights import Integers, WeightSource, joined
import numpy as np
import torch

ROWS = 2048  # of a matrix that are rounded at a time
OVERFLOW = 65520.0  # the least number that rounds to infinity in fp16


def rounded(where: str, tensor: np.ndarray) -> np.ndarray:
    """Round a float32 tensor to fp16, by torch, which takes half as long as numpy.

    where: `WeightSource.where` of it. Raises InvalidWeights if a value is then not finite.
    """
    values = torch.from_numpy(tensor)
    low, high = values.aminmax()  # NaN if there is one
    if not (low > -OVERFLOW and high < OVERFLOW):
        nan, beyond = int(values.isnan().sum()), int((values.abs() >= OVERFLOW).sum())
        found = [f"{nan:,} NaN"] * bool(nan) + [f"{beyond:,} beyond fp16's 65,504"] * bool(beyond)
        mend = "get the file again" if nan else "no bundle can hold such weights"
        raise InvalidWeights(f"{where}: {' and '.join(found)} of {values.numel():,} values; {mend}")
    return values.half().numpy()


class Encoding:
    """Encodes weights by the schemes of the recipe alone; subclasses do otherwise.

    file: what `prepare` writes into the bundle before the first program, "" for nothing; steps: how
    often it reports.
    """

    file, steps = "", 0
    folder: Path  # of the unfinished bundle

    def __init__(self, source: WeightSource, plan: Plan):
        self.source, self.plan, self.config = source, plan, plan.config

    def prepare(self, path: Path, report: Callable[[str], None]) -> None:
        """Write `file`, if any; the bundle's tokenizer and embedding are beside it already."""

    def values(self, name: str) -> np.ndarray:
        """A tensor before it is rounded, in float32 and new."""
        return self.source.tensor(name)

    def rows(self, name: str) -> Iterator[np.ndarray]:
        """A matrix in fp16, the dtype of a package, some rows at a time, since that of a vocabulary
        may be larger than all else."""
        where = self.source.where(name)
        return (rounded(where, rows) for rows in self.source.rows(name, ROWS))

    def read(self, name: str) -> np.ndarray:
        """A tensor in float32, with the values of fp16; torch converts them faster than numpy."""
        values = self.values(name)  # becomes the result: new memory costs as much as rounding
        torch.from_numpy(values).copy_(torch.from_numpy(rounded(self.source.where(name), values)))
        return values

    def layer(self, layer: int, state: dict) -> dict:
        """A layer's state dict; a matrix that is encoded already is an `Encoded`."""
        return state

    def head(self, number: int, weights: dict) -> dict:
        """The same for a `Head` with one part of the vocabulary, by its number."""
        return weights

    def finish(self) -> None:
        """Remove files that only the conversion needed; called after the last package."""


class StoredEncoding(Encoding):
    """Keeps the integers that the source stores: no matrix is dequantised and quantised again.

    Where a source stores a matrix by blocks of integers, with a scale and a zero point each, the
    package gets those very integers; scales are rounded to fp16. Matrices of floating point, and
    those in a form that Core ML does not have, become fp16. The golden numbers are of the rounded
    scales. Raises InvalidInput for a source that has no integers.
    """

    def __init__(self, source: WeightSource, plan: Plan):
        super().__init__(source, plan)
        if not source.has_integers():
            raise InvalidInput(
                f"{source.files[0]}: stores no integers that Core ML has a form for; with "
                'quant "stored" there is nothing to keep, choose another'
            )
        self._architecture = find(self.config.architecture)
        self._layers = self._architecture.checkpoint(self.config).layers
        outer = self._architecture.outer(self.config)
        self._head = outer.get("head", outer["embedding"]).name

    def values(self, name: str) -> np.ndarray:
        recipe = self.plan.recipe  # a tied embedding goes by `quant_head`
        inner = recipe.quant if name.startswith(self._layers) else ""
        keeps = (recipe.quant_head if name == self._head else inner) == STORED
        stored = self.source.integers(name) if keeps else None
        return super().values(name) if stored is None else stored.halved()

    def rows(self, name: str) -> Iterator[np.ndarray]:
        yield rounded(self.source.where(name), self.values(name))

    def layer(self, layer: int, state: dict) -> dict:
        if self.plan.recipe.quant != STORED:
            return state
        kind, stored = self._architecture.kinds(self.config)[layer], {}
        for name, parts in self._architecture.parameters(self.config, kind).items():
            names = [f"{self._layers}.{layer}.{part.name}" for part in parts]
            whole = joined([self.source.integers(name) for name in names])
            # A parameter is stored tensors as they are: no rows repeated, scaled or reordered.
            plain = all(part == TensorSpec(part.name, part.shape) for part in parts)
            if whole is not None and plain:
                stored[name] = Encoded.stored(whole)
        return state | stored

    def head(self, number: int, weights: dict) -> dict:
        whole = self._vocabulary if self.plan.recipe.quant_head == STORED else None
        if whole is None:
            return weights
        start = sum(self.plan.splits[:number])
        part = whole.rows(start, start + self.plan.splits[number])
        return weights | {"parts.0.weight": Encoded.stored(part)}

    @cached_property
    def _vocabulary(self) -> Integers | None:
        """The head's matrix as integers, which its parts share."""
        return self.source.integers(self._head)
