"""Stretches of a plan that run in C, without Python between their steps.

A stretch is a table of calls of compiled code, which `run_steps` of `c/run.c` walks. It computes
what its steps would one by one, in their order: `record.py` has seen them do it. A step that needs
torch ends a stretch, and runs from Python.

What only the stretch reads lies in one arena, allocated for each call, at addresses that values
share which are not in use at the same time. What is read after it gets memory of its own.

The step of a call that fails runs from Python, with those after it, and says why.
"""

from bisect import insort
from collections.abc import Callable, Collection, Mapping, Sequence
import ctypes
from typing import NamedTuple

from mlprogram.analysis.aliases import uses
from mlprogram.kernels import native
from mlprogram.kernels.native.threads import threads
from mlprogram.run.asked import NotNative
from mlprogram.run.calls import ConstantMemory, KernelCall, Region, Written
from mlprogram.run.copies import change_in_place
from mlprogram.run.lines import Line, Row, is_straight
from mlprogram.run.plan import ExecutionPlan, Name, Step
from mlprogram.run.record import Recorder
from mlprogram.run.states import States
import torch
from torch import Tensor

SHORTEST = 2  # steps, and calls of compiled code: one alone takes less time from Python
ALIGNMENT = 64


#: Where what a call names lies: a base, and a place in it.
_Addresses = dict[Region | Written | None, tuple[int, int]]


class _Draft(NamedTuple):
    """What was recorded for one size, as numbers. A base is what an address is counted from: 0 is
    none, 1 the arena, then what is given, known and made; the table itself; numbers of slots.

    words: the table, with all that it points at behind it. shapes: dtypes and shapes of what is
    given, known, and made. values: each value as a view (`_view`). contents: the whole numbers that
    are known. unread: dtypes, shapes and contents of those that no call reads.
    """

    words: list[int]
    shapes: list[list[tuple]]
    values: list[tuple]
    contents: list
    unread: list[tuple]


