"""Parity (L1): check on any machine that a bundle computes what its source model computes.

There are two questions. Is the program correct? In single precision the executor's results for a
package that is not quantised equal PyTorch's up to some 1e-5; an error beyond `EXACT` means another
program: a wrong weight, constant or head. Is it accurate in use? In half precision, and quantised,
the cosine of each vector to PyTorch's has to be at least `LEAST`.

With the source at hand, the golden numbers are computed again, every package is compared op by op
with what the recipe makes of the source, and the first op that differs is named. Without the source
a single wrong weight may pass: with the sign of one weight of SmolLM2 flipped, 21 of 30 such faults
were found in a package of ten layers.
"""

from dataclasses import dataclass, replace
from math import isfinite, nan
from pathlib import Path
import tempfile
from typing import Any

from ane_book.bundle import Bundle
from ane_book.bundle.evidence import Level, level
from ane_book.conversion.packages import vectors_of
from ane_book.conversion.rebuild import Rebuild, source_of
from ane_book.evidence.parity.locate import first_op
from ane_book.evidence.parity.stage import ParityStage
from ane_book.evidence.parity.walk import walk
from ane_book.models import find
from mlprogram.compare import Gap, percent
from mlprogram.files import telling
from mlprogram.tables import table
import numpy as np
from pydantic import BaseModel

__all__ = ["EXACT", "LEAST", "Parity", "check_parity"]

LEAST = 0.97  # the least cosine of a token's vector, or of the last logits, to PyTorch's
EXACT = 1e-4  # largest error in single precision: six times the largest seen, 1.7e-5 (SmolLM2)


@dataclass(frozen=True)
class Parity:
    """The result of `check_parity`: `passed`, and `reason`, a sentence that says why or why not.

    stages: figures of every package, in both precisions. exact: whether packages were compared
    within `EXACT`, for which quantised ones need their source. first: the first op at which the
    failed package differs from a rebuild; None without a source or a failure.
    """

    passed: bool
    reason: str
    stages: list[ParityStage]
    exact: bool
    source: bool
    package: str | None = None
    function: str | None = None
    first: Gap | None = None

    def figures(self) -> dict[str, float | int | bool | str]:
        """The figures for evidence.json: the worst of all stages, and those of the whole bundle."""
        half = [stage for stage in self.stages if stage.precision == "fp16"]
        single = [stage for stage in self.stages if stage.precision == "fp32"]
        whole = half[-1]
        figures: dict[str, Any] = {
            "cosine": _least(half),
            "cosine_whole": whole.cosine,
            "error_fp32": _most(single),
            "error_fp16": _most(half),
            "agreement": whole.agreement,
            "tokens": whole.tokens,
            "exact": self.exact,
            "source": self.source,
            "package": self.package,
            "op": self.first and f"{self.first.op} {self.first.name}",
        }
        return {  # JSON has no infinity and no NaN
            name: str(value) if isinstance(value, float) and not isfinite(value) else value
            for name, value in figures.items()
            if value is not None
        }

    def level(self) -> Level:
        """The evidence level for evidence.json."""
        return level(self.passed, self.reason, self.figures())

    def __str__(self) -> str:
        heading = ("package", "function", "precision", "cosine", "error", "max abs", "same token")
        rows: list[tuple[str, ...]] = [heading]
        rows += [_row(stage) for stage in self.stages]
        parts = [table(rows), f"L1 parity {'passed' if self.passed else 'failed'}: {self.reason}"]
        return "\n\n".join(parts)


@dataclass(frozen=True)
class _Fault:
    """Where a bundle fails, if it does, and the sentence that says so."""

    reason: str
    package: str | None = None
    function: str | None = None
    first: Gap | None = None


def check_parity(bundle: Bundle | str | Path, source: str | Path | None = None) -> Parity:
    """Compare a bundle with PyTorch: with its golden numbers and, if at hand, with its source.

    source: the weights that it was made of; if None, those of a reference model are looked for on
    this machine. Raises InvalidBundle, and InvalidInput for a source with other weights.
    """
    bundle = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
    weights, golden = source_of(bundle, source), bundle.golden()
    stages = [stage for precision in ("fp32", "fp16") for stage in walk(bundle, golden, precision)]
    with tempfile.TemporaryDirectory() as folder, telling(Path(folder).parent):
        again = Rebuild(bundle, weights, Path(folder)) if weights else None
        fault = (
            _host_fault(bundle)
            or (again and _golden_fault(again, golden))
            or _stage_fault(bundle, again, golden, stages)
            or (again and _package_fault(bundle, again, golden))
        )
    exact = weights is not None or bundle.recipe.is_plain
    single, half = ([s for s in stages if s.precision == which] for which in ("fp32", "fp16"))
    passed = f"cosine to PyTorch at least {_least(half):.6f} in half precision"
    if exact:
        passed = f"at most {percent(_most(single))} from PyTorch in single precision, {passed}"
    else:
        passed += "; quantised, and without its source: not held to more"
    found = vars(fault or _Fault(passed))
    return Parity(not fault, stages=stages, exact=exact, source=weights is not None, **found)


