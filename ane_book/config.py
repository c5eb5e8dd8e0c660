"""What a decoder is, in numbers: the fields that the model, the bundle and the runtime agree on.

The names are those of this book; `DecoderConfig.from_hf` reads them from a Hugging Face
`config.json`. Rotary tables live here as well, because the host computes them for every backend and
every model.

References: RoPE, Su et al. 2021 (arXiv 2104.09864); GQA, Ainslie et al. 2023 (arXiv 2305.13245).
"""

import math

from ane_book.errors import UnsupportedModel
import numpy as np
from pydantic import BaseModel, ConfigDict, model_validator

__all__ = ["MASKED", "DecoderConfig", "causal_mask", "rope_tables"]

MASKED = -40000.0  # "not attended": large, finite and inside fp16, since the ANE mangles -inf

#: Attention details that differ between families and that `config.json` leaves unsaid.
FAMILIES = {
    "llama": {"qkv_bias": False, "qk_norm": False},
    "qwen2": {"qkv_bias": True, "qk_norm": False},
    "qwen3": {"qkv_bias": False, "qk_norm": True},
}


class DecoderConfig(BaseModel):
    """A dense decoder of the Llama and Qwen2/2.5/Qwen3 families."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    architecture: str  # "llama", "qwen2" or "qwen3", as `model_type` in config.json
    hidden_size: int  # C
    intermediate_size: int  # F
    num_layers: int  # L
    num_heads: int  # H, query heads
    num_kv_heads: int  # K, key/value heads; H / K = G queries share one
    head_dim: int  # D
    vocab_size: int  # V
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: dict | None = None
    max_position: int
    qkv_bias: bool = False
    qk_norm: bool = False
    tied_embeddings: bool = False

    @model_validator(mode="after")
    def _check(self) -> "DecoderConfig":
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.num_heads} heads do not divide by {self.num_kv_heads} KV heads"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim {self.head_dim} is odd; rotary embedding needs pairs")
        return self

    @property
    def group(self) -> int:
        """G: how many query heads share one key/value head."""
        return self.num_heads // self.num_kv_heads

    @classmethod
    def from_hf(cls, config: dict) -> "DecoderConfig":
        """Read the fields of a Hugging Face `config.json` (classic or transformers-5 style).

        Raises UnsupportedModel for a `model_type`, activation or rotary scaling that we do not
        have.
        """
        family = config.get("model_type")
        if family not in FAMILIES:
            raise UnsupportedModel(
                f"config.json: model_type {family!r} is not one this library converts; "
                f"supported: {', '.join(sorted(FAMILIES))}"
            )
        _refuse_unsupported(family, config)
        rope = config.get("rope_parameters") or {}
        scaling = config.get("rope_scaling") or (
            {k: v for k, v in rope.items() if k != "rope_theta"}
        )
        heads = config["num_attention_heads"]
        switches = FAMILIES[family]
        return cls(
            architecture=family,
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            num_layers=config["num_hidden_layers"],
            num_heads=heads,
            num_kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            vocab_size=config["vocab_size"],
            rms_norm_eps=config["rms_norm_eps"],
            rope_theta=config.get("rope_theta") or rope.get("rope_theta") or 10000.0,
            rope_scaling=_plain_scaling(scaling),
            max_position=config["max_position_embeddings"],
            tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=bool(config.get("attention_bias", switches["qkv_bias"])),
            qk_norm=switches["qk_norm"],
        )


def _refuse_unsupported(family: str, config: dict) -> None:
    """Refuse what would convert without a word and then answer wrongly."""
    unsupported = {
        "hidden_act": config.get("hidden_act", "silu") != "silu",
        "mlp_bias": bool(config.get("mlp_bias")),
        "use_sliding_window": bool(config.get("use_sliding_window")),
        "attention_bias": family == "llama" and bool(config.get("attention_bias")),
    }
    for field, refused in unsupported.items():
        if refused:
            raise UnsupportedModel(
                f"config.json: {field} = {config[field]!r} is not supported for {family} models"
            )


def _plain_scaling(scaling: dict) -> dict | None:
    """The rotary scaling, or None for the default; refuses a kind that `rope_tables` lacks."""
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return None
    if kind not in ("linear", "llama3"):
        raise UnsupportedModel(
            f"config.json: rope_scaling of type {kind!r} is not supported; "
            "supported: default, linear, llama3"
        )
    return {**scaling, "rope_type": kind}


def _inverse_frequencies(config: DecoderConfig) -> np.ndarray:
    """Rotation per position of each of the D / 2 pairs, in radians, float64."""
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents  # (D/2,)
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    if scaling["rope_type"] == "linear":
        return frequencies / scaling["factor"]
    # Llama 3.1: low frequencies are stretched, high ones kept, those between interpolated.
    wavelength = 2 * math.pi / frequencies
    original = scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    keep = np.clip((original / wavelength - low) / (high - low), 0.0, 1.0)
    return frequencies * (keep + (1.0 - keep) / scaling["factor"])


def rope_tables(config: DecoderConfig, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of the rotary angles, each (1, 1, T, D) float32, for positions (T,).

    Two things ride along, so that the graph need not do them. The first half of `sin` is negated,
    which turns rotate-half into a swap of halves: `y = x * cos + swap(x) * sin`. And both tables
    are scaled by D^(-1/4): queries and keys pass through them, so their product has attention's
    1/sqrt(D), which as a constant of its own would be rounded to fp16 (D = 128: off by 1e-4).
    """
    angles = np.asarray(positions, dtype=np.float64)[:, None] * _inverse_frequencies(config)
    scale = config.head_dim**-0.25
    cos, sin = np.cos(angles) * scale, np.sin(angles) * scale  # (T, D/2)
    cos = np.concatenate([cos, cos], axis=1)  # (T, D)
    sin = np.concatenate([-sin, sin], axis=1)  # (T, D)
    return cos[None, None].astype(np.float32), sin[None, None].astype(np.float32)


def causal_mask(position: int, tokens: int, context: int) -> np.ndarray:
    """The additive mask (1, 1, T, S + T) float32 of a call with T tokens from slot `position` on.

    Columns 0..S-1 are the slots of the cache, of which the first `position` are filled; columns
    S..S+T-1 are the tokens of this call, of which token t sees itself and those before it.
    """
    mask = np.full((1, 1, tokens, context + tokens), MASKED, dtype=np.float32)
    mask[..., :position] = 0.0
    mask[0, 0, :, context:] = np.triu(np.full((tokens, tokens), MASKED, dtype=np.float32), k=1)
    return mask
