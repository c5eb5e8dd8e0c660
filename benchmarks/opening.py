"""Opening the default model's decode package, the first prediction, and the memory both take.

Each measurement is a process of its own, which has imported the library before the clock starts;
median of 5. Memory is what the process grew by, over the size of the weight file, whose pages the
executor maps. The compiled kernels are in the cache: a machine's first run makes them once.
"""

import json
from pathlib import Path
from statistics import median
import subprocess
import sys

from _common import bundle, record
from ane_book import MLProgram
from mlprogram.analysis.memory import peak_resident

ROUNDS = 5
COLUMNS = ("open_s", "first_s", "second_s", "memory_mb", "memory_ratio")


def measure(package: str, precision: str) -> dict[str, float]:
    """Seconds to open and to predict, and memory, in this process."""
    import time

    before, start = peak_resident(), time.perf_counter()
    program = MLProgram(package, "decode", precision)
    state, inputs = program.make_state(), program.random_inputs()
    opened = time.perf_counter()
    program.predict(inputs, state)
    first = time.perf_counter()
    program.predict(inputs, state)
    second = time.perf_counter()
    grown = peak_resident() - before
    weights = sum(file.stat().st_size for file in Path(package).rglob("weight.bin"))
    values = (opened - start, first - start, second - first, grown / 1e6, grown / weights)
    return dict(zip(COLUMNS, values, strict=True))


def main() -> None:
    print(f"{'':8}{'open s':>9}{'first s':>9}{'second s':>10}{'MB':>7}{'/ weights':>11}")
    results = {}
    for name in ("fp32", "fp16", "int8", "lut4"):
        quant = "none" if name.startswith("fp") else name
        precision = "fp32" if name == "fp32" else "fp16"
        (package,) = bundle(quant=quant).path.glob("layers*.mlpackage")
        command = [sys.executable, __file__, str(package), precision]
        runs = [json.loads(subprocess.check_output(command)) for _ in range(ROUNDS)]
        results[name] = row = {key: median(run[key] for run in runs) for key in COLUMNS}
        print(
            f"{name:8}{row['open_s']:9.2f}{row['first_s']:9.2f}{row['second_s']:10.3f}"
            f"{row['memory_mb']:7.0f}{row['memory_ratio']:11.2f}"
        )
    record("opening", {"rounds": ROUNDS, "results": results})


if __name__ == "__main__":
    if sys.argv[1:]:
        print(json.dumps(measure(*sys.argv[1:])))
    else:
        main()
