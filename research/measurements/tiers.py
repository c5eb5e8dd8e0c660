"""Tiers of the context: what a token takes over each cache, what a move takes, bytes, dispatches.

    python research/measurements/tiers.py [--rounds 9] [--precision fp16]

The default model is converted for 2,048 slots, once alone and once with tiers of 128, 256 and 512
beside. Tokens of all tiers are timed in turns, in seconds of the processor, and told as a ratio to
those of 2,048 slots in the same round; a call that has to move the cache up from the tier below, as
a ratio to one that has not. Bytes are those of the two bundles, weights apart; dispatches are calls
that were counted. What Core ML makes of it is `unmeasured`: nothing here runs on a Mac.

Results go to research/measurements/tiers.json.
"""

import argparse
from itertools import pairwise
from pathlib import Path
from statistics import median
import sys
import time

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from _common import bundle, record
from ane_book.bundle import Bundle
from ane_book.runtime import Session
import numpy as np

CONTEXT, TIERS = 2048, (128, 256, 512)
TOKENS = 6  # in a row, of which the median is taken


def sizes(made: Bundle) -> dict[str, int]:
    files = made.manifest.files
    weights = sum(size for name, size in files.items() if name.endswith("weight.bin"))
    programs = sum(size for name, size in files.items() if name.endswith("model.mlmodel"))
    return {"bytes": sum(files.values()), "weight_bytes": weights, "program_bytes": programs}


def opened(made: Bundle, precision: str) -> tuple[Session, float]:
    start = time.process_time()
    session = Session(made, precision)
    return session, time.process_time() - start


def timed(runner, position: int) -> float:
    start = time.process_time()
    runner.forward("decode", np.array([1]), position)
    return time.process_time() - start


def round_of(runner, tiers: list[int]) -> tuple[dict[int, float], dict[int, float]]:
    """Seconds of a token by tier, and of one that moves up to it."""
    tokens, moves = {}, {}
    for slots in tiers:
        own = [timed(runner, slots - TOKENS - 1 + i) for i in range(TOKENS)]
        tokens[slots] = median(own[1:])  # the first has moved
    for below, slots in pairwise(tiers):
        timed(runner, below - 1)
        moves[slots] = timed(runner, below)
    return tokens, moves


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--precision", default="fp16", choices=("fp16", "fp32"))
    given = parser.parse_args()
    one = bundle(context=CONTEXT)
    tiered = bundle(context=CONTEXT, tiers=TIERS)
    alone, seconds = opened(one, given.precision)
    del alone
    session, more = opened(tiered, given.precision)
    runner, tiers = session._runner, tiered.manifest.tiers
    rounds = [round_of(runner, tiers) for _ in range(given.rounds)]
    by_tier = {}
    for slots in tiers:
        ratios = [tokens[slots] / tokens[CONTEXT] for tokens, _ in rounds]
        moves = [moves[slots] / tokens[slots] for tokens, moves in rounds if slots in moves]
        session.reset()
        runner.calls.clear()
        runner.forward("decode", np.array([1]), slots - 1)
        by_tier[slots] = {
            "seconds": median(tokens[slots] for tokens, _ in rounds),
            "ratio_to_2048": median(ratios),
            "ratio_range": [min(ratios), max(ratios)],
            "first_token_after_a_move": median(moves) if moves else None,
            "dispatches": runner.calls.total() + len(tiered.manifest.head),
        }
        print(slots, by_tier[slots])
    record(
        "tiers",
        {
            "model": one.manifest.name,
            "precision": given.precision,
            "rounds": given.rounds,
            "open_ratio": more / seconds,
            "one_cache": sizes(one),
            "tiers": sizes(tiered),
            "by_tier": by_tier,
            "on_the_engine": "unmeasured",
        },
    )


if __name__ == "__main__":
    main()
