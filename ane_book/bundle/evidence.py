"""`evidence.json`: what is known of a bundle, in four levels, each by itself.

    L0  laws       what the rules read off its graphs say of the Neural Engine
    L1  parity     whether its programs are the model, on any machine
    L2  residency  where a Mac runs it, and that it stays right there
    L3  quality    what the whole model loses: perplexity, agreement, divergence

A level is passed, failed or unmeasured. They are never merged into one mark: a bundle that no Mac
has run is not half proven.

A level only grows: what was measured gives way to a measurement that is at least as strong, and a
pass to any failure. `STRENGTH` has what makes a measurement stronger.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
import datetime
from importlib.metadata import PackageNotFoundError, version
import json
import os
from pathlib import Path
import platform
import stat
import sys
from typing import Annotated, Final, Literal

from ane_book.errors import InvalidBundle, first_fault, printable
from mlprogram.files import written_whole
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

if sys.platform != "win32":
    import fcntl


FORMAT: Final = "ane-book evidence 1"
MAX_BYTES = 1 << 20
TOOLS = ("ane-book", "mlprogram", "coremltools", "torch", "numpy")  # what measures
LevelName = Literal["L0", "L1", "L2", "L3"]
MEASURED_BY: dict[LevelName, str] = {
    "L0": "ane-book check BUNDLE",
    "L1": "ane-book check BUNDLE --parity",
    "L2": "ane-book residency BUNDLE, on a Mac",
    "L3": "ane-book quality BUNDLE",
}
LEVELS: dict[LevelName, str] = {
    "L0": "laws",
    "L1": "parity",
    "L2": "residency",
    "L3": "quality",
}

#: The figures that tell how strong a measurement is, the weightiest first: whether a package was
#: run for sums that overflow, whether it was held to its source, predictions in a row on the
#: engine, whether somebody else's code was the reference, and for how many tokens.
STRENGTH: dict[LevelName, tuple[str, ...]] = {
    "L0": ("calibrated",),
    "L1": ("source",),
    "L2": ("soak",),
    "L3": ("independent", "prose_tokens"),
}

Words = Annotated[str, Field(min_length=1, max_length=2000)]
Figure = bool | int | float | Words | None
Figures = dict[Words, Figure | list[Figure]]


class _EvidenceRecord(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Level(_EvidenceRecord):
    """One level: what was found, by what, when and where."""

    status: Literal["passed", "failed", "unmeasured"]
    reason: Words = Field(description="One sentence: why it is so, or why nobody knows")
    figures: Figures = {}
    tools: dict[Words, Words] = Field(default={}, description="Versions of what measured it")
    machine: dict[Words, Words] = Field(default={}, description="Chip and system that it holds for")
    date: datetime.date | None = None

    @model_validator(mode="after")
    def _check(self) -> "Level":
        measured = self.status != "unmeasured"
        if measured and not (self.date and self.tools):
            raise ValueError(f"what is {self.status} has a date and the tools that say so")
        if not measured and self.figures:
            raise ValueError("what is unmeasured has no figures")
        return self

    def gives_way_to(self, other: "Level", name: LevelName) -> bool:
        """Whether another level of this name says at least as much of the same bundle.

        What was measured on two machines is not compared: the later counts.
        """
        if "unmeasured" in (self.status, other.status):
            return self.status == "unmeasured"
        if self.machine != other.machine or (self.status, other.status) == ("passed", "failed"):
            return True
        return other._strength(name) >= self._strength(name)

    def _strength(self, name: LevelName) -> list[float]:
        figures = (self.figures.get(figure) for figure in STRENGTH[name])
        return [figure if isinstance(figure, int | float) else 0 for figure in figures]


def level(passed: bool, reason: str, figures: dict, machine: dict[str, str] | None = None) -> Level:
    """A level that was measured just now."""
    return Level(
        status="passed" if passed else "failed",
        reason=reason[:2000],
        figures=figures,
        tools=versions(),
        machine=machine or {},
        date=datetime.datetime.now(datetime.UTC).date(),
    )


def no_level(reason: str) -> Level:
    """A level that was not measured, and why."""
    return Level(status="unmeasured", reason=reason[:2000])


def versions() -> dict[str, str]:
    """Versions of what computes and measures here."""
    found = {"python": platform.python_version()}
    for name in TOOLS:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


class Evidence(_EvidenceRecord):
    """All four levels of one bundle."""

    format: Literal["ane-book evidence 1"] = FORMAT
    bundle: str = Field(description="The seal of the bundle that it is of: see the manifest")
    levels: dict[LevelName, Level] = Field(min_length=4)


def unmeasured(seal: str, why: str = "nobody has measured it") -> Evidence:
    """The evidence of a new bundle, no level measured; `why` begins the reason of every level."""
    levels = {name: no_level(f"{why}: {command}") for name, command in MEASURED_BY.items()}
    return Evidence(bundle=seal, levels=levels)


def read_evidence(folder: Path, seal: str) -> Evidence:
    """Read a bundle's evidence.json; nothing is measured if it is missing or of another conversion.

    Raises InvalidBundle for a file that is damaged, or of a newer version.
    """
    path = folder / "evidence.json"
    if not path.exists() and not path.is_symlink():
        return unmeasured(seal)
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            raise InvalidBundle(f"{path}: not a regular file of at most {MAX_BYTES:,} bytes")
        saved = Evidence.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InvalidBundle(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        raise InvalidBundle(
            f"{path}: {first_fault(error)}; delete it, or update ane-book if a newer one wrote it"
        ) from None
    return saved if saved.bundle == seal else unmeasured(seal, "measured of another conversion")


@contextmanager
def evidence_lock(folder: Path) -> Iterator[None]:
    """Hold the lock on a bundle's evidence; it is on the folder itself, so no file is left."""
    if sys.platform == "win32" or not os.access(folder, os.W_OK):
        yield  # on Windows the last to write wins
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)  # and with it the lock


def write_evidence(folder: Path, evidence: Evidence) -> None:
    """Write evidence.json, whole or not at all."""
    path = folder / "evidence.json"
    fields = {"format": FORMAT} | evidence.model_dump(mode="json", exclude_defaults=True)
    try:
        with written_whole(path) as unfinished:
            unfinished.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidBundle(f"{path}: cannot be written ({error.strerror})") from None


def other_format(found: object, own: str) -> str:
    """What is wrong with a file's `format` that is not our own, such as "ane-book bundle 6"."""
    kind, _, version = own.rpartition(" ")
    said = printable(str(found))[:40]
    name, _, other = said.rpartition(" ")
    if name == kind and other.isdecimal() and int(other) > int(version):
        return f"{said!r}, of a newer ane-book: update it, since this one reads {own!r}"
    return f"format {said!r} is not {own!r}"
