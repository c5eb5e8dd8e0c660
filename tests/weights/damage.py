"""Damaged model files by the hundred: each is refused with one error, or read as another reads it.

A child process with a limit of memory opens them (`_judge.py`); more than 30 seconds is a finding.

    python tests/weights/damage.py --cases 500 --seed 0
    python tests/weights/damage.py --only 137          one case, with the whole message
"""

import argparse
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
import json
import os
from pathlib import Path
from random import Random
import selectors
import subprocess
import sys
import tempfile

from _damage import damage, make

TIMEOUT = 30.0  # seconds that a case may take, most of them for a machine that is busy
STARTUP = 120.0


class Judge:
    """The child process; started anew when a case has ended it."""

    def __init__(self):
        self.process: subprocess.Popen | None = None

    def __call__(self, path: Path, seconds: float = TIMEOUT) -> dict:
        """What came of opening `path`."""
        if self.process is None:
            self._start()
        with suppress(BrokenPipeError):  # it died meanwhile, and the answer will say so
            print(json.dumps(str(path)), file=self.process.stdin, flush=True)
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            answer = self.process.stdout.readline() if selector.select(seconds) else None
        if answer:
            return json.loads(answer)
        code = self.stop()
        what = f"hang: more than {seconds:g} s" if answer is None else f"crash: exit code {code}"
        return {"outcome": "finding", "message": what, "seconds": seconds}

    def _start(self) -> None:
        script = Path(__file__).with_name("_judge.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script)], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        if self(Path("/nowhere"), STARTUP)["outcome"] != "WeightsNotFound":
            raise SystemExit(f"{script} does not run: run it by hand to see why")

    def stop(self) -> int:
        """End the process; its exit code, where it had ended itself."""
        process, self.process = self.process, None
        if process is None:
            return 0
        for stream in (process.stdin, process.stdout):
            with suppress(BrokenPipeError):
                stream.close()
        try:
            return process.wait(1)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def run(cases: Iterable[int], seed: int, folder: Path, judge: Judge) -> list[dict]:
    """Damage and judge, case by case; a case is the same every time."""
    (folder / "sound").mkdir()
    make(folder / "sound")
    sources, results = sorted((folder / "sound").iterdir()), []
    for source in sources:
        if (found := judge(source))["outcome"] != "ran":
            raise SystemExit(f"{source.name} is to be sound: {found}")
    for case in cases:
        rng = Random(f"{seed} {case}")
        source, path = rng.choice(sources), folder / f"case-{case}"
        kind = damage(source, path, rng)
        results.append({"case": case, "source": source.name, "kind": kind} | judge(path))
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description="Open damaged model files.")
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="+")
    options, judge = parser.parse_args(), Judge()
    try:
        with tempfile.TemporaryDirectory() as folder:
            cases = options.only or range(options.cases)
            results = run(cases, options.seed, Path(folder), judge)
    finally:
        judge.stop()
    findings = [result for result in results if result["outcome"] == "finding"]
    for result in results if options.only else findings:
        print(json.dumps(result, indent=2).replace("\\n", "\n"))
    for outcome, count in Counter(result["outcome"] for result in results).most_common():
        print(f"{count:7,}  {outcome}")
    print(f"slowest: {max(result['seconds'] for result in results):.1f} s")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
