"""Mixtures of experts in static graphs: how the experts' weights are laid out.

The router gives each token a gate for each expert: a number for the top k, and 0 for the others. A
strategy says which part of the mixture is in the graph:

    packed    all experts, fused into a few wide convolutions (groups). All of them run; a gate of
              0 removes the output of those that were not chosen
    dispatch  the graph ends at the gates; each expert is a package of its own, which the host calls
              when a token of the call has chosen it

Both give the same sums. Experts share their input, so their gate and up projections concatenate to
one wide projection, and one wide down projection adds up their outputs. The number of terms in that
product limits a group: one with 81,920 terms went to the CPU (claim `matmul-depth`).

This file has the tensors, layers.py the layers. Letters: see `ane_book.models.base`.

References: Shazeer et al. 2017 (arXiv 1701.06538); videlalvaro/ane-book@4ab89e2, chapter 7.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from ane_book.models.base.architecture import Parameters, Shape, TensorSpec
from ane_book.options import Strategy
import numpy as np

#: The most terms of a down projection: the largest number that was measured to run on the ANE.
DEEPEST = 20_480


@dataclass(frozen=True, kw_only=True)
class Stacked(TensorSpec):
    """A range of experts from a stack of matrices or vectors (E, ...), fused to one.

    side: the axis along which the experts are concatenated, "out" or "in" channels. parts: how
    many matrices the stack itself has fused per expert (gate and up: 2); ours has the first one of
    every expert, then the second one of every expert. flipped: the file stores (in, out).
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


def even_ranges(count: int, most: int) -> list[range]:
    """0..count-1 in as few ranges of at most `most` as it takes, sizes differing by one at most."""
    parts = -(-count // most)
    cuts = [count * i // parts for i in range(parts + 1)]
    return [range(first, last) for first, last in pairwise(cuts)]


def check_taken(taken: int, experts: int) -> None:
    """Raise ValueError if a token takes more experts than there are."""
    if taken > experts:
        raise ValueError(f"a token takes {taken} experts of {experts}")


@dataclass(frozen=True)
class Experts:
    """The sizes of a layer's mixture of experts, and its tensors by their `transformers` names.

    The tensors are stacks over the experts: `gate_up_proj` (each expert's gate, then its up) and
    `down_proj`; with biases also `gate_up_proj_bias` and `down_proj_bias`. flipped: matrices are
    stored (in, out). taken: experts per token. silent: extra classes of the router that stand for
    no expert and add nothing. after: how the names of parameters begin that are applied after it.
    theirs: the beginning of the stacks' names in a layer. matrices: what gate, up and down of an
    expert are called in files that may hold the stacks in pieces; None where none does.
    """

    count: int  # E
    channels: int  # C
    width: int  # F
    strategy: Strategy
    biases: bool = False
    flipped: bool = False
    taken: int = 1  # k
    silent: int = 0
    after: tuple[str, ...] = ()
    theirs: str = "mlp.experts"
    matrices: tuple[str, str, str] | None = None

    @property
    def choices(self) -> int:
        """The number of classes that the router chooses from."""
        return self.count + self.silent

    @property
    def groups(self) -> list[range]:
        """The experts of each group, which are fused; the groups' sizes differ by one at most."""
        most = 1 if self.apart else max(1, DEEPEST // self.width)
        return even_ranges(self.count, most)

    @property
    def apart(self) -> bool:
        """Whether each expert is a package of its own, which then includes its down bias."""
        return self.strategy == "dispatch"

    def pieces(self, layer: str) -> dict[str, list[tuple[str, ...]]]:
        """The stacks of a layer, by names that begin with `layer`, that files may hold in pieces:
        for each expert, the names of the matrices whose rows are one below the other."""
        gate, up, down = self.matrices or ("", "", "")
        stacks = {"gate_up_proj": (gate, up), "down_proj": (down,)} if self.matrices else {}
        own = f"{layer}.{self.theirs}"
        return {
            f"{own}.{stack}": [
                tuple(f"{own}.{expert}.{name}.weight" for name in names)
                for expert in range(self.count)
            ]
            for stack, names in stacks.items()
        }

    def parameters(self) -> Parameters:
        """The parameters of the `layers.Mixture` of a block."""
        C, F, E = self.channels, self.width, self.count
        gate_up = (E, C, 2 * F) if self.flipped else (E, 2 * F, C)
        down = (E, F, C) if self.flipped else (E, C, F)
        #: A group's parameters -> their stack's name and shape, and arguments of `Stacked`.
        stacks: dict[str, tuple[str, Shape, dict]] = {
            "gate_up.weight": ("gate_up_proj", gate_up, {"parts": 2, "flipped": self.flipped}),
            "gate_up.bias": ("gate_up_proj_bias", (E, 2 * F), {"parts": 2}),
            "down.weight": ("down_proj", down, {"side": "in", "flipped": self.flipped}),
        }
        if self.apart:
            stacks["down.bias"] = ("down_proj_bias", (E, C), {})
        found: Parameters = {}
        for name, (stack, shape, how) in stacks.items():
            if name.endswith("bias") and not self.biases:
                continue
            for i, experts in enumerate(self.groups):
                part = Stacked(f"{self.theirs}.{stack}", shape, experts=experts, **how)
                found[f"mixture.groups.{i}.{name}"] = (part,)
        if self.biases and not self.apart:
            whole = Stacked(f"{self.theirs}.down_proj_bias", (E, C), experts=range(E), side="in")
            found["mixture.bias.weight"] = (whole,)
        return found
