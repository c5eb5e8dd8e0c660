"""The sources of the claims: a phrase for each, its chips, and how it accessed the engine.

    from ane_book_pages import sources

    source = sources.of(claims.find("axis-most").support[0])
    source.text      # "Bryngelson's Python package that programs the engine directly"
    source.chips     # ("M2 Pro", "M5 Pro")
    source.through   # ("private",): not by Core ML, so not what an app gets

The phrases stand in `sources.toml`. `INSIDE` is the second file of claims, on the engine's inside;
`everything()` has both. Shown on the page "Every claim".
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
import re
import tomllib

from ane_book.errors import InvalidInput
from mlprogram.ane.claims import Citation, Claim
from mlprogram.ane.claims import load as load_claims

INSIDE = Path(__file__).with_name("inside.toml")
SOURCES = Path(__file__).with_name("sources.toml")
CHIP = re.compile(
    r"\b(?:[AM]\d+(?: (?:Pro|Max|Ultra))?|iPhone \d+(?: Pro)?(?: Max)?)\b(?!-)", re.ASCII
)
PARTED = (
    "one side names no chip",
    "no chip in common",
    "a chip in common, one source on both sides",
    "a chip in common, different sources",
)
THROUGH = ("Core ML", "Core AI", "private")


@dataclass(frozen=True)
class ClaimSource:
    """A source of claims about the engine.

    name: the beginning of its citations, see `sources.toml`. chips: () if it names none. through:
    the interfaces by which it called the engine; () if it did not.
    """

    name: str
    text: str
    chips: tuple[str, ...] = ()
    through: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """The address of the source."""
        repository, thread, number = self.name.partition("#")
        if "." in repository.split("/")[0]:
            return f"https://{self.name}"
        page = f"/issues/{number}".rstrip("/") if thread else ""
        return f"https://github.com/{repository}{page}"


@cache
def load(path: str | Path = SOURCES) -> Mapping[str, ClaimSource]:
    """Read the sources of a file by name, in its order; raises InvalidInput with the reason."""
    try:
        tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path}: no file of sources ({error})") from None
    return {
        name: _source(name, table, f"{path}, source {name!r}") for name, table in tables.items()
    }


def of(evidence: Citation) -> ClaimSource:
    """The source of a citation: the entry of its thread, of its repository, or of its address."""
    known, name = load(), evidence.name
    thread = name.partition("#")[0] + "#"
    starts = (key for key in known if "." in key.split("/")[0] and name.startswith(key))
    for key in (name, thread, next(starts, "")):
        if key in known and (key != thread or "#" in name):
            return known[key]
    raise InvalidInput(f"{name}: sources.toml does not say who this is")


def everything() -> Mapping[str, Claim]:
    """Every claim by id, of the registry and of `INSIDE`."""
    return {**load_claims(), **load_claims(INSIDE)}


def tally(known: Iterable[Claim]) -> dict[ClaimSource, tuple[int, int]]:
    """How many claims each source supports and contradicts, the most cited source first."""
    counts: dict[ClaimSource, list[int]] = {}
    for claim in known:
        for at, side in enumerate((claim.support, claim.against)):
            for source in {of(one) for one in side}:
                counts.setdefault(source, [0, 0])[at] += 1
    ranked = sorted(counts, key=lambda source: (-sum(counts[source]), source.name.lower()))
    return {source: (counts[source][0], counts[source][1]) for source in ranked}


def parted(claim: Claim) -> str:
    """In what the two sides of a conflict differ, as far as the evidence tells: one of `PARTED`."""
    here, there = _chips(claim.support), _chips(claim.against)
    if not here or not there:
        return PARTED[0]
    if not here & there:
        return PARTED[1]
    both = {of(one) for one in claim.support} & {of(one) for one in claim.against}
    return PARTED[2] if both else PARTED[3]


def chips(claim: Claim) -> list[str]:
    """The chips on which a claim, or what speaks against it, was seen; "M4" is not "M4 Max"."""
    found = set(CHIP.findall(claim.chip)) | _chips(claim.support) | _chips(claim.against)
    return sorted(found)


def _chips(side: Iterable[Citation]) -> set[str]:
    """The chips that the evidence names; if it names none, that of a source with a single chip."""
    found: set[str] = set()
    for one in side:
        own = of(one).chips
        found |= set(CHIP.findall(one.says) or own[: len(own) == 1])
    return found


def _source(name: str, table: object, where: str) -> ClaimSource:
    if not isinstance(table, dict) or table.keys() != {"text", "chips", "through"}:
        raise InvalidInput(f"{where}: text, chips and through are wanted")
    if not isinstance(table["text"], str) or not table["text"]:
        raise InvalidInput(f"{where}: it is told in no words")
    for key in ("chips", "through"):
        words = table[key]
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise InvalidInput(f"{where}: {key} is a list of names, not {words!r}")
    if unknown := set(table["through"]) - set(THROUGH):
        raise InvalidInput(f"{where}: through {min(unknown)!r} is none of {', '.join(THROUGH)}")
    return ClaimSource(name, table["text"], tuple(table["chips"]), tuple(table["through"]))