class NativeStretch:
    """Some neighbouring steps, compiled: `stretch(size, states, *given)` returns the values `made`.

    places: the sizes for which the recorders have recorded, from the least to the largest; what is
    run is what they would have recorded for `size`. plain: the same from Python, for values that
    are not what the program declares, from the first of its steps on or from a later one:
    `plain(first)(states, *values)`, of those that `needed` names. calls: how many of compiled code.
    arena: its bytes. held: those of the values in it. owners: what holds the memory of constants,
    of which the table has only addresses.
    """

    plain: Callable[[int], Callable[..., tuple]]

    def __init__(self, places: Sequence[int], recorders: list[Recorder], made: list[str]):
        change_in_place(recorders, made)
        last = recorders[-1]
        self.steps, self.made = last.steps, made
        named = (b for r in recorders for call in r.calls for b, _ in call.arguments)
        self.owners = [*{b: b.owner for b in named if isinstance(b, ConstantMemory)}.values()]
        bases = self._number(last)
        sizes = [
            max(b.bytes for b in same) for same in zip(*[r.regions for r in recorders], strict=True)
        ]
        offsets, self.arena = _arranged(last.calls, bases, sizes)
        addresses: _Addresses = {b: (base, 0) for b, base in bases.items()}
        addresses |= {b: (1, offset) for b, offset in offsets.items()}
        self.calls, self.held = len(last.calls), sum(sizes[b.index] for b in offsets)
        self._step_at: dict[int, int] = {}  # place in the table -> which of the steps
        ends = dict.fromkeys((recorders[0], last))  # one, where there is one size
        drafts = [self._draft(recorder, addresses) for recorder in ends]
        self._words = Row(places, [d.words for d in drafts])
        self._shapes = Line(places, [d.shapes for d in drafts])
        self._values = Line(places, [d.values for d in drafts])
        self._contents = Line(places, [d.contents for d in drafts])
        self._unread = Line(places, [d.unread for d in drafts])
        self._constants = {n: x for n, x in last.values.items() if last.region(x) is None}
        self._names = [*last.values]
        chosen = [[d.values[self._names.index(n)] for n in made] for d in drafts]
        self._results = Line(places, chosen)

    def _number(self, recorder: Recorder) -> dict[Region | Written | None, int]:
        """Say which regions are given in each call, or made for what is read after it, and number
        the bases. Those of whole numbers that no call reads count on from the table's: a call that
        fails is given them then."""
        regions = recorder.regions
        owners = [recorder.region(recorder.values[name]) for name in self.made]
        called = {b for call in recorder.calls for b, _ in call.arguments} | {*owners}
        given = sorted((b for b in regions if b.name), key=lambda region: region.is_state)
        known = [b for b in regions if b.is_known and b in called]
        unread = [b for b in regions if b.is_known and b not in called]
        new = [*dict.fromkeys(b for b in owners if b and not b.name and not b.is_known)]
        self.given = [b.name for b in given if not b.is_state]
        self.states = [b.name for b in given if b.is_state]
        self._updated = recorder.updated
        self._written = sorted({b.state for b in called if isinstance(b, Written)})
        self._ordered = given, known, new, unread
        self._table = 2 + len(given) + len(known) + len(new)
        bases: dict[Region | Written | None, int] = {None: 0}
        bases |= {b: 2 + i for i, b in enumerate((*given, *known, *new, *unread))}
        return bases | {Written(s): self._table + 1 + i for i, s in enumerate(self._written)}

    def _draft(self, recorder: Recorder, addresses: _Addresses) -> _Draft:
        words, tail = list[int](), list[int]()
        length = sum(2 + 2 * len(call.arguments) for call in recorder.calls)
        order = {id(step): i for i, step in enumerate(self.steps)}
        for call in recorder.calls:
            self._step_at[len(words)] = order[id(call.step)]
            words += [call.entry, len(call.arguments)]
            for b, offset in call.arguments:
                if isinstance(b, tuple):
                    words += [self._table, 8 * (length + len(tail))]
                    tail += b
                else:
                    base, begin = (0, b.address) if isinstance(b, ConstantMemory) else addresses[b]
                    words += [base, begin + offset]
        self._length = length
        regions = [[recorder.regions[b.index].tensor for b in some] for some in self._ordered]
        shapes = [[(x.dtype, x.shape) for x in some] for some in regions[:3]]
        unread = [(x.dtype, x.shape, x.tolist()) for x in regions[3]]
        values = []
        for x in recorder.values.values():
            b, at = recorder.origin(x)
            base, begin = addresses.get(b, (1, 0))
            values.append(_view(x, at, base, begin))
        contents = [x.tolist() for x in regions[1]]
        return _Draft(words + tail, shapes, values, contents, unread)

    @property
    def memory(self) -> dict[str, tuple[str, int]]:
        """Of each value made, what its memory is called and how many bytes it has: the value or
        state that was given and whose part it is, with 0 bytes; else one of the values made."""
        given = ["", "", *self.given, *self.states]  # of a constant, and of the arena, none
        owners = {base: (name, 0) for base, name in enumerate(given)}
        views = zip(self.made, self._results.at(0), strict=True)
        return {
            name: owners.setdefault(base, (f"memory of {name}", size))
            for name, (base, _, size, *_) in views
        }

    def needed(self, first: int) -> list[str]:
        """The values that steps from this one on read, or that are made before it: not what an
        update in place would read if it were none, and the stretch is not given."""
        if not first:
            return self.given
        inside = {name for step in self.steps[first:] for name in step.results}
        taken = [v for s in self.steps[first:] for a in s.arguments for v in a.values]
        read = [v.name for v in taken if isinstance(v, Name) and v.name in self._names]
        return [n for n in dict.fromkeys([*read, *self.made]) if n not in inside]

    def __call__(self, size: int, states: States, *given: Tensor) -> tuple:
        held = [states[name] for name in self.states]
        tensors, (fits, known, new) = [*given, *held], self._shapes.at(size)
        for x, (dtype, shape) in zip(tensors, fits, strict=True):
            if x.dtype != dtype or x.shape != shape:
                return self.plain(0)(states, *given)
        if not all(x.is_contiguous() for x in held):
            return self.plain(0)(states, *given)
        tensors[: len(given)] = [x.contiguous() for x in given]
        if known:
            contents = zip(self._contents.at(size), known, strict=True)
            tensors += [_numbers(dtype, shape, n) for n, (dtype, shape) in contents]
        tensors += [torch.empty(shape, dtype=dtype) for dtype, shape in new]
        arena, words = torch.empty(self.arena, dtype=torch.uint8), self._words.at(size)
        bases = [0, arena.data_ptr(), *[x.data_ptr() for x in tensors], words.data_ptr()]
        bases += [states.address(name) for name in self._written]
        array = (ctypes.c_int64 * len(bases))(*bases)
        for name in self._updated:
            states.forget(name)
        failed = native.run_steps(words.data_ptr(), self._length, array, threads())
        memory = [arena, *tensors]
        if failed >= 0:
            first = self._step_at[failed]
            memory += [_numbers(dtype, shape, n) for dtype, shape, n in self._unread.at(size)]
            views = dict(zip(self._names, self._values.at(size), strict=True))
            needed = self.needed(first)
            found = self._read(needed, [views[name] for name in needed], memory)
            return self.plain(first)(states, *found)
        return tuple(self._read(self.made, self._results.at(size), memory))

    def _read(self, names: list[str], views: Sequence, memory: list[Tensor]) -> list[Tensor]:
        """These values. memory: the arena, and what the bases from 2 on are."""
        pairs = zip(names, views, strict=True)
        return [_read(view, memory, self._constants.get(name)) for name, view in pairs]


