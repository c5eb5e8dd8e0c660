"""What a recipe costs on a CPU: prompts and answers beside those of the default one.

    python research/measurements/recipes.py [--rounds 7]

The default model is converted by the default recipe, with one function for everything
(`functions="one"`), with silu by tanh (`silu="tanh"`), and with attention in the form of Apple's
rules (`form="apple"`). Reading a prompt of 128 tokens, and 16
tokens after it one by one, are timed in turns, in seconds of the processor, and told as a ratio to
the default recipe in the same round. What any of it costs on the engine is `unmeasured`.

Results go to research/measurements/recipes.json.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import median
import sys
import time

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from _common import bundle, record
from ane_book.runtime import Session

PROMPT, ANSWER = 128, 16
RECIPES: dict[str, dict] = {
    "default": {},
    "functions one": {"functions": "one"},
    "silu tanh": {"silu": "tanh"},
    "form apple": {"form": "apple"},
}


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
    names, ratios = list(do), {name: {"prompt": [], "answer": []} for name in do}
    for number in range(rounds + 1):  # the first is not counted
        at = number % len(names)
        order = names[at:] + names[:at]
        taken = {name: {what: seconds(work) for what, work in do[name].items()} for name in order}
        for name, found in ratios.items():
            for what, each in found.items():
                each += [taken[name][what] / taken["default"][what]] if number else []
    results = {
        name: {
            what: {"ratio": round(median(r), 3), "range": [round(min(r), 3), round(max(r), 3)]}
            for what, r in found.items()
        }
        for name, found in ratios.items()
        if name != "default"
    }
    print(results)
    sizes = {"prompt_tokens": PROMPT, "answer_tokens": ANSWER, "rounds": rounds}
    record("recipes", sizes | {"ratio_to_default": results, "on_the_engine": "unmeasured"})


if __name__ == "__main__":
    main()
