"""Record slices, and updates of slices, at positions that are known at run time only.

`run_slice` of `c/run.c` has the positions as arguments; all else is known when a step is recorded.
`update_state` is such an update from Python.
"""

from operator import mul
from typing import TYPE_CHECKING, Any

from mlprogram.ops.tensor_transformation import write_slice
from mlprogram.run.asked import NotNative
from mlprogram.run.calls import Written
from mlprogram.run.plan import Argument, Step
from mlprogram.run.states import UNKNOWN, States
import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from mlprogram.run.record import Recorder


MOST_AXES = 16  # `SLICED` of run.c
MASKS = ("begin_mask", "end_mask", "squeeze_mask")  # in the order of run.c's bits


def record_slice(recorder: "Recorder", step: Step) -> Tensor:
    """Record `slice_by_index` or `slice_update`; returns the slice, or what was updated."""
    given = {a.key: a for a in step.arguments}
    begin, end = (_position(recorder, given.pop(key)) for key in ("begin", "end"))
    known = {key: recorder.argument(a) for key, a in given.items() if a.static}
    reads = step.operation.type == "slice_by_index"
    in_place = step.function is None
    whole = recorder.state(step.state) if in_place else recorder.argument(given["x"])
    if reads:
        part = torch.empty(step.operation.outputs[0][1].sizes, dtype=whole.dtype)
    else:
        part = recorder.argument(given["update"])
        whole = whole if in_place else whole.clone(memory_format=torch.contiguous_format)
    numbers = [whole.dim(), whole.itemsize, reads, *_axes(whole, part, known)]
    if begin.shape != (whole.dim(),) or end.shape != begin.shape:
        raise NotNative("it has not one position for each axis")
    recorder.call("slice", [whole, part, begin, end], numbers)
    counts = in_place and whole.dim() > 1  # how many of its slots, the last axis but one
    recorder.calls[-1].arguments.append((Written(step.state) if counts else None, 0))
    return part if reads else whole


def _position(recorder: "Recorder", argument: Argument) -> Tensor:
    """Where slices begin or end, as int32."""
    if not recorder.is_known_late(argument):
        numbers = torch.from_numpy(np.array(recorder.argument(argument), np.int32))
        return recorder.own(numbers, is_known=True) if recorder.shapes else numbers
    if len(argument.values) > 1:
        raise NotNative(f"its {argument.key} is several values")
    place = recorder.value(argument.values[0].name).contiguous()
    if place.dtype != torch.int32:
        raise NotNative(f"its {argument.key} is {place.dtype}")
    return place


def _axes(whole: Tensor, part: Tensor, known: dict[str, Any]) -> list[int]:
    """What `run_slice` wants of each axis. known: the static arguments but for the positions."""
    axes = whole.dim()
    masks = [known.get(key) or [False] * axes for key in MASKS]
    steps, squeezed = known.get("stride") or [1] * axes, masks[2]
    if axes > MOST_AXES:
        raise NotNative(f"it has more than {MOST_AXES} axes")
    if min(steps, default=1) < 1:
        raise NotNative("it goes backwards")
    if part.dtype != whole.dtype or part.dim() != axes - sum(squeezed):
        raise NotNative("what it writes or makes has another type")
    numbers = list[int]()
    left = iter(zip(part.shape, part.stride(), strict=True))  # of the axes that the part has
    for axis, (step, *mask) in enumerate(zip(steps, *masks, strict=True)):
        size, stride = (1, 0) if squeezed[axis] else next(left)
        bits = sum(bit << i for i, bit in enumerate(mask))
        numbers += [whole.shape[axis], whole.stride(axis) * whole.itemsize, step, bits]
        numbers += [size, stride * whole.itemsize]
    return numbers


def update_state(states: States, name: str, update: Tensor, **view: Any) -> Tensor:
    """`write_slice` to a state, which is returned."""
    number, state = states._numbers[name], states[name]
    known, number.value = number.value, UNKNOWN  # should it fail, nothing is known
    part = write_slice(state, update, **view)
    if known != UNKNOWN:
        number.value = max(known, _reach(state, part))
    return state


def _reach(state: Tensor, part: Tensor) -> int:
    """The slots of a state, whose memory has no gaps, up to the last one that a part of it has."""
    sizes, strides = part.shape, part.stride()
    if 0 in sizes:
        return 0
    last = part.storage_offset() + sum(map(mul, sizes, strides)) - sum(strides)
    whole = state.shape
    return last // whole[-1] % whole[-2] + 1
