"""Fuzz the reader and the executor: sound packages, damaged, opened and run.

A damaged package must be refused with one of this library's errors, or run. Anything else is a
finding: another exception, a crash, more than 10 seconds, a file read outside of the package. The
cases run in a process of their own, which is started anew after a crash or a hang.

    make fuzz                     10,000 cases -> research/measurements/fuzz.json
    make fuzz N=500 SEED=3
    python tests/fuzz/run.py --only 137 --seed 3    one case, with the whole message
"""

import argparse
from collections import Counter, defaultdict
from importlib.metadata import version
import json
import os
from pathlib import Path
import platform
import selectors
import subprocess
import sys
import tempfile
import time

HERE = Path(__file__).resolve().parent
RECORD = HERE.parents[1] / "research" / "measurements" / "fuzz.json"
TIMEOUT = 10.0  # seconds that a case may take
STARTUP = 300.0  # seconds that a worker may take to import torch and run the sound packages


class Worker:
    """A process that runs cases, one at a time."""

    def __init__(self, corpus: Path, seed: int):
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "_worker.py"), str(corpus), str(seed)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, bufsize=1, env=environment,
        )  # fmt: skip
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.process.stdout, selectors.EVENT_READ)
        if self._answer(STARTUP) != "ready":
            self.stop()
            raise SystemExit("the worker cannot run the sound packages: run it by hand to see why")

    def _answer(self, seconds: float) -> str | None:
        """The next line; "" when the process has died, None when it takes too long."""
        return self.process.stdout.readline().strip() if self.selector.select(seconds) else None

    def run(self, case: int) -> dict:
        """What came of a case; a finding where the process did not live to say it."""
        print(case, file=self.process.stdin)
        answer = self._answer(TIMEOUT)
        if answer:
            return json.loads(answer)
        if answer is None:
            what = f"hang: more than {TIMEOUT:g} s"
        else:
            what = f"crash: exit code {self.process.wait(STARTUP)}"
        self.stop()
        return {"case": case, "package": "?", "outcome": "finding", "seconds": TIMEOUT,
                "message": what}  # fmt: skip

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            stream.close()
        self.selector.close()


def fuzz(corpus: Path, cases: range | list[int], seed: int, progress: bool = False) -> list[dict]:
    """Run the cases on the packages in `corpus`; returns what came of each."""
    worker, results = Worker(corpus, seed), []
    try:
        for case in cases:
            if not worker.alive:
                worker = Worker(corpus, seed)
            results.append(worker.run(case))
            if results[-1]["outcome"] == "finding" and progress:
                print(json.dumps(results[-1], indent=2), flush=True)
            if progress and len(results) % 1000 == 0:
                print(f"{len(results):,} of {len(cases):,} cases", flush=True)
    finally:
        if worker.alive:
            worker.stop()
    return results


def summary(results: list[dict], seed: int, seconds: float) -> dict:
    """Counts by outcome and by package, the slowest case, and every finding."""
    outcomes, packages = Counter(r["outcome"] for r in results), defaultdict(Counter)
    for result in results:
        packages[result["package"]][result["outcome"]] += 1
    slowest = max(results, key=lambda r: r["seconds"])
    return {
        "machine": {"system": platform.system(), "python": platform.python_version()}
        | {name: version(name) for name in ("torch", "numpy", "coremltools", "protobuf")},
        "seed": seed,
        "cases": len(results),
        "seconds": round(seconds, 1),
        "outcomes": dict(outcomes.most_common()),
        "packages": {name: dict(packages[name].most_common()) for name in sorted(packages)},
        "slowest": {key: slowest[key] for key in ("case", "package", "seconds")},
        "findings": [r for r in results if r["outcome"] == "finding"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the reader and the executor.")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="+", help="these cases only; nothing is written")
    options = parser.parse_args()
    from _corpus import make  # imports coremltools

    with tempfile.TemporaryDirectory() as folder:
        scratch, corpus = Path(folder) / "scratch", Path(folder) / "corpus"
        scratch.mkdir(), corpus.mkdir()
        for path in make(scratch).values():
            path.rename(corpus / path.name)
        started = time.perf_counter()
        results = fuzz(corpus, options.only or range(options.cases), options.seed, progress=True)
    if options.only:
        print(json.dumps(results, indent=2))
        return 0
    record = summary(results, options.seed, time.perf_counter() - started)
    RECORD.write_text(json.dumps(record, indent=2) + "\n")
    for outcome, count in record["outcomes"].items():
        print(f"{count:7,}  {outcome}")
    print(f"{record['seconds']:,} s; written: research/measurements/{RECORD.name}")
    return 1 if record["findings"] else 0


if __name__ == "__main__":
    sys.exit(main())
