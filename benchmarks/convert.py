"""From the GGUF file to a finished bundle: wall seconds, peak memory, ops per layer.

Each conversion runs in a fresh process, imports included: the first with an empty cache, as the
first of a user on a machine, and the next where the lowered blocks are kept, as they are for every
further model of the same shapes.
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile

from _common import as_installed, record, weights_file
from ane_book.bundle import Bundle
from mlprogram.package.reader import Package

ROUNDS = 3

CHILD = """
import json, sys, time
start = time.perf_counter()
import ane_book
ane_book.convert(sys.argv[1], out=sys.argv[2])
seconds = time.perf_counter() - start
from mlprogram.analysis.memory import peak_resident
print(json.dumps({"seconds": seconds, "peak_bytes": peak_resident()}))
"""


def measure(out: str, cache: str) -> dict:
    """Convert in a fresh process; bytecode is kept, as it is of an installed library."""
    environment = as_installed() | {"ANE_BOOK_CACHE": cache}
    command = [sys.executable, "-c", CHILD, str(weights_file()), out]
    child = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(child.stdout.splitlines()[-1])


def ops_per_layer(bundle: Bundle) -> dict[str, float]:
    """All ops of the shards but constants, over the layers; frame ops included."""
    counts: dict[str, int] = {}
    for shard in bundle.manifest.shards:
        for name, function in Package(bundle.path / shard.package).functions.items():
            ops = sum(operation.type != "const" for operation in function.operations())
            counts[name] = counts.get(name, 0) + ops
    return {name: count / bundle.config.num_layers for name, count in counts.items()}


def tell(what: str, runs: list[dict]) -> None:
    seconds = statistics.median(run["seconds"] for run in runs)
    peak = max(run["peak_bytes"] for run in runs)
    print(f"{what}: {seconds:.1f} s (median of {len(runs)}), peak {peak / 1e9:.2f} GB")


def main() -> None:
    first, kept, folder = [], [], tempfile.mkdtemp()
    try:
        for i in range(ROUNDS):
            cache, out = f"{folder}/cache{i}", f"{folder}/{i}"
            first.append(measure(out, cache))
            shutil.rmtree(out)
            kept.append(measure(out, cache))
        bundle = Bundle.open(out)
        size = sum(bundle.manifest.files.values())
        ops = ops_per_layer(bundle)
    finally:
        shutil.rmtree(folder)
    tell("with an empty cache", first)
    tell("with lowered blocks kept", kept)
    print(f"bundle {size / 1e6:.0f} MB; ops per layer, frame included: {ops}")
    record("convert", {"runs": first, "kept": kept, "bundle_bytes": size, "ops_per_layer": ops})


if __name__ == "__main__":
    main()
