"""Fuzz the reader and the executor: sound packages, damaged, opened and run.

A damaged package must be refused with one of this library's errors, or run. Anything else is a
finding: another exception, a crash, more than 10 seconds, a file read outside of the package.

    make fuzz                     10,000 cases -> research/measurements/fuzz.json
    make fuzz N=500 SEED=3
    python tests/fuzz/run.py --seed 3 --only 137    one case, with the whole message
"""

import argparse
import json
from pathlib import Path
import sys
import tempfile
import time

from _corpus import make
from _fuzz import fuzz, summary

RECORD = Path(__file__).resolve().parents[2] / "research" / "measurements" / "fuzz.json"


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the reader and the executor.")
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="+", help="these cases only; nothing is written")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as corpus:
        make(Path(corpus))
        started = time.perf_counter()
        results = fuzz(
            Path(corpus), options.only or range(options.cases), options.seed, progress=True
        )
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
