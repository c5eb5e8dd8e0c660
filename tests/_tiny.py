"""Tiny checkpoints of every family, made with random weights by `transformers`.

The weights are rounded to fp16 first, since that is what a package stores: both sides then compute
with the same numbers, and any difference is one of arithmetic.
"""

import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
import torch

VOCABULARY = 257  # every byte, and the token that ends an answer

#: HunYuan's scaling but for what it takes its name from.
ALPHA = {"rope_theta": 10000.0, "rope_type": "dynamic", "factor": 1.0}

#: OLMo 3's, which stretches its full layers alone.
BY_TYPE = {
    "full_attention": {
        "rope_theta": 500000.0,
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 16,
    },
    "sliding_attention": {"rope_theta": 500000.0, "rope_type": "default"},
}

#: Ministral 3's; queries grow beyond the original context, which these models do not reach.
MINISTRAL3 = {
    "rope_theta": 10000.0,
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 128,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}

#: Odd on purpose: one KV head, heads that are not C / H wide, a vocabulary that does not divide.
TINY = {
    "llama": {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
    "mistral": {
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 24,
        "sliding_window": 120,
    },
    "qwen2": {"num_attention_heads": 6, "num_key_value_heads": 1, "hidden_size": 96},
    "qwen3": {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 32},
    "qwen3_moe": {
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 20,
        "moe_intermediate_size": 40,
        "num_experts": 7,
        "num_experts_per_tok": 3,
        "mlp_only_layers": [1],
    },
    "phi3": {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 128,
        "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.75},  # 24 of 32
    },
    "hunyuan_v1_dense": {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "rope_parameters": ALPHA | {"alpha": 1000.0},
    },
    "gemma3_text": {
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 24,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": 21,
        "query_pre_attn_scalar": 20,
    },
    "gemma4_text": {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 12,
        "global_head_dim": 20,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "num_hidden_layers": 7,
        "layer_types": [
            "sliding_attention", "full_attention", "sliding_attention", "sliding_attention",
            "full_attention", "sliding_attention", "full_attention",
        ],
        "sliding_window": 21,
        "num_kv_shared_layers": 4,
        "use_double_wide_mlp": True,
        "hidden_size_per_layer_input": 10,
        "vocab_size_per_layer_input": VOCABULARY,
        "final_logit_softcapping": 0.375,
        "rope_parameters": {
            "full_attention": {
                "rope_theta": 1000.0, "rope_type": "proportional", "partial_rotary_factor": 0.45,
            },
            "sliding_attention": {"rope_theta": 500.0, "rope_type": "default"},
        },
    },
    "granite": {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "embedding_multiplier": 12.0,
        "attention_multiplier": 0.07,
        "residual_multiplier": 0.2197265625,  # 0.22, as fp16 has it
        "logits_scaling": 0.8,
    },
    "olmo2": {"num_attention_heads": 4, "num_key_value_heads": 2},
    "lfm2": {
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "layer_types": ["conv", "full_attention", "conv"],
        "conv_L_cache": 4,
        "block_multiple_of": 24,
        "intermediate_size": 150,  # of which two thirds are 100, and those rounded up 120
    },
    "lfm2_moe": {
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "layer_types": ["conv", "full_attention", "conv"],
        "conv_L_cache": 4,
        "moe_intermediate_size": 40,
        "num_dense_layers": 1,
        "num_experts": 7,
        "num_experts_per_tok": 3,
        "routed_scaling_factor": 1.5,
    },
    "qwen3_5_text": {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 12,
        "linear_value_head_dim": 20,
        "linear_conv_kernel_dim": 3,
        "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.5},
    },
    "smollm3": {
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 20,
        "no_rope_layers": [0, 1, 0],
    },
    "olmo3": {
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": 19,
        "rope_parameters": BY_TYPE,
    },
    "ministral": {
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "head_dim": 20,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "sliding_window": 23,
    },
    "ministral3": {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "rope_parameters": MINISTRAL3,
    },
    "exaone4": {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "sliding_window": 17,
    },
    "glm4": {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.75},  # 18 of 24
    },
    "granitemoehybrid": {
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "shared_intermediate_size": 88,
        "num_local_experts": 0,
        "mamba_n_heads": 8,
        "mamba_n_groups": 2,
        "mamba_d_state": 20,
        "mamba_d_conv": 3,
        "embedding_multiplier": 12.0,
        "attention_multiplier": 0.7,  # scores that tell tokens apart
        "residual_multiplier": 0.2197265625,  # 0.22, as fp16 has it
        "logits_scaling": 0.8,
    },
}  # fmt: skip

