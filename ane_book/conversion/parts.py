"""Packages, as they were written, in the words of the manifest."""

from collections.abc import Iterator
from pathlib import Path

from ane_book.bundle.parts import Function, Part, Type, called
from ane_book.conversion.plan import Program
from ane_book.mil.package.function import Function as Declared
from ane_book.mil.package.reader import Package

__all__ = ["parts"]


def parts(folder: Path, program: Program, functions: dict[str, int], head: bool) -> Iterator[Part]:
    """The part of a package in a folder; of several experts in one, a part each.

    functions: T of each, by name. head: whether it is one of the head's.
    """
    declared, layers = Package(folder / program.package).functions, program.layers
    for expert in program.experts or (None,):
        n = program.stretch if expert is None else expert
        yield Part(
            package=program.package,
            part="experts" if program.experts else "head" if head else "layers",
            functions={
                name: described(declared[called(name, n)], T) for name, T in functions.items()
            },
            layers=None if head else (layers.start, layers.stop),
            stretch=program.stretch,
            expert=expert,
        )


def described(function: Declared, tokens: int) -> Function:
    """A function of a package as the manifest has it."""
    kinds = {
        kind: {
            name: Type(dtype=type_.dtype, shape=type_.shape)
            for name, type_ in getattr(function, kind).items()
        }
        for kind in ("inputs", "states", "outputs")
    }
    return Function(tokens=tokens, **kinds)
