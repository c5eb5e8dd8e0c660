"""Stretches of a plan that run in C, without Python between their steps.

A stretch is a table of calls of compiled code, which `run_steps` of `c/run.c` walks. It computes
what its steps would one by one, in their order: `record.py` has seen them do it. A step that needs
torch ends a stretch, and runs from Python.

What only the stretch reads lies in one arena, allocated for each call, at addresses that values
share which are not in use at the same time. What is read after it gets memory of its own.

The step of a call that fails runs from Python, with those after it, and says why.
"""

from bisect import insort
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from mlprogram.analysis.aliases import uses
from mlprogram.kernels.compiled import entry
from mlprogram.run.asked import NotNative
from mlprogram.run.calls import ConstantMemory, KernelCall, Region, Used, Written
from mlprogram.run.columns import leave_out_columns
from mlprogram.run.copies import change_in_place
from mlprogram.run.lines import Line, Row, is_straight
from mlprogram.run.plan import ExecutionPlan, Name, Step
from mlprogram.run.record import DTYPES, Recorder
from mlprogram.run.states import States
from mlprogram.run.table import ALIGNMENT, CallTable, View, numbers, read
import numpy as np
import torch
from torch import Tensor

SHORTEST = 2  # steps, and calls of compiled code: one alone takes less time from Python


#: Where what a call names lies: a base, and a place in it.
_Addresses = dict[Region | Written | Used | None, tuple[int, int]]


class _Draft(NamedTuple):
    """What was recorded for one size, as numbers.

    words: the table of calls, with all that it points at behind it. values: each value as a view.
    unread: dtypes, shapes and contents of known whole numbers that no call reads.
    """

    words: list[int]
    table: CallTable
    values: list[View]
    unread: list[tuple]


