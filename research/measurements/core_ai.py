"""ML Programs through Core AI, beside the executor and PyTorch: numbers and bytes; no Mac.

    pip install -c constraints.txt -e mlprogram -e ".[coreai,test]"
    python research/measurements/core_ai.py            # all parts
    python research/measurements/core_ai.py wild       # those alone

A layer of SmolLM2 in both precisions; its bundles' bytes by functions and kinds of weights, with 24
tokens each; a tiny model of every architecture; coremltools' own op tests in single precision;
packages as others convert them. On Linux
`coreai-core` runs a model on the CPU and takes no options: nothing here is about an ANE.
"""

from datetime import date
from importlib.metadata import version
import json
import os
from pathlib import Path
import sys
from tempfile import TemporaryDirectory
from time import perf_counter
from unittest.mock import patch

ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / folder) for folder in ("benchmarks", "tests", "tests/core_ai")]

from _common import MEASUREMENTS, MODEL, STARTED, bundle, record, weights_file
from _families import ARCHITECTURES, compared
from ane_book import MLProgram
from ane_book.conversion.write.lowering import lower
from ane_book.conversion.write.program import PackageWriter
from ane_book.coreai import check_installed, save_asset
from ane_book.coreai.run import CoreAIBackend
from ane_book.host import causal_mask
from ane_book.models import find, read_config
from ane_book.models.base.decoder import block_weights
from ane_book.runtime import Session
from ane_book.weights import open_source
import numpy as np
import op_tests
import torch
import wild

LAYER, SLOTS, USED = 11, 128, 40  # layer, slots of the cache, those in use
OUTPUTS = ("hidden_out", "new_keys", "new_values")
ROUNDS = 20
QUESTION, TOKENS = "Tell me about the sea.", 24
#: How many functions the layers' package has, and the recipe of each.
FUNCTIONS = {1: {"functions": "one", "verify": 8}, 2: {}, 4: {"tiers": (128,)}}


def make_inputs(config, tokens: int) -> dict[str, torch.Tensor]:
    """A call of `tokens` tokens after USED others: random numbers, the real tables and mask."""
    random = torch.Generator().manual_seed(0)
    cos, sin = config.rotary.tables(USED + np.arange(tokens))
    cache = torch.randn(2, 1, config.num_kv_heads, SLOTS, config.head_dim, generator=random)
    cache[:, :, :, USED:] = 0
    mask = torch.from_numpy(causal_mask(USED, tokens, SLOTS)).repeat(1, 1, config.group, 1)
    hidden = torch.randn(1, config.hidden_size, 1, tokens, generator=random)
    return {
        "hidden": hidden, "rope_cos": torch.from_numpy(cos), "rope_sin": torch.from_numpy(sin),
        "mask": mask, "keys": cache[0], "values": cache[1],
    }  # fmt: skip


def fastest(call) -> float:
    """Milliseconds of the fastest of some runs."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = perf_counter()
        call()
        best = min(best, perf_counter() - start)
    return 1e3 * best


def write_block(config, weights, inputs, folder: Path) -> Path:
    """The block as an ML Program of one function."""
    package = PackageWriter(folder / "block.mlpackage")
    block = find(config.architecture).block(config)  # one to lower: it loses its weights
    piece = lower(block, inputs, OUTPUTS, config.rms_norm_eps)
    offsets, function = package.write_weights(weights), package.function("main")
    for name, value in inputs.items():
        function.input(name, "fp16", tuple(value.shape))
    feeds = {name: name for name in inputs}
    made = function.stamp(piece, "layer", feeds, offsets, dict(zip(OUTPUTS, OUTPUTS, strict=True)))
    function.finish(list(made))
    package.finish("main", "one layer")
    return folder / "block.mlpackage"


def both_ways(package: Path, inputs: dict, precision: str) -> dict[str, tuple[dict, float]]:
    """(outputs, milliseconds) of a package by the executor and by Core AI's runtime."""
    given = {name: value.numpy() for name, value in inputs.items()}
    program = MLProgram(package, precision=precision)
    with patch.dict(os.environ, ANE_BOOK_CACHE=str(package.parent / "cache")):
        backend = CoreAIBackend(precision)
        function = backend.load(package, "main")
    calls = {"Core ML": program.predict, "Core AI": function.predict}
    found = {path: (call(given), fastest(lambda c=call: c(given))) for path, call in calls.items()}
    backend.close()
    return found


