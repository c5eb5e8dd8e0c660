"""How llama.cpp's converter names tensors, and what it does to some of them."""

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
    "llama": gguf.MODEL_ARCH.LLAMA,
    "ministral3": gguf.MODEL_ARCH.MISTRAL3,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "olmo2": gguf.MODEL_ARCH.OLMO2,
    "olmo3": gguf.MODEL_ARCH.OLMO2,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "smollm3": gguf.MODEL_ARCH.SMOLLM3,
}


def gguf_name(name: str, family: str, layers: int = 2) -> str:
    """`transformers` name to GGUF's, by the table in the package `gguf`: not by ours."""
    blocks = gguf.get_tensor_name_map(ARCHITECTURES[family], layers)
    return blocks.get_name(name, try_suffixes=(".weight", ".bias"))


def permute(array: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to q and k of "llama"."""
    rows = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return rows.swapaxes(1, 2).reshape(array.shape)
