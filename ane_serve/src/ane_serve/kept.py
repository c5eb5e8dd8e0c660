"""`KeptSession`: a session whose cache can be taken out and given back, to the bit.

`Session.prompt_cache` has keys as other engines have them: divided by the scale that those of a
bundle contain. In half precision they come back with other last bits, and answers would depend on
who was served before. What is taken here is what the packages keep, as they keep it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ane_book.layout import Rows
from ane_book.runtime import Session
from ane_book.runtime.answer import alone
import numpy as np
from safetensors import safe_open
import safetensors.numpy

Arrays = Mapping[str, np.ndarray]  # of all packages, by number and name of the store: "0.keys"

TOKENS = "tokens"


class KeptSession(Session):
    """A session that gives away what it keeps of its tokens, and takes it back."""

    @property
    def goes_back(self) -> bool:
        """Whether it can go on from any token of a cache that was given back: all layers keep rows
        of every token, none a tail or a memory of the last ones."""
        manifest = self.bundle.manifest
        functions = [next(iter(part.functions.values())) for part in manifest.shards]
        stores = [store for each in functions for store in each.stores(manifest.layout)]
        return all(isinstance(store.kind, Rows) for store in stores)

    def take(self) -> Arrays:
        """A copy of what is kept of the tokens so far; also in the middle of a stream, between two
        of its steps."""
        packages = self._runner.read(self.position)
        return {f"{i}.{n}": np.array(a) for i, own in enumerate(packages) for n, a in own.items()}

    def give(self, arrays: Arrays, token_ids: Sequence[int]) -> None:
        """Hold what was taken from a session of the same bundle, adapter and precision, which held
        these tokens, in place of everything else."""
        packages: dict[int, dict[str, np.ndarray]] = {}
        for name, array in arrays.items():
            number, _, store = name.partition(".")
            packages.setdefault(int(number), {})[store] = array
        with alone(self._cache):
            self._clear()
            kept = [packages.get(i, {}) for i in range(len(self.bundle.manifest.shards))]
            self._runner.write(kept, len(token_ids), self.goes_back)
            self._tokens += token_ids


def packed(arrays: Arrays, tokens: np.ndarray) -> bytes:
    """A cache of tokens (n,) as a file of safetensors."""
    return safetensors.numpy.save({**arrays, TOKENS: tokens})


def unpacked(data: bytes) -> Arrays:
    """The arrays of a file; raises SafetensorError."""
    arrays = safetensors.numpy.load(data)
    del arrays[TOKENS]
    return arrays


def tokens_of(path: Path) -> np.ndarray:
    """The tokens (n,) of a file, of which nothing else is read; raises SafetensorError, or
    ValueError for what is no list of whole numbers."""
    with safe_open(path, "np") as file:
        kept = file.get_slice(TOKENS)
        if kept.get_dtype() != "I64" or len(kept.get_shape()) != 1:
            raise ValueError(f"its tokens are {kept.get_dtype()} {kept.get_shape()}")
        return file.get_tensor(TOKENS)
