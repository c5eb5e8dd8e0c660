"""`Fault`: a known fault of a converter, of Core ML or of a compiler; and the reader of data/."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
import tomllib
from typing import Any, Literal

from mlprogram.ane.claims import Citation, Claim
from mlprogram.ane.faults.patterns import pattern
from mlprogram.ane.faults.versions import LAST, Makers, makers_of, span, version
from mlprogram.ane.laws.graph import ProgramGraph, Seen
from mlprogram.ane.laws.rule import Rule
from mlprogram.ane.laws.rule import load as laws_load
from mlprogram.errors import InvalidInput

Owner = Literal["coremltools", "Core ML", "compiler", "Core AI"]

#: Faults of which another is a special case, which is reported in their place.
SPECIAL = {"mod-sign": "roll-negative"}
LAW = "non-finite"  # of the engine: the one that rewrites keep, beside the known faults
ML_PROGRAMS = "5.0"  # the first coremltools that writes them

DATA = Path(__file__).with_name("data")


@dataclass(frozen=True)
class Fault(Rule):
    """A rule that looks for what is computed or refused otherwise than it is described.

    of: who has the fault. since, until: the first version that has it, and the first that no
    longer does: of coremltools, or a system; "" if unknown, or not mended. systems: those that it
    was reported on. frontend: of coremltools, "torch" if only programs converted from it have it.
    units: CPU, GPU or ANE; "" if all, or not said. gives, should: what comes out, and what
    should. refuses: Core ML refuses the program, which the executor runs. row: that it is of the
    arithmetic table; "" if it is none.

    How sure it is, its claim's grade says: "run" here, by the versions named; "apple", merged or
    documented there; "measured" or "reported" by the source.
    """

    of: Owner = "Core ML"
    since: str = ""
    until: str = ""
    systems: tuple[str, ...] = ()
    frontend: str = ""
    units: str = ""
    gives: str = ""
    should: str = ""
    refuses: bool = False
    row: str = ""

    def facts(self) -> dict:
        """Whose fault it is and what comes out, for a finding in JSON."""
        return {name: getattr(self, name) for name in sorted(OWN)}

    def look(self, graph: ProgramGraph) -> Iterable[Seen]:
        """What looks like it in a function, whoever made the package."""
        return pattern(self.id, self.row)(graph)

    def applies(self, makers: Makers, system: str = "") -> bool:
        """Whether a package of these makers may have it, on `system` or on any that reads it.

        What is unknown may have it.
        """
        if self.of == "coremltools":
            if self.frontend and makers.source and not makers.source.startswith(self.frontend):
                return False
            made = version(makers.coremltools) if makers.coremltools else None
            return made is None or _within(made, made, self.since, self.until, version)
        low, high = span(system) if system else ((makers.least or 0, 0), (LAST, LAST))
        spans = [span(one) for one in self.systems] or [((0, 0), (LAST, LAST))]
        named = any(begin <= high and low <= end for begin, end in spans)
        return named and _within(low, high, self.since, self.until, lambda name: span(name)[0])


def _within(low: Any, high: Any, since: str, until: str, read: Callable[[str], Any]) -> bool:
    """Whether a value between `low` and `high` may be in [since, until); "" leaves an end open."""
    return (not since or read(since) <= high) and (not until or low < read(until))


def where(fault: Mapping[str, Any]) -> str:
    """Whose fault it is, in words: "coremltools 8.0 to before 9.1", "Core ML, macOS 26, ANE"."""
    since, until = fault.get("since", ""), fault.get("until", "")
    span = f"{since} to before {until}" if since and until else f"before {until}" * bool(until)
    span = span or f"{since} and later" * bool(since)
    named = (fault["of"], span, ", ".join(fault.get("systems", ())), fault.get("units", ""))
    return ", ".join(filter(None, named))


def load(system: str = "", coremltools: str = "") -> Mapping[str, Fault]:
    """The known faults by id, as rules for `mlprogram.ane.laws.check`.

    system: as "macos26", the one to look at in place of all that read a package. coremltools: the
    version to go by in place of the one that a package names. Raises InvalidInput for a word that
    is neither, a system that is not known, and a version that writes no ML Programs.
    """
    if system:
        span(system)
    if coremltools and version(coremltools) < version(ML_PROGRAMS):
        raise InvalidInput(
            f"coremltools {coremltools}: it writes no ML Programs; name {ML_PROGRAMS} or later"
        )
    return {
        name: replace(fault, find=partial(_seen, fault, system, coremltools))
        for name, fault in _own().items()
    }


def mendable(system: str = "", coremltools: str = "") -> Mapping[str, Rule]:
    """The known faults, as `load` has them, and the law that constants are finite: what `fix` mends
    where it can."""
    return {LAW: laws_load()[LAW], **load(system, coremltools)}


def _seen(
    fault: Fault, system: str, coremltools: str, graph: ProgramGraph, _=None
) -> Iterator[Seen]:
    """What a pattern finds, but for what a fault that is a special case of it finds there."""
    makers = makers_of(graph.package)
    if coremltools:
        makers = replace(makers, coremltools=coremltools)
    if not fault.applies(makers, system):
        return
    special = _own().get(SPECIAL.get(fault.id, ""))
    told = [*_seen(special, system, coremltools, graph)] if special else []
    ops = {id(seen.operation) for seen in told}
    yield from (seen for seen in fault.look(graph) if id(seen.operation) not in ops)


@cache
def _own() -> Mapping[str, Fault]:
    faults = {}
    for file in sorted(DATA.glob("*.toml")):
        for name, table in tomllib.loads(file.read_text(encoding="utf-8")).items():
            faults[name] = _fault(name, table)
    return faults


def _fault(name: str, table: dict[str, Any]) -> Fault:
    known = {key: table[key] for key in OWN & table.keys()}
    known["systems"] = tuple(table.get("systems", ()))
    support = tuple(Citation(one["source"], one["says"]) for one in table["source"])
    outcome = f"gives {table['gives']}; should give {table['should']}"
    statement = f"{table['statement']}; {outcome}"
    claim = Claim(name, statement, table["grade"], support, condition=where(table))
    looks_at = "ops, with their shapes, constants and dtypes"
    return Fault(claim, table["severity"], looks_at, table["remedy"], **known)


OWN = {field.name for field in fields(Fault)} - {field.name for field in fields(Rule)}
