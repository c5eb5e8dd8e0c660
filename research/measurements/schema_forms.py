"""Hold answers that know nothing to the schemas of JSON Schema's own test suite.

    python research/measurements/schema_forms.py CHECKOUT

CHECKOUT is json-schema-org/JSON-Schema-Test-Suite. Each different schema of drafts 7 and 2020-12 is
refused by `ane_book.runtime.grammar`, or two answers are drawn under it from random logits, with a
wish to end, and held to the schema by another implementation, `jsonschema_rs`. Written is
`research/measurements/schema_forms.json`.
"""

import argparse
from collections import Counter
import json
from pathlib import Path
import subprocess
import sys

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from _common import record
import ane_book
from ane_book.errors import InvalidInput
from ane_book.options import Sampling
from ane_book.runtime.grammar import GrammarTokens, Mask
from ane_book.runtime.sampling import Sampler
import jsonschema_rs
import numpy as np
from tokenizers import Tokenizer

DRAFTS = {
    "draft7": jsonschema_rs.Draft7Validator,
    "draft2020-12": jsonschema_rs.Draft202012Validator,
}
MOST, SEEDS = 400, 2  # tokens of an answer; answers of a schema


def schemas(suite: Path) -> dict[str, str]:
    """The different schemas of the suite, as text, each with the first draft that has it."""
    found: dict[str, str] = {}
    for draft in DRAFTS:
        for file in sorted((suite / "tests" / draft).glob("*.json")):
            for case in json.loads(file.read_text(encoding="utf-8")):
                found.setdefault(json.dumps(case["schema"]), draft)
    return found


def drawn(mask: Mask, tokens: Tokenizer, ends: list[int], seed: int) -> str | None:
    """An answer drawn from random logits; None where it has no end."""
    random, found = np.random.default_rng(seed), []
    sampler = Sampler(Sampling(temperature=1.0, seed=seed), mask)
    closing = [tokens.token_to_id(mark) for mark in '"}]']
    while len(found) < MOST:
        logits = 2 * random.standard_normal(tokens.get_vocab_size(), dtype=np.float32)
        logits[ends], logits[closing] = 30.0, logits[closing] + 0.2 * len(found)
        found.append(sampler(logits))
        if found[-1] in ends:
            return tokens.decode(found[:-1])
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", type=Path)
    suite = parser.parse_args().suite
    text = ane_book.convert("smollm2-135m-instruct").manifest.tokenizer
    file = ane_book.convert("smollm2-135m-instruct").path / text.file
    tokens, ends = Tokenizer.from_file(str(file)), sorted(text.eos_token_ids)
    held = GrammarTokens(file, tokens.get_vocab_size(), ends)
    counts: Counter[str] = Counter()
    answers: Counter[str] = Counter()
    for schema, draft in schemas(suite).items():
        try:
            held.mask("json_schema", schema)
        except InvalidInput:
            counts["refused"] += 1
            continue
        counts["taken"] += 1
        valid = DRAFTS[draft](json.loads(schema))
        for seed in range(SEEDS):
            answer = drawn(held.mask("json_schema", schema), tokens, ends, seed)
            if answer is None:
                answers["cut"] += 1
            else:
                answers["valid" if valid.is_valid(json.loads(answer)) else "invalid"] += 1
    asked = ["git", "-C", str(suite), "rev-parse", "HEAD"]
    commit = subprocess.run(asked, capture_output=True, text=True, check=True)
    found = {
        "suite": f"json-schema-org/JSON-Schema-Test-Suite@{commit.stdout.strip()[:7]}",
        "schemas": dict(counts),
        "answers": {kind: answers[kind] for kind in ("valid", "invalid", "cut")},
    }
    record("schema_forms", found)


if __name__ == "__main__":
    main()
