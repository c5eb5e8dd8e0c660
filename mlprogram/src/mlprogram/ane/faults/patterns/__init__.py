"""What finds a fault in a function: a generator for each, named as the fault, by subject."""

from collections.abc import Callable, Iterable

from mlprogram.ane.faults.patterns import converter, coreml, loading
from mlprogram.ane.laws.graph import ProgramGraph, Seen

PATTERNS: dict[str, Callable[[ProgramGraph], Iterable[Seen]]] = {
    pattern.__name__.replace("_", "-"): pattern
    for pattern in (*converter.PATTERNS, *coreml.PATTERNS, *loading.PATTERNS)
}
