"""Measure the roofline of this machine: how fast it reads memory, and how fast it multiplies.

A call takes at least the time to read its bytes, and at least that of its arithmetic (Williams,
Waterman and Patterson, "Roofline", Communications of the ACM 52(4), 2009). Both are measured with
the executor's fastest products on all of its threads, so that a call of a model can exceed them
only by what the CPU's caches keep from one call to the next.

Other load can only make a run slower, so the fastest of several interleaved runs counts.

Taught in the chapter "What a token costs".
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from ane_book.errors import InvalidInput
from mlprogram.kernels import native
from mlprogram.kernels.threads import threads
import torch

COLUMNS = 4096  # columns of the weight that is read
WIDTH, TOKENS = 1024, (64, 256)  # of the products: in float32 4 MB of weights, and their tokens

#: A function to time, and the bytes that it reads or the operations that it computes.
Work = tuple[Callable, float]


@dataclass(frozen=True)
class Roofs:
    """The peak rates of this machine, in bytes and in operations per second.

    A multiplication and an addition are two operations. reads, computes: the rate of each product
    by name.
    """

    bandwidth_bytes_s: float
    flops_s: float
    threads: int
    reads: dict[str, float]
    computes: dict[str, float]

    def seconds(self, nbytes: float, operations: float) -> float:
        """The least time of a call that reads `nbytes` and computes `operations`."""
        return max(nbytes / self.bandwidth_bytes_s, operations / self.flops_s)


def measure(megabytes: int = 512, rounds: int = 9) -> Roofs:
    """Measure both roofs: about three seconds, and `megabytes` of memory.

    megabytes: to read at a time, far more than the caches hold. rounds: runs of each product, of
    which the fastest counts. Raises InvalidInput if either is below 1.
    """
    if megabytes < 1 or rounds < 1:
        raise InvalidInput(f"megabytes and rounds must be at least 1, not {megabytes}, {rounds}")
    with torch.inference_mode():
        reads = _fastest(_readers(megabytes * 1_000_000), rounds)
        computes = _fastest(_products(), 4 * rounds)
    return Roofs(max(reads.values()), max(computes.values()), threads(), reads, computes)


def _readers(nbytes: int) -> dict[str, Work]:
    """Products that each read the same memory once."""
    rows = max(1, nbytes // (2 * COLUMNS))
    halves = torch.ones(rows, COLUMNS, dtype=torch.float16)
    singles = halves.view(torch.float32)  # the same bytes, which make small numbers
    work = {"torch, sum of float32": lambda: singles.sum()}
    if native.available():
        for name, data in (("fp16", halves), ("float32", singles)):
            work[f"compiled, one token, {name}"] = _product(data, torch.float16, 1)
    return {name: (call, halves.nbytes) for name, call in work.items()}


def _products() -> dict[str, Work]:
    """Products of one matrix that fits in the caches with the activations of several tokens."""
    found: dict[str, Work] = {}
    data = torch.rand(WIDTH, WIDTH)
    for tokens in TOKENS:
        x, operations = torch.rand(WIDTH, tokens), 2 * WIDTH**2 * tokens
        calls: dict[str, Callable] = {"torch, float32": lambda x=x: data @ x}
        if native.available():
            calls["compiled, fp16"] = _product(data.half(), torch.float16, tokens)
            calls["compiled, float32"] = _product(data, torch.float32, tokens)
        for name, call in calls.items():
            found[f"{name}, {tokens} tokens"] = call, operations
    return found


def _product(data: torch.Tensor, dtype: torch.dtype, tokens: int) -> Callable:
    """The executor's own product of a weight with some tokens."""
    weight = native.Weight(data, dtype)
    x = torch.ones(1, weight.columns, 1, tokens, dtype=dtype)
    return lambda: weight.channels_first(x)


def _fastest(works: dict[str, Work], rounds: int) -> dict[str, float]:
    """The highest rate of each, after one run to warm up."""
    for call, _ in works.values():
        call()
    best = dict.fromkeys(works, 0.0)
    for _ in range(rounds):
        for name, (call, amount) in works.items():
            start = perf_counter()
            call()
            best[name] = max(best[name], amount / (perf_counter() - start))
    return best
