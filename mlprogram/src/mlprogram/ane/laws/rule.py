"""`Rule` and `Finding`, and the reader of rules.toml, which has severities and advice."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
import tomllib
from typing import Any, Literal, get_args

from mlprogram.ane import claims
from mlprogram.errors import InvalidInput

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = get_args(Severity)  # from the gravest

RULES_FILE = Path(__file__).with_name("rules.toml")
KEYS = {"severity": str, "looks_at": str, "instead": str, "leaves": bool}
MOST = 1_000_000  # the most bytes of a file of rules; the library's own has some 20,000


@dataclass(frozen=True)
class Rule:
    """A law that a graph can be checked for: a claim, its severity, and advice.

    looks_at: the part of a package that it checks. instead: what to do. leaves: whether ops that
    it finds run outside of the engine. find: what finds it, called with a function's graph and the
    claim's value; None for the library's own laws, which are called by their names.
    """

    claim: claims.Claim
    severity: Severity
    looks_at: str
    instead: str
    leaves: bool = False
    find: Callable[[Any, Any], Iterable[Any]] | None = field(
        default=None, repr=False, compare=False
    )

    @property
    def id(self) -> str:
        return self.claim.id

    def facts(self) -> dict:
        """What a kind of rule adds to its findings in JSON."""
        return {}


@dataclass(frozen=True)
class Place:
    """Where something was found.

    package: the path as given. function: "" for a whole package. number: of the op among `of`, from
    1; 0 for a whole function. line: "file.py:12" of the torch source; "" if unknown.
    """

    package: str
    function: str = ""
    number: int = 0
    of: int = 0
    op: str = ""
    name: str = ""
    line: str = ""

    def __str__(self) -> str:
        if not self.function:
            return "the package"
        if not self.number:
            return self.function
        line = f" ({self.line})" if self.line else ""
        return f"{self.function}, op {self.number:,} of {self.of:,}, {self.op} {self.name!r}{line}"


@dataclass
class Finding:
    """A broken rule, with every place that breaks it in the same way.

    seen: how it is broken, in words. places: the first is the one to look at. numbers: what comes
    out at that place and what should, where both were computed (`mlprogram.ane.faults.numbers`).
    """

    rule: Rule
    severity: Severity
    seen: str
    places: list[Place] = field(default_factory=list)
    numbers: Any = None

    @property
    def where(self) -> str:
        """The first place, and how many more there are."""
        more = len(self.places)
        packages = len({place.package for place in self.places})
        several = f", x {more:,}" if more > 1 else ""
        return f"{self.places[0]}{several}" + (f" in {packages} packages" if packages > 1 else "")

    def to_json(self) -> dict:
        """The finding in plain JSON values."""
        claim = self.rule.claim
        return {
            "rule": self.rule.id,
            "severity": self.severity,
            "seen": self.seen,
            "law": claim.statement,
            "grade": claim.grade,
            "condition": claim.condition,
            "instead": self.rule.instead,
            "for": [evidence.source for evidence in claim.support],
            "against": [evidence.source for evidence in claim.against],
            "count": len(self.places),
            "places": [vars(place) for place in self.places],
            **self.rule.facts(),
            **({"numbers": self.numbers.to_json()} if self.numbers else {}),
        }


@dataclass(frozen=True)
class Remark:
    """A finding of no law, about another file of what is checked: what, where, what to do."""

    name: str
    severity: Severity
    text: str

    def __str__(self) -> str:
        return f"{self.severity} {self.name}: {self.text}"


def load(
    path: str | Path | None = None, also: Mapping[str, Rule] | None = None
) -> Mapping[str, Rule]:
    """Read rules by name from a file, or the library's own rules if `path` is None.

    also: rules beside the library's own, as `mlprogram.ane.faults.load()` has them. A file may
    leave rules out and change severities; other fields default to what is known. Raises
    InvalidInput for a rule that is not known, an unknown severity or key, and a file that is
    invalid or names no rule.
    """
    known = {**_own(), **(also or {})}
    return known if path is None else _read(Path(path), known)


@cache
def _own() -> Mapping[str, Rule]:
    return _read(RULES_FILE, {})


def _read(path: Path, known: Mapping[str, Rule]) -> Mapping[str, Rule]:
    try:
        with path.open("rb") as file:
            content = file.read(MOST + 1)
        if len(content) > MOST:
            raise ValueError(f"more than {MOST:,} bytes")
        tables = tomllib.loads(content.decode())
    except OSError as error:
        raise InvalidInput(f"{path}: no file of rules ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{path}: no file of rules ({error})") from None
    if not tables:
        raise InvalidInput(f"{path}: names no rule, so that nothing would be looked for")
    return {
        name: _rule(name, table, known, f"{path}, rule {name!r}") for name, table in tables.items()
    }


def _rule(name: str, table: Any, known: Mapping[str, Rule], where: str) -> Rule:
    if known and name not in known:
        raise InvalidInput(f"{where}: there is no such rule; there are {', '.join(known)}")
    if not isinstance(table, dict):
        raise InvalidInput(f"{where}: a table is wanted, not {table!r}")
    if unknown := table.keys() - KEYS.keys():
        raise InvalidInput(
            f"{where}: unknown key {min(unknown)!r}; keys are {', '.join(sorted(KEYS))}"
        )
    for key, value in table.items():
        if not isinstance(value, KEYS[key]):
            wanted = {str: "text", bool: "true or false"}[KEYS[key]]
            raise InvalidInput(f"{where}: {key} is {wanted}, not {value!r}")
    if table.get("severity", "note") not in SEVERITIES:
        raise InvalidInput(
            f"{where}: severity {table['severity']!r} is none of {', '.join(SEVERITIES)}; a "
            "rule that is not wanted is left out"
        )
    if known:
        return replace(known[name], **table)
    if missing := {"severity", "looks_at", "instead"} - table.keys():
        raise InvalidInput(f"{where}: {min(missing)} is missing")
    return Rule(claims.find(name), **table)
