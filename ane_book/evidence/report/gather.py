"""Gather a report: measure every evidence level of every subject, whatever fails on the way.

What may crash or hang runs in a child process. A part that cannot be measured says why, without
affecting the rest of the report.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
import datetime
import hashlib
from pathlib import Path
import platform
import tempfile

from ane_book.bundle import Bundle
from ane_book.bundle.evidence import Figures, Level, LevelName, no_level, versions
from ane_book.errors import AneBookError
from ane_book.evidence.inspect import is_bundle
from ane_book.evidence.laws import check, laws_level
from ane_book.evidence.parity import check_parity
from ane_book.evidence.quality import check_quality
from ane_book.evidence.report import experiments
from ane_book.evidence.report.private import scrub
from ane_book.evidence.report.schema import Machine, Report, ReportedFunction, Speed, Subject
from ane_book.evidence.residency import bundle_level, measure_each
from ane_book.evidence.speed import EXECUTOR, measure_speed
from ane_book.reference import reference_models
import mlprogram
from mlprogram import machine
from mlprogram.ane.mac.residency import Residency, why_not
from mlprogram.ane.placement import place
from mlprogram.ane.placement.estimator import chips
from mlprogram.ane.placement.placed import UNITS
from mlprogram.files import content_hash
from mlprogram.package.reader import Package

Progress = Callable[[str, int, int], None]

#: The levels that the executor measures of a bundle, and how.
MEASURED: dict[LevelName, Callable[[Bundle], Level]] = {
    "L1": lambda bundle: check_parity(bundle).level(),
    "L3": check_quality,
}


@dataclass(frozen=True)
class Settings:
    """Options of a report.

    soak: predictions in a row, for residency. timeout: seconds for a child process. experiments:
    the folder of the scripts, or None to leave them out.
    """

    soak: int = 500
    timeout: float = 1800.0
    experiments: Path | None = None

    @property
    def timed(self) -> list[str]:
        """What to time here: the executor and, if Core ML can predict, its compute units."""
        if not machine.CAN_PREDICT:
            return [EXECUTOR]
        engine = ["CPU_AND_NE"] if machine.neural_engine()[0] else []
        return [EXECUTOR, "CPU_ONLY", "CPU_AND_GPU", *engine]


def gather(
    paths: Sequence[str | Path],
    settings: Settings,
    progress: Progress = lambda description, done, total: None,
) -> Report:
    """Measure these bundles and packages, and return the report."""
    total = len(paths) + 1
    subjects = []
    for done, path in enumerate(paths):
        progress(f"subject {done + 1}", done, total)
        subjects.append(_subject(Path(path), settings))
    progress("experiments", total - 1, total)
    found = experiments.run_all(settings.experiments, dry=why_not() is not None)
    progress("done", total, total)
    digest = hashlib.sha256()
    for root in (Path(__file__).parents[2], Path(mlprogram.__file__).parent):
        for file in sorted(root.rglob("*.py")):
            digest.update(file.relative_to(root.parent).as_posix().encode() + file.read_bytes())
    memory, (engine, why) = machine.memory_bytes(), machine.neural_engine()
    version = machine.macos_version()  # and nothing else that is specific to this machine
    name = f"macOS {version[0]}.{version[1]}" if version else platform.system()
    return Report(
        date=datetime.datetime.now(datetime.UTC).date(),
        machine=Machine(
            chip=scrub(machine.chip()),
            system=f"{name}, {platform.machine()}",
            cores=machine.cores(),
            memory_gb=round(memory / 1e9, 1) if memory else None,
            neural_engine=engine,
            why=why,
        ),
        tools=versions(),
        library=digest.hexdigest(),
        units=settings.timed,
        subjects=subjects,
        experiments=found,
    )


def _subject(path: Path, settings: Settings) -> Subject:
    bundle = Bundle.open(path) if is_bundle(path) else None
    laws, reason = laws_level(check(path)), why_not()
    # Before anything else has its programs compiled.
    speed = list[Speed]()
    for units in settings.timed if bundle else ():
        assert bundle, "only a bundle is timed"
        with tempfile.TemporaryDirectory(prefix="ane-book-") as folder:
            timed = measure_speed(bundle, units, Path(folder), settings.timeout)
        failed = {"failed": scrub(timed["failed"])} if "failed" in timed else {}
        speed.append(Speed(**timed | failed))
    found: dict[str, Residency] = {}
    if reason is None:
        found = dict(measure_each(path, soak=settings.soak, timeout=settings.timeout))
    measured = (
        bundle_level(found) if found else no_level(reason or "no function of it was measured")
    )
    levels: dict[LevelName, Level] = {"L0": laws, "L2": measured}
    if bundle is None:
        levels |= {
            level: no_level(f"{level} is found out of bundles, and this is a package alone")
            for level in MEASURED
        }
    else:
        levels["L0"] = bundle.record("L0", laws)
        if found:
            levels["L2"] = bundle.record("L2", measured)
        for level, measure in MEASURED.items():
            try:
                levels[level] = bundle.record(level, measure(bundle))
            except AneBookError as error:
                levels[level] = no_level(str(error))
    name = "a package" if bundle is None else "a bundle"
    if bundle and bundle.manifest.name in reference_models():
        name = bundle.manifest.name
    told = sorted(levels.items())
    return Subject(
        name=name,
        sha256=(bundle and bundle.manifest.seal) or content_hash(path),
        kind="bundle" if bundle else "package",
        levels={level: own.model_copy(update={"reason": scrub(own.reason)}) for level, own in told},
        functions=[_function(*each, found, reason) for each in _functions(path, bundle)],
        speed=speed,
    )


def _functions(path: Path, bundle: Bundle | None) -> Iterator[tuple[Path, str, str, str]]:
    """Yield package, function, the name that `measure_each` gives it, and that of the report."""
    if bundle is None:
        for function in Package(path).functions:
            yield path, function, path.name, function
        return
    for part in bundle.manifest.packages:
        for function in map(part.called, part.functions):
            name = f"{part.package} {function}"
            yield path / part.package, function, name, name


def _function(
    package: Path,
    function: str,
    key: str,
    name: str,
    found: dict[str, Residency],
    reason: str | None,
) -> ReportedFunction:
    one = found.get(key) or Residency("unmeasured", reason or "not the default function")
    try:
        placement = place(package, _chip(), function)
        best, worst = placement.best.to_json(), placement.worst.to_json()
        names = ("share_of_operations", "share_of_weight_bytes", "partitions_on_ane")
        predicted: Figures = {
            "verdict": placement.verdict,
            "chip": placement.chip,
            "compute_units": UNITS,
            "stands_on": placement.stands_on,
            **{name: [round(worst[name], 4), round(best[name], 4)] for name in names},
        }
        agreed = one.plan.agreement(placement)
    except AneBookError as error:
        predicted, agreed = {"failed": scrub(str(error))}, (0, 0)
    return ReportedFunction(
        name=name,
        predicted=predicted,
        verdict=one.verdict,
        reason=scrub(one.reason)[:2000],
        figures=one.figures,
        said=[scrub(line) for line in one.said],
        ops=[(op.name, op.type, op.preferred, op.cost) for op in one.plan.ops if op.preferred],
        as_predicted=agreed if agreed[1] else None,
    )


def _chip() -> str:
    """This machine's chip for the placement's estimates: itself, its generation, or "any"."""
    key = machine.chip_key(machine.chip())
    return next((chip for chip in (key, key.partition("-")[0]) if chip in chips()), "any")
