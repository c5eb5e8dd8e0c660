"""GGUF files as llama.cpp's converter makes them, tiny and real, by `gguf.GGUFWriter`."""

from pathlib import Path

from _gguf_names import ARCHITECTURES, as_converted, gguf_name, permute
from _tiny_weights import parameters
import gguf
from gguf import GGMLQuantizationType as Type
from gguf.quants import quantize
import numpy as np
from tokenizers import pre_tokenizers
import torch

#: Families of which llama.cpp's converter reorders the rows of q and k.
PERMUTED = ("granite", "llama", "ministral3", "mistral", "smollm3")


def numbers_of(config, family: str) -> dict:
    """The entries by which a GGUF says how large its model is."""
    rope, D = config.rope_parameters, getattr(config, "head_dim", None) or 16
    eps = getattr(config, "rms_norm_eps", None) or config.norm_eps
    rope = rope.get("full_attention", rope)
    base = rope["rope_theta"]
    if alpha := rope.get("alpha"):  # which llama.cpp knows as the base that comes of it
        base *= alpha ** (D / (D - 2))
    numbers = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": D,
        "attention.layer_norm_rms_epsilon": eps,
        "rope.freq_base": base,
    }
    if config.model_type == "phi3":
        numbers |= {
            "rope.dimension_count": int(D * rope["partial_rotary_factor"]),
            "rope.scaling.original_context_length": config.original_max_position_embeddings,
            "attention.sliding_window": config.sliding_window or 0,
        }
    if config.model_type == "granite":
        numbers |= {
            "embedding_scale": config.embedding_multiplier,
            "attention.scale": config.attention_multiplier,
            "residual_scale": config.residual_multiplier,
            "logit_scale": config.logits_scaling,
        }
    if config.model_type in ("gemma3_text", "mistral"):
        numbers["attention.sliding_window"] = config.sliding_window
    if config.model_type in ("olmo3", "exaone4"):
        sliding = [kind == "sliding_attention" for kind in config.layer_types]
        numbers |= {
            "attention.sliding_window": config.sliding_window,
            "attention.sliding_window_pattern": sliding,
        }
    if config.model_type == "glm4":
        numbers["rope.dimension_count"] = int(D * rope["partial_rotary_factor"])
    if config.model_type == "ministral3":
        numbers |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": rope["factor"],
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
            "rope.scaling.yarn_log_multiplier": rope["mscale_all_dim"],
            "attention.temperature_scale": rope["llama_4_scaling_beta"],
        }
    if config.model_type in ("lfm2", "lfm2_moe"):
        attends = [kind == "full_attention" for kind in config.layer_types]
        heads = [config.num_key_value_heads * own for own in attends]
        numbers |= {"attention.head_count_kv": heads, "shortconv.l_cache": config.conv_L_cache}
    if config.model_type == "lfm2":
        step, size = config.block_multiple_of, int(2 * config.intermediate_size / 3)
        numbers["feed_forward_length"] = -(-size // step) * step
    if config.model_type in ("lfm2_moe", "qwen3_moe"):
        numbers |= {
            "expert_count": config.num_experts,
            "expert_used_count": config.num_experts_per_tok,
            "expert_feed_forward_length": config.moe_intermediate_size,
        }
    if config.model_type == "lfm2_moe":
        numbers |= {"leading_dense_block_count": config.num_dense_layers, "expert_gating_func": 2}
    if config.model_type == "qwen3_5_text":
        heads = config.linear_num_value_heads
        numbers |= {
            "ssm.conv_kernel": config.linear_conv_kernel_dim,
            "ssm.state_size": config.linear_key_head_dim,
            "ssm.group_count": config.linear_num_key_heads,
            "ssm.time_step_rank": heads,
            "ssm.inner_size": config.linear_value_head_dim * heads,
            "full_attention_interval": 2,
            "rope.dimension_count": int(D * rope["partial_rotary_factor"]),
        }
    return {f"{family}.{key}": value for key, value in numbers.items()}


def add_entries(writer: gguf.GGUFWriter, entries: dict) -> None:
    """Each entry by the type of its value; None leaves it out."""
    for key, value in entries.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif value is not None:
            writer.add_uint32(key, value)


def write_gguf(
    path: Path,
    model: torch.nn.Module,
    stored: Type = Type.F32,
    metadata: dict | None = None,
    drop: tuple[str, ...] = (),
    extra: dict[str, np.ndarray] | None = None,
    architecture: str | None = None,
    types: dict[str, int] | None = None,
) -> Path:
    """A model as llama.cpp's converter writes it; the other arguments damage it."""
    config = model.config
    family = architecture or gguf.MODEL_ARCH_NAMES[ARCHITECTURES[config.model_type]]
    writer = gguf.GGUFWriter(path, family)
    add_entries(writer, numbers_of(config, family) | (metadata or {}))
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    tied = config.tie_word_embeddings
    given = parameters(model, tied) | (extra or {})
    parts = [as_converted(config, *item).items() for item in given.items()]
    for name, array in (part for own in parts for part in own):
        if name in drop:
            continue
        if name in (types or {}) and name in (extra or {}):  # bytes as they are to be stored
            writer.add_tensor(gguf_name(name, config.model_type), array, raw_dtype=types[name])
            continue
        array = np.asarray(array, np.float32)
        projection = name.split(".")[-2]
        if config.model_type == "gemma3_text" and name.endswith("norm.weight"):
            array = array + 1
        if config.model_type in PERMUTED and projection in heads:
            array = permute(array, heads[projection])
        target = stored if array.ndim >= 2 and array.shape[-1] % 32 == 0 else Type.F32
        raw = (types or {}).get(name)
        data = array if raw is not None else quantize(np.ascontiguousarray(array), target)
        writer.add_tensor(
            gguf_name(name, config.model_type) or name,
            data,
            raw_dtype=raw if raw is not None else target,
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def chatml_metadata(pre: str = "smollm", **changes) -> dict:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[:200]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", *alphabet, "!!"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3, 4] + [1] * (len(tokens) - 4),
        "tokenizer.ggml.merges": ["! !"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.chat_template": "{{ '<|im_end|>' }}",
    } | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


TEXTS = [
    "L'été où Noël tombait en août, ça n'arrivait jamais.",
    "def f(x):\n    return [i ** 2 for i in range(x)]  # tab:\t.\r\n",
    "👩‍🚀 naïve — “quotes” … 日本語 עברית",
    "In 2024, 1234567 people paid 3.14159 €.\n\n\n  two  spaces ",
    " leading and trailing\n",
    "e\u0301 is not \u00e9",
]
