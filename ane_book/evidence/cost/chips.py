"""The cost model's parameters: read bandwidth by chip, and overheads of packages and segments.

They are in two files in the form of `ane_book.claims`, so that each number has its grade and its
evidence: `data/chips.toml`, with a table for each chip, and `data/parameters.toml`.
"""

from collections.abc import Mapping
from pathlib import Path

from ane_book import claims
from ane_book.claims import Claim
from ane_book.errors import InvalidInput

__all__ = ["DATA", "chips", "find_chip", "parameter"]

DATA = Path(__file__).with_name("data")


def chips() -> Mapping[str, Claim]:
    """The chips with a published read bandwidth: "m4-max" -> its range in GB/s."""
    return claims.load(DATA / "chips.toml")


def find_chip(name: str) -> Claim:
    """The chip with this name, "m4-max" or "M4 Max"; raises InvalidInput with the known ones."""
    known = chips()
    key = "-".join(name.lower().replace("-", " ").split())
    if key not in known:
        raise InvalidInput(
            f"no read bandwidth is published for the engine of a chip {name!r}; "
            f"known are {', '.join(known)}"
        )
    return known[key]


def parameter(name: str) -> Claim:
    """A parameter besides bandwidth: "packed", "cache", "program" or "segment", which the model has
    terms for, or "rows", what a call of eight rows takes beside one of few."""
    return claims.load(DATA / "parameters.toml")[name]
