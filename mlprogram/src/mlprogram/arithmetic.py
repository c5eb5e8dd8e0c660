"""Where Core ML's arithmetic is documented or reported otherwise than torch or numpy computes it.

    from mlprogram import arithmetic

    row = arithmetic.rows()["mod-sign"]
    row.documented, row.reported   # what coremltools' description says, and what was seen
    row.default                    # which of the two the executor computes: "reported"
    arithmetic.depends(program)    # {"mod-sign": ["op_12"]}: what it touches, and where

The rows are in `arithmetic.toml`, each with its evidence; this project measured none of them. By
default the executor computes what is reported where a merged change of Apple's or two independent
measurements say so, and else what the description says. `MLProgram(path, semantics="documented")`
computes every row as described, `semantics="reported"` as reported, where that can be computed.

Torch is not imported.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
import tomllib
from types import MappingProxyType
from typing import Literal, Protocol, get_args

from mlprogram.analysis.touched import Facts, touches
from mlprogram.errors import InvalidInput
from mlprogram.package.function import Function
from mlprogram.package.reader import Package

Semantics = Literal["documented", "reported"]
Grade = Literal["apple", "measured twice", "measured", "reported", "documented"]


@dataclass(frozen=True)
class RowSource:
    """A source, `owner/repository#number` or `owner/repository@commit path`, and what it says."""

    source: str
    says: str


@dataclass(frozen=True)
class ArithmeticRow:
    """One place where Core ML's arithmetic is in question.

    ops: the types of op that are concerned; none where it is the interface of a model. topic: what
    is computed, to follow "how Core ML computes". documented: by coremltools' description, which
    may say nothing. reported: "" if nobody has. grade: how sure the report is. default: what the
    executor computes, "neither" if that is a third thing. place: the function that computes it,
    by its full name. test: its test, as pytest names it. why: why nothing can be chosen; "" where
    `semantics` chooses.
    """

    id: str
    ops: tuple[str, ...]
    topic: str
    documented: str
    reported: str
    grade: Grade
    default: Literal["documented", "reported", "neither"]
    place: str
    test: str
    evidence: tuple[RowSource, ...]
    why: str = ""

    def line(self, names: list[str]) -> str:
        """One line for a report. names: the ops of a program that are concerned."""
        where = repr(names[0]) + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        said = f"documented: {self.documented}; reported: {self.reported or 'nothing'}"
        return (
            f"depends on how Core ML computes {self.topic} ({self.id}), at {where}: {said}; "
            f"by default: {self.default}"
        )


@cache
def rows() -> Mapping[str, ArithmeticRow]:
    """Every row of the table by its id, in the table's order."""
    with Path(__file__).with_suffix(".toml").open("rb") as file:
        found = tomllib.load(file)
    return MappingProxyType({name: _row(name, **fields) for name, fields in found.items()})


def _row(name: str, *, ops: list[str], evidence: list[dict[str, str]], **fields) -> ArithmeticRow:
    sources = tuple(RowSource(**source) for source in evidence)
    return ArithmeticRow(name, tuple(ops), evidence=sources, **fields)


def check_semantics(semantics: str | None) -> Semantics | None:
    """The semantics as they are given. Raises InvalidInput for what is none."""
    for known in get_args(Semantics):
        if semantics == known:
            return known
    if semantics is not None:
        raise InvalidInput(
            f'semantics must be "documented", "reported" or, for each row\'s default, None, not '
            f"{semantics!r}"
        )
    return None


class Opened(Protocol):
    """One function of a package, as an `MLProgram` is."""

    @property
    def package(self) -> Package: ...

    @property
    def name(self) -> str: ...


def depends(program: Opened | Function) -> dict[str, list[str]]:
    """The rows that a program's function touches, by id, each with the names of its ops.

    It follows from the file alone: types, constants, and between which numbers values lie. What
    is left out no input can reach; what is named depends on the input, which may never reach it.
    """
    function = program
    if not isinstance(function, Function):
        function = function.package.functions[function.name]
    facts = Facts(function)
    found: dict[str, list[str]] = {}
    for operation in function.operations():
        for row in _by_op().get(operation.type, ()):
            if touches(row.id, operation, facts):
                found.setdefault(row.id, []).append(operation.outputs[0][0])
    return {name: found[name] for name in rows() if name in found}


def report(found: Mapping[str, list[str]], why: bool = False) -> list[str]:
    """A line for each row of what `depends` found. why: each followed by its sources."""
    lines = []
    for name, ops in found.items():
        row = rows()[name]
        lines.append(row.line(ops))
        lines += [f"  {e.source}: {e.says}" for e in row.evidence] if why else []
    return lines


@cache
def _by_op() -> Mapping[str, list[ArithmeticRow]]:
    """The rows that concern a type of op."""
    found: dict[str, list[ArithmeticRow]] = {}
    for row in rows().values():
        for type_ in row.ops:
            found.setdefault(type_, []).append(row)
    return found
