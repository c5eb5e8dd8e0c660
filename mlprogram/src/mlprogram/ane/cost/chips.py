"""The cost model's parameters: read bandwidth by chip, and overheads of packages and segments.

They are in two files in the form of `mlprogram.ane.claims`, so that each number has its grade and
its evidence: `data/chips.toml`, with a table for each chip, and `data/parameters.toml`.
"""

from collections.abc import Mapping
from pathlib import Path
import re

from mlprogram.ane import claims
from mlprogram.ane.claims import Claim
from mlprogram.errors import InvalidInput
from mlprogram.machine import chip_key

DATA = Path(__file__).with_name("data")

#: Chips of Macs of which nobody has published a rate, and those whose rates are taken together for
#: it: of its own generation, smaller and larger. Of no phone's engine has anybody read one.
BORROWED = {
    "m2-pro": ("m2", "m2-max"),
    "m3-pro": ("m3", "m3-max"),
    "m3-ultra": ("m3-max",),
}


def chips() -> Mapping[str, Claim]:
    """The chips with a published read bandwidth: "m4-max" -> its range in GB/s."""
    return claims.load(DATA / "chips.toml")


def find_chip(name: str) -> Claim:
    """The chip with this name, "m4-max" or "Apple M4 Max"; raises InvalidInput with the known ones.

    One of which nobody has published a rate may borrow that of its relatives; its condition says
    so, and is printed with its evidence.
    """
    known = chips()
    key = chip_key(name)
    if key in BORROWED:
        return _borrowed(key, [known[relative] for relative in BORROWED[key]])
    if key not in known:
        phone = (
            ": of no phone's engine has anybody read one; without --chip, a plan says the "
            "bytes and the calls, with --device whether they fit its memory"
        )
        raise InvalidInput(
            f"no read bandwidth is published for the engine of a chip {name!r}"
            f"{phone if re.match(r'a[0-9]|iphone|ipad', key) else ''}; "
            f"known are {', '.join(known)}; borrowed from those, {', '.join(BORROWED)}"
        )
    return known[key]


def _borrowed(key: str, relatives: list[Claim]) -> Claim:
    """A chip with the rates of its relatives, from the lowest to the highest."""
    low, high = min(r.bounds[0] for r in relatives), max(r.bounds[1] for r in relatives)
    name = " ".join(part.capitalize() for part in key.split("-"))
    whose = " and ".join(f"the {r.chip}" for r in relatives)
    return Claim(
        id=key,
        statement=f"the engine of an {name} is taken to read weights as those of {whose} do",
        grade="community",
        support=tuple(citation for r in relatives for citation in r.support),
        value=(low, high),
        unit="GB/s",
        chip=name,
        condition=f"borrowed from {whose}, since nobody has published its own",
    )


def parameter(name: str) -> Claim:
    """A parameter besides bandwidth: "packed", "cache", "program" or "segment", which the model has
    terms for, or "rows", what a call of eight rows takes beside one of few."""
    return claims.load(DATA / "parameters.toml")[name]
