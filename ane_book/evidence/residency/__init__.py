"""Residency (L2): where a Mac runs a package, and that it stays right there.

    found = measure("model.mlpackage")
    found.verdict, found.reason  # "elsewhere", "12% of the estimated time is planned on the ANE..."

A child process compiles and loads the package, asks Core ML for its plan, predicts on the CPU
alone, with the GPU and with the engine, and once more for 500 times. What it tells is judged here:
`ane_book.evidence.residency.verdict` has the verdicts. On another machine the answer is
`unmeasured`, and why.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import json
from pathlib import Path
import sys
import tempfile

from ane_book import device
from ane_book.bundle import Bundle
from ane_book.bundle.evidence import Level
from ane_book.errors import InvalidInput, InvalidPackage
from ane_book.evidence.inspect import is_bundle
from ane_book.evidence.levels import level
from ane_book.evidence.residency.child import run
from ane_book.evidence.residency.verdict import Residency, judge
from ane_book.mil import MLProgram, Pipeline, open_model
from ane_book.runtime.backends import COMPUTE_UNITS
import numpy as np

__all__ = ["Residency", "bundle_level", "measure", "measure_each", "why_not"]

TIMEOUT = 1800.0  # seconds for one function: the engine's compiler has taken minutes for a layer
SOAK = 500  # predictions; a stateful model has crashed after 100 to 200 (coremltools #2716)
PROBE = [sys.executable, "-m", "ane_book.evidence.residency.probe"]


def why_not() -> str | None:
    """Why residency cannot be measured here; None where it can."""
    engine, reason = device.neural_engine()
    return None if engine else reason


def measure(
    package: str | Path,
    function: str | None = None,
    *,
    units: str = "CPU_AND_NE",
    inputs: Mapping[str, np.ndarray] | None = None,
    soak: int = SOAK,
    timeout: float = TIMEOUT,
    memory: int | None = None,
    command: Sequence[str] | None = None,
) -> Residency:
    """Ask this Mac where one function of a package runs.

    units: what is judged, "CPU_AND_NE" or "ALL"; the CPU alone, and CPU with GPU, are what it is
    held against. inputs: by name; random ones when None. memory: bytes that the child
    may take, by default what `child.run` gives. command: what the child runs instead of the
    probe, with the request as its last argument, on any machine.

    Raises InvalidPackage, InvalidInput or UnsupportedOp: the executor runs the package first.
    """
    if units not in ("ALL", "CPU_AND_NE"):
        raise InvalidInput(f"units must be ALL or CPU_AND_NE of {', '.join(COMPUTE_UNITS)}")
    if command is None and (reason := why_not()):
        return Residency("unmeasured", reason)
    program = open_model(package, function, "fp16")
    if isinstance(program, Pipeline):
        raise InvalidPackage(
            f"{package}: a pipeline is several programs; measure each of its parts"
        )
    arrays = dict(inputs) if inputs is not None else program.random_inputs(0)
    expected = _expected(program, arrays)
    with tempfile.TemporaryDirectory(prefix="ane-book-") as name:
        folder = Path(name)
        np.savez(folder / "inputs.npz", **arrays)
        request = folder / "request.json"
        request.write_text(json.dumps(_request(program, units, soak)))
        outcome = run([*(command or PROBE), str(request)], folder, timeout, memory)
        return judge(outcome, folder, units, expected)


def _expected(program: MLProgram, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the executor gives at a second call: a state has seen one."""
    state = program.make_state() if program.states else None
    program.predict(inputs, state)
    return program.predict(inputs, state)


def _request(program: MLProgram, units: str, soak: int) -> dict:
    return {
        "package": str(Path(program.package.path).resolve()),
        "function": program.name,
        "named": len(program.functions) > 1,
        "stateful": bool(program.states),
        "units": units,
        "others": ["CPU_ONLY", "CPU_AND_GPU"],
        "soak": soak,
    }


def measure_each(
    path: Path,
    function: str | None = None,
    progress: Callable[[str, int, int], None] = lambda description, done, total: None,
    **options,
) -> Iterator[tuple[str, Residency]]:
    """`measure` of a package, or of every function of every program of a bundle, by its name.

    function: that one alone.
    """
    names = [(path, function)]
    if is_bundle(path):
        programs = Bundle.open(path).manifest.programs
        names = [(path / p.package, p.called(f), f) for p in programs for f in p.functions]
        names = [(package, own) for package, own, f in names if function in (None, f, own)]
        if not names:
            raise InvalidInput(f"{path}: none of its packages has a function {function!r}")
    for done, (package, each) in enumerate(names, 1):
        found = measure(package, each, **options)
        progress(f"{package.name} {each or ''}".strip(), done, len(names))
        yield " ".join(filter(None, [package.name, each])), found


def bundle_level(found: Mapping[str, Residency]) -> Level:
    """The level L2 of a bundle, of what `measure_each` found."""
    if any(one.verdict == "unmeasured" for one in found.values()):
        reason = next(one.reason for one in found.values() if one.verdict == "unmeasured")
        return Level(status="unmeasured", reason=reason)
    wrong = {key: one for key, one in found.items() if not one.resident}
    resident = len(found) - len(wrong)
    figures = {"functions": len(found), "resident": resident}
    costs = [one.figures.get("ane_cost", 0.0) for one in found.values()]
    figures |= {"least_ane_cost": min(costs)}
    machine = {"chip": device.chip(), "system": device.system()}
    if not wrong:
        return level(True, f"all {resident} functions run on the ANE", figures, machine)
    key, one = next(iter(wrong.items()))
    reason = (
        f"{resident} of {len(found)} functions run on the ANE; {key}: {one.verdict}: {one.reason}"
    )
    return level(False, reason, figures, machine)
