"""ML Programs through Core AI, beside the executor and PyTorch: numbers and bytes; no Mac.

    pip install -c constraints.txt -e "mlprogram[coreai]" -e ".[test]"
    python research/measurements/core_ai.py                    # all parts
    python research/measurements/core_ai.py tokens_fp16 assets  # these; the others stay

A layer of SmolLM2 in both precisions; its bundles' bytes by functions and kinds of weights, with 24
tokens each; a tiny model of every architecture; coremltools' own op tests in single precision;
packages as others convert them; assets opened by every coreai-core that the package index has, and
damaged. On Linux `coreai-core` runs a model on the CPU and takes no options: nothing here is about
an ANE.
"""

from collections import Counter
from datetime import date
from functools import partial
from importlib.metadata import version
from itertools import takewhile
import json
import os
from pathlib import Path
from random import Random
import shutil
import subprocess
import sys
import sysconfig
from tempfile import TemporaryDirectory
from time import perf_counter
from unittest.mock import patch
import venv

ROOT = Path(__file__).parents[2]
TESTS = ("tests", "tests/bundle", "tests/core_ai", "tests/runtime")
sys.path += [str(ROOT / folder) for folder in ("benchmarks", *TESTS)]

from _asset_damage import KINDS
from _common import MEASUREMENTS, MODEL, STARTED, bundle, record, weights_file
from _in_both import ARCHITECTURES, compared
from _tiny import prompt, tiny_model, write_checkpoint
from ane_book import MLProgram, convert
from ane_book.bundle import Bundle
from ane_book.conversion.assets import add_assets
from ane_book.conversion.write.lowering import lower
from ane_book.conversion.write.program import PackageWriter
from ane_book.errors import AneBookError
from ane_book.host import causal_mask
from ane_book.models import find, read_config
from ane_book.models.base.decoder import block_weights
from ane_book.runtime import Session
from ane_book.weights import open_source
from mlprogram.coreai import check_installed, save_asset
from mlprogram.coreai.run import CoreAIBackend
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


def same_tokens(made, prompt, tokens: int, precision: str = "fp32") -> dict:
    """How many of a bundle's tokens are equal on both sides, up to the first that is not, and how
    many times as long Core AI's runtime took."""
    found, seconds = [], []
    for backend in ("mil", "coreai"):
        with TemporaryDirectory() as folder, patch.dict(os.environ, ANE_BOOK_CACHE=folder):
            session = Session(made, precision, backend)
        start = perf_counter()
        found.append(session.generate(prompt, max_tokens=tokens).token_ids)
        seconds.append(perf_counter() - start)
    equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*found, strict=False)))
    return {"tokens": len(found[0]), "equal": equal, "times_as_long": seconds[1] / seconds[0]}


def token_rows(precision: str = "fp32") -> list[dict]:
    rows = []
    for quant in ("none", "int8", "lut4"):
        made = bundle(quant=quant)
        rows.append({"quant": quant} | same_tokens(made, QUESTION, TOKENS, precision))
        print(rows[-1], flush=True)
    return rows


def families() -> dict[str, dict]:
    """A tiny model of every architecture with random weights: tokens, or numbers."""
    found = {}
    for kind, names in ARCHITECTURES.items():
        for name in names:
            found[f"{kind} {name}"] = {"kind": kind} | compared(kind, name)
            print(kind, name, found[f"{kind} {name}"], flush=True)
    return found


# --- assets on disk ------------------------------------------------------------------------------

#: Every coreai-core that the package index has, the oldest first; the last one writes.
CORES = ("1.0.0b1", "1.0.0b2", "1.0.0b3")
FORMS: dict[str, dict] = {"state": {}, "host": {"kv": "host"}, "lut4": {"quant": "lut4"}}
#: Prints the tokens of a bundle's assets.
GENERATE = """
import json, sys
from ane_book.runtime import Session
prompt = json.loads(sys.argv[2])
session = Session(sys.argv[1], "fp16", "coreai")
print(json.dumps(session.generate(prompt, max_tokens=16).token_ids))
"""
#: Writes an asset with coreai-torch, of modules within modules.
CONVERT = """
import sys, torch
from pathlib import Path
from coreai.runtime import AIModelAssetMetadata
from coreai_torch import TorchConverter, get_decomp_table
model = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()))
program = torch.export.export(model.eval(), (torch.ones(2, 8),))
program = program.run_decompositions(get_decomp_table())
made = TorchConverter().add_exported_program(exported_program=program, input_names=["x"],
    output_names=["y"]).to_coreai()
made.save_asset(Path(sys.argv[1]), AIModelAssetMetadata())
"""
#: Opens an asset with nothing of this library between.
OPEN = """
import asyncio, sys
from pathlib import Path
from coreai.authoring import AIModelAsset
async def run():
    async with AIModelAsset.load(Path(sys.argv[1])).executable() as model:
        model.load_function("main")
asyncio.run(run())
"""
CALLS = 17_000  # more than the 16,384 outputs after which the process ends on macOS


