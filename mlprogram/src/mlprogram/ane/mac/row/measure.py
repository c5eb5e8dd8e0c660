"""Measure a device row: each package on each set of compute units, in child processes.

`mlprogram.ane.mac.probe` is the child's program: it compiles, loads twice, asks for the plan, and
predicts 20 times on random inputs. Zeros would flatter the engine: an M4 took a third of the power
for them, and an M6 a tenth to a fifth less time (751K/apple-neural-engine-monitor). A child that
dies or hangs on one set of units leaves those before it measured; those behind it are asked of a
new child.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
import datetime
from importlib.metadata import version
import json
from pathlib import Path
import re
import shutil
import signal
import tempfile
import time

from mlprogram import Pipeline, __version__, machine
from mlprogram.ane.mac import child
from mlprogram.ane.mac.compiler import read_failures
from mlprogram.ane.mac.plan import CoreMLPlan
from mlprogram.ane.mac.residency import expected_outputs, held_rows, request_for
from mlprogram.ane.mac.row.form import (
    CHIP,
    DEVICES,
    FORMAT,
    LATE,
    NOT_FINITE,
    UNITS,
    WATCHED,
    WRONG,
    Row,
)
from mlprogram.ane.mac.row.packages import make
from mlprogram.ane.mac.verdict import lost_write
from mlprogram.ane.placement import place
from mlprogram.ane.placement.estimator import chips
from mlprogram.errors import InvalidPackage
from mlprogram.files import content_hash
from mlprogram.run.pipeline import open_model
import numpy as np

TIMEOUT = 120.0  # seconds for a whole row
MONITOR = "anemon"
BUSIEST = "convolutions"  # the package during which anemon looks, unless it is one's own

Progress = Callable[[str, int, int], None]


def measure_row(
    packages: Mapping[str, str | Path] | None = None,
    function: str | None = None,
    *,
    timeout: float = TIMEOUT,
    progress: Progress = lambda description, done, total: None,
    command: Sequence[str] | None = None,
) -> Row:
    """Measure packages, by default those that `make` writes, on a Mac.

    packages: by the names that a row has for them, such as {"own": "model.mlpackage"}. function: of
    a package with several. timeout: seconds for all of it; each package may take its part of what
    is left. command: what children run instead of the probe, on any machine.

    Raises InvalidPackage, InvalidInput or UnsupportedOp: the executor runs each package first.
    """
    until, found = time.monotonic() + timeout, []
    watched: dict[str, float] = {}
    engine, reason = machine.neural_engine()
    units = UNITS if engine or command else UNITS[:2]
    unmeasured = dict.fromkeys(UNITS[len(units) :], reason)
    monitor = shutil.which(MONITOR) if engine or command else None
    with tempfile.TemporaryDirectory(prefix="mlprogram-") as folder:
        every = packages or make(Path(folder))
        for done, (name, path) in enumerate(every.items()):
            progress(name, done, len(every))
            now = time.monotonic()
            ends = now + max(1.0, (until - now) / (len(every) - done))
            looks = monitor if name == BUSIEST or packages else None
            asked = _Asked(path, function, ends, looks, command)
            found.append({"name": name} | asked.record(units))
            watched |= asked.watched
        progress("done", len(every), len(every))
    if engine or command:
        why = "anemon gave no figure" if monitor else "anemon is not on PATH"
        unmeasured |= {} if watched else {MONITOR: why}
    return _about() | {
        "packages": found,
        **({MONITOR: watched} if watched else {}),
        **({"unmeasured": unmeasured} if unmeasured else {}),
    }


def _about() -> Row:
    """What a row says besides its packages."""
    chip, system = machine.chip(), machine.macos_version()
    if not re.fullmatch(CHIP, chip):
        chip = "Intel" if chip.startswith("Intel") else "another"
    return {
        "format": FORMAT,
        "date": datetime.date.today().isoformat(),
        "chip": chip,
        "system": f"macOS {system[0]}.{system[1]}" if system else "no macOS",
        "coremltools": version("coremltools").partition("+")[0],  # what a build adds is free
        "mlprogram": __version__,
        "fitted": False,
    }


def _chip() -> str:
    """This machine's chip for the placement's estimates: itself, its generation, or "any"."""
    key = machine.chip_key(machine.chip())
    return next((chip for chip in (key, key.partition("-")[0]) if chip in chips()), "any")


class _Asked:
    """One package: what children are asked of it until `ends` (time.monotonic), and what they say.

    expected: the executor's outputs of a second call. rows: what its states hold of two calls.
    watched: anemon's figures. agreed: ops planned as predicted, of how many. faults: a compiler's.
    """

    def __init__(
        self,
        path: str | Path,
        function: str | None,
        ends: float,
        monitor: str | None,
        command: Sequence[str] | None,
    ):
        program = open_model(path, function, "fp16")
        if isinstance(program, Pipeline):
            raise InvalidPackage(f"{path}: a pipeline is several programs; take one of its parts")
        self.program, self.ends, self.monitor, self.command = program, ends, monitor, command
        self.inputs = program.random_inputs(0)
        self.expected = expected_outputs(program, self.inputs)
        self.rows = held_rows(program, self.inputs)
        self.placement = place(program.package.path, _chip(), program.name)
        self.watched: dict[str, float] = {}
        self.agreed, self.faults = (0, 0), list[str]()

    def record(self, units: Sequence[str]) -> dict:
        """What a row says of the package on these compute units, without its name."""
        found: dict[str, dict] = {}
        while left := [each for each in units if each not in found]:
            found |= self._ask(left)
        path, devices = Path(self.program.package.path), self.placement.devices
        counts = {word: devices.count(word) for word in ("ANE", "CPU", "depends")}
        record: dict = {
            # A package's Manifest.json has random names, which are others whenever it is written.
            "sha256": content_hash(path / "Data" if (path / "Data").is_dir() else path)[:32],
            "predicted": {"chip": self.placement.chip} | {k: n for k, n in counts.items() if n},
        }
        if self.agreed[1]:
            record["as_predicted"] = list(self.agreed)
        if self.faults:
            record["compiler"] = self.faults[0]
        return record | {"units": found}

    def _ask(self, left: list[str]) -> dict[str, dict]:
        """Ask one child, and return what it found on each set of units, with the one that it died
        on; or with all that are left, where there is no time or it did not even compile."""
        if (seconds := self.ends - time.monotonic()) < 1:
            return {units: {"failed": LATE} for units in left}
        request = request_for(self.program, "", 0)
        request |= {"what": "row", "units": left, "monitor": self.monitor}
        with tempfile.TemporaryDirectory(prefix="mlprogram-") as name:
            folder = Path(name)
            np.savez(folder / "inputs.npz", **self.inputs)  # type: ignore[arg-type] # a flag
            outcome = child.ask(request, folder, seconds, command=self.command)
            self._note(outcome)
            done = [event["units"] for event in outcome.find("done")]
            found = {units: self._units(outcome, folder, units) for units in done}
        rest = [units for units in left if units not in found]
        for units in rest[:1] if list(outcome.find("compiled")) else rest:
            found[units] = _counts(_plan(outcome, units)) | {"failed": _failure(outcome)}
        return found

    def _note(self, outcome: child.Outcome) -> None:
        """Keep what is said of the package as a whole: by anemon, by the compiler, by the plan."""
        for event in outcome.find("watched"):
            self.watched |= _figures(event["said"])
        # Its causes are another's words, and may hold anything.
        self.faults += [replace(fault, causes=()).line() for fault in read_failures(outcome.said)]
        if (plan := _plan(outcome, "CPU_AND_NE")).ops:
            self.agreed = plan.agreement(self.placement)

    def _units(self, outcome: child.Outcome, folder: Path, units: str) -> dict:
        """What a row says of one set of compute units."""
        (loaded,) = (event for event in outcome.find("loaded") if event["units"] == units)
        (calls,) = (event for event in outcome.find("predicted") if event["units"] == units)
        counts, difference = _counts(_plan(outcome, units)), self._difference(folder, units)
        if difference is None:
            return counts | {"failed": WRONG}
        found = counts | {
            "first_s": _short(loaded["cold"]),
            "second_s": _short(loaded["warm"]),
            "median_ms": _short(1e3 * calls["median"]),
            "min_ms": _short(1e3 * calls["best"]),
            "difference": difference,
        }
        if self.rows:
            held = _arrays(folder / f"{units}_held.npz")
            found["kept"] = lost_write(held, self.rows) is None
        return found

    def _difference(self, folder: Path, units: str) -> float | str | None:
        """The largest difference to the executor, as a share of an output's largest value; None if
        the outputs have other names or sizes."""
        found, largest = _arrays(folder / f"{units}.npz"), 0.0
        for name, wanted in self.expected.items():
            if name not in found or found[name].size != wanted.size:
                return None
            a, b = (np.asarray(x, np.float64).ravel() for x in (found[name], wanted))
            if not np.array_equal(np.isfinite(a), np.isfinite(b)):
                return NOT_FINITE
            a, b = a[np.isfinite(a)], b[np.isfinite(b)]
            if a.size:
                largest = max(largest, float(np.abs(a - b).max() / (np.abs(b).max() or 1.0)))
        return float(f"{min(largest, 1e6):.2g}")


def _plan(outcome: child.Outcome, units: str) -> CoreMLPlan:
    events = [event for event in outcome.find("plan") if event["units"] == units]
    return CoreMLPlan.from_outcome(replace(outcome, events=events))


def _counts(plan: CoreMLPlan) -> dict:
    """How many ops are planned on each device, as a row has it; {} without a plan."""
    counts: dict[str, int] = {}
    for device, entry in plan.by_device().items():
        key = device if device in DEVICES else "other"
        counts[key] = counts.get(key, 0) + int(entry["ops"])
    return {"ops": counts} if counts else {}


def _failure(outcome: child.Outcome) -> str:
    """How a child ended early, and what it was doing, in words that `form.FAILED` knows."""
    how = {"timeout": "hung", "memory": "out of memory"}.get(outcome.ended)
    if how is None and outcome.code < 0:
        how = signal.Signals(-outcome.code).name
    return f"{how or f'exit status {outcome.code}'} at {outcome.reached}"


def _figures(said: str) -> dict[str, float]:
    """The figures of anemon's object that a row keeps; of several engines, the largest."""
    try:
        fields = json.loads(said)
        values = {name: np.array(fields.get(name, []), np.float64) for name in WATCHED}
    except (ValueError, TypeError, AttributeError, RecursionError):
        return {}
    return {
        name: _short(float(array.max()))
        for name, array in values.items()
        if array.size and np.isfinite(array).all() and 0 <= array.max() <= 10_000
    }


def _arrays(path: Path) -> dict[str, np.ndarray]:
    if not path.exists():
        return {}
    with np.load(path) as file:
        return dict(file)


def _short(number: float) -> float:
    """Three digits: a row is small, and no clock is better."""
    return float(f"{number:.3g}")
