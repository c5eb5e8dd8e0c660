"""One layer of SmolLM2 through Core AI and through Core ML, beside PyTorch; no Mac.

Core AI's Python packages are no part of this library's environment: they are in beta, and pin what
they need. Beside the library they run in one of its own:

    python -m venv other && other/bin/pip install -e mlprogram -e . coreai-torch
    other/bin/python research/measurements/core_ai.py

On Linux `coreai-core` runs a model on the CPU and takes no options: nothing here is about an ANE.
"""

import asyncio
from datetime import date
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
import sys
from tempfile import TemporaryDirectory
from time import perf_counter
import warnings

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from _common import MODEL, record, weights_file
from ane_book import MLProgram
from ane_book.conversion.write.lowering import lower
from ane_book.conversion.write.program import PackageWriter
from ane_book.host import causal_mask
from ane_book.models import find, read_config
from ane_book.models.base.decoder import block_weights
from ane_book.weights import open_source
import numpy as np
import torch

LAYER, SLOTS, USED = 11, 128, 40  # layer, slots of the cache, those in use
OUTPUTS = ("hidden_out", "new_keys", "new_values")
ROUNDS = 20


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


def by_core_ml(config, weights, inputs, precision: str, folder: Path) -> tuple[dict, dict]:
    """(outputs, facts) of the block as an ML Program on the book's executor."""
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
    program = MLProgram(folder / "block.mlpackage", precision=precision)
    given = {name: value.numpy() for name, value in inputs.items()}
    outputs = program.predict(given)
    facts = {"operations": len(program.operations), "ms": fastest(lambda: program.predict(given))}
    return outputs, facts


async def by_core_ai(block, inputs, precision: str, folder: Path) -> tuple[dict, dict]:
    """The same through torch.export, coreai-torch and coreai-core's runtime."""
    from coreai.runtime import NDArray
    import coreai_torch

    dtype = torch.float16 if precision == "fp16" else torch.float32
    block, given = block.to(dtype), tuple(value.to(dtype) for value in inputs.values())
    exported = torch.export.export(block, args=given)
    exported = exported.run_decompositions(coreai_torch.get_decomp_table())
    converter = coreai_torch.TorchConverter().add_exported_program(
        exported, input_names=list(inputs), output_names=list(OUTPUTS)
    )
    asset = converter.to_coreai().save_asset(folder / "block.aimodel")
    counts = asset.summary().operation_distribution
    arrays = {name: NDArray(x.numpy()) for name, x in zip(inputs, given, strict=True)}
    async with asset.executable() as model:
        function = model.load_function("main")
        found = await function(arrays)
        outputs = {name: found[name].numpy().astype(np.float32) for name in OUTPUTS}
        best = float("inf")
        for _ in range(ROUNDS):
            start = perf_counter()
            await function(arrays)
            best = min(best, perf_counter() - start)
    return outputs, {"operations": dict(counts), "ms": 1e3 * best}


def compare(outputs: dict, want: dict) -> dict[str, float]:
    """Cosine and largest difference over the largest number, the worse of all outputs."""
    cosines, gaps = [], []
    for name, right in want.items():
        a, b = (np.asarray(x, np.float64).ravel() for x in (outputs[name], right))
        cosines.append(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
        gaps.append(np.abs(a - b).max() / np.abs(b).max())
    return {"cosine": float(min(cosines)), "difference": float(max(gaps))}


def main() -> None:
    if not find_spec("coreai_torch"):
        print("Core AI is not installed here; the record stays as it is. " + __doc__)
        return
    warnings.filterwarnings("ignore")
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
        for precision in ("fp32", "fp16"):
            with TemporaryDirectory() as name, torch.no_grad():
                folder = Path(name)
                ml = by_core_ml(config, weights, inputs, precision, folder)
                ai = asyncio.run(by_core_ai(block, inputs, precision, folder))
                block.float()
            for path, (outputs, facts) in (("Core ML", ml), ("Core AI", ai)):
                row = {"path": path, "tokens": tokens, "precision": precision}
                rows.append(row | compare(outputs, want) | facts)
                print({key: value for key, value in rows[-1].items() if key != "operations"})
    packages = ("coreai-core", "coreai-torch", "coremltools", "torch")
    versions = {name: version(name) for name in packages}
    result = {"model": MODEL, "layer": LAYER, "slots": SLOTS, "used": USED, "rows": rows}
    record("core_ai", {"date": date.today().isoformat(), "versions": versions} | result)


if __name__ == "__main__":
    main()
