"""What the experiments share: small graphs, a Mac asked about each, one JSON object printed.

    python research/experiments/settle_topk.py            # on a Mac with an engine
    python research/experiments/settle_topk.py --dry-run  # anywhere: graphs built and executed

Every case is a package of its own, asked by `measure` of `mlprogram.ane.mac.residency`: planned
where, right or wrong, how fast. A graph of one small op stays on the CPU whatever the op is, since
going over to the engine has to save 0.25 ms (claim program-small); so the op in question stands
between convolutions that are worth it (`between`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
import json
from pathlib import Path
import sys
import tempfile
from zlib import crc32

from ane_book.errors import AneBookError
from mlprogram import MLProgram
from mlprogram.ane.mac.residency import Residency, measure, why_not
from mlprogram.progress import silent_coremltools
import numpy as np

with silent_coremltools():
    import coremltools as ct
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types


SOAK = 25  # predictions: what is asked here shows at the first


@dataclass(frozen=True)
class Case:
    """One package. write: makes it at a path. inputs: by name; random ones when None. large: too
    large for a dry run."""

    name: str
    write: Callable[[Path], object]
    inputs: Mapping[str, np.ndarray] | None = None
    large: bool = False


Found = Mapping[str, Residency]


def main(name: str, claims: str, cases: list[Case], decide: Callable[[Found], str]) -> None:
    """Run a script: print what was found as the last line of stdout.

    decide: one sentence, of the cases by name; every one was measured.
    """
    print(json.dumps(run(name, claims, cases, decide, dry="--dry-run" in sys.argv)))


def run(name: str, claims: str, cases: list[Case], decide, dry: bool) -> dict:
    """The same as a dict; status: "measured" or "dry run"."""
    reason = None if dry else why_not()
    dry = dry or reason is not None
    results, rows = {}, []
    for case in cases:
        if dry and case.large:
            continue
        results[case.name] = result = _dry(case) if dry else _ask(case)
        times = {k: v for k, v in result.figures.items() if k.endswith(("_median", "_cost"))}
        rows.append({"case": case.name, "verdict": result.verdict, "reason": result.reason} | times)
    status = "dry run" if dry else "measured"
    ran = f"{len(rows)} of {len(cases)} graphs built and run by the executor"
    verdict = ran + (f"; {reason}" if reason else "") if dry else decide(results)
    return {"name": name, "claim": claims, "status": status, "verdict": verdict, "rows": rows}


def _ask(case: Case) -> Residency:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.mlpackage"
        case.write(path)
        try:
            return measure(path, inputs=case.inputs, soak=SOAK, timeout=900.0)
        except AneBookError as error:
            return Residency("failed", str(error)[:300])


def _dry(case: Case) -> Residency:
    """The executor's own answer, under the names of a measured one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.mlpackage"
        case.write(path)
        program = MLProgram(path)
        inputs = case.inputs or program.random_inputs(0)
        outputs = program.predict(inputs, program.make_state() if program.states else None)
        size = sum(constant.stored_bytes for _, constant in program.package.weights)
    return Residency("unmeasured", f"{size:,} bytes of weights", outputs=outputs)


def found(results: Found, name: str) -> str:
    """A case in words."""
    return f"{name}: {results[name].verdict}"


def all_found(results: Found) -> str:
    """Every case in words."""
    return "; ".join(found(results, name) for name in results)


def milliseconds(results: Found, name: str, units: str = "CPU_AND_NE") -> float:
    """Time of a call, NaN where none was measured."""
    return 1e3 * results[name].figures.get(f"{units}_median", float("nan"))


def random(*shape: int, scale: float = 1.0, seed: int = 0) -> np.ndarray:
    """Numbers of this spread, fp16, the same each time."""
    rng = np.random.default_rng([seed, *shape])
    return (rng.standard_normal(shape, np.float32) * scale).astype(np.float16)


def conv(x, outputs: int, kernel: tuple[int, int] = (1, 1), name: str | None = None):
    """A convolution that keeps height and width, with values of the size of its input's; weights of
    its own, for equal ones are stored once."""
    inputs, seed = x.shape[1], crc32(x.name.encode())
    scale = (inputs * kernel[0] * kernel[1]) ** -0.5
    weight = random(outputs, inputs, *kernel, scale=scale, seed=seed)
    return mb.conv(x=x, weight=weight, pad_type="same", **({"name": name} if name else {}))


def graph(path: Path, shapes: Sequence[tuple], build: Callable, states=(), **options) -> None:
    """Write a package of what `build` makes of fp16 inputs of these shapes, then states; its
    arguments' names are theirs. options: of `coremltools.convert`."""
    specs = [mb.TensorSpec(shape, types.fp16) for shape in shapes]
    specs += [mb.StateTensorSpec(shape, dtype=types.fp16) for shape in states]
    with silent_coremltools():
        program = mb.program(input_specs=specs, opset_version=ct.target.iOS18)(build)
        save(path, program, **options)


def save(path: Path, model, **options) -> None:
    """Convert and write, without loading."""
    target = {"convert_to": "mlprogram", "minimum_deployment_target": ct.target.iOS18}
    with silent_coremltools():
        ct.convert(model, **target, skip_model_load=True, **options).save(str(path))


def between(path: Path, build: Callable, shape=(1, 64, 32, 32), kernel=(3, 3)) -> None:
    """Write a package in which `build` stands between two convolutions before it and two after."""

    def whole(x):
        for _ in range(2):
            x = mb.relu(x=conv(x, x.shape[1], kernel))
        x = build(x)
        for _ in range(2):
            x = mb.relu(x=conv(x, x.shape[1], kernel))
        return mb.identity(x=x, name="y")

    graph(path, [shape], whole)
