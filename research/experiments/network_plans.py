"""Build five networks again, and lay published plans of them beside our reading of their ops.

    python research/experiments/network_plans.py CHECKOUT

CHECKOUT holds `results/residency/*.json` and `results/placement-*.json` of the repository
erwinzhang7/coreml-compute-placement, which publishes the plans. Its networks were converted from
pretrained models; here they have the same configuration and random weights, for no plan depends on
a weight's values. The ops must be those of the plan in number, order and type. Written is
`research/measurements/network_plans.json`.
"""

import argparse
import json
from pathlib import Path
import tempfile

from ane_book_pages.segmenter.networks import op_facts
from mlprogram.ane.placement.graph import GraphOp, read_ops
from mlprogram.package.reader import Package

ROOT = Path(__file__).resolve().parents[2]
PLANS = ROOT / "research/measurements/network_plans.json"
SOURCE = "erwinzhang7/coreml-compute-placement"
BATCH = 16
#: The name of a network here and there.
NETWORKS = {
    "bert": "bert", "mobilenet": "mobilenet", "resnet50": "resnet50",
    "siglip": "siglip-vision", "whisper": "whisper",
}  # fmt: skip
#: How the files of a chip begin, and the commits at which files were read.
CHIPS = {"m4-pro": "experiments", "m5-max": "m5max"}
COMMITS = {"plans": "6fc64c3c8a0e82b045e7c8aeb2bf2b8f29bcf71c",
           "shares": "80cdd6698d73cb7dd4fb8e694a645c9dc1325501"}  # fmt: skip


# --- the networks ---------------------------------------------------------------------------------


def built(name: str) -> list[GraphOp]:
    """The ops of a network, converted with random weights as its source converts it."""
    import coremltools as ct
    import numpy as np
    import torch

    model, shape, dtype = _model(name)
    example = torch.ones(shape, dtype=torch.int32) if dtype == np.int32 else torch.zeros(shape)
    with torch.no_grad():
        traced = torch.jit.trace(model.eval(), example, strict=False)
    converted = ct.convert(
        traced,
        inputs=[ct.TensorType(name="x", shape=shape, **({"dtype": dtype} if dtype else {}))],
        outputs=[ct.TensorType(name="embedding")],
        minimum_deployment_target=ct.target.macOS15,
        compute_precision=ct.precision.FLOAT16,
        skip_model_load=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        converted.save(f"{folder}/network.mlpackage")
        package = Package(f"{folder}/network.mlpackage")
        return read_ops(package, package.functions[package.default_function])


def _model(name: str) -> tuple:
    """A module, the shape of its input, and the input's dtype (None: as coremltools chooses)."""
    import numpy as np
    import transformers as tr

    eager, image = {"attn_implementation": "eager"}, (BATCH, 3, 224, 224)
    if name == "bert":
        model = tr.DistilBertModel(tr.DistilBertConfig(**eager))
        return _mean(model, "input_ids"), (BATCH, 128), np.int32
    if name == "whisper":
        sizes = {"d_model": 384, "encoder_layers": 4, "encoder_attention_heads": 6,
                 "encoder_ffn_dim": 1536, "decoder_layers": 1}  # fmt: skip
        model = tr.WhisperModel(tr.WhisperConfig(**sizes, **eager)).encoder
        return _mean(model, "input_features"), (BATCH, 80, 3000), np.float32
    if name == "siglip":
        model = tr.SiglipVisionModel(tr.SiglipVisionConfig(**eager))
        return _mean(model, "pixel_values"), image, None
    if name == "mobilenet":
        return _pooled(tr.MobileNetV2Model(tr.MobileNetV2Config())), image, np.float32
    return _pooled(tr.ResNetModel(tr.ResNetConfig())), image, np.float32


def _mean(model, key: str):
    """A module that gives the mean over positions of the last layer."""
    return _module(model, lambda x: model(**{key: x}).last_hidden_state.mean(dim=1))


def _pooled(model):
    """A module that gives the pooled features of an image."""
    return _module(model, lambda x: model(pixel_values=x).pooler_output.flatten(1))


def _module(model, forward):
    import torch

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            return forward(x)

    return Network()


# --- the plans ------------------------------------------------------------------------------------


def laid_beside(name: str, ops: list[GraphOp], folder: Path) -> dict:
    """A network's different ops with their shares on each chip, and their order."""
    paths = {
        chip: f"results/residency/{start}-{NETWORKS[name]}-CPU_AND_NE.json"
        for chip, start in CHIPS.items()
    }
    plans = {chip: json.loads((folder / path).read_text())["operations"]
             for chip, path in paths.items()}  # fmt: skip
    different, order = [], []
    for index, op in enumerate(ops):
        rows = {chip: plan[index] for chip, plan in plans.items()}
        entry = op_facts(op) | {"shares": {chip: row["cost"] for chip, row in rows.items()}}
        for chip, row in rows.items():
            assert row["operator"].split(".")[-1] == op.type, (name, chip, index)
            assert ("ANE" in row["supported"]) == (row["preferred"] == "ANE"), (name, chip, index)
        (device,) = {row["preferred"] for row in rows.values()}
        entry |= {"device": "cpu"} if device == "CPU" else {}
        if entry not in different:
            different.append(entry)
        order.append(different.index(entry))
    assert {len(plan) for plan in plans.values()} == {len(ops)}, name
    where = {chip: {"path": path, "commit": COMMITS["plans"]} for chip, path in paths.items()}
    return {"plans": where, "order": order, "ops": different}


def shares(folder: Path) -> list[dict]:
    """How much of each network's cost is on each device, by chip and allowed units."""
    found = []
    for chip in CHIPS:
        facts = json.loads((folder / f"results/placement-{chip}.json").read_text())
        ours = {f"{theirs}-b{BATCH}.mlpackage": name for name, theirs in NETWORKS.items()}
        found += [
            {"chip": chip, "os": facts["macos"], "network": ours[row["model"]],
             "units": row["units"], "ops": row["ops"], "by_cost": row["by_cost_fraction"]}
            for row in facts["rows"]
        ]  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path, help="The folder of the repository.")
    folder = parser.parse_args().checkout
    facts = {
        "what": "MLComputePlan of five networks at batch 16: the share of each op in the cost of "
        "the whole, and its device, with the CPU and the ANE allowed. `shares`: the devices by "
        "share of cost, for each setting of the compute units. Ops without a device are on the "
        "ANE. What the plan supports on the ANE is what it puts there, in all ten plans.",
        "source": SOURCE, "licence": "MIT", "grade": "measured",
        "tools": "coremltools 9.0, macOS 15 target, fp16", "shares_commit": COMMITS["shares"],
        "networks": {name: laid_beside(name, built(name), folder) for name in NETWORKS},
        "shares": shares(folder),
    }  # fmt: skip
    PLANS.write_text(json.dumps(facts) + "\n")
    print(PLANS.relative_to(ROOT))


if __name__ == "__main__":
    main()
