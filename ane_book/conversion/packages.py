"""Packages, as they were written, in the words of the manifest."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from ane_book.bundle.parts import FunctionSpec, Part, Type, called
from ane_book.conversion.plan import Program
from mlprogram.package.function import Function as Declared
from mlprogram.package.reader import Package

__all__ = ["parts"]


Functions = Mapping[str, tuple[int, int | None]]


def parts(folder: Path, program: Program, functions: Functions) -> Iterator[Part]:
    """The part of a package in a folder; of several experts in one, a part each.

    functions: T and S of each, by name.
    """
    declared, layers = Package(folder / program.package).functions, program.layers
    head = not layers and program.trunk is None
    for expert in program.experts or (None,):
        yield Part(
            package=program.package,
            part="experts" if program.experts else "head" if head else "layers",
            functions={
                name: described(declared[called(name, expert)], T, S)
                for name, (T, S) in functions.items()
            },
            layers=None if head else (layers.start, layers.stop),
            expert=expert,
        )


def described(function: Declared, tokens: int, slots: int | None = None) -> FunctionSpec:
    """A function of a package as the manifest has it."""
    kinds = {
        kind: {
            name: Type(dtype=type_.dtype, shape=type_.shape)
            for name, type_ in getattr(function, kind).items()
        }
        for kind in ("inputs", "states", "outputs")
    }
    return FunctionSpec(tokens=tokens, slots=slots, **kinds)
