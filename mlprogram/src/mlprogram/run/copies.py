"""Copies of a part of a state that is changed and put back, which may as well be changed in place.

torch.export writes a cache so: a layer's slots are taken out, a row of them is replaced, and all go
back to where they came from. Two copies of the slots are nothing but time.
"""

from collections.abc import Collection, Iterator

from mlprogram.analysis.aliases import memory_of, origins
from mlprogram.run.calls import KernelCall, Region
from mlprogram.run.record import Recorder

#: By a position that is known at run time only; once the state is changed, none may.
MAY_FAIL = ("gather", "slice")

Pair = tuple[int, int]  # the positions of the calls that copy a part, and put it back


def change_in_place(recorders: list[Recorder], made: Collection[str]) -> None:
    """Leave such copies out, where all recorders have them. made: values that are read later."""
    pairs = [[*_pairs(recorder, made)] for recorder in recorders]
    if any(found != pairs[0] for found in pairs):
        return
    chosen = [pair for pair in pairs[0] if not _is_read_before(recorders[0], pair)]
    for recorder in recorders:
        for first, last in chosen:
            (copy, _), (state, offset), _ = recorder.calls[first].arguments
            assert isinstance(copy, Region) and isinstance(state, Region)
            recorder.moved[copy.index] = state, offset
            for call in recorder.calls[first + 1 : last]:
                call.arguments = [
                    (state, offset + at) if b is copy else (b, at) for b, at in call.arguments
                ]
        dropped = {i for pair in chosen for i in pair}
        recorder.calls = [call for i, call in enumerate(recorder.calls) if i not in dropped]


def _pairs(recorder: Recorder, made: Collection[str]) -> Iterator[Pair]:
    calls = recorder.calls
    kept = {recorder.region(recorder.values[name]) for name in made}
    named: dict[Region, list[int]] = {}  # by region, the calls that name it
    for i, call in enumerate(calls):
        for b, _ in call.arguments:
            if isinstance(b, Region):
                named.setdefault(b, []).append(i)
    for copy, places in named.items():
        first, last = places[0], places[-1]
        whole = copy not in kept and not copy.name and not copy.is_known
        alone = places == [*range(first, last + 1)] and last > first and whole
        alone = alone and calls[first].entry == calls[last].entry == "copy"
        alone = alone and not any(call.entry in MAY_FAIL for call in calls[first + 2 : last])
        if alone and _goes_back(calls[first], calls[last], copy, named, (first, last)):
            yield first, last


def _is_read_before(recorder: Recorder, pair: Pair) -> bool:
    """Whether a call between reads a value from outside that may be the state's own memory."""
    _, (state, _), _ = recorder.calls[pair[0]].arguments
    assert isinstance(state, Region)
    origin = origins(recorder.plan.function)
    memory = memory_of(state.name, origin)
    between = [b for call in recorder.calls[slice(*pair)] for b, _ in call.arguments]
    given = {b.name for b in between if isinstance(b, Region) and b.name and not b.is_state}
    return any(memory_of(name, origin) == memory for name in given)


def _goes_back(
    there: KernelCall, back: KernelCall, copy: Region, named: dict[Region, list[int]], pair: Pair
) -> bool:
    """Whether one call copies a piece of a state to all of a region, and the other puts it back,
    with nothing between that names the state."""
    (to, at), source, (numbers, _) = there.arguments
    state = source[0]
    if not isinstance(state, Region) or not state.is_state or (to, at) != (copy, 0):
        return False
    assert isinstance(numbers, tuple)
    axes, size, *_ = numbers
    together = axes == 1 and numbers[5] * size == copy.bytes and (*numbers[6:],) == (size, size)
    between = [i for i in named[state] if pair[0] < i < pair[1]]
    return together and not between and back.arguments == [source, (to, at), (numbers, 0)]
