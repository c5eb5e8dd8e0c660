"""Run every fault of the converter by every version at hand, and write what came out.

    python tests/ane/faults/run_converters.py ENVIRONMENTS [research/converter-faults.json]

ENVIRONMENTS/NAME/bin/python has a coremltools; NAME is its version, or "main" for apple/coremltools
as of e0e2f42b with the compiled libraries of 9.1.dev1. Each converts in a process of its own; the
executor of this process judges what it made.
"""

import json
from pathlib import Path
import subprocess
import sys
import tempfile

from _converters import CASES, Case, agrees, expected
import mlprogram
from mlprogram.ane.faults.fault import load
from mlprogram.ane.faults.versions import version
from mlprogram.ane.laws.graph import ProgramGraph
from mlprogram.errors import InvalidInput, InvalidPackage
from mlprogram.package.reader import read_programs
import numpy as np

RECORD = Path(__file__).parents[3] / "research/converter-faults.json"
SOURCE = "apple/coremltools@e0e2f42b, with the compiled libraries of 9.1.dev1"
AFTER = "9.1.dev2"  # what comes after 9.1.dev1, which main still calls itself
MOST = 6  # numbers in a record


def order(name: str) -> tuple[int, ...]:
    return version(AFTER if name == "main" else name)


def inside(fault: str, name: str) -> bool:
    """Whether a version is among those that have a fault, by its record."""
    known = load()[fault]
    after = not known.since or version(known.since) <= order(name)
    return after and (not known.until or order(name) < version(known.until))


def written(array: np.ndarray) -> dict:
    numbers = [str(x) if not np.isfinite(x) else float(f"{x:.7g}") for x in array.ravel()[:MOST]]
    return {"dtype": str(array.dtype), "shape": list(array.shape), "numbers": numbers}


def judged(path: Path, name: str, case: Case) -> dict:
    """What the executor computes with a package, beside PyTorch; and whether the fault is seen."""
    (package,) = read_programs(path)
    graph = ProgramGraph(package, package.functions["main"])
    met = any(True for _ in load()[name].look(graph))
    try:
        program = mlprogram.open(str(path), precision="fp16" if case.half else "fp32")
        values = dict(zip(program.inputs, (x.numpy() for x in case.inputs), strict=True))
        (got,) = program.predict(values).values()
    except (InvalidInput, InvalidPackage) as error:
        return {"refuses": str(error).split(": ")[-1][:120], "agrees": False, "met": met}
    got = np.asarray(got)
    return {**written(got), "agrees": agrees(expected(case), got, case.tolerance), "met": met}


def run(python: Path, folder: Path, names: list[str]) -> tuple[dict, dict]:
    """What one version makes of cases: its versions, and what came of each by its id."""
    script = Path(__file__).with_name("_converters.py")
    command = [str(python), str(script), str(folder), *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{python} failed: {done.stderr[-2000:]}")
    made = json.loads((folder / "made.json").read_text(encoding="utf-8"))
    found = {
        name: {"refused": made["refused"][name]}
        if name in made["refused"]
        else judged(folder / f"{name}.mlpackage", name, CASES[name])
        for name in names
    }
    return made["versions"], found


def main(environments: Path, record: Path = RECORD) -> None:
    names = [path.parent.parent.name for path in environments.glob("*/bin/python")]
    versions: dict = {}
    faults = {name: {"torch": written(expected(case))} for name, case in CASES.items()}
    for name in sorted(names, key=order):
        with tempfile.TemporaryDirectory() as folder:
            python = environments / name / "bin/python"
            versions[name], found = run(python, Path(folder), list(CASES))
        if name == "main":
            versions[name]["source"] = SOURCE
        for fault, came in found.items():
            faults[fault][name] = came
        print(name, sum("numbers" in came for came in found.values()), "packages", flush=True)
    text = json.dumps({"versions": versions, "faults": faults}, indent=1)
    record.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
