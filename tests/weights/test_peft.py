"""Adapters' folders: what is read of them, and what is refused by the name of its field."""

from collections.abc import Callable
import json
import math

from _adapters import write_adapter
from ane_book.errors import InvalidWeights, UnsupportedModel, WeightsNotFound
from ane_book.weights.peft import read_peft
import pytest
from safetensors.torch import load_file, save_file
import torch

Q = "model.layers.0.self_attn.q_proj"


@pytest.fixture
def adapter(tiny, tmp_path):
    """`adapter(**fields)`: write one, with these fields, and return its folder."""
    return lambda **fields: write_adapter(tiny("llama")[0], tmp_path / "adapter", **fields)


def change(folder, edit) -> None:
    """Change an adapter's tensors by a function of their dict."""
    tensors = load_file(folder / "adapter_model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "adapter_model.safetensors")


def test_pairs_and_scale(adapter):
    found = read_peft(adapter(r=4, alpha=6.0))
    assert (found.r, found.scale, len(found.pairs)) == (4, 1.5, 3 * 7)
    a, b = found.pairs[Q]
    assert a.shape == (4, 64) and b.shape == (64, 4) and str(a.dtype) == "float32"
    assert read_peft(adapter(r=4, alpha=6.0, use_rslora=True)).scale == 6 / math.sqrt(4)
    some = read_peft(adapter(targets=["q_proj", "up_proj"], layers=[2])).pairs
    assert list(some) == ["model.layers.2.mlp.up_proj", "model.layers.2.self_attn.q_proj"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_read_as_they_are(dtype, adapter):
    folder, key = adapter(), f"base_model.model.{Q}.lora_A.weight"
    exact = load_file(folder / "adapter_model.safetensors")[key].to(dtype)
    change(folder, lambda tensors: tensors.update({n: t.to(dtype) for n, t in tensors.items()}))
    assert (read_peft(folder).pairs[Q][0] == exact.float().numpy()).all()


#: Fields that make of an adapter something else than B (A x) beside whole matrices.
REFUSED = {
    "use_dora": True, "use_qalora": True, "use_bdlora": True, "lora_bias": True,
    "fan_in_fan_out": True, "use_mblora": True,
    "modules_to_save": ["lm_head"], "trainable_token_indices": [3],
    "target_parameters": ["mlp.experts.gate_up_proj"], "layer_replication": [[0, 2], [1, 3]],
    "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"q_proj": 2},
    "alora_invocation_tokens": [1, 2], "bias": "all", "init_lora_weights": "pissa",
    "peft_type": "LOHA", "made_up": 0.5, "arrow_config": {"top_k": 2},
    "monteclora_config": {"samples": 4},
}  # fmt: skip

#: What PEFT 0.19 writes beside the fields of `write_adapter`.
WRITTEN = {
    "alora_invocation_tokens": None, "alpha_pattern": {}, "arrow_config": None,
    "auto_mapping": {"base_model_class": "LlamaForCausalLM"}, "base_model_name_or_path": "llama",
    "corda_config": None, "ensure_weight_tying": False, "eva_config": None,
    "exclude_modules": None, "fan_in_fan_out": False, "inference_mode": True,
    "init_lora_weights": True, "layer_replication": None, "layers_pattern": None,
    "loftq_config": {}, "lora_bias": False, "lora_dropout": 0.05, "lora_ga_config": None,
    "megatron_config": None, "megatron_core": "megatron.core", "peft_version": "0.19.1",
    "qalora_group_size": 16, "revision": None, "target_parameters": None,
    "trainable_token_indices": None, "use_bdlora": None, "use_qalora": False,
}  # fmt: skip


def test_what_peft_writes_of_plain_lora_is_read_and_what_is_more_is_refused_by_name(adapter):
    assert len(read_peft(adapter(**WRITTEN)).pairs) == 3 * 7
    for name, value in REFUSED.items():
        with pytest.raises(UnsupportedModel, match=f"adapter_config.json: {name}"):
            read_peft(adapter(**WRITTEN | {name: value}))
    config = adapter() / "adapter_config.json"
    fields = json.loads(config.read_text())
    del fields["peft_type"]
    config.write_text(json.dumps(fields))
    with pytest.raises(UnsupportedModel, match=r"adapter_config.json: peft_type"):
        read_peft(config.parent)


def test_damaged_files(adapter):
    folder = adapter()
    file, config = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    whole, fields = file.read_bytes(), config.read_text()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InvalidWeights, match="cut short or not a safetensors file"):
        read_peft(folder)
    file.unlink()
    with pytest.raises(WeightsNotFound, match=r"adapter_model\.safetensors is missing"):
        read_peft(folder)
    file.write_bytes(whole)
    for wrong in ("{", "[]", json.dumps(json.loads(fields) | {"r": "8"})):
        config.write_text(wrong)
        with pytest.raises((InvalidWeights, UnsupportedModel), match=r"adapter_config\.json"):
            read_peft(folder)
    config.unlink()
    with pytest.raises(WeightsNotFound, match=r"adapter_config\.json is missing"):
        read_peft(folder)


A, B = (f"base_model.model.{Q}.lora_{part}.weight" for part in "AB")


def without(*names: str) -> Callable[[dict], object]:
    return lambda tensors: [tensors.pop(n) for n in [*tensors] if any(part in n for part in names)]


def of_another_shape(tensors: dict) -> None:
    tensors[A] = torch.ones(3, 64)


#: By what is said: what is done to the tensors.
MISFITS = {
    "needed are A": without(B),
    "needed are A .4, in.": of_another_shape,
    "has no tensors": without("."),
}  # fmt: skip


@pytest.mark.parametrize("said", MISFITS)
def test_tensors_that_are_no_pairs_of_the_rank(said, adapter):
    folder = adapter()
    change(folder, MISFITS[said])
    with pytest.raises(InvalidWeights, match=said):
        read_peft(folder)


@pytest.mark.parametrize("name", ["lm_head.lora_A.weight", f"{Q}.lora_magnitude_vector"])
def test_a_tensor_of_something_else(name, adapter):
    folder = adapter()
    change(folder, lambda tensors: tensors.update({name: torch.ones(2, 2)}))
    with pytest.raises(UnsupportedModel, match=f"tensor {name} .* is no A or B of a matrix"):
        read_peft(folder)
