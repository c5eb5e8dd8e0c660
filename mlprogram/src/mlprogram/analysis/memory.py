"""Predict how much memory a function takes, from the program alone and without torch.

Weights are in a mapped file, whose pages come into memory as they are read and may leave it again.
What a program needs beyond them can be predicted: tensors that are decoded or laid out anew at load
(`run/footprint.py` measures those), the states, and the intermediate values that are live at the
same time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
import re
import sys

from mlprogram.analysis.aliases import in_place_writes, origins, uses
from mlprogram.package.function import Block, Function, Operation
from mlprogram.package.values import TensorType

#: Ops whose result is a view of their first tensor, without memory of its own.
FREE = {
    "expand_dims": "x", "identity": "x", "read_state": "input", "reshape": "x",
    "slice_by_index": "x", "slice_by_size": "x", "split": "x", "squeeze": "x",
}  # fmt: skip


@dataclass(frozen=True)
class Memory:
    """Bytes of memory of one function.

    mapped: the mapped weight files. laid_out: tensors that were made from them at load. states:
    those of one `make_state()`. values: the peak of live inputs and intermediate values in a call,
    with the arenas of steps that run in C (`run/stretches.py`), without the work space inside of
    an op; None if a shape is known only at run time.
    """

    mapped: int
    laid_out: int
    states: int
    values: int | None

    @property
    def total(self) -> int:
        """The sum, including every page of the weights; values count if they are known."""
        return self.mapped + self.laid_out + self.states + (self.values or 0)


def predict(
    function: Function, lift: bool = False, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> tuple[int, int | None]:
    """Predict `Memory.states` and `Memory.values` from the program's declarations.

    shapes: of values whose shape the program leaves open, from a run.
    """
    sizes = _Sizes(lift, shapes or {})
    states = sum(sizes(name, type_) for name, type_ in function.states.items())
    in_place = in_place_writes(function, origins(function))
    try:
        given = sum(sizes(name, type_) for name, type_ in function.inputs.items())
        return states, given + _peak(function.block, sizes, in_place)
    except _Unknown:
        return states, None


def peak_resident() -> int | None:
    """The peak resident bytes of this process; None if the system does not say."""
    if sys.platform == "win32":
        return None
    if sys.platform == "linux":  # getrusage there counts what the parent held when it forked
        status = Path("/proc/self/status")
        peak = re.search(r"VmHWM:\s+(\d+) kB", status.read_text() if status.exists() else "")
        return int(peak[1]) * 1024 if peak else None
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on a Mac


# --- values ---------------------------------------------------------------------------------------


class _Unknown(Exception):
    """A size that is known only at run time."""


@dataclass(frozen=True)
class _Sizes:
    """The bytes of a value, from its declared type or from the shape that it had in a run."""

    lift: bool
    shapes: Mapping[str, tuple[int, ...]]

    def __call__(self, name: str, type_: TensorType) -> int:
        shape = self.shapes.get(name, type_.shape)
        if None in shape or type_.kind == "list":
            raise _Unknown
        wide = 2 if self.lift and type_.dtype == "fp16" else 1
        return wide * replace(type_, shape=shape).nbytes


def _peak(block: Block, sizes: _Sizes, in_place: dict[str, str]) -> int:
    """The peak bytes of a block's live values, each of which lives from its op to its last use.

    in_place: values that are updated in their state's memory, so that they take none of their own.
    """
    owner: dict[str, str] = {}  # value -> the value whose memory it is
    size: dict[str, int] = {}
    last: dict[str, int] = {}  # owner -> position of the op that reads it last
    for position, operation in enumerate(block.operations):
        for name in uses(operation):
            last[owner.get(name, name)] = position
        viewed = _viewed(operation)
        for name, type_ in operation.outputs:
            owner[name] = owner.get(viewed, viewed) if viewed else name
            if not viewed:
                fresh = name not in in_place and not operation.is_constant
                size[name] = sizes(name, type_) if fresh else 0
            last.setdefault(owner[name], position)
    for name in block.outputs:
        last[owner.get(name, name)] = len(block.operations)
    live = peak = 0
    for position, operation in enumerate(block.operations):
        made = {owner[name] for name, _ in operation.outputs} & size.keys()
        live += sum(size[name] for name in made if name in dict(operation.outputs))
        inner = max([_peak(nested, sizes, in_place) for nested in operation.blocks], default=0)
        peak = max(peak, live + inner)
        read = {owner.get(name, name) for name in uses(operation)} | made
        live -= sum(size.get(name, 0) for name in read if last[name] == position)
    return peak


def _viewed(operation: Operation) -> str | None:
    """The value that an op's result is a view of, or None."""
    source = operation.inputs.get(FREE.get(operation.type, ""), [None])[0]
    return source if isinstance(source, str) else None
