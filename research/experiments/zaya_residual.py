"""What half precision does to the hidden state of a deep ZAYA, which `transformers` keeps in fp32.

    python research/experiments/zaya_residual.py

Forty layers with random weights of several kinds, converted, and run by the executor as packages
declare it (fp16) and in fp32. Written to research/measurements/zaya_residual.json: how large the
hidden state is, the step of fp16 there, how far vectors turn, and how many tokens choose another
expert. No Mac is needed, and none was asked.
"""

import json
from pathlib import Path
import platform
import tempfile

from ane_book.conversion.build import BundleBuilder
from ane_book.conversion.recipe import make_recipe
from ane_book.host import causal_mask
from ane_book.models import read_config
from ane_book.weights.random import RandomSource
from mlprogram import MLProgram
import numpy as np

LAYERS, TOKENS = 40, 48
CONFIG = {
    "model_type": "zaya", "vocab_size": 512, "hidden_size": 128, "num_hidden_layers": LAYERS,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "num_experts": 8,
    "moe_intermediate_size": 128, "router_hidden_size": 32, "cca_time0": 2, "cca_time1": 2,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
}  # fmt: skip
OUT = Path(__file__).parents[1] / "measurements" / "zaya_residual.json"


class Source(RandomSource):
    """Weights of one kind: `grown` is the mean of the scale of the hidden state, `outlier` what
    every layer adds to three channels of it, by a bias."""

    def __init__(self, grown: float, outlier: float):
        super().__init__(CONFIG)
        self.grown, self.outlier = grown, outlier

    def tensor(self, name: str) -> np.ndarray:
        noise = super().tensor(name)
        noise -= 1.0 if noise.mean() > 0.5 else 0.0
        noise /= np.float32(0.02)  # N(0, 1)
        kind = name.rsplit(".", 1)[-1]
        if kind.endswith("_scale") or kind == "temp" or name.endswith("norm.weight"):
            return (self.grown if kind == "residual_scale" else 1.0) + np.float32(0.05) * noise
        if kind == "hidden_states_bias":
            noise *= np.float32(0.1)
            noise[:3] = self.outlier
            return noise
        if noise.ndim == 1:
            return noise * np.float32(0.1)
        return noise / np.float32(np.sqrt(np.prod(noise.shape[noise.ndim > 2 :][1:] or 1)))


def values(path: Path, config, inputs: dict, precision: str) -> dict[str, np.ndarray]:
    """Hidden state and choices of every layer, and the logits, of one prefill call."""
    found = {}
    program = MLProgram(path / "layers_00-40.mlpackage", "prefill", precision=precision)
    for name, array in program.trace({n: inputs[n] for n in program.inputs}):
        layer = name.removeprefix("layer").split("_")[0]
        if name == "hidden_out" or name.endswith("_hidden_out"):
            layer = layer if name != "hidden_out" else str(LAYERS - 1)
            found[f"hidden {layer}"] = array[0, :, 0].astype(np.float64)
        elif "gates" in name and array.shape[1] == config.num_experts:
            found[f"gates {layer}"] = array[0, :, 0]
    head = MLProgram(path / "head.mlpackage", "prefill", precision=precision)
    last = found[f"hidden {LAYERS - 1}"][None, :, None]
    logits = head.predict({"hidden": last.astype(np.float16 if precision == "fp16" else "f4")})
    return found | {"logits": logits["logits_0"][0, :, 0].astype(np.float64)}


def feeds(bundle, dtype: type) -> dict[str, np.ndarray]:
    """What a first call takes."""
    config, manifest = bundle.config, bundle.manifest
    ids = np.arange(1, TOKENS + 1) * 7919 % config.vocab_size
    hidden = bundle.embedding[ids].T[None, :, None]
    given = manifest.host.tables(np.arange(TOKENS), manifest.context)
    given |= {"mask": causal_mask(0, TOKENS, manifest.context), "hidden": hidden}
    for name, type_ in manifest.packages[0].functions["prefill"].inputs.items():
        given.setdefault(name, np.zeros(type_.shape))
    return {name: np.ascontiguousarray(array, dtype) for name, array in given.items()}


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(axis=0) / np.sqrt((a * a).sum(axis=0) * (b * b).sum(axis=0))


def measure(grown: float, outlier: float) -> dict:
    source = Source(grown, outlier)
    config = read_config(source.config())
    recipe = make_recipe(config, kv="host", context=64, prefill=TOKENS, partition="whole")
    with tempfile.TemporaryDirectory() as folder:
        bundle = BundleBuilder("deep", source, config, recipe).build(Path(folder) / "b", "")
        full, half = (
            values(bundle.path, config, feeds(bundle, dtype), precision)
            for precision, dtype in (("fp32", np.float32), ("fp16", np.float16))
        )
    taken = {k: (full[k].argmax(0), full[k].max(0) > 0) for k in full if k.startswith("gates")}
    others = {k: (half[k].argmax(0), half[k].max(0) > 0) for k in taken}
    same = np.array([
        (taken[k][1] == others[k][1]) & ((taken[k][0] == others[k][0]) | ~taken[k][1])
        for k in taken
    ])  # fmt: skip
    kept = same.all(axis=0)  # tokens that take what they take in fp32, in every layer
    layers = [0, 9, 19, 29, 39]
    largest = [float(np.abs(full[f"hidden {i}"]).max()) for i in layers]
    turned = cosines(full["logits"], half["logits"])
    return {
        "grown": grown,
        "outlier": outlier,
        "layers": layers,
        "rms": [float(np.sqrt((full[f"hidden {i}"] ** 2).mean())) for i in layers],
        "largest": largest,
        "step": [float(np.spacing(np.float16(x))) for x in largest],
        "cosine_hidden": [
            float(cosines(full[f"hidden {i}"], half[f"hidden {i}"])[kept].min()) for i in layers
        ],
        "choices": int(same.size),
        "other_choices": int((~same).sum()),
        "tokens": TOKENS,
        "tokens_with_other_choices": int((~kept).sum()),
        "cosine_logits_same_choices": float(turned[kept].min()),
        "cosine_logits_all": float(turned.min()),
        "finite": bool(np.isfinite(half["logits"]).all()),
    }


if __name__ == "__main__":
    machine, rows = f"{platform.system()} {platform.machine()}, the book's executor", []
    for kind in [(1.0, 0.0), (1.03, 0.0), (1.0, 60.0), (1.03, 60.0)]:
        rows.append(measure(*kind))
        print(json.dumps(rows[-1]), flush=True)
        OUT.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
