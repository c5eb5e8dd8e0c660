"""Whether what a plan wires fits in the memory of a phone or Mac, as far as anybody has said.

    from mlprogram.ane.cost.devices import find_device

    device = find_device("iphone-15-pro")     # or "16GB", a Mac with so much
    device.verdict(planned.wired)             # "yes", "no", "depends" or "unknown"

The memory of devices, and what their systems let one app take, are in `data/devices.toml`, each
with its source. Taught in the chapter "Shipping".
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from mlprogram.ane import claims
from mlprogram.ane.claims import Claim
from mlprogram.ane.cost.chips import DATA
from mlprogram.errors import InvalidInput
from mlprogram.machine import parse_bytes

GB = 10**9
APP = "-app"


class Wired(Protocol):
    """Bytes that a model's loaded programs wire: if they share weights, and if none does."""

    @property
    def least(self) -> int: ...
    @property
    def most(self) -> int: ...


Verdict = Literal["yes", "no", "depends", "unknown"]


@dataclass(frozen=True)
class MemoryOf:
    """A device and its memory in bytes; None where nobody has said.

    app: what one app may take, without and with the entitlement for more. claims: who says so.
    """

    name: str
    bytes: int | None
    app: tuple[int, int] | None
    claims: tuple[Claim, ...] = ()

    def verdict(self, wired: Wired) -> Verdict:
        """Whether it fits: "depends" where it does only if functions share their weights."""
        if self.bytes is None:
            return "unknown"
        if wired.most <= self.bytes:
            return "yes"
        return "no" if wired.least > self.bytes else "depends"

    def rows(self, wired: Wired, why: bool = False) -> Iterator[tuple[str, str]]:
        """The device, a warning where the plan is beyond it, and with `why` the evidence."""
        memory = f"{_gb(self.bytes)} for all apps" if self.bytes else "memory unknown"
        yield "device", f"{self.name}: {memory}; {self._said(wired)}"
        if self.app:
            without, more = self.app
            yield "", f"an app may take {_gb(without)}, {_gb(more)} with the entitlement for more"
            if wired.most > without:
                passed = more if wired.most > more else without
                said = f"warning: up to {_gb(wired.most)} is more than {_gb(passed)}"
                yield "", f"{said}; whether what the engine wires counts as the app's is not known"
        for claim in self.claims if why else ():
            yield "", f"{claim.id}: {claim.evidence}"

    def to_json(self, wired: Wired) -> dict[str, Any]:
        """The same in plain JSON values; sizes in bytes."""
        return {
            "name": self.name,
            "memory_bytes": self.bytes,
            "app_bytes": self.app,
            "fits": self.verdict(wired),
            "evidence": [claim.evidence for claim in self.claims],
        }

    def _said(self, wired: Wired) -> str:
        match self.verdict(wired):
            case "yes":
                return f"{_range(wired)} wired is within it"
            case "no":
                return f"warning: {_range(wired)} wired is beyond it"
            case "depends":
                return (
                    f"warning: {_gb(wired.most)} wired is beyond it if every loaded function has a "
                    f"copy of the weights; {_gb(wired.least)} is not, if they share one"
                )
        return "whether it fits is unknown"


def devices() -> list[str]:
    """The names of the devices of which anything is known."""
    return sorted({name.removesuffix(APP) for name in _table()})


def find_device(name: str) -> MemoryOf:
    """A device by its name, "iphone-15-pro" or "iPhone 15 Pro", or by its memory, "16GB".

    Raises InvalidInput with the known names.
    """
    known = _table()
    key = "-".join(name.lower().replace("-", " ").split())
    memory, app = known.get(key), known.get(key + APP)
    if memory is None and app is None:
        try:
            return MemoryOf(name, parse_bytes(name), None)
        except InvalidInput:
            raise InvalidInput(
                f"the memory of {name!r} is unknown: write a size, such as 16GB, or one of "
                f"{', '.join(devices())}"
            ) from None
    least, most = app.bounds if app else (0, 0)
    return MemoryOf(
        name=key,
        bytes=None if memory is None else round(memory.number * GB),
        app=(round(least * GB), round(most * GB)) if app else None,
        claims=tuple(claim for claim in (memory, app) if claim),
    )


def _table():
    return claims.load(DATA / "devices.toml")


def _gb(count: int) -> str:
    return f"{count / GB:,.2f} GB"


def _range(wired: Wired) -> str:
    if wired.least == wired.most:
        return _gb(wired.most)
    return f"{wired.least / GB:,.2f} to {_gb(wired.most)}"
