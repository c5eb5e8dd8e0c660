"""The default model from a kept bundle: to the first token of `ane-book run`, and in one process.

Every measurement is a process of its own; median of 5. The first column is what a user waits for:
from the start of `ane-book run BUNDLE PROMPT` to its first word. The others are of a process that
has imported the library already: opening the decode package as a session does, its first and second
prediction, and what the process grew by, also over the size of the weights, which stay mapped. The
compiled kernels are in the cache, since a machine's first run makes them once, and so are the pages
of the files.
"""

import json
from pathlib import Path
from statistics import median
import subprocess
import sys
import time

ROUNDS = 5
COLUMNS = ("open_s", "first_s", "second_s", "memory_mb", "memory_ratio")


def measure(package: str, precision: str) -> dict[str, float]:
    """Seconds to open and to predict, and memory, in this process."""
    from ane_book import MLProgram
    from mlprogram.analysis.memory import peak_resident

    before, start = peak_resident(), time.perf_counter()
    program = MLProgram(package, "decode", precision)
    state, inputs, _ = program.make_state(), program.random_inputs(), program.prepare()
    opened = time.perf_counter()
    program.predict(inputs, state)
    first = time.perf_counter()
    program.predict(inputs, state)
    second = time.perf_counter()
    grown = peak_resident() - before
    weights = sum(file.stat().st_size for file in Path(package).rglob("weight*.bin"))
    values = (opened - start, first - start, second - first, grown / 1e6, grown / weights)
    return dict(zip(COLUMNS, values, strict=True))


def first_token(bundle: Path, precision: str, environment: dict[str, str]) -> float:
    """Seconds from the start of `ane-book run` to the first byte of its answer."""
    command = [sys.executable, "-m", "ane_book", "run", str(bundle), "Hi", "--max-tokens", "1"]
    command += ["--backend", "mil", "--precision", precision]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    start = time.perf_counter()
    process = subprocess.Popen(command, env=environment, **quiet)
    answered = process.stdout.read(1)
    seconds = time.perf_counter() - start
    process.communicate()
    if process.returncode or not answered.strip():
        raise SystemExit(f"{' '.join(command)} gave no answer")
    return seconds


def main() -> None:
    from _common import as_installed, bundle, record

    heads = ("run s", "open s", "first s", "second s", "MB", "/ weights")
    print(" " * 5 + "".join(f"{head:>10}" for head in heads))
    results, environment = {}, as_installed()
    for name in ("fp32", "fp16", "int8", "lut4"):
        made = bundle(quant="none" if name.startswith("fp") else name).path
        precision = "fp32" if name == "fp32" else "fp16"
        (package,) = made.glob("layers*.mlpackage")
        command = [sys.executable, __file__, str(package), precision]
        runs = []
        for _ in range(ROUNDS):
            run = {"run_s": first_token(made, precision, environment)}
            runs.append(run | json.loads(subprocess.check_output(command, env=environment)))
        results[name] = {key: median(run[key] for run in runs) for key in runs[0]}
        print(f"{name:5}" + "".join(f"{value:10.2f}" for value in results[name].values()))
    record("opening", {"rounds": ROUNDS, "results": results})


if __name__ == "__main__":
    if sys.argv[1:]:
        print(json.dumps(measure(*sys.argv[1:])))
    else:
        main()
