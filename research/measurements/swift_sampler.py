"""What a drawn token costs the Swift host, beside Python's sampler: microseconds of the processor.

    ANE_BOOK_TEST_HOST=... python research/measurements/swift_sampler.py

Normal logits of deviation 3 and temperature 0.7, at the vocabularies of SmolLM2 and Qwen2.5; the
median of ROWS tokens, and of how many the two differ. Greedy is what both do before they draw.
Kept in research/measurements/swift-sampler.json.
"""

import json
import os
from pathlib import Path
import shlex
from statistics import median
import subprocess
import sys
import tempfile
import time

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from _common import record
from ane_book.options import Sampling, checked
from ane_book.runtime.sampling import Sampler
import numpy as np

ROWS = 60
VOCABULARIES = (49_152, 151_936)
SAMPLERS = {
    "greedy": {"temperature": 0.0},
    "temperature": {},
    "top-k 40": {"top_k": 40},
    "top-p 0.9": {"top_p": 0.9},
    "top-k 40 and top-p 0.9": {"top_k": 40, "top_p": 0.9},
}


def in_swift(logits: np.ndarray, settings: dict) -> tuple[list[int], float]:
    """The tokens drawn from logits (n, V) float16, and the median of their microseconds."""
    with tempfile.NamedTemporaryFile() as file:
        logits.tofile(file.name)
        request = {"logits": file.name, "vocabulary": logits.shape[1]} | settings
        command = [*shlex.split(os.environ["ANE_BOOK_TEST_HOST"]), "draws"]
        done = subprocess.run(
            command, input=json.dumps(request) + "\n", capture_output=True, text=True, check=True
        )
    answer = json.loads(done.stdout)
    return answer["token_ids"], median(answer["microseconds"])


def in_python(logits: np.ndarray, settings: dict) -> tuple[list[int], float]:
    """The same of Python's sampler."""
    sampler, tokens, seconds = Sampler(checked(Sampling, settings)), [], []
    for row in logits:
        begun = time.process_time()
        tokens.append(sampler(row.astype(np.float32)))
        seconds.append(time.process_time() - begun)
    return tokens, 1e6 * median(seconds)


def main() -> None:
    results = []
    for vocabulary in VOCABULARIES:
        random = np.random.default_rng(1)
        logits = (3 * random.standard_normal((ROWS, vocabulary))).astype(np.float16)
        for name, settings in SAMPLERS.items():
            settings = {"temperature": 0.7, "seed": 7} | settings
            (ours, swift), (theirs, python) = (f(logits, settings) for f in (in_swift, in_python))
            differ = sum(a != b for a, b in zip(ours, theirs, strict=True))
            results.append({
                "vocabulary": vocabulary, "sampler": name, "swift_us": round(swift),
                "python_us": round(python), "tokens": ROWS, "differ": differ,
            })  # fmt: skip
            print(results[-1])
    record("swift-sampler", {"results": results})


if __name__ == "__main__":
    main()
