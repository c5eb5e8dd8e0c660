"""LoRA adapters with random numbers, in the form that PEFT writes, and models merged with them."""

from copy import deepcopy
import json
from pathlib import Path
import random

from safetensors.torch import save_file
import torch
from torch import nn

#: The matrices of a layer that adapters are made for; a family has these, or two of them fused.
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj",
           "qkv_proj", "gate_up_proj")  # fmt: skip


def matrices(model) -> dict[str, nn.Linear]:
    """The matrices of all layers by name, such as model.layers.0.self_attn.q_proj."""
    return {n: m for n, m in model.named_modules() if n.rpartition(".")[2] in MODULES}


def write_adapter(
    model,
    folder: Path,
    seed: int = 0,
    r: int = 4,
    alpha: float = 8.0,
    targets: list[str] | None = None,
    layers: list[int] | None = None,
    **fields,
) -> Path:
    """Write an adapter with random A and B for a `transformers` model.

    targets: names of matrices, by default all. layers: those that have it, by default all. fields:
    more of adapter_config.json.
    """
    generator = torch.Generator().manual_seed(seed)
    names = {name.rpartition(".")[2] for name in matrices(model)}
    targets = sorted(names) if targets is None else targets
    tensors = {}
    for name, matrix in matrices(model).items():
        if name.rpartition(".")[2] not in targets:
            continue
        if layers is not None and int(name.split(".")[2]) not in layers:
            continue
        out, into = matrix.weight.shape
        for which, shape in (("A", (r, into)), ("B", (out, r))):
            array = torch.randn(shape, generator=generator) * 0.05
            tensors[f"base_model.model.{name}.lora_{which}.weight"] = array
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": r, "lora_alpha": alpha,
        "target_modules": targets, "layers_to_transform": layers, "bias": "none",
        "use_rslora": False, "use_dora": False, "modules_to_save": None, "rank_pattern": {},
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config | fields))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def random_adapter(model, folder: Path, seed: int, R: int) -> Path:
    """Write an adapter whose rank, scale, matrices and layers are drawn, too; rank at most R."""
    draw = random.Random(seed)
    names = sorted({name.rpartition(".")[2] for name in matrices(model)})
    targets = draw.sample(names, draw.randint(1, len(names)))
    count = model.config.num_hidden_layers
    layers = draw.choice([None, sorted(draw.sample(range(count), draw.randint(1, count)))])
    return write_adapter(
        model, folder, seed, r=draw.randint(1, R), alpha=draw.choice([1, 4.0, 7.5, 32]),
        targets=targets, layers=layers, use_rslora=draw.random() < 0.3,
    )  # fmt: skip


def merged(model, folder: Path):
    """A copy of a model with an adapter in its weights, float32: W + scale * B A."""
    from safetensors.torch import load_file

    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    r = config["r"]
    scale = config["lora_alpha"] / (r**0.5 if config["use_rslora"] else r)
    copy = deepcopy(model)
    for name, matrix in matrices(copy).items():
        key = f"base_model.model.{name}.lora_{{}}.weight"
        if key.format("A") in tensors:
            product = tensors[key.format("B")].double() @ tensors[key.format("A")].double()
            matrix.weight.copy_((matrix.weight.double() + scale * product).float())
    return copy
