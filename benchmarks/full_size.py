"""A whole model at its true shapes, from random weights: minutes, peak memory, bytes per program.

    python benchmarks/full_size.py MODEL [--quant int8] [--limit 1GB]

Converts and runs in a process of its own each, and holds what was written to the plan. Then the
golden tokens go through all programs, and a token more, or a sentence through a tagger, by the
executor in fp16; what comes out is held to the golden logits, which PyTorch computed with the
weights in fp16. What random weights cannot show is quality.

Results are kept by model in research/measurements/full_size.json.
"""

import argparse
import json
import os
from pathlib import Path
import subprocess
import sys
import tempfile
import time

from _common import MEASUREMENTS, record
from ane_book.bundle import Bundle
from ane_book.conversion.plan import plan
import numpy as np

BAR = 6_000_000_000  # bytes that a conversion may take
NAME = "full_size"

PEAK = "from mlprogram.analysis.memory import peak_resident as peak\n"

CONVERT = """
import json, sys, time
start = time.perf_counter()
import ane_book
model, out, quant, limit = sys.argv[1:]
ane_book.convert(model, out, "random", quant=quant, shard_limit=limit)
print(json.dumps({"seconds": time.perf_counter() - start, "peak_bytes": peak()}))
"""

OPEN = """
import json, sys, time
import numpy as np
from ane_book.bundle import Bundle
from ane_book.runtime import Session, Tagger
bundle = Bundle.open(sys.argv[1])
golden = bundle.golden()
expected = golden["logits"].astype(np.float64).ravel()
start = time.perf_counter()
"""

CLOSE = """
found = found.astype(np.float64).ravel()
cosine = expected @ found / np.linalg.norm(expected) / np.linalg.norm(found)
print(json.dumps(seconds | {"cosine": cosine, "peak_bytes": peak()}))
"""

#: By what the model is for: the golden tokens, and then a token more or a sentence.
RUN = {
    "text-generation": """
session = Session(bundle, "fp16", "mil")
opened = time.perf_counter()
found = session.prefill(golden["tokens"])
prefilled = time.perf_counter()
assert np.isfinite(session.decode(int(golden["argmax"][-1]))).all()
seconds = {
    "open_seconds": opened - start, "prefill_seconds": prefilled - opened,
    "token_seconds": time.perf_counter() - prefilled,
}
""",
    "token-classification": """
tagger = Tagger(bundle, "fp16", "mil")
opened = time.perf_counter()
found = np.concatenate(list(tagger.logits(golden["tokens"]))).T
labelled = time.perf_counter()
sentence = "Write to Ann Lee, 14 Mill Lane, York, at ann@example.org or call 01904 555 0142."
seen = tagger.tag(sentence)
assert seen[-1].end == len(sentence) and all(0 < tag.score <= 1 for tag in seen)
seconds = {
    "open_seconds": opened - start, "golden_seconds": labelled - opened,
    "sentence_tokens": len(seen), "sentence_seconds": time.perf_counter() - labelled,
}
""",
}


def child(code: str, *arguments: str) -> dict:
    """The last line that a fresh process prints, as JSON; its cache is empty, as at first."""
    command = [sys.executable, "-c", PEAK + code, *arguments]
    with tempfile.TemporaryDirectory() as cache:
        own = os.environ | {"ANE_BOOK_CACHE": cache}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=own)
    return json.loads(done.stdout.splitlines()[-1])


def weight_file(bundle: Bundle, package: str) -> Path:
    return bundle.path / package / "Data" / "com.apple.CoreML" / "weights" / "weight.bin"


def measure(model: str, quant: str, limit: str, folder: str) -> dict:
    out = os.path.join(folder, model)
    converted = child(CONVERT, model, out, quant, limit)
    bundle = Bundle.open(out)
    planned = plan(bundle.config, bundle.recipe)
    written = {p.package: weight_file(bundle, p.package).stat().st_size for p in planned.programs}
    assert written == {program.package: program.bytes for program in planned.programs}
    return {
        "quant": quant,
        "limit": limit,
        "when": time.strftime("%Y-%m-%d"),
        "parameters": sum(np.prod(shape) for shape in shapes(bundle)).item(),
        "convert": converted,
        "run": child(OPEN + RUN[bundle.manifest.task] + CLOSE, out),
        "programs": written,
        "embedding_bytes": planned.embedding_bytes,
        "bundle_bytes": sum(bundle.manifest.files.values()),
    }


def shapes(bundle: Bundle) -> list[tuple[int, ...]]:
    from ane_book.models import find

    return list(find(bundle.config.architecture).tensors(bundle.config).values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--quant", default="int8")
    parser.add_argument("--limit", default="1GB")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options.model, options.quant, options.limit, folder)
    converted, run = found["convert"], found["run"]
    print(f"{options.model}, {found['parameters'] / 1e6:,.0f} M parameters, {options.quant}")
    print(
        f"converted in {converted['seconds'] / 60:.1f} min, {converted['peak_bytes'] / 1e9:.2f} GB"
    )
    for package, size in found["programs"].items():
        print(f"  {package:24}{size / 1e6:10,.1f} MB")
    through = "token" if "token_seconds" in run else "sentence"
    print(
        f"opened in {run['open_seconds']:.0f} s, a {through} in {run[through + '_seconds']:.2f} s, "
        f"cosine to the golden logits {run['cosine']:.6f}, {run['peak_bytes'] / 1e9:.2f} GB"
    )
    file = MEASUREMENTS / f"{NAME}.json"
    known = json.loads(file.read_text())["models"] if file.exists() else {}
    record(NAME, {"models": known | {options.model: found}})
    assert converted["peak_bytes"] < BAR, "the conversion took more memory than it may"


if __name__ == "__main__":
    main()
