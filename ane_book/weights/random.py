"""Random weights, for tiny test models and for full-size dry runs without a download.

A tensor depends only on the seed and on its own name, so it is the same in whatever order and
however often it is read, and only one needs to be in memory.

Reference for the generator: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"
(Philox).
"""

from collections.abc import Iterable, Iterator
import hashlib
import json

from ane_book.models import find
from ane_book.models.base.config import plain_rope
from ane_book.weights.source import (
    Shape,
    TokenizerFiles,
    WeightSource,
    read_config,
)
from ane_book.weights.tokenizer import byte_level
import numpy as np

SPREAD = 0.02  # standard deviation with which these families are initialised before training
NEAR_ONE = "norm.weight", "norm.temp", "_scale"


class RandomSource(WeightSource):
    """Weights of the shapes that a Hugging Face configuration asks for, N(0, 0.02²).

    Norms and scales are near 1 instead, N(1, 0.02²), as they are in trained models.
    """

    kind = "random"
    _place = "the random model"

    def __init__(self, config: dict, seed: int = 0):
        """Raises UnsupportedModel or InvalidWeights for a configuration that is not supported."""
        place = "the configuration"
        self._fields, self.seed, self.files = plain_rope(config, place), seed, []
        read = read_config(self._fields, place)
        self._shapes = find(read.architecture).tensors(read)

    def _read(self, name: str) -> np.ndarray:
        return next(self._pieces(name, [self._shapes[name]]))

    def rows(self, name: str, count: int) -> Iterator[np.ndarray]:
        rows, *more = self.shape(name)
        counts = [min(count, rows - at) for at in range(0, rows, count)]
        return self._pieces(name, [(count, *more) for count in counts])

    def _pieces(self, name: str, shapes: Iterable[Shape]) -> Iterator[np.ndarray]:
        """Yield a tensor in order, in pieces of these shapes."""
        key = hashlib.sha256(f"{self.seed} {name}".encode()).digest()[:16]
        generator = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
        for shape in shapes:
            array = generator.standard_normal(shape, dtype=np.float32)
            array *= np.float32(SPREAD)
            if name.lower().endswith(NEAR_ONE):
                array += np.float32(1.0)
            yield array

    def tokenizer(self) -> TokenizerFiles:
        return byte_level(self._fields["vocab_size"])

    def fingerprint(self) -> str:
        """sha256 of the configuration and the seed, which determine every tensor."""
        text = json.dumps([self._fields, self.seed], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()
