"""Residency (L2): whether a Mac runs a package on the engine, correctly, and keeps doing so.

    found = measure("model.mlpackage")
    found.verdict, found.reason  # "elsewhere", "12% of the estimated time is planned on the ANE..."

A child process compiles and loads the package, asks Core ML for its plan, predicts on the CPU
alone, with the GPU and with the engine, and then 500 times more (the soak).
`mlprogram.ane.mac.verdict` judges what it reports. On another machine the verdict is
`unmeasured`, with the reason.

Inputs are random, with masks that hide nothing, or given. The figure `inputs` says which: "random",
"given", "golden" for those of a function, or "partly golden" where it gives only some.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
import tempfile

from mlprogram import MLProgram, Pipeline
from mlprogram.ane.mac import child
from mlprogram.ane.mac.verdict import Residency, judge, tokens_at, tokens_axis
from mlprogram.errors import InvalidInput, InvalidPackage
from mlprogram.machine import neural_engine
from mlprogram.run.pipeline import open_model
import numpy as np

TIMEOUT = 1800.0  # seconds per function: the engine's compiler has taken minutes for one layer
SOAK = 500  # predictions; a stateful model has crashed after 100 to 200 (coremltools #2716)


def why_not() -> str | None:
    """Why residency cannot be measured on this machine; None if it can."""
    engine, reason = neural_engine()
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
        raise InvalidInput(f"units must be ALL or CPU_AND_NE, not {units}")
    if command is None and (reason := why_not()):
        return Residency("unmeasured", reason)
    program = open_model(package, function, "fp16")
    if isinstance(program, Pipeline):
        raise InvalidPackage(
            f"{package}: a pipeline is several programs; measure each of its parts"
        )
    which, arrays = _arrays(program, inputs)
    expected = expected_outputs(program, arrays)
    with tempfile.TemporaryDirectory(prefix="mlprogram-") as name:
        folder = Path(name)
        np.savez(folder / "inputs.npz", **arrays)  # type: ignore[arg-type] # one is a flag
        outcome = child.ask(request_for(program, units, soak), folder, timeout, memory, command)
        held = held_rows(program, arrays)
        return judge(outcome, folder, units, expected, which, held)


def _arrays(program: MLProgram, inputs) -> tuple[str, dict[str, np.ndarray]]:
    """The inputs by name, and the word for them in the figures: "random", "given"..."""
    if inputs is not None and not callable(inputs):
        return "given", dict(inputs)
    arrays, known = program.random_inputs(0), inputs(program) if inputs else {}
    which = "golden" if known.keys() == arrays.keys() else "partly golden" if known else "random"
    return which, arrays | {name: a.astype(arrays[name].dtype) for name, a in known.items()}


def expected_outputs(program: MLProgram, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The executor's outputs of a second call, as in the probe: the state has seen one call."""
    state = program.make_state() if program.states else None
    program.predict(inputs, state)
    return program.predict(inputs, state)


def rows_of_a_call(program: MLProgram) -> int:
    """T, the rows that a call writes to a cache of S slots from `position` on; 0 if it does not, or
    if the cache has no room for those of two calls."""
    if not program.states or not {"hidden", "position"} <= program.inputs.keys():
        return 0
    T = program.inputs["hidden"].shape[-1] or 0
    shapes = [t.shape for t in program.states.values() if len(t.shape) == 4]
    slots = [shape[tokens_axis(shape)] or 0 for shape in shapes]
    return T if len(slots) == len(program.states) and min(slots) >= 2 * T else 0


def held_rows(program: MLProgram, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The states' rows, 2T tokens, after two calls on the executor, as in the probe."""
    rows = rows_of_a_call(program)
    if not rows:
        return {}
    state = program.make_state()
    for position in (0, rows):
        program.predict({**inputs, "position": np.array([position], np.int32)}, state)
    held = {name: tokens_at(type_.shape, 0, 2 * rows) for name, type_ in program.states.items()}
    return {name: state.read_state(name)[tokens] for name, tokens in held.items()}


def request_for(program: MLProgram, units: str, soak: int) -> dict:
    """What the probe is asked of a program."""
    return {
        "what": "residency",
        "package": str(Path(program.package.path).resolve()),
        "function": program.name,
        "named": len(program.functions) > 1,
        "stateful": bool(program.states),
        "states": list(program.states),
        "rows": rows_of_a_call(program),
        "units": units,
        "others": ["CPU_ONLY", "CPU_AND_GPU"],
        "soak": soak,
    }
