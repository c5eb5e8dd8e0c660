"""Residency (L2): whether a Mac runs a package on the engine, correctly, and keeps doing so.

    found = measure("model.mlpackage")
    found.verdict, found.reason  # "elsewhere", "12% of the estimated time is planned on the ANE..."

A child process compiles and loads the package, asks Core ML for its plan, predicts on the CPU
alone, with the GPU and with the engine, and then 500 times more (the soak).
`mlprogram.ane.mac.verdict` judges what it reports. On another machine the verdict is
`unmeasured`, with the reason.

A package of a bundle gets the inputs of the bundle's golden tokens: their hidden state, the host's
masks and tables, empty caches. A package alone gets random inputs, with masks that hide nothing.
The figure `inputs` says which: "golden", "random", "given", or "partly golden" for a package that
also takes what other packages of the same layers compute, which is random.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
import tempfile

from ane_book import device
from ane_book.bundle import Bundle
from ane_book.bundle.evidence import Level
from ane_book.bundle.parts import Part
from ane_book.errors import InvalidInput, InvalidPackage
from ane_book.evidence.inspect import is_bundle
from ane_book.evidence.levels import level
from ane_book.evidence.parity.locate import known_inputs
from ane_book.layout import layout_of
from ane_book.runtime.backends import COMPUTE_UNITS
from mlprogram import MLProgram, Pipeline
from mlprogram.ane.mac import child
from mlprogram.ane.mac.verdict import Residency, judge
from mlprogram.run.pipeline import open_model
import numpy as np

__all__ = ["Residency", "bundle_level", "measure", "measure_each", "why_not"]

TIMEOUT = 1800.0  # seconds per function: the engine's compiler has taken minutes for one layer
SOAK = 500  # predictions; a stateful model has crashed after 100 to 200 (coremltools #2716)


def why_not() -> str | None:
    """Why residency cannot be measured on this machine; None if it can."""
    engine, reason = device.neural_engine()
    return None if engine else reason


def measure(
    package: str | Path,
    function: str | None = None,
    *,
    units: str = "CPU_AND_NE",
    inputs: Mapping[str, np.ndarray] | Callable[[MLProgram], dict] | None = None,
    soak: int = SOAK,
    timeout: float = TIMEOUT,
    memory: int | None = None,
    command: Sequence[str] | None = None,
) -> Residency:
    """Measure where this Mac runs one function of a package.

    units: the compute units to judge, "CPU_AND_NE" or "ALL"; they are compared with the CPU alone
    and with CPU and GPU. inputs: all of them by name, or a function that returns some for the
    program; the others are random. memory: bytes that the child may take, by default as in
    `child.run`. command: what the child runs instead of the probe, on any machine, with the request
    as its last argument.

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
    which, arrays = _arrays(program, inputs)
    expected = _expected(program, arrays)
    with tempfile.TemporaryDirectory(prefix="ane-book-") as name:
        folder = Path(name)
        np.savez(folder / "inputs.npz", **arrays)  # type: ignore[arg-type] # one is a flag
        outcome = child.ask(_request(program, units, soak), folder, timeout, memory, command)
        held = _held(program, arrays)
        return judge(outcome, folder, units, expected, which, held)


def _arrays(program: MLProgram, inputs) -> tuple[str, dict[str, np.ndarray]]:
    """The inputs by name, and the word for them in the figures: "random", "given"..."""
    if inputs is not None and not callable(inputs):
        return "given", dict(inputs)
    arrays, known = program.random_inputs(0), inputs(program) if inputs else {}
    which = "golden" if known.keys() == arrays.keys() else "partly golden" if known else "random"
    return which, arrays | {name: a.astype(arrays[name].dtype) for name, a in known.items()}