def compare(outputs: dict, want: dict) -> dict[str, float]:
    """Cosine and largest difference over the largest number, the worse of all outputs."""
    cosines, gaps = [], []
    for name, right in want.items():
        a, b = (np.asarray(x, np.float64).ravel() for x in (outputs[name], right))
        cosines.append(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
        gaps.append(np.abs(a - b).max() / np.abs(b).max())
    return {"cosine": float(min(cosines)), "difference": float(max(gaps))}


def block_rows() -> list[dict]:
    """One layer by both ways and in both precisions, against PyTorch in single precision."""
    source = open_source(weights_file())
    config = read_config(source.config())
    weights = block_weights(config, LAYER, source.tensor)
    rounded = {name: value.half().float() for name, value in weights.items()}
    rows = []
    for tokens in (1, 64):
        inputs = {n: x.half().float() for n, x in make_inputs(config, tokens).items()}
        block = find(config.architecture).block(config).eval()
        block.load_state_dict(rounded)
        with torch.inference_mode():
            want = dict(zip(OUTPUTS, (y.numpy() for y in block(*inputs.values())), strict=True))
        with TemporaryDirectory() as folder, torch.no_grad():
            package = write_block(config, weights, inputs, Path(folder))
            for precision in ("fp32", "fp16"):
                for path, (outputs, ms) in both_ways(package, inputs, precision).items():
                    row = {"path": path, "tokens": tokens, "precision": precision}
                    rows.append(row | compare(outputs, want) | {"ms": ms})
                    print(rows[-1])
    return rows


def size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def bundle_rows() -> list[dict]:
    """Bytes of packages and assets, by functions and by kinds of weights."""
    rows = []
    forms = [("none", count) for count in FUNCTIONS] + [("int8", 2), ("lut4", 2)]
    for quant, functions in forms:
        made = bundle(quant=quant, **FUNCTIONS[functions])
        packages = [made.path / part.package for part in made.manifest.packages]
        row = {"quant": quant, "functions": functions, "packages": 0, "assets": 0}
        with TemporaryDirectory() as folder:
            for package in packages:
                asset = save_asset(package, Path(folder) / f"{package.stem}.aimodel")
                row["packages"] += size(package)
                row["assets"] += size(asset)
        rows.append(row)
        print(row)
    return rows


def same_tokens(made, prompt, tokens: int) -> dict:
    """How many of a bundle's tokens in single precision are equal on both sides, and seconds."""
    found, seconds = [], []
    for backend in ("mil", "coreai"):
        with TemporaryDirectory() as folder, patch.dict(os.environ, ANE_BOOK_CACHE=folder):
            session = Session(made, "fp32", backend)
        start = perf_counter()
        found.append(session.generate(prompt, max_tokens=tokens).token_ids)
        seconds.append(perf_counter() - start)
    equal = sum(a == b for a, b in zip(*found, strict=True))
    return {"tokens": len(found[0]), "equal": equal, "times_as_long": seconds[1] / seconds[0]}


def token_rows() -> list[dict]:
    rows = []
    for quant in ("none", "int8", "lut4"):
        rows.append({"quant": quant} | same_tokens(bundle(quant=quant), QUESTION, TOKENS))
        print(rows[-1])
    return rows


def families() -> dict[str, dict]:
    """A tiny model of every architecture with random weights: tokens, or numbers."""
    found = {}
    for kind, names in ARCHITECTURES.items():
        for name in names:
            found[f"{kind} {name}"] = {"kind": kind} | compared(kind, name)
            print(kind, name, found[f"{kind} {name}"], flush=True)
    return found


def packages_of_others() -> list[dict]:
    """Each function of each package in single precision, with the largest difference in half."""
    rows = {}
    for row in wild.run("--long=all"):
        key = row["test"].replace("fp16-", "fp32-"), row["package"], row["function"]
        if row.pop("precision") == "fp32":
            rows[key] = row
        elif key in rows and "refused" not in row:
            rows[key]["half"] = row["difference"]
    return list(rows.values())


PARTS = {
    "rows": block_rows,
    "bundles": bundle_rows,
    "tokens": token_rows,
    "families": families,
    "op_tests": lambda: (
        {"files": list(op_tests.FILES)} | op_tests.run(op_tests.FILES, "-n", "2")
    ),
    "wild": packages_of_others,
}


def main(wanted: list[str]) -> None:
    """Measure the parts that are named, or all; a part measured apart says when that was."""
    check_installed()
    result: dict = {
        "date": date.today().isoformat(),
        "versions": {name: version(name) for name in ("coreai-core", "coremltools", "torch")},
        "model": MODEL, "layer": LAYER, "slots": SLOTS, "used": USED,
    }  # fmt: skip
    if wanted:
        result = json.loads((MEASUREMENTS / "core_ai.json").read_text())
        result["apart"] = result.get("apart", {}) | {part: STARTED for part in wanted}
    for part in wanted or PARTS:
        result[part] = PARTS[part]()
    record("core_ai", result)


if __name__ == "__main__":
    main(sys.argv[1:])
