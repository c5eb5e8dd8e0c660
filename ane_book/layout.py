"""The shapes of what a decoder's programs exchange with the host: where tokens are in each form
(`Layout`), and what is kept from call to call (`Rows`, `Tail`, `Recurrent`), in packages a `Store`.

    form    cache           new rows        mask             rotary tables
    rows    (n, K, S, D)    (n, K, T, D)    (1, 1, T, S+T)   (1, 1, T, D)
    apple   (n, K*D, 1, S)  (n, K*D, 1, T)  (1, S+T, 1, T)   (1, D, 1, T)

In the form "rows" a token is a row, and the heads of a group are rows of one product. "apple" is
the form that Apple's rules for the Neural Engine ask for: channels first, tokens last, keys on the
channel axis of scores and mask. Writer, contract and runtime read the layout here, and what
attention computes in each form is in `ane_book.models.base`, `layers.py` and `apple.py`.

Letters: n layers of a package, K key/value heads, D head size, S slots of the cache, T tokens;
R channels and W columns of a tail, H heads of a memory of Dv values for Dk keys.

Reference: apple/coreai-models@86b363d, neural_engine_rules.md, "Causal mask" and "KV cache".
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:  # the command's options name the forms, and `--help` is to open without numpy
    import numpy as np


#: The name of what layers keep in place of a cache: see `Recurrent`.
MEMORY = "memory"

#: How the names of what is kept by rows begin.
ROWS = ("keys", "values", "cache")

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

    def at(self, first: int, last: int) -> tuple:
        """The index of the tokens from `first` on up to `last` in a cache, or in new rows."""
        return (*(slice(None),) * self.tokens, slice(first, last))


LAYOUTS: dict[Form, Layout] = {"rows": Layout(2), "apple": Layout(3)}


class CallShape(NamedTuple):
    """What all shapes of a function depend on; slots: 0 where it attends to no cache."""

    tokens: int  # T
    slots: int = 0  # S
    layout: Layout = LAYOUTS["rows"]


@dataclass(frozen=True)
class Rows:
    """Keys or values of all tokens, a row of D numbers for each of K heads.

    They are called `keys` and `values`, those of another size with the same ending, as
    `keys_local`; both of some layers in one state are a `cache`, or a `cache_local`.
    """

    heads: int
    size: int

    def shape(self, call: CallShape, n: int = 1) -> Shape:
        """What a call takes of n layers."""
        return call.layout.cache(n, self.heads, call.slots, self.size)

    def new(self, call: CallShape, n: int = 1) -> Shape:
        """What a call gives of n layers."""
        return call.layout.cache(n, self.heads, call.tokens, self.size)

    held = shape  # by the host, if it does


@dataclass(frozen=True)
class Tail:
    """The last W columns of an activation, one a token, so that a convolution reaches across the
    border between two calls: a call takes the columns before it, and gives its own."""

    channels: int
    width: int

    def shape(self, call: CallShape, n: int = 1) -> Shape:
        return n, self.channels, 1, self.width

    def new(self, call: CallShape, n: int = 1) -> Shape:
        return n, self.channels, 1, call.tokens

    def held(self, call: CallShape, n: int = 1) -> Shape:
        """What the host has: W columns of zeros, and those of all tokens behind them."""
        return n, self.channels, 1, self.width + call.slots


@dataclass(frozen=True)
class Recurrent:
    """A memory of all tokens so far, of one size however many they are; a call gives the next."""

    heads: int
    values: int
    keys: int

    def shape(self, call: CallShape, n: int = 1) -> Shape:
        return n, self.heads, self.values, self.keys

    new = held = shape


Kept = Rows | Tail | Recurrent


@dataclass(frozen=True)
class Store:
    """What n layers of a package keep under one name: a state, or an input x and an output new_x.
    Every function of the package has it."""

    name: str
    kind: Kept
    n: int
    is_state: bool

    def shape(self, call: CallShape) -> Shape:
        return self.kind.shape(call, self.n)

    def new(self, call: CallShape) -> Shape:
        return self.kind.new(call, self.n)

    def held(self, call: CallShape) -> Shape:
        return self.kind.held(call, self.n)


def kept_under(name: str, shape: Shape, layout: Layout) -> Kept:
    """What packages keep under a name, of n layers, in this shape: its kind is told by the name."""
    _, rows, middle, columns = (*shape, 0, 0, 0, 0)[:4]
    if name == MEMORY:
        return Recurrent(rows, middle, columns)
    if name.startswith(ROWS):
        return Rows(rows, columns) if layout.tokens == 2 else Rows(1, rows)
    return Tail(rows, columns)