def _numbers(dtype: torch.dtype, shape: Sequence[int], contents: object) -> Tensor:
    return torch.tensor(contents, dtype=dtype).view(shape)


def _view(x: Tensor, at: int, base: int, start: int) -> tuple:
    """Where a value is: `at` bytes from the begin of a base, of which the arena has it from `start`
    on; base 0 is a constant's own memory."""
    size = x.untyped_storage().nbytes()
    return base, start, size, x.dtype, x.shape, x.stride(), at // x.itemsize


def _read(view: tuple, memory: list[Tensor], constant: Tensor | None) -> Tensor:
    base, start, size, dtype, shape, strides, offset = view
    if constant is not None:
        return constant.as_strided(shape, strides, offset)
    whole = memory[base - 1]
    if base == 1:
        whole = whole[start : start + size].view(dtype)
    elif whole.shape == shape and whole.stride() == strides:
        return whole
    return whole.as_strided(shape, strides, whole.storage_offset() + offset)


def _arranged(
    calls: list[KernelCall], elsewhere: Collection, sizes: Sequence[int]
) -> tuple[dict[Region, int], int]:
    """Where in the arena each region lies that is nowhere else; the arena's bytes.

    A region is in use from the first call that names it to the last call of the last step that
    does: should that step fail, Python reads what it was given. sizes: of each region, in bytes.
    """
    named = [[b for b, _ in call.arguments if isinstance(b, Region)] for call in calls]
    end = {id(call.step): i for i, call in enumerate(calls)}
    last = {b: end[id(calls[i].step)] for i, regions in enumerate(named) for b in regions}
    offsets: dict[Region, int] = {}
    live: list[tuple[int, int, Region]] = []  # begin, end
    size = 0
    for i, regions in enumerate(named):
        for b in regions:
            if b in elsewhere or b in offsets:
                continue
            begin = 0
            for start, stop, _ in live:
                if begin + sizes[b.index] <= start:
                    break
                begin = max(begin, stop)
            offsets[b] = begin
            beyond = -(-(begin + sizes[b.index]) // ALIGNMENT) * ALIGNMENT
            insort(live, (begin, beyond, b), key=lambda part: part[0])
            size = max(size, beyond)
        live = [part for part in live if last[part[2]] > i]
    return offsets, size


#: The shapes of values that a program leaves open, for some sizes: places on a line.
Shapes = Mapping[int, Mapping[str, tuple[int, ...]]]


@torch.inference_mode(False)
@torch.no_grad()
def divided(
    plan: ExecutionPlan, shapes: Shapes | None = None
) -> tuple[list[Step | NativeStretch], dict[int, str]]:
    """The steps of a plan in order, those that can in stretches; and by the id of each other step
    why it is in none.

    shapes: of the inputs, at three places in order or at one.
    """
    steps, why = plan.main.steps, dict[int, str]()
    shapes = shapes or {0: {}}
    parts: list[Step | NativeStretch] = []
    last = {name: i for i, step in enumerate(steps) for name in uses(step.operation)}
    last |= dict.fromkeys(plan.function.block.outputs, len(steps))
    known = [dict(found) for found in shapes.values()]
    recorders = [Recorder(plan, found) for found in known]
    for i, step in enumerate([*steps, None]):
        try:
            if step is not None:
                _add(step, [*shapes], recorders)
                continue
        except NotNative as error:
            why[id(step)] = str(error)
        done = recorders[0].steps
        if min(len(recorders[0].calls), len(done)) < SHORTEST:
            parts += done
            why |= dict.fromkeys(map(id, done), "alone, it takes less time from Python")
        else:
            names = [name for made in done for name in made.results]
            made = [n for n in names if last.get(n, -1) >= i]
            parts.append(NativeStretch([*shapes], recorders, made))
        parts += [step] if step else []
        for found, recorder in zip(known, recorders, strict=True):
            found |= {name: x.shape for name, x in recorder.values.items()}
        recorders = [Recorder(plan, found) for found in known]
    return parts, why


def _add(step: Step, places: list[int], recorders: list[Recorder]) -> None:
    """Record a step for all sizes; raises NotNative, and forgets it, if that is impossible."""
    done: list[Recorder] = []
    try:
        for recorder in recorders:
            recorder.add(step)
            done.append(recorder)
        if len(places) > 1 and not is_straight(places, [r.described() for r in recorders]):
            raise NotNative("it does not follow sizes in proportion")
    except NotNative:
        for recorder in done:
            recorder.forget()
        raise
