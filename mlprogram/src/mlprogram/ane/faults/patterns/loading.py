"""Programs that Core ML refuses or does not survive, where the executor runs them."""

from collections.abc import Callable, Iterator

from mlprogram.ane.laws.graph import ProgramGraph, Seen

PATTERNS: tuple[Callable[[ProgramGraph], Iterator[Seen]], ...] = ()
