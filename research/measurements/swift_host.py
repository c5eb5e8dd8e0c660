"""What the Swift host itself costs: microseconds and allocations a token, and no growth of memory.

    ANE_BOOK_TEST_HOST=... python research/measurements/swift_host.py

The programs answer at once, with zeros, so all that is left is the host's: the embedding's row,
masks, rotary rows, the cache's rows, the largest of V logits, text. Allocations are counted by a
library in front of the C library's `malloc`; those of a token are the difference of two runs.
Resident bytes are the whole process's, after 1,000 tokens and after 10,000, in answers that each
fill the context.
Kept in research/measurements/swift-host.json.
"""

import json
import os
from pathlib import Path
import shlex
from statistics import median
import subprocess
import sys
import tempfile

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from _common import bundle, record

FEW, MANY, ROUNDS = 2_000, 12_000, 5
LONG = 10_000  # tokens, over which memory should not grow

COUNTER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
static unsigned long calls;
void *malloc(size_t size) {
    static void *(*real)(size_t);
    if (!real) real = dlsym(RTLD_NEXT, "malloc");
    __atomic_fetch_add(&calls, 1, __ATOMIC_RELAXED);
    return real(size);
}
__attribute__((destructor)) static void report(void) { fprintf(stderr, "%lu", calls); }
"""


def run(folder: Path, tokens: int, **environment: str) -> tuple[dict, str]:
    binary = shlex.split(os.environ["ANE_BOOK_TEST_HOST"])
    command = [*binary, "host-cost", str(folder), str(tokens)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | environment
    )
    return json.loads(done.stdout), done.stderr


def main() -> None:
    results = {}
    with tempfile.TemporaryDirectory() as name:
        source, library = Path(name) / "count.c", Path(name) / "count.so"
        source.write_text(COUNTER)
        subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, source], check=True)
        for kv in ("state", "host"):
            folder = bundle(kv=kv, context=512).path
            few, many = (int(run(folder, n, LD_PRELOAD=str(library))[1]) for n in (FEW, MANY))
            early, late = run(folder, LONG)[0]["resident"]
            times = [run(folder, MANY)[0]["microseconds"] for _ in range(ROUNDS)]
            results[kv] = {
                "microseconds_a_token": round(median(times), 1),
                "allocations_a_token": round((many - few) / (MANY - FEW), 1),
                "resident_bytes_at_1000_tokens": early,
                "resident_bytes_at_10000_tokens": late,
            }
    record("swift-host", {"tokens": MANY, "results": results})
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
