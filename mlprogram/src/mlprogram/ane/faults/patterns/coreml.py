"""Other numbers than described: faults of Core ML, of its compiler and of Core AI."""

from collections.abc import Callable, Iterator

from mlprogram.ane.laws.graph import ProgramGraph, Seen
import numpy as np


def pow_two(graph: ProgramGraph) -> Iterator[Seen]:
    for operation in graph.operations:
        if operation.type == "pow" and np.all(np.equal(graph.value(operation, "x", 0), 2)):
            yield Seen("a pow of a constant 2", operation)


PATTERNS: tuple[Callable[[ProgramGraph], Iterator[Seen]], ...] = (pow_two,)
