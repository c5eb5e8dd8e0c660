"""The registry of claims about Apple's Neural Engine: each once, with its grade and evidence.

    from mlprogram.ane import claims

    claim = claims.find("axis-most")
    claim.value, claim.unit      # 65536, "elements"
    claim.grade                  # "conflicting": sources disagree, and both sides are kept
    claim.support, claim.against # who says so, who says otherwise; each with an address
    claim.note("an axis of 70,000")
    print(claim.text())          # all of it, for a reader

The claims are in `claims.toml`. Planner, lint rules, tables and pages read them from here, so that
no figure about the engine is written down twice. This project measured none of them.

Neither torch nor pydantic is imported, so that the lint starts in milliseconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
import re
from textwrap import fill
import tomllib
from typing import Any, Literal, get_args

from mlprogram.errors import InvalidInput

__all__ = ["GRADES", "Citation", "Claim", "Grade", "find", "load"]

Grade = Literal["apple", "measured", "community", "conflicting"]
GRADES: tuple[str, ...] = get_args(Grade)

#: `owner/repository@commit path`, `owner/repository#number`, or an address.
FILE = re.compile(r"([\w.-]+/[\w.-]+)@([0-9a-f]{7,40}) (\S+)")
THREAD = re.compile(r"([\w.-]+/[\w.-]+)#(\d+)")
ADDRESS = re.compile(r"https://\S+")


@dataclass(frozen=True)
class Citation:
    """One source of a claim, and what it says; values: its numbers, in the claim's unit."""

    source: str
    says: str
    values: tuple[float, ...] = ()

    @property
    def url(self) -> str:
        """The address of the source."""
        if file := FILE.fullmatch(self.source):
            repository, commit, path = file.groups()
            return f"https://github.com/{repository}/blob/{commit}/{path}"
        if thread := THREAD.fullmatch(self.source):
            return f"https://github.com/{thread[1]}/issues/{thread[2]}"  # also of a pull request
        return self.source

    @property
    def name(self) -> str:
        """The source without its commit and path: `owner/repository`, `owner/repository#1`."""
        file = FILE.fullmatch(self.source)
        return file[1] if file else self.source.removeprefix("https://")


@dataclass(frozen=True)
class Claim:
    """One claim about the engine.

    value: a number in `unit`, a pair (from, to), names, or None. chip, os: where it was observed;
    "" if the source does not say, or if it holds for all. condition: what it holds for otherwise,
    as "only private interfaces"; "" if nothing limits it. support, against: the sources for and
    against it; `support` is never empty.
    """

    id: str
    statement: str
    grade: str  # a `Grade`; of a fault of software also "run" and "reported"
    support: tuple[Citation, ...]
    against: tuple[Citation, ...] = ()
    value: float | tuple[float, float] | tuple[str, ...] | None = None
    unit: str = ""
    chip: str = ""
    os: str = ""
    condition: str = ""

    @property
    def where(self) -> str:
        """Chip, system and condition, as "M4, macOS 15, one prompt"; "" if none is given."""
        return ", ".join(filter(None, (self.chip, self.os, self.condition)))

    @property
    def number(self) -> float:
        """The value, if it is one number; raises InvalidInput otherwise."""
        if isinstance(self.value, int | float):
            return self.value
        raise InvalidInput(f"claim {self.id}: {self.value!r} is no number")

    @property
    def names(self) -> tuple[str, ...]:
        """The value, if it is a list of names; raises InvalidInput otherwise."""
        values = self.value if isinstance(self.value, tuple) else ()
        names = tuple(value for value in values if isinstance(value, str))
        if not names or len(names) < len(values):
            raise InvalidInput(f"claim {self.id}: {self.value!r} are no names")
        return names

    @property
    def bounds(self) -> tuple[float, float]:
        """The value, if it is a pair (from, to); raises InvalidInput otherwise."""
        match self.value:
            case (int() | float() as low, int() | float() as high):
                return low, high
        raise InvalidInput(f"claim {self.id}: {self.value!r} is no pair of numbers")

    @property
    def sources(self) -> str:
        """The names of the supporting sources, each once."""
        return ", ".join(dict.fromkeys(evidence.name for evidence in self.support))

    @property
    def evidence(self) -> str:
        """Grade, condition and sources, for and against, on one line."""
        own = {evidence.name for evidence in self.support}  # some report both sides
        others = ", ".join(
            dict.fromkeys("another passage of " * (e.name in own) + e.name for e in self.against)
        )
        condition = f", {self.condition}" if self.condition else ""
        against = f"; against: {others}" if others else ""
        return f"{self.grade}{condition}: {self.sources}{against}"

    def note(self, where: str, why: bool = True) -> str:
        """One line that says where the claim matters, what it says, and its evidence, or only the
        grade of that."""
        return f"{where}: {self.statement} ({self.evidence if why else self.grade})"

    def text(self, width: int = 75) -> str:
        """The claim with both of its sides, in lines of at most `width` characters."""
        facts = (
            f"value {self.amount}",
            f"grade {self.grade}",
            f"seen on {self.where or 'not said'}",
        )
        lines = fill(f"{self.id}: {self.statement}", width).splitlines()
        lines += _hanging("   ".join(facts[self.value is None :]), "", width)
        for side, evidence in (("for", self.support), ("against", self.against)):
            for one in evidence:
                lines += _hanging(f"{one.name}: {one.says}", side, width)
        return "\n".join(lines)

    @property
    def amount(self) -> str:
        """The value with its unit: "65,536 elements", "0.1 to 0.23 ms"; "" if there is none."""
        if self.value is None:
            return ""
        values = self.value if isinstance(self.value, tuple) else (self.value,)
        if isinstance(values[0], str):
            return f"{', '.join(values)} ({self.unit})"
        return f"{' to '.join(f'{value:,}' for value in values)} {self.unit}"


REGISTRY = Path(__file__).with_name("claims.toml")


@cache
def load(path: str | Path = REGISTRY) -> Mapping[str, Claim]:
    """The claims of a file by id, in its order. The files are this library's own, and its tests
    check them."""
    tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    return {name: _claim(name, table) for name, table in tables.items()}


def find(name: str) -> Claim:
    """The claim with this id; raises InvalidInput with similar ids if there is none."""
    known = load()
    if name not in known:
        from difflib import get_close_matches

        near = get_close_matches(name, known) or known
        raise InvalidInput(f"no claim is called {name!r}; there are {', '.join(near)}")
    return known[name]


def _hanging(text: str, side: str, width: int) -> list[str]:
    return fill(
        text,
        width,
        initial_indent=f"  {side:8}" if side else "  ",
        subsequent_indent=" " * (10 if side else 2),
    ).splitlines()


def _claim(name: str, table: dict[str, Any]) -> Claim:
    given = {"support" if key == "for" else key: value for key, value in table.items()}
    for side in ("support", "against"):
        given[side] = tuple(_cited(one) for one in given.get(side, ()))
    value = given.get("value")
    given["value"] = tuple(value) if isinstance(value, list) else value
    return Claim(name, **given)


def _cited(item: dict[str, Any]) -> Citation:
    return Citation(item["source"], item["says"], tuple(item.get("values", ())))
