"""One function for everything, or two: what prompts and answers cost on a CPU.

    python benchmarks/one_function.py [--rounds 7]

The default model is converted with two functions (prompts in calls of 64 tokens, answers in calls
of one) and with one of eight. Reading a prompt of 128 tokens, and 16 tokens after it one by one,
are timed in turns, in seconds of the processor, and told as a ratio to two functions in the same
round. What either costs on the engine is `unmeasured`.

Results go to research/measurements/one_function.json.
"""

import argparse
from collections.abc import Callable
from statistics import median
import time

from _common import bundle, record
from ane_book.runtime import Session

PROMPT, ANSWER = 128, 16
RECIPES = {"two": {}, "one": {"functions": "one"}}


def works(session: Session) -> dict[str, Callable]:
    """What is timed, by name; each begins with the cache that the one before has left."""
    ids = session.bundle.golden()["tokens"].tolist() * PROMPT

    def read() -> None:
        session.reset()
        session.prefill(ids[:PROMPT])

    def write() -> None:
        for token in ids[:ANSWER]:
            session.decode(token)

    return {"prompt": read, "answer": write}


def seconds(work: Callable) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    made = {name: bundle(context=512, **recipe) for name, recipe in RECIPES.items()}
    do = {name: works(Session(each)) for name, each in made.items()}
    ratios: dict[str, list[float]] = {"prompt": [], "answer": []}
    for number in range(rounds + 1):  # the first is not counted
        order = list(do)[number % 2 :] + list(do)[: number % 2]
        taken = {name: {what: seconds(work) for what, work in do[name].items()} for name in order}
        for what, found in ratios.items():
            found += [taken["one"][what] / taken["two"][what]] if number else []
    results = {
        what: {
            "ratio": round(median(found), 3),
            "range": [round(min(found), 3), round(max(found), 3)],
        }
        for what, found in ratios.items()
    }
    print(results)
    sizes = {"prompt_tokens": PROMPT, "answer_tokens": ANSWER, "rounds": rounds}
    record("one_function", sizes | {"ratio_to_two": results, "on_the_engine": "unmeasured"})


if __name__ == "__main__":
    main()