#: A dense family, one with windows, one with a memory and one of mixtures, for what is done alike
#: to all.
REPRESENTATIVES = ("llama", "gemma3_text", "qwen3_5_text", "qwen3_moe")

#: One layer, one KV head, heads of 96: as no model is.
ODD = {
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "hidden_size": 192,
    "head_dim": 96,
}

#: Families of which `transformers` runs no model without a layer of attention.
MIXED = ("granitemoehybrid", "lfm2", "lfm2_moe", "qwen3_5_text")

#: Families whose layers are mixtures of experts.
ROUTED = ("lfm2_moe", "qwen3_moe")

#: Norms of Gemma 4 that training makes small: all that scales scores, and what layers make of their
#: own inputs, which are fp16 in a bundle.
SMALL = ("q_norm.weight", "post_per_layer_input_norm.weight")

YARN = {
    "rope_theta": 10000.0,
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}

#: Some families' own way to stretch a context, which `ODD` has beside it; the others have `YARN`.
SCALED = {
    "llama": {
        "rope_theta": 10000.0,
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "mistral": {"rope_theta": 10000.0, "rope_type": "linear", "factor": 2.0},
    "qwen2": {"rope_theta": 1000000.0},
    "qwen3_moe": {"rope_theta": 10000.0, "rope_type": "linear", "factor": 2.0},
    "hunyuan_v1_dense": ALPHA | {"alpha": 50.0},
    "gemma3_text": {
        "full_attention": {"rope_theta": 1000000.0, "rope_type": "linear", "factor": 2.0},
        "sliding_attention": {"rope_theta": 5000.0, "rope_type": "default"},
    },
    "gemma4_text": {
        "full_attention": {"rope_theta": 1000.0, "rope_type": "proportional", "factor": 2.0},
        "sliding_attention": {"rope_theta": 500.0, "rope_type": "default"},
    },
    "granite": {"rope_theta": 10000.0, "rope_type": "linear", "factor": 2.0},
    "lfm2": {"rope_theta": 10000.0, "rope_type": "linear", "factor": 2.0},
    "lfm2_moe": {"rope_theta": 10000.0, "rope_type": "linear", "factor": 2.0},
    "qwen3_5_text": {"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": 0.25},
    "olmo3": BY_TYPE,
    "ministral": {"rope_theta": 10000.0, "rope_type": "linear", "factor": 2.0},
    "ministral3": MINISTRAL3 | {"factor": 2.0},
    "exaone4": {"rope_theta": 10000.0, "rope_type": "linear", "factor": 2.0},
    "glm4": {"rope_theta": 10000.0, "partial_rotary_factor": 0.75},
}


def longrope(pairs: int, partial: float = 0.75) -> dict:
    """Phi's scaling, its divisors made up; the original context is a field beside it."""
    return {
        "rope_theta": 10000.0,
        "partial_rotary_factor": partial,
        "rope_type": "longrope",
        "short_factor": [1.0 + i / 50 for i in range(pairs)],
        "long_factor": [1.0 + i * i / 20 for i in range(pairs)],
    }


def kinds(family: str, changes: dict) -> dict:
    """The kinds of the last layers, where a family has several."""
    return {
        name: TINY[family][name][-changes["num_hidden_layers"] :]
        for name in ("layer_types", "no_rope_layers")
        if name in TINY[family]
    }


def odd(family: str) -> dict:
    """The changes that make a tiny model odd; Phi's runs beyond its original context of 32."""
    if family == "phi3":
        return ODD | {"rope_parameters": longrope(36), "original_max_position_embeddings": 32}
    changes = ODD | ({"num_hidden_layers": 2} if family in MIXED else {})
    if family == "gemma4_text":  # as the large ones are
        changes |= {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0}
    if family == "granitemoehybrid":  # as those without Mamba layers do
        changes |= {"position_embedding_type": "rope"}
    return changes | {"rope_parameters": SCALED.get(family, YARN)} | kinds(family, changes)


VARIANTS = {"usual": lambda family: {}, "odd": odd}

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
        own = ("expert_bias", "layer_scalar")
        buffers = [item for item in model.named_buffers() if item[0].endswith(own)]
        for name, value in [*model.named_parameters(), *buffers]:
            if value.dim() == 1:  # norms and biases start as ones and zeros
                value.add_(torch.randn_like(value) * 0.2)
            elif "tokens_per_layer" in name:
                value.mul_(16.0)  # as large as what is added to it
            elif "embed" not in name:
                value.mul_(3.0)  # logits far enough apart to tell a wrong token from a right one
            if family == "gemma4_text" and name.endswith(SMALL):
                value.mul_(0.25)
            if name.endswith("mamba.A_log"):
                value.sub_(3.0)  # memories that last for more than a token or two
            value.copy_(value.half().float())
            if value.dim() == 1:  # coarser, so that what is 1 more is in fp16 too
                value.copy_((value * 1024).round() / 1024)
    return model


def margins(model, ids: list[int]) -> torch.Tensor:
    """Of each token (T,), how far the last expert that it takes is ahead of the next best, in the
    layer where that is least. Where it is little, another arithmetic may take the other one."""
    config, least = model.config, torch.full((len(ids),), torch.inf)
    if config.model_type not in ROUTED:
        return least
    output = model(torch.tensor([ids]), output_router_logits=True)
    biases = [value for name, value in model.named_buffers() if name.endswith("expert_bias")]
    for i, scores in enumerate(output.router_logits):
        by = scores.sigmoid() + biases[i] if biases else scores.softmax(dim=1)
        best = by.topk(config.num_experts_per_tok + 1, dim=1).values
        least = least.minimum(best[:, -2] - best[:, -1])
    return least


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


def prompt(tokens: int) -> list[int]:
    """Token ids, the first ones always the same."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, VOCABULARY, (tokens,), generator=generator).tolist()


def greedy(model, ids: list[int], tokens: int) -> list[int]:
    """What `transformers` generates, all tokens."""
    options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return model.generate(torch.tensor([ids]), max_new_tokens=tokens, **options)[0].tolist()


class Guesses:
    """Guesses tokens of a known answer, every third one wrongly."""

    def __init__(self, ids: list[int]):
        self.ids = ids

    def propose(self, tokens: list[int], most: int) -> list[int]:
        own = self.ids[len(tokens) : len(tokens) + most]
        return [t if (len(tokens) + i) % 3 else 1 - t % 2 for i, t in enumerate(own)]


def rewound(session, ids: list[int], position: int, more: int = 7) -> tuple:
    """Logits of `more` tokens after going back to a position, and those of a session that began
    anew."""
    session.reset()
    expected = session.logits(ids[: position + more])[position:]
    session.prefill(ids[position + more :])
    session.rewind(position)
    return session.logits(ids[position : position + more]), expected


def assert_cut_anywhere(model, session, ids: list[int]) -> np.ndarray:
    """Logits (n, V) of `transformers`, after a look that a session gives them for tokens in two
    parts, wherever they are cut."""
    expected = model(torch.tensor([ids])).logits[0].numpy()
    for cut in range(1, len(ids)):
        session.reset()
        found = np.vstack([session.logits(ids[:cut]), session.logits(ids[cut:])])
        assert abs(found - expected).max() < 1e-3, cut
    return expected
