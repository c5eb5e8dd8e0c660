"""Llama: the dense decoder that the other families are compared with. A block, for T tokens:

    x = rms_norm(hidden) * weight                        # (1, C, 1, T)
    q, k, v = W_qkv @ x                                  # (1, H+2K, T, D) as heads and rows
    q, k = rotate(q), rotate(k)                          # rotary embedding
    keys, values = cat(cached, k), cat(cached, v)        # (1, K, S+T, D)
    scores = q @ keys.T / sqrt(D) + mask                 # (1, H, T, S+T), G heads share a key
    y = softmax(scores) @ values                         # (1, H, T, D)
    hidden = hidden + W_out @ y                          # (1, C, 1, T)
    x = rms_norm(hidden) * weight
    gate, up = W_gate_up @ x                             # 2 x (1, F, 1, T)
    hidden = hidden + W_down @ (silu(gate) * up)         # (1, C, 1, T)

The block returns hidden, k and v. `Dense` (base/dense.py) builds it from `DecoderBlock`,
`Attention` and `FeedForward` (base/layers.py). Letters: see `ane_book.models.base`.

References: Llama 2, Touvron et al. 2023 (arXiv 2307.09288); `transformers`, modeling_llama.py;
llama.cpp, convert_hf_to_gguf.py.
"""

from ane_book.models.base.architecture import GGUF, halves
from ane_book.models.base.config import DecoderConfig
from ane_book.models.base.dense import NAMES, OUTER, Dense
import numpy as np


def unpermuted(config: DecoderConfig, name: str, array: np.ndarray) -> np.ndarray:
    """Undo llama.cpp's reordering of the rows of q and k, (heads * D, C).

    Its "llama" rotates neighbours (0, 1), (2, 3), ...; `transformers` rotates halves (0, D/2),
    (1, D/2 + 1), ... Most other architectures keep the order of `transformers` in GGUF.
    """
    rotated = name.split(".")[-2] in ("q_proj", "k_proj")
    return halves(array, config.head_dim) if rotated else array


def _fields(fields: dict, number) -> dict:
    """Call it "mistral" if it has a sliding window: GGUF calls both "llama"."""
    return fields | {"model_type": "mistral"} if fields["sliding_window"] else fields


class Llama(Dense[DecoderConfig]):
    """`model_type` "llama": Llama 1 to 3, SmolLM2 and others."""

    model_type = "llama"
    gguf: GGUF | None = GGUF("llama", OUTER, NAMES, _fields, unpermuted)
