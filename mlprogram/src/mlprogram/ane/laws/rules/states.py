"""Rules on states, flexible shapes, and the number of positions in a call."""

from collections.abc import Iterator

from mlprogram.ane.laws.graph import VIEWS, ProgramGraph, Seen
from mlprogram.package.function import Operation


def state_width(graph: ProgramGraph, of: int) -> Iterator[Seen]:
    for name, type_ in graph.function.states.items():
        if type_.shape and (type_.shape[-1] or 0) % of:
            yield Seen(f"state {name!r} is {type_}")


def state_count(graph: ProgramGraph, most: int) -> Iterator[Seen]:
    states = graph.function.states
    if len(states) > most:
        yield Seen(f"{len(states)} states: {', '.join(states)}")


def state_dtype(graph: ProgramGraph, _) -> Iterator[Seen]:
    for name, type_ in graph.function.states.items():
        if type_.dtype != "fp16":
            yield Seen(f"state {name!r} is {type_}")


def state_view(graph: ProgramGraph, _) -> Iterator[Seen]:
    for operation in graph.operations:
        if operation.type == "write_state":
            view = _view_between(graph, operation.inputs.get("data", [None])[0])
            if view is not None:
                name = operation.inputs["input"][0]
                yield Seen(f"a {view.type} on the way to state {name!r}", view)


def _view_between(graph: ProgramGraph, name) -> Operation | None:
    """The first op of VIEWS between a state's read and its write; None if other ops are there."""
    found = None
    while (maker := graph.maker(name)) is not None:
        if maker.type == "read_state":
            return found
        if maker.type in VIEWS:
            found = maker
        elif maker.type != "slice_update":
            return None
        name = graph.item(maker, "x")
    return None


def _ranges(type_) -> list[tuple[int, int]]:
    """(lowest, highest) for each axis of a feature; highest is negative if there is no limit."""
    if type_.WhichOneof("Type") == "imageType":
        sizes = type_.imageType.imageSizeRange
        found = (
            [sizes.heightRange, sizes.widthRange]
            if type_.imageType.HasField("imageSizeRange")
            else []
        )
    else:
        found = type_.multiArrayType.shapeRange.sizeRanges
    return [(size.lowerBound, size.upperBound) for size in found]


def _ranged(graph: ProgramGraph) -> list[str]:
    """The inputs with an axis whose size is a range."""
    features = graph.features.items()
    return [name for name, t in features if any(low != high for low, high in _ranges(t))]


def _endless(graph: ProgramGraph) -> list[str]:
    """The inputs with an axis whose size has no upper limit."""
    features = graph.features.items()
    return [name for name, t in features if any(high < 0 for _, high in _ranges(t))]


def _enumerated(graph: ProgramGraph) -> int:
    """The most shapes that any input enumerates."""
    counts = [
        len(t.multiArrayType.enumeratedShapes.shapes) + len(t.imageType.enumeratedSizes.sizes)
        for t in graph.features.values()
    ]
    return max(counts, default=0)


def range_unbounded(graph: ProgramGraph, _) -> Iterator[Seen]:
    for name in _endless(graph):
        yield Seen(f"a size of input {name!r} may be any")


def enumerated_most(graph: ProgramGraph, most: int) -> Iterator[Seen]:
    if _enumerated(graph) > most:
        yield Seen(f"{_enumerated(graph)} shapes")


def state_enumerated(graph: ProgramGraph, _) -> Iterator[Seen]:
    if graph.function.states and _enumerated(graph):
        yield Seen(f"{_enumerated(graph)} shapes beside states")


def state_flexible(graph: ProgramGraph, _) -> Iterator[Seen]:
    if graph.function.states and _ranged(graph):
        yield Seen(f"a range of sizes of {', '.join(map(repr, _ranged(graph)))} beside states")


def flexible_cpu(graph: ProgramGraph, _) -> Iterator[Seen]:
    if graph.function.states or _endless(graph):
        return
    if _ranged(graph):
        yield Seen(f"a range of sizes of {', '.join(map(repr, _ranged(graph)))}")
    elif _enumerated(graph) > 1:
        yield Seen(f"{_enumerated(graph)} shapes")


def short_query(graph: ProgramGraph, positions: tuple[int, int]) -> Iterator[Seen]:
    caches = [name for name in graph.function.inputs if "key" in name or "cache" in name]
    if not graph.function.states and not caches:
        return
    for name, type_ in graph.function.inputs.items():
        shape = type_.shape
        if len(shape) == 4 and shape[0] == shape[2] == 1 and type_.dtype == "fp16":
            count = shape[3]  # (1, C, 1, T)
        elif len(shape) == 2 and type_.dtype == "int32":
            count = shape[1]  # ids (1, T)
        else:
            continue
        if count in positions:
            yield Seen(f"{count} position{'s' * (count > 1)} a call, input {name!r}")
        return


RULES = (
    state_width, state_count, state_dtype, state_view, range_unbounded, enumerated_most,
    state_enumerated, state_flexible, flexible_cpu, short_query,
)  # fmt: skip
