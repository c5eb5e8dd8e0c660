"""What is published of chips, as data: how fast an engine reads, what a program takes.

Two files in the form of `ane_book.claims`, so that each number has its grade and its evidence:
`data/chips.toml`, a table for each chip, and `data/parameters.toml`.
"""

from collections.abc import Mapping
from pathlib import Path

from ane_book import claims
from ane_book.claims import Claim
from ane_book.errors import InvalidInput

__all__ = ["DATA", "chips", "find_chip", "parameter"]

DATA = Path(__file__).with_name("data")


def chips() -> Mapping[str, Claim]:
    """The chips of which a read bandwidth is published: "m4-max" -> its range in GB/s."""
    return claims.load(DATA / "chips.toml")


def find_chip(name: str) -> Claim:
    """The chip of this name, "m4-max" or "M4 Max"; InvalidInput, with the list, for another."""
    known = chips()
    key = "-".join(name.lower().replace("-", " ").split())
    if key not in known:
        raise InvalidInput(
            f"no read bandwidth is published for the engine of a chip {name!r}; "
            f"known are {', '.join(known)}"
        )
    return known[key]


def parameter(name: str) -> Claim:
    """A parameter of the model besides bandwidth: "packed", "cache", "program" or "segment"."""
    return claims.load(DATA / "parameters.toml")[name]
