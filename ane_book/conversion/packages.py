"""`part_of`: the manifest's entry of a package that was written."""

from collections.abc import Mapping
from pathlib import Path

from ane_book.bundle.parts import FunctionSpec, Part, Type, called
from ane_book.conversion.plan import Program
from mlprogram.package.function import Function as Declared
from mlprogram.package.reader import Package

__all__ = ["part_of"]


def part_of(
    folder: Path, program: Program, functions: Mapping[str, tuple[int, int | None]]
) -> Part:
    """The manifest's entry of a program's package in a folder; functions: name -> (T, S)."""
    declared, layers = Package(folder / program.package).functions, program.layers
    head = not layers and program.trunk is None
    return Part(
        package=program.package,
        part="head" if head else "layers" if program.expert is None else "experts",
        functions={
            name: FunctionSpec(tokens=T, slots=S, **_types(declared[called(name, program.expert)]))
            for name, (T, S) in functions.items()
        },
        layers=None if head else (layers.start, layers.stop),
        expert=program.expert,
    )


def _types(function: Declared) -> dict[str, dict[str, Type]]:
    """The types of a function's inputs, states and outputs."""
    return {
        kind: {n: Type(dtype=t.dtype, shape=t.shape) for n, t in getattr(function, kind).items()}
        for kind in ("inputs", "states", "outputs")
    }