def _host_fault(bundle: Bundle) -> _Fault | None:
    """Check that what the manifest asks of the host is what the model's configuration implies."""
    manifest, config = bundle.manifest, bundle.config
    told: dict[str, tuple[BaseModel, BaseModel]] = {}
    told["host"] = (manifest.host, find(config.architecture).host(config))
    if manifest.vectors and (vectors := vectors_of(config, bundle.recipe)):
        told["vectors"] = (manifest.vectors, vectors)
    for part, records in told.items():
        found, wanted = (record.model_dump() for record in records)
        if wrong := [name for name in wanted if found[name] != wanted[name]]:
            each = (f"{name} is {found[name]}, expected {wanted[name]}" for name in wrong)
            return _Fault(f"manifest.json: {part}: {', '.join(each)}", "manifest.json", part)
    return None


def _golden_fault(again: Rebuild, golden: dict) -> _Fault | None:
    """Check that the bundle's golden numbers are those that PyTorch computes from the source."""
    for name, expected in again.golden().items():
        scale = np.abs(expected).max() or 1
        error = float(np.abs(golden[name] - expected).max() / scale)
        if not error <= (EXACT if expected.dtype.kind == "f" else 0):
            reason = f"golden.npz: {name} is {percent(error)} off what PyTorch makes of the source"
            return _Fault(reason, "golden.npz", name)
    return None


def _stage_fault(
    bundle: Bundle, again: Rebuild | None, golden: dict, stages: list[ParityStage]
) -> _Fault | None:
    """The first stage beyond the limits of its precision, with the op if the source is at hand."""
    for stage in stages:
        if off := _beyond(stage, bundle.recipe.is_plain and stage.precision == "fp32"):
            where = f"{stage.name}, {stage.function}" if stage.function else stage.name
            fault = _Fault(f"{where}: {off} in {stage.precision}", stage.name, stage.function)
            is_package = stage.name not in ("embedding", "whole")
            return _with_op(bundle, again, golden, fault) if is_package else fault
    return None


def _beyond(stage: ParityStage, exact: bool) -> str | None:
    """Which figure of a stage is beyond its limit, in words; None if none is."""
    if stage.cosine is None or stage.error is None:  # tokens alone
        if stage.agreement is None:
            return "nothing that could be compared"
        wrong = stage.agreement < LEAST
        return f"{stage.agreement:.0%} of the tokens are PyTorch's" if wrong else None
    if exact and not stage.error <= EXACT:
        return f"{percent(stage.error)} off PyTorch, at most {percent(EXACT)} expected"
    if not stage.cosine >= LEAST:
        return f"cosine {stage.cosine:.4f} to PyTorch, at least {LEAST} expected"
    return None


def _with_op(bundle: Bundle, again: Rebuild | None, golden: dict, fault: _Fault) -> _Fault:
    """Add to a fault the first op of its packages that differs from the rebuild."""
    if again is None:
        return replace(
            fault, reason=f"{fault.reason}; its source, with --source, would tell the op"
        )
    for package in str(fault.package).split():
        if found := first_op(bundle, again, golden, package, [str(fault.function)]):
            _, gap = found
            said = f"; first apart: {gap.op} {gap.name!r} of {package}, {percent(gap.error)}"
            return _Fault(fault.reason + said, package, fault.function, gap)
    said = "; the same ops are made of its source today, so that conversion itself is at fault"
    return replace(fault, reason=fault.reason + said)


def _package_fault(bundle: Bundle, again: Rebuild, golden: dict) -> _Fault | None:
    """Check op by op that every package, quantised or not, equals its rebuild from the source."""
    functions = bundle.manifest.functions
    for package in (part.package for part in bundle.manifest.packages):
        if found := first_op(bundle, again, golden, package, functions):
            function, gap = found
            said = f"{gap.op} {gap.name!r} is {percent(gap.error)} off what the recipe makes"
            reason = f"{package}, {function}: {said} of the source"
            return _Fault(reason, package, function, gap)
    return None


def _least(stages: list[ParityStage]) -> float:
    cosines = [stage.cosine for stage in stages if stage.cosine is not None]
    return min(cosines) if np.isfinite(cosines).all() else nan


def _most(stages: list[ParityStage]) -> float:
    errors = [stage.error for stage in stages if stage.error is not None]
    return max(errors) if np.isfinite(errors).all() else nan


def _row(stage: ParityStage) -> tuple[str, ...]:
    same = "" if stage.agreement is None else f"{stage.agreement:.0%} of {stage.tokens}"
    numbers = ("", "", "")
    if stage.cosine is not None and stage.error is not None:
        numbers = (f"{stage.cosine:.6f}", percent(stage.error), f"{stage.max_abs:.2g}")
    return (stage.name, stage.function, stage.precision, *numbers, same)
