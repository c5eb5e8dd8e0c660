"""Tiny checkpoints of every family, made with random weights by `transformers`.

The weights are rounded to fp16 first, since that is what a package stores: both sides then compute
with the same numbers, and any difference is one of arithmetic.
"""

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
import torch

VOCABULARY = 257  # every byte, and the token that ends an answer

#: Odd on purpose: one KV head, heads that are not C / H wide, a vocabulary that does not divide.
TINY = {
    "llama": {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
    "qwen2": {"num_attention_heads": 6, "num_key_value_heads": 1, "hidden_size": 96},
    "qwen3": {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 32},
}
COMMON = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": VOCABULARY - 1,
    "pad_token_id": None,
}


def tiny_model(family: str, **changes):
    """A random `transformers` model of a family, fp16-exact weights, float32, evaluation mode."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(family, **COMMON | TINY[family] | changes)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.dim() == 1:  # norms and biases start as ones and zeros
                value.add_(torch.randn_like(value) * 0.2)
            elif "embed" not in name:
                value.mul_(3.0)  # logits far enough apart to tell a wrong token from a right one
            value.copy_(value.half().float())
    return model


def write_checkpoint(model, folder: Path) -> Path:
    """Save a model as Hugging Face does: config.json, safetensors, a byte-level tokenizer."""
    model.save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
