"""Guessed tokens on SmolLM2: equality with greedy decoding, live acceptance, and what it gains.

    python research/measurements/speculation.py [--prompts 200] [--timed 30] [--tokens 24]

Prompts of three kinds: code, chat, repetition. Each is answered by the same bundle with `verify`
(K = 8) twice: one token at a time, and with lookup; the first of them also by `decode`, for speeds.
Speeds are ratios of interleaved runs of the executor, where K columns cost K times the arithmetic;
they say nothing of an ANE. What an ANE would gain is the tokens of a call over what a call of K
takes there of the time of one token, a range from the registry of claims.

Equal tokens come from equal columns: `drift` counts how often logits would differ if a token took
whatever column of the same graph is free, or another graph.
"""

import argparse
from collections import defaultdict
from pathlib import Path
from statistics import geometric_mean
import sys

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from _common import bundle, record
from ane_book.runtime import Result, Session
from mlprogram.ane import claims
import numpy as np

K = 8
THINGS = (
    "rivers", "mountains", "trains", "birds", "clocks", "bridges", "gardens", "letters", "ships",
    "stars", "markets", "songs", "winters", "maps", "lamps", "roads", "kitchens", "doors",
    "storms", "books",
)  # fmt: skip
PLACES = ("Paris", "Rome", "Oslo", "Cairo", "Lima", "Delhi", "Kyoto", "Boston", "Dublin", "Vienna")
COUNTED = ("tokens", "other_logits", "other_token")


def prompts(count: int) -> list[tuple[str, str]]:
    """Kind and text of so many prompts, all different, the kinds in turn."""
    makers = {
        "code": lambda a, b: (
            f"Write a Python class {a.title()} with getters and setters for "
            f"name, size and {b.lower()}."
        ),
        "chat": lambda a, b: f"Tell me something about {a} in {b}.",
        "repetition": lambda a, b: f"Write this line ten times: {a} and {b}, {b} and {a}.",
    }
    pairs = [(a, b) for b in PLACES for a in THINGS]
    kinds = list(makers)
    return [(kinds[i % 3], makers[kinds[i % 3]](*pairs[i % len(pairs)])) for i in range(count)]


def answers(session: Session, text: str, tokens: int, timed: bool) -> dict[str, Result]:
    """One prompt, answered in two ways, or in three."""
    block, found = session.block, {}
    ways = [("decode", 1, None), ("verify", block, None), ("lookup", block, "lookup")]
    for way, width, draft in ways if timed else ways[1:]:
        session._runner.block = width
        found[way] = session.generate(text, max_tokens=tokens, draft=draft)
    session._runner.block = block
    return found


def drift(session: Session, ids: list[int]) -> dict[str, list[int]]:
    """Of tokens in the middle of an answer: how many have other logits, and another likeliest
    token, than in their own column of `verify`; where they take its first column, and `decode`."""
    start = -(-len(ids) // 2 // K) * K
    session.reset()
    session.prefill(ids[:start])
    own = [session.decode(token) for token in ids[start:]]
    counts = {}
    for way in ("verify", "decode"):
        session.reset()
        session.prefill(ids[:start])
        other, likeliest = 0, 0
        for at, expected in enumerate(own, start):
            if at + K > session.context:
                break
            hidden = session._runner.forward(way, np.array(ids[at : at + 1]), at)
            found = session._runner.head(hidden)[0]
            other += not np.array_equal(found, expected)
            likeliest += int(found.argmax() != expected.argmax())
        counts[way] = [len(own), other, likeliest]
    return counts


def run(session: Session, asked: list[tuple[str, str]], timed: int, tokens: int) -> dict:
    """Equality, and by kind acceptance; of the first prompts also speed and drift."""
    equal, decode_equal, by_kind = 0, 0, defaultdict(list)
    drifts: dict[str, list] = defaultdict(list)
    for i, (kind, text) in enumerate(asked):
        found = answers(session, text, tokens, i < timed)
        equal += found["lookup"].token_ids == found["verify"].token_ids
        by_kind[kind].append(found)
        if i >= timed:
            continue
        decode_equal += found["decode"].token_ids == found["verify"].token_ids
        ids = [*session.encode(text), *found["verify"].token_ids]
        for way, counts in drift(session, ids).items():
            drifts[way].append(counts)
    return {
        "prompts": len(asked),
        "timed": timed,
        "equal": equal,
        "equal_to_decode": decode_equal,
        "drift": {
            way: dict(zip(COUNTED, np.sum(counts, axis=0).tolist(), strict=True))
            for way, counts in drifts.items()
        },
        "kinds": {kind: figures(found) for kind, found in by_kind.items()},
    }


def figures(found: list[dict[str, Result]]) -> dict[str, float | None]:
    """Of prompts of one kind: guesses, those taken, tokens a call, and speeds as ratios, None where
    nothing was timed."""
    guessed = [each["lookup"] for each in found]
    decoded = sum(len(result.token_ids) - 1 for result in guessed)
    drafted = sum(result.drafted for result in guessed)

    def ratio(way: str, over: str) -> float | None:
        rates = [(each[way].decode_tps, each[over].decode_tps) for each in found
                 if "decode" in each]  # fmt: skip
        ratios = [a / b for a, b in rates if a and b]  # an answer of one token has no rate
        return geometric_mean(ratios) if ratios else None

    return {
        "drafted": drafted,
        "accepted": sum(result.accepted for result in guessed),
        "tokens_per_call": decoded / sum(result.calls for result in guessed),
        "speed_over_verify": ratio("lookup", "verify"),
        "speed_over_decode": ratio("lookup", "decode"),
        "verify_over_decode": ratio("verify", "decode"),
    }


def on_an_ane(kinds: dict[str, dict]) -> dict[str, list[float]]:
    """Tokens a call, over what a call of K takes of the time of one token there: from, to."""
    low, high = claims.find("verify-free").value
    return {
        kind: [own["tokens_per_call"] / high, own["tokens_per_call"] / low]
        for kind, own in kinds.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--timed", type=int, default=30, help="so many of them also for speed")
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--bundle", help="a bundle with verify; by default it is converted")
    parser.add_argument("--precision", nargs="+", default=["fp16", "fp32"])
    options = parser.parse_args()
    made, asked = options.bundle or bundle(verify=K), prompts(options.prompts)
    result = {"K": K, "tokens": options.tokens}
    for precision in options.precision:
        result[precision] = run(Session(made, precision), asked, options.timed, options.tokens)
        print(precision, result[precision], flush=True)
        result["on_an_ane"] = on_an_ane(result[options.precision[0]]["kinds"])
        record("speculation", result)  # each takes long: what is done is kept


if __name__ == "__main__":
    main()
