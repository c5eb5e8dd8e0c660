"""Packages, as they were written, in the words of the manifest."""

from collections.abc import Mapping
from pathlib import Path

from ane_book.bundle.parts import FunctionSpec, Part, Type, called
from ane_book.conversion.plan import Program
from mlprogram.package.function import Function as Declared
from mlprogram.package.reader import Package

__all__ = ["part_of"]

Functions = Mapping[str, tuple[int, int | None]]


def part_of(folder: Path, program: Program, functions: Functions) -> Part:
    """The part of a package in a folder; functions: T and S of each, by name."""
    declared, layers = Package(folder / program.package).functions, program.layers
    head = not layers and program.trunk is None
    return Part(
        package=program.package,
        part="head" if head else "layers" if program.expert is None else "experts",
        functions={
            name: described(declared[called(name, program.expert)], T, S)
            for name, (T, S) in functions.items()
        },
        layers=None if head else (layers.start, layers.stop),
        expert=program.expert,
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
