"""How llama.cpp's converter names tensors, and what it does to some of them."""

from functools import cache

import gguf
import numpy as np

#: By the package `gguf`, and not by ours, so that each can find the other wrong; a family that the
#: library reads from GGUF and that is missing here fails tests/weights/test_gguf.py.
ARCHITECTURES = {
    "exaone4": gguf.MODEL_ARCH.EXAONE4,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "glm4": gguf.MODEL_ARCH.GLM4,
    "granite": gguf.MODEL_ARCH.GRANITE,
    "hunyuan_v1_dense": gguf.MODEL_ARCH.HUNYUAN_DENSE,
    "lfm2": gguf.MODEL_ARCH.LFM2,
    "lfm2_moe": gguf.MODEL_ARCH.LFM2MOE,
    "llama": gguf.MODEL_ARCH.LLAMA,
    "ministral3": gguf.MODEL_ARCH.MISTRAL3,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "olmo2": gguf.MODEL_ARCH.OLMO2,
    "olmo3": gguf.MODEL_ARCH.OLMO2,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "qwen3_5_text": gguf.MODEL_ARCH.QWEN35,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "smollm3": gguf.MODEL_ARCH.SMOLLM3,
}


def gguf_name(name: str, family: str, layers: int = 30) -> str:
    """`transformers` name to GGUF's, by the table in the package `gguf`: not by ours."""
    return _table(ARCHITECTURES[family], layers).get_name(name, try_suffixes=(".weight", ".bias"))


@cache
def _table(architecture: gguf.MODEL_ARCH, layers: int) -> gguf.TensorNameMap:
    return gguf.get_tensor_name_map(architecture, layers)


def permute(array: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to q and k of "llama"."""
    rows = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return rows.swapaxes(1, 2).reshape(array.shape)


def tiled(array: np.ndarray, key_heads: int, per_key: int, axis: int = 0) -> np.ndarray:
    """What it does to the values' heads of Qwen3.5: the first of every key head, then the second
    of every one."""
    heads = np.moveaxis(array, axis, 0)
    parts = heads.reshape(key_heads, per_key, -1, *heads.shape[1:]).swapaxes(0, 1)
    return np.moveaxis(parts.reshape(heads.shape), 0, axis)


def as_converted(config, name: str, array: np.ndarray) -> dict[str, np.ndarray]:
    """The tensors that llama.cpp's converter makes of one that it does not take as it is."""
    kind = config.model_type
    if kind == "lfm2_moe" and ".experts." in name:
        name = name.removeprefix("model.")
    if name.endswith("experts.gate_up_proj"):
        own = ("w1", "w3") if kind == "lfm2_moe" else ("gate_proj", "up_proj")
        halves = zip(own, np.split(array, 2, axis=1), strict=True)
        return {name.replace("gate_up_proj", f"{part}.weight"): half for part, half in halves}
    if name.endswith("experts.down_proj"):
        own = "w2" if kind == "lfm2_moe" else "down_proj"
        return {name.replace("down_proj", f"{own}.weight"): array}
    if name.endswith("expert_bias"):
        return {f"{name}.bias": array}
    if name.endswith("conv.conv.weight"):
        return {name: array.squeeze(1)}
    if kind == "qwen3_5_text" and "linear_attn." in name:
        return _delta(config, name, array)
    ones = kind == "qwen3_5_text" and name.endswith("norm.weight")
    return {name: array + 1 if ones else array}


def _delta(config, name: str, array: np.ndarray) -> dict[str, np.ndarray]:
    K, H = config.linear_num_key_heads, config.linear_num_value_heads
    part, shared = name.rpartition("linear_attn.")[2], 2 * K * config.linear_key_head_dim
    if part in ("in_proj_qkv.weight", "conv1d.weight"):
        array = array.squeeze(1) if "conv" in part else array
        array = np.concatenate([array[:shared], tiled(array[shared:], K, H // K)])
    elif part == "out_proj.weight":
        array = tiled(array, K, H // K, axis=1)
    elif part != "norm.weight":
        array = tiled(array, K, H // K)
    if part == "A_log":
        array = -np.exp(array)
    return {name.replace("dt_bias", "dt_proj.bias"): array}
