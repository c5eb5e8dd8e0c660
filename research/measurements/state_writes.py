"""How a cache is written: the time of a call with `update`, `select` and the cache on the host.

    python research/measurements/state_writes.py [--rounds 9] [--contexts 512 2048]

The default model is converted in three forms: a state written by `slice_update` (`update`), one
written whole by a `select` (`select`), and arrays of the host (`host`). Calls of `decode` and
`prefill` behind a prompt that fills half of the cache are timed in turns, in seconds of the
processor, and told as a ratio to `update` in the same round. It is the executor's cost on a CPU.
What the forms cost on the engine is `unmeasured`: nothing here runs on a Mac.

Results go to research/measurements/state_writes.json.
"""

import argparse
from pathlib import Path
from statistics import median
import sys
import time

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from _common import bundle, record
from ane_book.runtime import Session
import numpy as np

FORMS = {
    "update": {"kv": "state", "state_write": "update"},
    "select": {"kv": "state", "state_write": "select"},
    "host": {"kv": "host"},
}
TOKENS = 3  # calls in a row, of which the median is taken


def timed(session: Session, function: str, tokens: int, position: int) -> float:
    """Seconds of the processor of one call from a position on."""
    ids = np.arange(1, tokens + 1)
    seconds = []
    for _ in range(TOKENS):
        start = time.process_time()
        session._runner.forward(function, ids, position)
        seconds.append(time.process_time() - start)
    return median(seconds)


def measured(context: int, rounds: int, precision: str) -> dict:
    """Ratios of each form to `update`, by function: medians and ranges over the rounds."""
    made = {form: bundle(context=context, **recipe) for form, recipe in FORMS.items()}
    sessions = {form: Session(each, precision) for form, each in made.items()}
    calls = {"decode": 1, "prefill": made["update"].recipe.prefill}
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in calls}
    for number in range(rounds + 1):  # the first is not counted
        order = list(FORMS)[number % 3 :] + list(FORMS)[: number % 3]
        for function, tokens in calls.items():
            one = {f: timed(sessions[f], function, tokens, context // 2) for f in order}
            taken[function] += [one] if number else []
    found: dict = {}
    for function, every in taken.items():
        for form in ("select", "host"):
            ratios = [one[form] / one["update"] for one in every]
            spread = [round(min(ratios), 3), round(max(ratios), 3)]
            found.setdefault(function, {})[form] = {"ratio": round(median(ratios), 3),
                                                    "range": spread}  # fmt: skip
    print(context, found)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--contexts", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--precision", default="fp16", choices=("fp16", "fp32"))
    given = parser.parse_args()
    by_context = {
        str(context): measured(context, given.rounds, given.precision) for context in given.contexts
    }
    record(
        "state_writes",
        {
            "precision": given.precision,
            "rounds": given.rounds,
            "ratio_to_update": by_context,
            "on_the_engine": "unmeasured",
        },
    )


if __name__ == "__main__":
    main()
