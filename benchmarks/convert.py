"""From the GGUF file to a finished bundle: wall seconds, peak memory, ops per layer.

The conversion runs in a fresh process, imports included, as a user's first call does.
"""

import json
import shutil
import subprocess
import sys
import tempfile

from _common import record, weights_file
from ane_book.bundle import Bundle
from mlprogram.package.reader import Package

CHILD = """
import json, resource, sys, time
start = time.perf_counter()
import ane_book
ane_book.convert(sys.argv[1], out=sys.argv[2])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kB on Linux, bytes on a Mac
scale = 1 if sys.platform == "darwin" else 1024
print(json.dumps({"seconds": time.perf_counter() - start, "peak_bytes": peak * scale}))
"""


def ops_per_layer(bundle: Bundle) -> dict[str, float]:
    """All ops of the shards but constants, over the layers; frame ops included."""
    counts: dict[str, int] = {}
    for shard in bundle.manifest.shards:
        for name, function in Package(bundle.path / shard.package).functions.items():
            ops = sum(operation.type != "const" for operation in function.operations())
            counts[name] = counts.get(name, 0) + ops
    return {name: count / bundle.config.num_layers for name, count in counts.items()}


def main() -> None:
    runs, folder = [], tempfile.mkdtemp()
    try:
        for i in range(3):
            out = f"{folder}/{i}"
            command = [sys.executable, "-c", CHILD, str(weights_file()), out]
            child = subprocess.run(command, capture_output=True, text=True, check=True)
            runs.append(json.loads(child.stdout.splitlines()[-1]))
        bundle = Bundle.open(out)
        size = sum(bundle.manifest.files.values())
        ops = ops_per_layer(bundle)
    finally:
        shutil.rmtree(folder)
    best = sorted(runs, key=lambda run: run["seconds"])[1]
    print(f"{best['seconds']:.1f} s (median of 3), peak {best['peak_bytes'] / 1e9:.2f} GB")
    print(f"bundle {size / 1e6:.0f} MB; ops per layer, frame included: {ops}")
    record("convert", {"runs": runs, "bundle_bytes": size, "ops_per_layer": ops})


if __name__ == "__main__":
    main()
