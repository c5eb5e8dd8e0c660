"""Count how often data leaves the engine and comes back, given the ops that other rules found."""

from collections.abc import Iterator, Mapping

from mlprogram.ane.laws.graph import FLOATS, ProgramGraph, Seen
from mlprogram.package.function import Operation

SEVERAL = 3  # segments on the engine; one op in the middle makes two, which its own rule reports


def cuts(graph: ProgramGraph, leaving: Mapping[int, Operation]) -> Iterator[Seen]:
    """Report a path through the graph with at least SEVERAL segments on the engine.

    leaving: the ops that run elsewhere, by `id`. Segments are counted on every path from an input
    to an output; the place is the op that begins the last segment.
    """
    begun: dict[
        str, tuple[int, bool]
    ] = {}  # value -> stretches so far, whether it is on the engine
    worst, place = 0, None
    for operation in graph.operations:
        before = [begun[name] for name in graph.computed(operation) if name in begun]
        stretches = max((count for count, _ in before), default=0)
        on_engine = any(on for count, on in before if count == stretches)
        if not any(type_.dtype in FLOATS for _, type_ in operation.outputs):
            here = on_engine  # shapes and indices: where data goes they have no say
        else:
            here = id(operation) not in leaving
        if here and not on_engine:
            stretches += 1
            if stretches > worst:
                worst, place = stretches, operation
        for name, _ in operation.outputs:
            begun[name] = stretches, here
    if worst >= SEVERAL:
        kinds = sorted({operation.type for operation in leaving.values()})
        yield Seen(f"{worst} stretches on the engine, cut by {', '.join(kinds)}", place)
