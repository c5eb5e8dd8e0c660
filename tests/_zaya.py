"""Tiny ZAYAs with random weights, made by `transformers`; nothing in them is 0 or 1 by chance."""

from collections.abc import Callable
from functools import cache

from _tiny import VOCABULARY, greedy, prompt, write_checkpoint
import ane_book
from ane_book.runtime import Session
import numpy as np
import torch

CONTEXT, PREFILL = 112, 8

COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "moe_intermediate_size": 48,
    "num_experts": 4,
    "router_hidden_size": 24,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": VOCABULARY - 1,
    "pad_token_id": None,
}

#: Values of one head, whose halves are half a head, and of three, whose second is of both; windows,
#: one of which is shorter than a chunk; convolutions that reach one token back, two, and three.
SIZES = {
    "usual": {},
    "odd": {
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "hidden_size": 96,
        "head_dim": 24,
        "num_experts": 6,
        "router_hidden_size": 20,
        "cca_time0": 3,
        "tie_word_embeddings": False,
        "rope_parameters": {
            "hybrid": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
        },
    },
    "sliding": {
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 3,
        "head_dim": 8,
        "num_experts": 3,
        "cca_time0": 1,
        "layer_types": ["hybrid", "hybrid_sliding"],
        "sliding_window": 9,
    },
}

#: What weights are multiplied by, so that every part has its say.
SCALES = {"router_mlp": 20.0, "conv": 1.0, "": 5.0}


def tiny_zaya(size: str, seed: int = 0, **changes):
    """A random `transformers` ZAYA, its numbers those of fp16, float32, evaluation mode."""
    from transformers import ZayaConfig, ZayaForCausalLM

    torch.manual_seed(seed)
    model = ZayaForCausalLM(ZayaConfig(**COMMON | SIZES[size] | changes))
    model = model.eval().requires_grad_(False)
    buffers = [(name, value) for name, value in model.named_buffers() if "inv_freq" not in name]
    for name, value in [*model.named_parameters(), *buffers]:
        kind, noise = name.rsplit(".", 1)[-1], torch.randn_like(value)
        if kind in ("temp", "balancing_biases"):  # of 0, and -1 for the class that is no expert
            value.copy_(noise * 0.2 + (1.0 if kind == "temp" else 0.0))
        elif value.dim() == 1:
            value.add_(noise * 0.2)
        elif "embed" in name:
            value.copy_(noise * 0.3)
        else:  # a router's choices far enough apart to tell a wrong one from a right one
            value.mul_(next(scale for part, scale in SCALES.items() if part in name))
        value.copy_(value.half().float())
    return model


def maker(tmp_path_factory, recipes: dict[str, dict], **common) -> Callable:
    """`make(name)` -> (transformers model, folder of its checkpoint, bundle), made once.

    recipes: what the conversion of each takes, named by its size and what may follow a comma;
    common: of all, beside context and prefill.
    """

    @cache
    def make(name: str):
        size = name.partition(",")[0]
        model, folder = tiny_zaya(size), tmp_path_factory.mktemp(size)
        checkpoint = write_checkpoint(model, folder / "checkpoint")
        recipe = {"context": CONTEXT, "prefill": PREFILL} | common | recipes[name]
        bundle = ane_book.convert(str(checkpoint), out=folder / "bundle", **recipe)
        return model, checkpoint, bundle

    return make


def continued(model, bundle) -> tuple[list[int], np.ndarray, np.ndarray]:
    """A prompt of 30 tokens and 64 greedy ones of `transformers`; the logits of all, (94, V), by
    `transformers` and by the bundle, which takes the prompt at once and the others one by one."""
    ids = greedy(model, prompt(30), 64)
    expected = model(torch.tensor([ids])).logits[0].numpy()
    session = Session(bundle, precision="fp32")
    found = np.vstack([session.logits(ids[:30]), *map(session.decode, ids[30:])])
    return ids, expected, found