class NativeStretch:
    """Some neighbouring steps, compiled: `stretch(size, states, *given)` returns the values `made`.

    places: the sizes for which the recorders have recorded, from the least to the largest; what is
    run is what they would have recorded for `size`. plain: the same from Python, for values that
    are not what the program declares, from the first of its steps on or from a later one:
    `plain(first)(states, *values)`, of those that `needed` names. calls: how many of compiled code.
    arena: its bytes. held: those of the values in it. owners: what holds the memory of constants,
    of which the table has only addresses. memory: of each value made, what its memory is called and
    how many bytes it has: the value or state that was given and whose part it is, with 0 bytes;
    else one of the values made.
    """

    plain: Callable[[int], Callable[..., tuple]]

    def __init__(self, places: Sequence[int], recorders: list[Recorder], made: list[str]):
        change_in_place(recorders, made)
        last = recorders[-1]
        is_whole = len(recorders) == 1 and len(last.steps) == len(last.plan.main.steps)
        self._columns, self._masks = leave_out_columns(last, made) if is_whole else (0, {})
        self.steps, self.made = last.steps, made
        self.calls = len(last.calls)
        named = (b for call in last.calls for b, _ in call.arguments)
        self.owners = [*{b: b.owner for b in named if isinstance(b, ConstantMemory)}.values()]
        self.names = [*last.values]
        bases = self._number(last)
        sizes = [
            max(b.bytes for b in same) for same in zip(*[r.regions for r in recorders], strict=True)
        ]
        offsets, self.arena = _arranged(last.calls, bases, sizes)
        addresses: _Addresses = {b: (base, 0) for b, base in bases.items()}
        addresses |= {b: (1, offset) for b, offset in offsets.items()}
        self.held = sum(sizes[b.index] for b in offsets)
        self.memory = self._memory_of_made(last, bases)
        self.step_at: dict[int, int] = {}  # place in the table -> which of the steps
        ends = dict.fromkeys((recorders[0], last))  # one, where there is one size
        drafts = [self._draft(recorder, addresses) for recorder in ends]
        self.words = Row(places, [d.words for d in drafts])
        self.tables = Line(places, [d.table for d in drafts])
        self._rest = Line(places, [(d.values, d.unread) for d in drafts])

    def _number(self, recorder: Recorder) -> dict[Region | Written | Used | None, int]:
        """Say which regions are given in each call, or made for what is read after it, and number
        the bases. Those that only views have, of whole numbers that no call reads and of constants,
        count on from the table's: a call that fails is given them then."""
        regions = recorder.regions
        owners = [recorder.region(recorder.values[name]) for name in self.made]
        called = {b for call in recorder.calls for b, _ in call.arguments} | {*owners}
        given = [b for b in regions if b.name and not b.is_state]
        states = [b for b in regions if b.is_state]
        known = [b for b in regions if b.is_known and b in called]
        unread = [b for b in regions if b.is_known and b not in called]
        new = [*dict.fromkeys(b for b in owners if b and not b.name and not b.is_known)]
        constants = {n: x for n, x in recorder.values.items() if recorder.region(x) is None}
        self.given, self.states = [b.name for b in given], [b.name for b in states]
        self._updated = [*recorder.updated]
        self._written = sorted({b.state for b in called if isinstance(b, Written)})
        self._ordered = given, states, known, new, unread
        self._table = 2 + len(given) + len(states) + len(known) + len(new)
        self._constants = {name: self._table + i for i, name in enumerate(constants)}
        self._stored = [whole(x) for x in constants.values()]
        bases: dict[Region | Written | Used | None, int] = {None: 0}
        bases |= {b: 2 + i for i, b in enumerate((*given, *states, *known, *new))}
        bases |= {b: self._table + len(constants) + i for i, b in enumerate(unread)}
        last: list[Written | Used] = [*map(Written, self._written), Used()]
        bases.update({b: self._table + 1 + i for i, b in enumerate(last)})
        return bases

    def _memory_of_made(self, recorder: Recorder, bases: dict) -> dict[str, tuple[str, int]]:
        given = ["", "", *self.given, *self.states]  # of a constant, and of the arena, none
        owners = {base: (name, 0) for base, name in enumerate(given)}
        memory = {}
        for name in self.made:
            region, _ = recorder.origin(x := recorder.values[name])
            size = x.untyped_storage().nbytes()
            memory[name] = owners.setdefault(bases[region], (f"memory of {name}", size))
        return memory

    def _draft(self, recorder: Recorder, addresses: _Addresses) -> _Draft:
        words, tail = list[int](), list[int]()
        length = sum(2 + 2 * len(call.arguments) for call in recorder.calls)
        order = {id(step): i for i, step in enumerate(self.steps)}
        self.constants: list[tuple[int, ConstantMemory, int]] = []  # place in the table, offset
        self.entries: list[tuple[int, str]] = []
        for call in recorder.calls:
            self.step_at[len(words)] = order[id(call.step)]
            self.entries.append((len(words), call.entry))
            words += [entry(call.entry), len(call.arguments)]
            for b, offset in call.arguments:
                if isinstance(b, tuple):
                    words += [self._table, 8 * (length + len(tail))]
                    tail += b
                elif isinstance(b, ConstantMemory):
                    self.constants.append((len(words) + 1, b, offset))
                    words += [0, b.address + offset]
                else:
                    base, begin = addresses[b]
                    words += [base, begin + offset]
        regions = [[recorder.regions[b.index] for b in some] for some in self._ordered]
        given, states, known, new, unread = [
            [(b.name, *_described(b.tensor), b.tensor) for b in some] for some in regions
        ]
        values = {name: self._view(recorder, name, addresses) for name in recorder.values}
        table = CallTable(
            length, self.arena,
            [(name, dtype, shape) for name, dtype, shape, _ in given],
            [(name, dtype, shape) for name, dtype, shape, _ in states],
            [(dtype, shape, x.tolist()) for _, dtype, shape, x in known],
            [(dtype, shape) for _, dtype, shape, _ in new],
            self._written, self._updated, [values[name] for name in self.made],
            self._columns, [(self.given.index(n), slots) for n, slots in self._masks.items()],
        )  # fmt: skip
        rest = [(dtype, shape, x.tolist()) for _, dtype, shape, x in unread]
        return _Draft(words + tail, table, [*values.values()], rest)

    def _view(self, recorder: Recorder, name: str, addresses: _Addresses) -> View:
        """Where a value is."""
        region, at = recorder.origin(x := recorder.values[name])
        constant = self._constants.get(name, 0), 0
        base, begin = constant if region is None else addresses.get(region, (1, 0))
        steps = tuple(step * x.itemsize for step in x.stride())
        return base, begin + at, *_described(x), steps

    def needed(self, first: int) -> list[str]:
        """The values that steps from this one on read, or that are made before it: not what an
        update in place would read if it were none, and the stretch is not given."""
        if not first:
            return self.given
        inside = {name for step in self.steps[first:] for name in step.results}
        taken = [v for s in self.steps[first:] for a in s.arguments for v in a.values]
        read = [v.name for v in taken if isinstance(v, Name) and v.name in self.names]
        return [n for n in dict.fromkeys([*read, *self.made]) if n not in inside]

    def __call__(self, size: int, states: States, *given: Tensor) -> tuple:
        table = CallTable._make(self.tables.at(size))
        if any(x.dtype not in DTYPES for x in given):
            return self.plain(0)(states, *given)
        done = table.run(self.words.at(size), states, [x.numpy() for x in given])
        if done is None:
            return self.plain(0)(states, *given)
        failed, memory = done
        if failed >= 0:
            return self.resumed(size, failed, states, memory)
        return self._read(table.made, memory)

    def resumed(
        self, size: int, failed: int, states: States, memory: list[np.ndarray]
    ) -> tuple:
        """The values made, from the step on of which a call failed. memory: see `CallTable.run`."""
        first = self.step_at[failed]
        values, unread = self._rest.at(size)
        views = dict(zip(self.names, values, strict=True))
        needed = [views[name] for name in self.needed(first)]
        return self.plain(first)(states, *self._read(needed, memory, unread))

    def _read(
        self, views: Iterable[View], memory: list[np.ndarray], unread: Iterable[tuple] = ()
    ) -> tuple[Tensor, ...]:
        """Values as tensors. memory: see `CallTable.run`."""
        memory = [*memory, *self._stored, *[numbers(*each) for each in unread]]
        return tuple([torch.from_numpy(read(view, memory)) for view in views])


def _described(x: Tensor) -> tuple[str, tuple[int, ...]]:
    return DTYPES[x.dtype], tuple(x.shape)


def whole(x: Tensor) -> np.ndarray:
    """The bytes of all memory that a tensor is a part of."""
    return torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage()).numpy()


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
