"""The tokenizer in Swift beside `tokenizers` in Python: seconds to open, megabytes a second.

    ANE_BOOK_TEST_HOST=... python research/measurements/swift_tokenizer.py

SmolLM2's tokenizer over the book's pages, each of the two in a process of its own on one thread,
in turns; medians. The ids are compared first. Kept in research/measurements/swift-tokenizer.json.
"""

import datetime
import json
import os
from pathlib import Path
import shlex
from statistics import median
import subprocess
import sys
import tempfile

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from _common import MEASUREMENTS, moment, weights_file
from ane_book.weights import open_source
from swift_tables.packed import packed_tokenizer

ROUNDS, REPEATS = 5, 5

PYTHON = """
import json, sys, time
from tokenizers import Tokenizer
request = json.loads(sys.stdin.readline())
text = open(request["file"], encoding="utf-8").read()
opened, encoded = [], []
for _ in range(request["rounds"]):
    start = time.perf_counter()
    tokenizer = Tokenizer.from_file(sys.argv[1])
    middle = time.perf_counter()
    tokens = len(tokenizer.encode(text, add_special_tokens=False).ids)
    opened.append(middle - start)
    encoded.append(time.perf_counter() - middle)
print(json.dumps({"open": opened, "encode": encoded, "tokens": tokens}))
"""


def run(command: list, text: Path) -> dict:
    request = json.dumps({"file": str(text), "rounds": REPEATS}) + "\n"
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        command, input=request, capture_output=True, text=True, check=True, env=environment
    )
    return json.loads(done.stdout)


def main() -> None:
    started = moment()
    binary = shlex.split(os.environ["ANE_BOOK_TEST_HOST"])
    tokenizer = open_source(weights_file()).tokenizer().json
    pages = sorted((Path(__file__).parents[2] / "book").glob("*.md"))
    with tempfile.TemporaryDirectory() as name:
        text, packed, source = (Path(name) / file for file in ("text", "bin", "json"))
        text.write_text("".join(page.read_text() for page in pages))
        packed.write_bytes(packed_tokenizer(tokenizer))
        source.write_text(tokenizer)
        commands = {
            "swift": [*binary, "tokens", str(packed)],
            "tokenizers": [sys.executable, "-c", PYTHON, str(source)],
        }
        runs: dict[str, list[dict]] = {which: [] for which in commands}
        for _ in range(ROUNDS):
            for which, command in commands.items():
                runs[which].append(run(command, text))
        size, packed_size = text.stat().st_size, packed.stat().st_size
    assert len({one["tokens"] for rows in runs.values() for one in rows}) == 1
    result = {
        which: {
            "open_seconds": median(value for one in rows for value in one["open"]),
            "megabytes_per_second": size / 1e6 / median(v for one in rows for v in one["encode"]),
            "best_megabytes_per_second": size / 1e6 / min(v for one in rows for v in one["encode"]),
        }
        for which, rows in runs.items()
    }
    record = {
        "when": {**started, "date": datetime.datetime.now(datetime.UTC).date().isoformat()},
        "machine": "two virtual cores of an Intel Xeon",
        "tokenizer": "smollm2-135m-instruct",
        "bytes": size,
        "tokens": runs["swift"][0]["tokens"],
        "packed_bytes": packed_size,
        "results": result,
    }
    path = MEASUREMENTS / "swift-tokenizer.json"
    path.write_text(json.dumps(record, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
