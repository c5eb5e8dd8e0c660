"""Measure the memory of a planned function: mapped weights, and what is laid out besides.

For the latter it adds up the tensors that the plan refers to, rather than predicting them with a
formula; states and values are predicted.
"""

from collections.abc import Iterator
import gc
from types import FunctionType, ModuleType

from mlprogram.analysis.memory import Memory, predict
from mlprogram.package.function import Block, Function, Operation
from mlprogram.package.reader import Package
from mlprogram.package.values import TensorType
from mlprogram.run.compile import Compiled
from mlprogram.run.stretches import NativeStretch
import numpy as np
import torch


def measure(compiled: Compiled, package: Package, lift: bool) -> Memory:
    """The memory of a function. lift: half precision runs as single."""
    files = [np.frombuffer(blob._map, np.uint8) for blob in package._blobs.values()]
    ranges = [(file.ctypes.data, file.ctypes.data + file.nbytes) for file in files]
    found = {storage.data_ptr(): storage.nbytes() for storage in _storages(compiled)}
    laid_out = sum(
        size for start, size in found.items() if not any(a <= start < b for a, b in ranges)
    )
    mapped = sum(file.nbytes for file in files)
    return Memory(mapped, laid_out, *predict(_as_run(compiled), lift))


def _as_run(compiled: Compiled) -> Function:
    """The function with one op for each step that runs from Python, and for each stretch in C."""
    given, operations = compiled.plan.function, list[Operation]()
    for part in compiled.parts:
        if isinstance(part, NativeStretch):
            operations += _as_operations(part)
        elif part.operation.type == "slice_update" and part.function is None:  # in place
            operations += [_view(name, part.state) for name in part.results]
        else:
            operations.append(part.operation)
    block = Block(given.block.inputs, operations, given.block.outputs)
    return Function(given.name, given.opset, given.inputs, given.states, block)


def _as_operations(stretch: NativeStretch) -> list[Operation]:
    """An op that makes the memory of a stretch's results, with a block inside whose one value is
    the arena, and a view of that memory for each result."""
    made = {owner: _bytes(size) for owner, size in stretch.memory.values() if size}
    arena = Operation("arena", "", {}, [("arena", _bytes(stretch.arena))], [])
    run = Operation("stretch", "", {"values": stretch.given}, [*made.items()], [])
    run.blocks.append(Block([], [arena], []))
    return [run, *[_view(name, owner) for name, (owner, _) in stretch.memory.items()]]


def _view(name: str, owner: str) -> Operation:
    return Operation("identity", name, {"x": [owner]}, [(name, _bytes(0))], [])


def _bytes(count: int) -> TensorType:
    return TensorType("uint8", (count,))


def _storages(compiled: Compiled) -> Iterator[torch.UntypedStorage]:
    """The storage of every tensor that the steps, and the stretches, refer to, directly or through
    other objects."""
    plan = compiled.plan
    steps = [*plan.main.all()]
    todo: list[object] = [plan.untouched, plan.main.results]
    todo += [part.owners for part in compiled.parts if isinstance(part, NativeStretch)]
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
