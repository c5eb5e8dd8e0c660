"""Einsum, as matrix products."""

import numpy as np

from . import Unsayable, operator
from ._common import Tensor, mb, rank, reshaped


@operator("Einsum")
def einsum(*tensors: Tensor, equation: bytes) -> Tensor:
    """Contract two tensors at a time, each pair by one matrix product."""
    left, _, result = equation.decode().replace(" ", "").partition("->")
    terms, spare = left.split(","), "ABCDEFGH"
    for i, (term, x) in enumerate(zip(terms, tensors, strict=True)):
        if "..." in term:
            terms[i] = term.replace("...", spare[: rank(x) - len(term) + 3])
    widest = max(terms, key=lambda t: sum(c in spare for c in t))
    result = result.replace("...", "".join(c for c in widest if c in spare))
    if "->" not in equation.decode():
        every = "".join(terms)
        result = "".join(sorted(c for c in set(every) if every.count(c) == 1))
    if any(len(set(term)) < len(term) for term in terms):
        raise Unsayable(f"a diagonal: {equation.decode()}")
    x, term = tensors[0], terms[0]
    for i, (y, other) in enumerate(zip(tensors[1:], terms[1:], strict=True), 2):
        later = set(result).union(*terms[i:])
        x, term = _product(x, term, y, other, later)
    x, term = _summed(x, term, set(result))
    return mb.transpose(x=x, perm=[term.index(c) for c in result]) if rank(x) > 1 else x


def _summed(x: Tensor, term: str, kept: set[str]) -> tuple[Tensor, str]:
    """Sum over the axes of x that are not in `kept`."""
    axes = [i for i, c in enumerate(term) if c not in kept]
    if axes:
        x = mb.reduce_sum(x=x, axes=axes, keep_dims=False)
    return x, "".join(c for c in term if c in kept)


def _product(x: Tensor, a: str, y: Tensor, b: str, later: set[str]) -> tuple[Tensor, str]:
    """Multiply two tensors: shared axes that are needed later are a batch, the others summed."""
    x, a = _summed(x, a, later | set(b))
    y, b = _summed(y, b, later | set(a))
    batch, within = ([c for c in a if c in b and (c in later) is kept] for kept in (True, False))
    left, right = [c for c in a if c not in b], [c for c in b if c not in a]
    size = {c: int(n) for c, n in [*zip(a, x.shape, strict=True), *zip(b, y.shape, strict=True)]}

    def matrix(tensor: Tensor, term: str, *groups: list[str]) -> Tensor:
        order = [term.index(c) for group in groups for c in group]
        moved = mb.transpose(x=tensor, perm=order) if len(order) > 1 else tensor
        return reshaped(moved, [int(np.prod([size[c] for c in group])) for group in groups])

    product = mb.matmul(x=matrix(x, a, batch, left, within), y=matrix(y, b, batch, within, right))
    order = batch + left + right
    return reshaped(product, [size[c] for c in order]), "".join(order)
