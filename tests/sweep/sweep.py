"""Convert odd checkpoints of every family, run them, and hold each run to `transformers`.

    make sweep                   300 checkpoints of 8 runs -> research/measurements/sweep.json
    make sweep N=20 SEED=3
    python tests/sweep/sweep.py --seed 3 --only 17    one checkpoint, all runs, with its numbers

Families, ways to stretch the context, caches, chunks, partitions and quantisations are drawn by
`_cases.py`; `_against.py` says when a run is right. A record of every run goes to a file of JSON
lines as it is made: the same command goes on where it was stopped.
"""

import argparse
from collections import Counter
from importlib.metadata import version
import json
import logging
from pathlib import Path
import sys
import tempfile
import traceback
import warnings

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / folder) for folder in ("tests", "benchmarks")]

from _against import EXACT, GOOD, TURNED, judge, record  # noqa: E402
from _cases import Case, draw  # noqa: E402
import _common  # noqa: E402

BY = ("family", "scaling", "kv", "quant", "partition", "experts", "prefill", "mode", "precision")


def main() -> int:
    parser = argparse.ArgumentParser(description="Odd checkpoints against transformers.")
    parser.add_argument("--cases", type=int, default=300, help="checkpoints; each has 8 runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="+", help="these cases only; nothing is written")
    options = parser.parse_args()
    quiet()
    if options.only:
        for number in options.only:
            print(json.dumps(runs_of(draw(options.seed, number)), indent=1))
        return 0
    lines = ROOT / "build" / f"sweep-{options.seed}.jsonl"
    records = sweep(range(options.cases), options.seed, lines)
    result = summary(records, options.seed)
    _common.record("sweep", result)
    print_table(result)
    return 1 if result["outcomes"].get("miss") else 0


def quiet() -> None:
    """Neither bars of progress, nor warnings of what is converted here on purpose: four bits."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


def sweep(cases: range, seed: int, lines: Path) -> list[dict]:
    """The records of all runs of the cases: those in the file, and those that were missing."""
    lines.parent.mkdir(parents=True, exist_ok=True)
    found = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    found = [own for own in found if own["case"] in cases]
    done = {own["case"] for own in found}
    with lines.open("a") as file:
        for number in cases:
            if number in done:
                continue
            records = runs_of(draw(seed, number))
            file.write("".join(json.dumps(own) + "\n" for own in records))
            file.flush()
            found += records
            for own in records:
                if own["outcome"] not in GOOD:
                    print("miss:", json.dumps(own), flush=True)
    return found


def runs_of(case: Case) -> list[dict]:
    """The records of a case; what nobody expected is a miss too."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return judge(case, Path(folder))
        except Exception:  # the sweep goes on, and the record says what it was
            said = "".join(traceback.format_exc().splitlines(keepends=True)[-6:])
            return [record(case, 0, "miss", message=said)]


def summary(records: list[dict], seed: int) -> dict:
    """Counts of runs, the largest errors, and on what."""
    ran = [own for own in records if "error" in own]
    single = [own["error"] for own in ran if own["precision"] == "fp32"]
    half = [own for own in ran if own["precision"] == "fp16"]
    turned = sum(own.get("turned", 0) for own in half)
    return {
        "seed": seed,
        "transformers": version("transformers"),
        "checkpoints": len({own["case"] for own in records}),
        "runs": len(records),
        "seconds": round(sum(own.get("seconds", 0) for own in records), 1),
        "outcomes": counted(records, "outcome"),
        "limits": {"fp32 error": EXACT, "fp16 cosine": TURNED},
        "largest fp32 error": max(single, default=0),
        "least fp16 cosine": min(
            (own["cosine"] for own in half if not own.get("turned")), default=1
        ),
        "fp16 tokens of another expert": turned,
        **{key: counted(ran, key) for key in BY},
        "misses": [own for own in records if own["outcome"] not in GOOD],
    }


def counted(records: list[dict], key: str) -> dict[str, int]:
    counts = Counter(str(own[key]) for own in records if own.get(key) is not None)
    return dict(sorted(counts.items()))


def print_table(result: dict) -> None:
    for key in ("outcomes", *BY):
        row = "  ".join(f"{name} {count:,}" for name, count in result[key].items())
        print(f"{key:12}  {row}")
    print(
        f"{result['runs']:,} runs of {result['checkpoints']:,} checkpoints, "
        f"{result['seconds']:,} s; largest error {result['largest fp32 error']:.1e} in fp32, "
        f"least cosine {result['least fp16 cosine']:.5f} in fp16"
    )


if __name__ == "__main__":
    sys.exit(main())