def _expected(program: MLProgram, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The executor's outputs of a second call, as in the probe: the state has seen one call."""
    state = program.make_state() if program.states else None
    program.predict(inputs, state)
    return program.predict(inputs, state)


def _rows(program: MLProgram) -> int:
    """T, the rows that a call writes to a cache of S slots from `position` on; 0 if it does not, or
    if the cache has no room for those of two calls."""
    if not program.states or not {"hidden", "position"} <= program.inputs.keys():
        return 0
    T = program.inputs["hidden"].shape[-1] or 0
    shapes = [t.shape for t in program.states.values() if len(t.shape) == 4]
    slots = [shape[layout_of(shape).tokens] or 0 for shape in shapes]
    return T if len(slots) == len(program.states) and min(slots) >= 2 * T else 0


def _held(program: MLProgram, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The states' rows, 2T tokens, after two calls on the executor, as in the probe."""
    rows = _rows(program)
    if not rows:
        return {}
    state = program.make_state()
    for position in (0, rows):
        program.predict({**inputs, "position": np.array([position], np.int32)}, state)
    held = {name: layout_of(type_.shape).at(0, 2 * rows) for name, type_ in program.states.items()}
    return {name: state.read_state(name)[tokens] for name, tokens in held.items()}


def _request(program: MLProgram, units: str, soak: int) -> dict:
    return {
        "what": "residency",
        "package": str(Path(program.package.path).resolve()),
        "function": program.name,
        "named": len(program.functions) > 1,
        "stateful": bool(program.states),
        "states": list(program.states),
        "rows": _rows(program),
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
    """`measure` a package, or every function of every package of a bundle; yields names too.

    function: measure only that one. A bundle is measured on its golden tokens.
    """
    names: list[tuple[Path, str | None, Callable | None]] = [(path, function, None)]
    if is_bundle(path):
        names = [*_programs(Bundle.open(path), function)]
        if not names:
            raise InvalidInput(f"{path}: none of its packages has a function {function!r}")
    for done, (package, each, inputs) in enumerate(names, 1):
        found = measure(package, each, inputs=inputs, **options)
        progress(f"{package.name} {each or ''}".strip(), done, len(names))
        yield " ".join(filter(None, [package.name, each])), found


def _programs(bundle: Bundle, function: str | None) -> Iterator[tuple[Path, str, Callable]]:
    """Yield package, function, and the function that returns its golden inputs."""
    golden = cache(bundle.golden)
    for part in bundle.manifest.packages:
        for name in part.functions:
            own = part.called(name)
            if function in (None, name, own):
                yield bundle.path / part.package, own, _golden(bundle, golden, part, name)


def _golden(bundle: Bundle, golden: Callable, part: Part, function: str) -> Callable:
    return lambda program: known_inputs(bundle, golden(), program, part, function)


def bundle_level(found: Mapping[str, Residency]) -> Level:
    """The evidence level L2 of a bundle, from the results of `measure_each`.

    Of functions that are not resident it names one, first of all one with wrong numbers.
    """
    if any(one.verdict == "unmeasured" for one in found.values()):
        reason = next(one.reason for one in found.values() if one.verdict == "unmeasured")
        return Level(status="unmeasured", reason=reason)
    wrong = {key: one for key, one in found.items() if not one.resident}
    resident = len(found) - len(wrong)
    figures = {"functions": len(found), "resident": resident}
    figures["soak"] = min(one.figures.get("soaked", 0) for one in found.values())
    costs = [one.figures.get("ane_cost", 0.0) for one in found.values()]
    slower = sum(one.slower for one in found.values())
    figures |= {"least_ane_cost": min(costs), "slower_than_cpu": slower}
    machine = {"chip": device.chip(), "system": device.system()}
    if not wrong:
        reason = f"all {resident} functions run on the ANE"
        reason += f", {slower} of them slower than the CPU alone" if slower else ""
        return level(True, reason, figures, machine)
    key, one = min(wrong.items(), key=lambda item: item[1].verdict != "numbers")
    reason = (
        f"{resident} of {len(found)} functions run on the ANE; {key}: {one.verdict}: {one.reason}"
    )
    return level(False, reason, figures, machine)
