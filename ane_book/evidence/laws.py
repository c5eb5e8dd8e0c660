"""L0: a bundle's packages against the laws of the Neural Engine (`mlprogram.ane.laws`)."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ane_book.errors import InvalidBundle, InvalidPackage
from ane_book.evidence.inspect import is_bundle, refuse_weights
from mlprogram.ane import faults, laws
from mlprogram.ane.laws import LawReport, Rule
from mlprogram.ane.laws.rule import SEVERITIES
import numpy as np

if TYPE_CHECKING:  # a package is checked without torch and pydantic
    from ane_book.bundle.evidence import Level
    from mlprogram.run.program import MLProgram


Inputs = Mapping[str, np.ndarray]


def check(
    model,
    rules: Mapping[str, Rule] | None = None,
    progress: Callable | None = None,
    calibrate: Inputs | Literal["golden"] | None = None,
) -> LawReport:
    """Apply the rules to a package, a bundle, a folder of them, or an MLModel in memory, as
    `mlprogram.ane.laws.check` does; the packages of a bundle are loaded together.

    rules: the laws and the known faults (`mlprogram.ane.faults`) if None.
    calibrate: "golden" runs a bundle on its own golden tokens. Raises InvalidPackage for weights,
    with the command that takes them, and as the rules do.
    """
    rules = laws.load(also=faults.load()) if rules is None else rules
    if not isinstance(model, str | Path):
        return laws.check(model, rules, progress)
    path = Path(model)
    try:
        own = _golden(path) if isinstance(calibrate, str) else calibrate
    except InvalidBundle:
        check(path, rules)  # what is no package either is told as such
        raise
    try:
        return laws.check(path, rules, progress, own, together=is_bundle(path))
    except InvalidPackage:
        refuse_weights(path)
        raise


def _golden(path: Path) -> "Callable[[MLProgram], Inputs | None]":
    """What gives a program of a bundle the inputs of its golden tokens, with empty caches."""
    from ane_book.bundle import Bundle
    from ane_book.evidence.parity.locate import golden_programs

    known = {
        (package.name, own): inputs
        for package, own, _, inputs in golden_programs(Bundle.open(path))
    }

    def inputs(program: "MLProgram") -> Inputs | None:
        found = known.get((Path(program.package.path).name, program.name))
        return None if found is None else program.random_inputs(0) | found(program)

    return inputs


def laws_level(report: LawReport) -> "Level":
    """The evidence level L0 of a bundle: passed if there is no error."""
    from ane_book.bundle.evidence import level

    counts = {f"{severity}s": report.count(severity) for severity in SEVERITIES}
    broken = [found.rule.id for found in report.findings if found.severity == "error"]
    rules = list(dict.fromkeys(found.rule.id for found in report.findings))
    reason = f"{report.summary}{': ' if broken else ''}{', '.join(dict.fromkeys(broken))}"
    return level(not broken, reason, {**counts, "rules": rules, "calibrated": report.calibrated})
