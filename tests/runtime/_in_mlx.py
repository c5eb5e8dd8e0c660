"""Tiny checkpoints in mlx-lm, and what it answers after a cache."""

import json
from pathlib import Path

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache, save_prompt_cache
from mlx_lm.utils import load_model
import numpy as np

MIXERS = {"linear_attention": "mamba", "full_attention": "attention"}


def load(folder: Path):
    """The model of a checkpoint, whose config.json mlx-lm reads as it was before transformers 5."""
    fields = json.loads((folder / "config.json").read_text())
    rope, own = fields.get("rope_parameters") or {}, {}
    if "full_attention" in rope:
        own["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = rope["full_attention"]
    own |= {name: rope[name] for name in ("rope_theta", "partial_rotary_factor") if name in rope}
    if rope.get("rope_type", "default") != "default":
        own["rope_scaling"] = rope | {"type": rope["rope_type"]}
    family = fields["model_type"]
    if family == "gemma3_text":
        own["sliding_window_pattern"] = 2
    elif family == "granitemoehybrid":
        own["layer_types"] = [MIXERS[kind] for kind in fields["layer_types"]]
        own["intermediate_size"] = fields["shared_intermediate_size"]
        own["position_embedding_type"] = fields.get("position_embedding_type") or "nope"
        own["time_step_limit"] = 0.0, 1e30
    elif family == "gemma4_text":
        own = {"global_head_dim": 20, "num_global_key_value_heads": 1}
        by_type = fields["rope_parameters"]  # of 9 numbers 4 pairs turn there, and 5 in mlx-lm
        own["rope_parameters"] = by_type | {"full_attention": rope | {"partial_rotary_factor": 0.4}}
    elif family == "exaone4":
        own |= {"sliding_window_pattern": "GLG", "rope_scaling": None}
    elif family == "ministral3":
        own = {}
    elif family == "lfm2":
        own["block_dim"] = fields["hidden_size"]
    elif family == "qwen3_moe":
        own["num_experts"] = fields["num_local_experts"]
    elif family == "qwen3_5_text":
        text = fields | {"full_attention_interval": 2, "tie_word_embeddings": False}
        own |= {"model_type": "qwen3_5", "text_config": text}
    return load_model(folder, model_config=own)[0]


def saved(model, ids: list[int], file: Path, dtype=mx.float32) -> None:
    """Save mlx-lm's own cache of tokens: a chunk of them, and the last four one by one."""
    cache = make_prompt_cache(model)
    for part in [ids[:-4], *([token] for token in ids[-4:])]:
        if part:
            model(mx.array([part]), cache=cache)
    for own in cache if dtype != mx.float32 else ():
        own.keys, own.values = own.keys.astype(dtype), own.values.astype(dtype)
    save_prompt_cache(str(file), cache)


def answered(model, cache, token: int, tokens: int) -> tuple[list[int], np.ndarray]:
    """The tokens that it takes to be likeliest after a cache and one token, and all logits."""
    answer, logits = [token], []
    while len(answer) <= tokens:
        logits.append(np.array(model(mx.array([answer[-1:]]), cache=cache)[0, -1]))
        answer.append(int(logits[-1].argmax()))
    return answer[1:], np.array(logits)
