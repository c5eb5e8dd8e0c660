"""Damaged packages, run in a process of their own, and what came of them.

The process (`_worker.py`) is started anew after a crash or a hang, so that one case costs no other.
"""

from collections import Counter, defaultdict
from contextlib import suppress
from importlib.metadata import version
import json
import os
from pathlib import Path
import platform
import selectors
import subprocess
import sys

WORKER = Path(__file__).resolve().parent / "_worker.py"
TIMEOUT = 10.0  # seconds that a case may take
STARTUP = 300.0  # seconds that a worker may take to import torch and run the sound packages


class Worker:
    """A process that runs cases, one at a time."""

    def __init__(self, corpus: Path, seed: int):
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        self.process = subprocess.Popen(
            [sys.executable, str(WORKER), str(corpus), str(seed)],
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
        with suppress(BrokenPipeError):  # it died meanwhile, and the answer will say so
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
            with suppress(BrokenPipeError):
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
