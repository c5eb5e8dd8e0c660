"""Tiny random Privacy Filters of `transformers`, and their folders."""

from pathlib import Path

from _tiny import write_checkpoint
import torch

YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "truncate": False}

#: Line ends, signs of several bytes, and one that a terminal would obey.
TEXT = "Ann Lee, ann@example.org; zażółć 🙂🙂\r\n\tcall\x00 +48 600 100 200, é" * 4

#: Odd on purpose: one KV head, an expert more than a token takes, a band of one, plain RoPE.
SIZES = {
    "usual": {
        "num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 5,
        "rope_parameters": YARN | {"original_max_position_embeddings": 32},
    },
    "odd": {
        "hidden_size": 96, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 24,
        "num_hidden_layers": 1, "num_local_experts": 5, "sliding_window": 16, "vocab_size": 263,
        "rope_parameters": YARN | {"original_max_position_embeddings": 64, "factor": 32.0},
        "id2label": {0: "O", 1: "B-name", 2: "I-name", 3: "E-name", 4: "S-name"},
    },
    "narrow": {
        "num_attention_heads": 2, "num_key_value_heads": 2, "sliding_window": 1,
        "num_hidden_layers": 3, "num_experts_per_tok": 1, "swiglu_limit": 1.5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
    },
}  # fmt: skip
COMMON = {
    "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 16,
    "num_local_experts": 8, "num_experts_per_tok": 4, "vocab_size": 257,
    "max_position_embeddings": 1024, "pad_token_id": None, "eos_token_id": None,
}  # fmt: skip


def tiny_tagger(size: str, **changes):
    """A random `transformers` tagger, fp16-exact weights, float32, evaluation mode."""
    from transformers import OpenAIPrivacyFilterConfig, OpenAIPrivacyFilterForTokenClassification

    torch.manual_seed(0)
    config = OpenAIPrivacyFilterConfig(**COMMON | SIZES[size] | changes)
    model = OpenAIPrivacyFilterForTokenClassification(config).eval().requires_grad_(False)
    with torch.no_grad():
        for name, value in model.named_parameters():
            bias = value.dim() == 1 or name.endswith("_bias")
            value.add_(torch.randn_like(value) * 0.2) if bias else value.mul_(5.0)
            if "sinks" in name:
                value.mul_(5.0)  # large enough to be missed
            value.copy_(value.half().float())
    return model


def write_tagger(model, folder: Path) -> Path:
    """Save a model as Hugging Face does, its tokenizer a token a byte."""
    return write_checkpoint(model, folder)
