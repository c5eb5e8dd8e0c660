"""Faults of coremltools' converter, as packages show them; each was run here."""

from collections.abc import Callable, Iterator

from mlprogram.ane.laws.graph import ProgramGraph, Seen

PATTERNS: tuple[Callable[[ProgramGraph], Iterator[Seen]], ...] = ()
