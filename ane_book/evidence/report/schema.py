"""What a report says: one machine, what ran on it, and how that was seen. Nothing personal.

Its JSON schema, for people who check a report before they send it, is
`research/reports/report.schema.json`.
"""

import datetime
import json
from pathlib import Path
from typing import Annotated, Final, Literal

from ane_book.bundle.evidence import Figures, Level, LevelName, Words, other_format
from ane_book.bundle.parts import SHA256
from ane_book.errors import InvalidInput, first_fault
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

FORMAT: Final = "ane-book report 1"
MAX_BYTES = 1 << 24

Seconds = Annotated[float, Field(ge=0)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Machine(_Record):
    """What it ran on, as far as it matters."""

    chip: Words
    system: Words
    cores: Annotated[int, Field(ge=1)]
    memory_gb: float | None = None
    neural_engine: bool = Field(description="Whether Core ML has an engine to plan on here")
    why: Words = Field(description="Why it has, or has not")


class Speed(_Record):
    """One bundle on one set of compute units, or by the executor."""

    units: Words
    cold_s: Seconds | None = Field(
        None,
        description="First load in a fresh process, of packages that Core ML compiles for it at a "
        "new path. What macOS keeps of equal programs from an earlier run is not known, so it may "
        "be less than a user's first launch takes",
    )
    warm_s: Seconds | None = Field(
        None, description="Second load in the same process, of what is compiled by then"
    )
    prefill_tps: float | None = Field(None, description="Tokens a second of a prompt")
    decode_tps: float | None = Field(None, description="Tokens a second, one by one")
    failed: Words | None = Field(None, description="Why there are no figures")


class ReportedFunction(_Record):
    """One function of a package: predicted, and found."""

    name: Words = Field(description="Its own, in a bundle after the name of its package")
    predicted: Figures = Field({}, description="ane-book place: shares, segments, the verdict")
    verdict: Words = Field(description="mlprogram.ane.mac.verdict has the words")
    reason: Words
    figures: Figures = Field(
        {},
        description="Of residency. inputs: golden, of a bundle's own tokens, partly golden, or "
        "random; UNITS_cold and UNITS_warm: seconds of the first and the second load in its own "
        "process, after those of `speed`; speed_to_cpu: how many times as fast as the CPU alone",
    )
    said: list[Words] = Field([], description="What the compiler printed when it gave up")
    ops: list[tuple[str, str, str | None, float | None]] = Field(
        [],
        description="Core ML's plan: the op's name in the package, type, preferred device, "
        "share of the time",
    )
    as_predicted: tuple[int, int] | None = Field(
        None, description="Ops planned as predicted, of those that are predicted for sure"
    )


class Subject(_Record):
    """A bundle or a package. A reader's own is told by a hash, not by its name; the names of its
    functions, of a bundle's packages and of ops are told as they are."""

    name: Words
    sha256: SHA256
    kind: Literal["bundle", "package"]
    levels: dict[LevelName, Level]
    functions: list[ReportedFunction] = []
    speed: list[Speed] = []


class ReportedExperiment(_Record):
    """One claim with evidence on both sides, and what this machine says of it."""

    name: Words
    claim: Words
    status: Literal["measured", "dry run", "failed"]
    verdict: Words
    rows: list[Figures] = []


class Report(_Record):
    """All of it."""

    format: Literal["ane-book report 1"] = FORMAT
    date: datetime.date
    machine: Machine
    tools: dict[Words, Words]
    library: SHA256 = Field(description="Of the sources of ane_book and mlprogram")
    units: list[Words] = Field(description="Compute units that were asked for")
    subjects: list[Subject]
    experiments: list[ReportedExperiment] = []

    @model_validator(mode="after")
    def _check(self) -> "Report":
        found = [subject.levels["L2"] for subject in self.subjects if "L2" in subject.levels]
        if not self.machine.neural_engine and any(one.status != "unmeasured" for one in found):
            raise ValueError("L2 was measured on a machine without a Neural Engine")
        return self

    def text(self) -> str:
        """As JSON, for a file."""
        fields = self.model_dump(mode="json", exclude_defaults=True)
        return json.dumps({"format": FORMAT} | fields, indent=1) + "\n"


def read_report(path: str | Path) -> Report:
    """A report that somebody sent. Raises InvalidInput: no report, of a newer version, broken."""
    path = Path(path)
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InvalidInput(f"{path}: more than {MAX_BYTES:,} bytes, so no report of ours")
        fields = json.loads(path.read_bytes())
        found = fields["format"]
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, RecursionError):
        raise InvalidInput(f"{path}: not a report that `ane-book report` wrote") from None
    if found != FORMAT:
        raise InvalidInput(f"{path}: {other_format(found, FORMAT)}")
    try:
        return Report.model_validate(fields)
    except ValidationError as error:
        raise InvalidInput(f"{path}: {first_fault(error)}") from None
