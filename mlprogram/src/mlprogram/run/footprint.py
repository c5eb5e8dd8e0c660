"""Measure the memory of a planned function: mapped weights, and what is laid out besides.

For the latter it adds up the tensors that the plan refers to, rather than predicting them with a
formula; states and values are predicted.
"""

from collections.abc import Iterator
import gc
from types import FunctionType, ModuleType

from mlprogram.analysis.memory import Memory, predict
from mlprogram.package.reader import Package
from mlprogram.run.plan import ExecutionPlan
import numpy as np
import torch

__all__ = ["measure"]


def measure(plan: ExecutionPlan, package: Package, lift: bool) -> Memory:
    """The memory of a plan. lift: half precision runs as single."""
    files = [np.frombuffer(blob._map, np.uint8) for blob in package._blobs.values()]
    ranges = [(file.ctypes.data, file.ctypes.data + file.nbytes) for file in files]
    found = {storage.data_ptr(): storage.nbytes() for storage in _storages(plan)}
    laid_out = sum(
        size for start, size in found.items() if not any(a <= start < b for a, b in ranges)
    )
    mapped = sum(file.nbytes for file in files)
    return Memory(mapped, laid_out, *predict(plan.as_function, lift))


def _storages(plan: ExecutionPlan) -> Iterator[torch.UntypedStorage]:
    """The storage of every tensor that the steps refer to, directly or through other objects."""
    steps = [*plan.main.all()]
    todo: list[object] = [plan.untouched, plan.main.results]
    todo += [(step.function, step.arguments, step.stored) for step in steps]
    todo += [block.results for step in steps for block in step.blocks]
    seen = set()
    while todo:
        value = todo.pop()
        if id(value) in seen or isinstance(value, ModuleType | type):
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            yield value.untyped_storage()
        elif isinstance(value, FunctionType):  # not its globals, where everything is
            todo += [value.__closure__, value.__defaults__, value.__kwdefaults__]
        else:
            todo += gc.get_referents(value)
