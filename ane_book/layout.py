"""Where tokens are in what a decoder's programs exchange with the host: `Layout`, one of each form.

    form    cache           new rows        mask             rotary tables
    rows    (n, K, S, D)    (n, K, T, D)    (1, 1, T, S+T)   (1, 1, T, D)
    apple   (n, K*D, 1, S)  (n, K*D, 1, T)  (1, S+T, 1, T)   (1, D, 1, T)

In the form "rows" a token is a row, and the heads of a group are rows of one product. "apple" is
the form that Apple's rules for the Neural Engine ask for: channels first, tokens last, keys on the
channel axis of scores and mask. Writer, contract and runtime read the layout here, and what
attention computes in each form is in `ane_book.models.base`, `layers.py` and `apple.py`.

Letters: n layers of a package, K key/value heads, D head size, S slots of the cache, T tokens.

Reference: apple/coreai-models@86b363d, neural_engine_rules.md, "Causal mask" and "KV cache".
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # the command's options name the forms, and `--help` is to open without numpy
    import numpy as np


#: The name of what layers keep in place of a cache, of one size whatever the number of tokens, in
#: every form: (n, H, Dv, Dk).
MEMORY = "memory"

#: The name of the inputs that the host gives to each of a package's n layers: (n, P, 1, T).
PER_LAYER = "per_layer"

Form = Literal["rows", "apple"]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """tokens: the axis of a cache, and of a rotary table, on which the tokens are: 2 or 3."""

    tokens: int

    def cache(self, n: int, K: int, S: int, D: int) -> Shape:
        """The shape of a cache of S slots, or of S new rows."""
        return (n, K, S, D) if self.tokens == 2 else (n, K * D, 1, S)

    def turned(self, rows: "np.ndarray") -> "np.ndarray":
        """A view of a mask (1, 1, T, S + T) or a rotary table (1, 1, T, D) as programs take it."""
        return rows if self.tokens == 2 else rows.transpose(0, 3, 1, 2)

    def rows(self, turned: "np.ndarray") -> "np.ndarray":
        """A view of a mask or table as programs take it, by rows: the inverse of `turned`."""
        return turned if self.tokens == 2 else turned.transpose(0, 2, 3, 1)

    def input(self, T: int, width: int) -> Shape:
        """The shape in which programs take a mask or a rotary table (1, 1, T, `width`)."""
        return (1, 1, T, width) if self.tokens == 2 else (1, width, 1, T)

    def sized(self, shape: Shape, slots: int) -> Shape:
        """The shape of a cache with another number of slots."""
        return (*shape[: self.tokens], slots, *shape[self.tokens + 1 :])

    def is_tail(self, shape: Shape, slots: int) -> bool:
        """Whether what is kept for a function of so many slots is no cache, but the tail
        (n, R, 1, W) of an activation. By columns, no tail is as wide as a cache."""
        return shape[2] == 1 if self.tokens == 2 else shape[3] != slots

    def at(self, first: int, last: int) -> tuple:
        """The index of the tokens from `first` on up to `last` in a cache, or in new rows."""
        return (*(slice(None),) * self.tokens, slice(first, last))


LAYOUTS: dict[Form, Layout] = {"rows": Layout(2), "apple": Layout(3)}
