"""A mixture of experts on a machine that wants static graphs: how experts are laid out.

A token's router gives a number for each expert, a gate, and 0 for all but the top k. What of it is
in the graph is a strategy:

    packed    all experts in few convolutions, side by side, as many as keep a product narrow; all
              of them run, and gates of 0 silence the rest
    dispatch  the graph ends at the gates; each expert is a program, which the host calls when a
              token of the call has chosen it

Both give the same sums, since experts share their input: side by side they are one wide
gate-and-up projection, and one product over all of their channels adds up what they say. Its depth
is what limits them: a product of 81,920 terms went to the CPU (claim `matmul-depth`).

Here are the tensors; the layers are in layers.py. Letters: C hidden size, F feed-forward size of an
expert, E experts, n experts of a group.

References: Shazeer et al. 2017 (arXiv 1701.06538); videlalvaro/ane-book@4ab89e2, chapter 7.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from ane_book.models.base.architecture import Parameters, Shape, TensorSpec
from ane_book.options import Strategy
import numpy as np

__all__ = ["DEEPEST", "Experts", "Stacked"]

#: Terms of a down-projection: so many were seen on the engine, twice as many nowhere.
DEEPEST = 20_480


@dataclass(frozen=True, kw_only=True)
class Stacked(TensorSpec):
    """Some experts of a stack of matrices or vectors, (E, ...), as one matrix or vector.

    side: the experts make "out" or "in" channels of the whole, one after the other. parts: matrices
    that are fused in each expert's, in a row; in ours, the first ones of all experts come first.
    flipped: a matrix is stored (in, out).
    """

    experts: range
    side: Literal["out", "in"] = "out"
    parts: int = 1
    flipped: bool = False

    @property
    def given(self) -> Shape:
        n, sizes = len(self.experts), self.shape[1:]
        if len(sizes) == 1:
            return (n * sizes[0],) if self.side == "out" else (sizes[0], n)
        outputs, inputs = sizes[::-1] if self.flipped else sizes
        return (n * outputs, inputs) if self.side == "out" else (outputs, n * inputs)

    def rows(self, array: np.ndarray) -> np.ndarray:
        own = array[self.experts.start : self.experts.stop]
        if self.flipped:
            own = own.swapaxes(1, 2)  # (n, out, in)
        if self.side == "in":
            return np.ascontiguousarray(own.swapaxes(0, 1)).reshape(self.given)
        own = own.reshape(len(own), self.parts, -1, *own.shape[2:])  # (n, parts, out / parts, in)
        return np.ascontiguousarray(own.swapaxes(0, 1)).reshape(self.given)


@dataclass(frozen=True)
class Experts:
    """The experts of a layer in numbers, and their tensors by the names of `transformers`.

    The stacks are `gate_up_proj`, each expert's gate and then its up, and `down_proj`; with biases
    `gate_up_proj_bias` and `down_proj_bias`. flipped: matrices are stored (in, out). taken: experts
    of a token. silent: what a router may choose that is no expert and adds nothing.
    """

    count: int  # E
    channels: int  # C
    width: int  # F
    strategy: Strategy
    biases: bool = False
    flipped: bool = False
    taken: int = 1  # k
    silent: int = 0

    @property
    def choices(self) -> int:
        """Among how many a router chooses."""
        return self.count + self.silent

    @property
    def groups(self) -> list[range]:
        """The experts that are side by side, of every group; sizes differ by one at most."""
        most = 1 if self.apart else max(1, DEEPEST // self.width)
        parts = -(-self.count // most)
        cuts = [self.count * i // parts for i in range(parts + 1)]
        return [range(a, b) for a, b in pairwise(cuts)]

    @property
    def apart(self) -> bool:
        """Whether each expert is a program, and then has all of its bias."""
        return self.strategy == "dispatch"

    def _stacks(self) -> dict[str, tuple[str, Shape, dict]]:
        """Of the parameters of a group: the stack that each is of, its shape, and how."""
        C, F, E = self.channels, self.width, self.count
        gate_up = (E, C, 2 * F) if self.flipped else (E, 2 * F, C)
        down = (E, F, C) if self.flipped else (E, C, F)
        stacks: dict[str, tuple[str, Shape, dict]] = {
            "gate_up.weight": ("gate_up_proj", gate_up, {"parts": 2, "flipped": self.flipped}),
            "gate_up.bias": ("gate_up_proj_bias", (E, 2 * F), {"parts": 2}),
            "down.weight": ("down_proj", down, {"side": "in", "flipped": self.flipped}),
        }
        if self.apart:
            stacks["down.bias"] = ("down_proj_bias", (E, C), {})
        return {n: how for n, how in stacks.items() if self.biases or not n.endswith("bias")}

    def parameters(self, ours: str, theirs: str) -> Parameters:
        """The parameters of layers.Mixture, whose own name is `ours`, of the stacks in `theirs`."""
        C, E = self.channels, self.count
        found: Parameters = {}
        for name, (stack, shape, how) in self._stacks().items():
            for i, experts in enumerate(self.groups):
                part = Stacked(f"{theirs}.{stack}", shape, experts=experts, **how)
                found[f"{ours}.groups.{i}.{name}"] = (part,)
        if self.biases and not self.apart:
            whole = Stacked(f"{theirs}.down_proj_bias", (E, C), experts=range(E), side="in")
            found[f"{ours}.bias.weight"] = (whole,)
        return found