def environment(core: str, folder: Path, *others: str) -> Path:
    """The Python of an environment with this coreai-core; all the rest is this environment's."""
    venv.create(folder / core, with_pip=True)
    python = folder / core / "bin" / "python"
    for options in ([f"coreai-core=={core}"], *(["--no-deps", other] for other in others)):
        subprocess.run([python, "-m", "pip", "install", "-q", *options], check=True)
    (site,) = (folder / core).glob("lib/python*/site-packages")
    (site / "zz_rest.pth").write_text(sysconfig.get_paths()["purelib"])
    return python


def answer(python: Path, code: str, *arguments: str) -> subprocess.CompletedProcess:
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "mlprogram" / "src")])}
    command = [python, "-c", code, *arguments]
    return subprocess.run(
        command, env=os.environ | paths, capture_output=True, text=True, check=False
    )


def tiny(folder: Path, **recipe) -> Path:
    """A bundle of a tiny model with random weights, its assets beside its packages."""
    checkpoint = write_checkpoint(tiny_model("llama"), folder / "checkpoint")
    made = convert(str(checkpoint), out=folder / "made", context=32, prefill=8, **recipe)
    add_assets(made)
    return made.path


def opened(pythons: dict[str, Path], folder: Path) -> list[dict]:
    """Tokens of assets written here by each coreai-core, beside the executor's."""
    rows = []
    for form, recipe in FORMS.items():
        made = tiny(folder / form, **recipe)
        want = Session(made, "fp16", "mil").generate(prompt(11), max_tokens=16).token_ids
        for core, python in pythons.items():
            done = answer(python, GENERATE, str(made), json.dumps(prompt(11)))
            found = json.loads(done.stdout.splitlines()[-1]) if not done.returncode else []
            equal = sum(a == b for a, b in zip(found, want, strict=False))
            rows.append({"form": form, "opened_by": core, "tokens": len(want), "equal": equal})
            print(rows[-1], flush=True)
    return rows


def damaged(folder: Path) -> dict[str, int]:
    """What becomes of 300 damaged copies: an error of this library, or the same numbers."""
    sound, counts = tiny(folder), Counter(error=0, same=0, other=0)
    hidden = np.linspace(-1, 1, 64, dtype=np.float16).reshape(1, 64, 1, 1)

    def logits(made: Path) -> list:
        Bundle.open(made)
        with patch.dict(os.environ, ANE_BOOK_CACHE=str(folder / "cache")):
            backend = CoreAIBackend()
            loaded = backend.load(made / "head.mlpackage", "decode")
        found = loaded.predict({"hidden": hidden})["logits_0"].tolist()
        backend.close()
        return found

    want, kinds = logits(sound), sorted(KINDS)
    for number in range(300):
        shutil.copytree(sound, folder / "damaged")
        KINDS[kinds[number % len(kinds)]](folder / "damaged", Random(number))
        try:
            counts["same" if logits(folder / "damaged") == want else "other"] += 1
        except AneBookError:
            counts["error"] += 1
        shutil.rmtree(folder / "damaged")
    return dict(counts)


def calls(folder: Path) -> int:
    """How many calls of one output this process outlives, CALLS being enough."""
    backend = CoreAIBackend()
    loaded = backend.load(tiny(folder) / "head.mlpackage", "decode")
    hidden = np.zeros((1, 64, 1, 1), np.float16)
    for _ in range(CALLS):
        loaded.predict({"hidden": hidden})
    backend.close()
    return CALLS


def assets() -> dict:
    """Assets by all versions of coreai-core, of coreai-torch 0.4.0, damaged, and called long."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        pythons = {
            core: environment(core, folder, *["coreai-torch==0.4.0"] * (core == CORES[0]))
            for core in CORES
        }
        rows = opened(pythons, folder)
        old = folder / "old.aimodel"
        answer(pythons[CORES[0]], CONVERT, str(old)).check_returncode()
        statuses = {core: answer(python, OPEN, str(old)).returncode for core, python in
                    pythons.items()}  # fmt: skip
        return {
            "written_by": version("coreai-core"),
            "opened": rows,
            "of_coreai_torch_0.4.0": statuses,
            "damaged": damaged(folder / "damage"),
            "calls": calls(folder / "calls"),
        }
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
    "tokens_fp16": partial(token_rows, "fp16"),
    "families": families,
    "op_tests": lambda: (
        {"files": list(op_tests.FILES)} | op_tests.run(op_tests.FILES, "-n", "2")
    ),
    "assets": assets,
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
