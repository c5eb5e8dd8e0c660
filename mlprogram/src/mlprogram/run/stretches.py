"""Stretches of a plan that run in C, without Python between their steps.

A stretch is a table of calls of compiled code, which `run_steps` of `c/run.c` walks. It computes
what its steps would one by one, in their order: `record.py` has seen them do it. A step that needs
torch ends a stretch, and runs from Python.

What only the stretch reads lies in one arena, allocated for each call, at addresses that values
share which are not in use at the same time. What is read after it gets memory of its own.
"""

from bisect import insort
from collections.abc import Callable, Collection
import ctypes
from dataclasses import dataclass

from mlprogram.analysis.aliases import uses
from mlprogram.kernels import native
from mlprogram.kernels.native.threads import threads
from mlprogram.run.plan import ExecutionPlan, Name, Step
from mlprogram.run.record import KernelCall, NotNative, Recorder, Region, Written
from mlprogram.run.states import States
import torch
from torch import Tensor

__all__ = ["NativeStretch", "divided"]

SHORTEST = 2  # steps, and calls of compiled code: one alone takes less time from Python
ALIGNMENT = 64


class NativeStretch:
    """Some neighbouring steps, compiled: `stretch(states, *given)` returns the values `made`.

    plain: the same from Python, for values that are not what the program declares. calls: how many
    of compiled code. arena: its bytes. held: those of the values that lie in it.
    """

    plain: Callable[..., tuple]

    def __init__(self, recorder: Recorder, made: list[str]):
        self.steps, self.made, calls = recorder.steps, made, recorder.calls
        self._failures, self._kept = recorder.plan.failures, recorder.kept
        results = [recorder.values[name] for name in made]
        owners = [recorder.region(value) for value in results]
        read = {b for call in calls for b, _ in call.arguments} | {*owners}
        taken = [v for s in self.steps for a in s.arguments for v in a.values]
        named = {v.name for v in taken if isinstance(v, Name)}  # in Python, also for no call
        read |= {b for b in recorder.regions.values() if b.name in named and not b.is_state}
        given = [b for b in recorder.regions.values() if b.name and b in read]
        given.sort(key=lambda region: region.is_state)
        new = [*dict.fromkeys(b for b in owners if b and not b.name)]
        self.given = [b.name for b in given if not b.is_state]
        self.states = [b.name for b in given if b.is_state]
        self._given = [(b.tensor.dtype, b.tensor.shape) for b in given]
        self._new = [(b.tensor.dtype, b.tensor.shape) for b in new]
        counts = [*dict.fromkeys(b for b in read if isinstance(b, Written))]
        self._updated, self._written = recorder.updated, counts
        bases: list[Region | Written] = [*given, *new, *counts]
        number = {b: 2 + i for i, b in enumerate(bases)}
        self._results = [
            x if b is None else _View(number[b] - 2, x.shape, x.stride(), int(x.storage_offset()))
            for x, b in zip(results, owners, strict=True)
        ]
        self._bases = ctypes.c_int64 * (2 + len(number))
        self._lay_out(calls, number)

    def _lay_out(self, calls: list[KernelCall], number: dict[Region | Written, int]) -> None:
        """Make the table. number: of each base but the arena."""
        offsets, self.arena = _arranged(calls, number)
        self.calls, self.held = len(calls), sum(region.bytes for region in offsets)
        self._places: dict[int, Step] = {}  # in the table
        words: list[int] = []
        for call in calls:
            self._places[len(words)] = call.step
            words += [call.entry, len(call.arguments)]
            for b, offset in call.arguments:
                base = 0 if b is None else number.get(b, 1)
                words += [base, offset + offsets.get(b, 0) if isinstance(b, Region) else offset]
        self._table = (ctypes.c_int64 * len(words))(*words)

    def __call__(self, states: States, *given: Tensor) -> tuple:
        held = [states[name] for name in self.states]
        tensors = [*given, *held]
        for x, (dtype, shape) in zip(tensors, self._given, strict=True):
            if x.dtype != dtype or x.shape != shape:
                return self.plain(states, *given)
        if not all(x.is_contiguous() for x in held):
            return self.plain(states, *given)
        tensors[: len(given)] = [x.contiguous() for x in given]
        tensors += [torch.empty(shape, dtype=dtype) for dtype, shape in self._new]
        arena = torch.empty(self.arena, dtype=torch.uint8)
        numbers = [x.data_ptr() for x in tensors] + [w.of(states) for w in self._written]
        bases = self._bases(0, arena.data_ptr(), *numbers)
        for name in self._updated:
            states.written.pop(name, None)
        failed = native.run_steps(self._table, len(self._table), bases, threads())
        if failed >= 0:
            with self._failures.preparing(self._places[failed].operation):
                raise MemoryError("no memory for what a compiled op sums up")
        return tuple(r.of(tensors) if isinstance(r, _View) else r for r in self._results)


@dataclass(frozen=True)
class _View:
    """A result that is a view of a tensor, or all of it."""

    index: int
    shape: torch.Size
    strides: tuple[int, ...]
    offset: int

    def of(self, tensors: list[Tensor]) -> Tensor:
        whole = tensors[self.index]
        return whole.as_strided(self.shape, self.strides, whole.storage_offset() + self.offset)


def _arranged(
    calls: list[KernelCall], elsewhere: Collection[Region | Written]
) -> tuple[dict[Region, int], int]:
    """Where in the arena each region lies that is nowhere else, and the arena's bytes.

    A region is in use from the first call that names it to the last.
    """
    used = [[b for b, _ in call.arguments if isinstance(b, Region)] for call in calls]
    last = {b: i for i, regions in enumerate(used) for b in regions}
    offsets: dict[Region, int] = {}
    live: list[tuple[int, int, Region]] = []  # begin, end
    size = 0
    for i, regions in enumerate(used):
        for b in regions:
            if b in elsewhere or b in offsets:
                continue
            begin = 0
            for start, end, _ in live:
                if begin + b.bytes <= start:
                    break
                begin = max(begin, end)
            offsets[b] = begin
            end = -(-(begin + b.bytes) // ALIGNMENT) * ALIGNMENT
            insort(live, (begin, end, b), key=lambda part: part[0])
            size = max(size, end)
        live = [part for part in live if last[part[2]] > i]
    return offsets, size


def divided(plan: ExecutionPlan) -> tuple[list[Step | NativeStretch], dict[int, str]]:
    """The steps of a plan in order, those that can in stretches; and by the id of each other step
    why it is in none."""
    steps, why = plan.main.steps, dict[int, str]()
    parts: list[Step | NativeStretch] = []
    last = {name: i for i, step in enumerate(steps) for name in uses(step.operation)}
    last |= dict.fromkeys(plan.function.block.outputs, len(steps))
    recorder = Recorder(plan)
    for i, step in enumerate([*steps, None]):
        try:
            if step is not None:
                recorder.add(step)
                continue
        except NotNative as error:
            why[id(step)] = str(error)
        if min(len(recorder.calls), len(recorder.steps)) < SHORTEST:
            parts += recorder.steps
            why |= dict.fromkeys(map(id, recorder.steps), "alone, it takes less time from Python")
        else:
            names = [name for made in recorder.steps for name in made.results]
            parts.append(NativeStretch(recorder, [n for n in names if last.get(n, -1) >= i]))
        parts += [step] if step else []
        recorder = Recorder(plan)
    return parts, why
