"""Rotary position embedding: its scalings as `config.json` writes them, and the host's tables.

Every scaling changes the frequencies of the pairs, or the scale of cos and sin, and so nothing but
the tables: the graph is the same for all.

    linear      all frequencies divided by `factor`
    llama3      low frequencies divided by `factor`, high ones kept, those between interpolated
    longrope    a divisor for each pair: `short_factor` or `long_factor`, by the context
    dynamic     HunYuan's: a larger base, theta * alpha^(D / (D - 2)); static in spite of its name

References: RoPE, Su et al. 2021 (arXiv 2104.09864); LongRoPE, Ding et al. 2024 (arXiv 2402.13753);
the others as in `transformers`, modeling_rope_utils.py and modeling_hunyuan_v1_dense.py.
Dimensions: D head size, R rotated dimensions of it, T tokens.
"""

import math
from typing import TYPE_CHECKING

from ane_book.errors import UnsupportedModel
import numpy as np

if TYPE_CHECKING:
    from ane_book.config import DecoderConfig

__all__ = ["check", "plain", "read_scaling", "rope_tables"]

KINDS = ("linear", "llama3", "longrope")
ALPHA = "hunyuan_v1_dense"  # whose "dynamic" is static; the others' depends on the sequence


def plain(config: dict) -> dict:
    """The same `config.json` with `rope_theta` and `partial_rotary_factor` at the top and
    `rope_scaling` a dict or None.

    transformers 5 writes `rope_parameters` = {rope_theta, rope_type, ...}, earlier ones the three.
    """
    parameters = config.get("rope_parameters") or {}
    top = {"rope_theta", "partial_rotary_factor"}
    scaling = config.get("rope_scaling") or {k: v for k, v in parameters.items() if k not in top}
    result = {key: value for key, value in config.items() if key != "rope_parameters"}
    result["rope_theta"] = config.get("rope_theta") or parameters.get("rope_theta") or 10000.0
    if partial := config.get("partial_rotary_factor") or parameters.get("partial_rotary_factor"):
        result["partial_rotary_factor"] = partial
    result["rope_scaling"] = None if _kind(scaling) == "default" else scaling
    return result


def _kind(scaling: dict) -> str:
    return scaling.get("rope_type") or scaling.get("type") or "default"


def read_scaling(family: str, config: dict) -> dict | None:
    """The scaling of a `plain` configuration; raises UnsupportedModel for one that we lack."""
    scaling = config["rope_scaling"]
    if scaling is None:
        return None
    kind = "longrope" if _kind(scaling) == "su" else _kind(scaling)  # its name in 2024
    if kind not in KINDS and not (kind == "dynamic" and family == ALPHA and scaling.get("alpha")):
        raise UnsupportedModel(
            f"config.json: rope_scaling of type {kind!r} is not supported for {family} models; "
            f"supported: default, {', '.join(KINDS)}, and for {ALPHA} dynamic with alpha"
        )
    original = config.get("original_max_position_embeddings")
    if kind == "longrope" and original:  # at the top in Phi's files, and there it has priority
        scaling = scaling | {"original_max_position_embeddings": original}
    return {key: value for key, value in scaling.items() if key != "type"} | {"rope_type": kind}


def check(config: "DecoderConfig") -> None:
    """Raise ValueError unless the scaling has all that the tables need, for every context."""
    scaling = config.rope_scaling or {}
    try:
        for context in (1, config.max_position):
            rope_tables(config, np.zeros(1), context)
    except (ArithmeticError, KeyError, TypeError) as error:
        kind = scaling.get("rope_type")
        raise ValueError(f"rope_scaling of type {kind!r} cannot be used: {error!r}") from None
    if config.family.rope_before_norm and scaling.get("rope_type") == "longrope":
        raise ValueError("longrope scales queries and keys, which a norm after it would undo")


def _inverse_frequencies(config: "DecoderConfig", context: int) -> np.ndarray:
    """Rotation per position of each of the R / 2 pairs, in radians, float64."""
    R, theta, scaling = config.rotary_dim, config.rope_theta, config.rope_scaling or {}
    kind = scaling.get("rope_type")
    if kind == "dynamic":
        theta *= scaling["alpha"] ** (R / (R - 2))
    frequencies = 1.0 / theta ** (np.arange(0, R, 2, dtype=np.float64) / R)
    if kind == "linear":
        return frequencies / scaling["factor"]
    if kind == "longrope":
        return frequencies / _divisors(config, context)
    if kind != "llama3":
        return frequencies
    wavelength = 2 * math.pi / frequencies
    original = scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    keep = np.clip((original / wavelength - low) / (high - low), 0.0, 1.0)
    return frequencies * (keep + (1.0 - keep) / scaling["factor"])


def _divisors(config: "DecoderConfig", context: int) -> np.ndarray:
    """LongRoPE's divisor of each pair, for a cache of so many slots."""
    scaling = config.rope_scaling
    name = "short" if context <= scaling["original_max_position_embeddings"] else "long"
    divisors = np.asarray(scaling[f"{name}_factor"], dtype=np.float64)
    if divisors.shape != (config.rotary_dim // 2,):
        raise ValueError(
            f"rope_scaling: {name}_factor has {divisors.size} numbers, but {config.rotary_dim} "
            f"rotated dimensions make {config.rotary_dim // 2} pairs"
        )
    return divisors


def _attention_factor(config: "DecoderConfig") -> float:
    """By what LongRoPE scales cos and sin: longer contexts need sharper attention."""
    scaling = config.rope_scaling or {}
    if scaling.get("rope_type") != "longrope":
        return 1.0
    if given := scaling.get("attention_factor"):
        return given
    original = scaling["original_max_position_embeddings"]
    factor = scaling.get("factor") or config.max_position / original
    return math.sqrt(1.0 + math.log(factor) / math.log(original)) if factor > 1.0 else 1.0


def rope_tables(
    config: "DecoderConfig", positions: np.ndarray, context: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of the rotary angles, each (1, 1, T, D) float32, for positions (T,).

    Two things ride along, so that the graph need not do them. The first half of `sin` is negated,
    which turns rotate-half into a swap of halves: `y = x * cos + swap(x) * sin`. And both tables
    are scaled by D^(-1/4): queries and keys pass through them, so their product has attention's
    1/sqrt(D), which as a constant of its own would be rounded to fp16 (D = 128: off by 1e-4).
    Dimensions R and after, which are not rotated, have cos = D^(-1/4) and sin = 0.

    context: the slots of the cache, by default one more than the last position. LongRoPE's short
    or long divisors go by it, as in llama.cpp, since the keys in a cache stay as they were rotated.
    `transformers` goes by the length of the sequence so far, and computes all keys anew when it
    grows past the original context; so a bundle with a longer cache gives its logits for sequences
    of that length, and others for shorter ones.
    """
    positions = np.asarray(positions, dtype=np.float64)
    slots = int(positions.max()) + 1 if context is None else context
    angles = positions[:, None] * _inverse_frequencies(config, slots)  # (T, R/2)
    scale = config.head_dim**-0.25
    turn = scale * _attention_factor(config)
    shape, R = (1, 1, len(positions), config.head_dim), config.rotary_dim
    cos, sin = np.full(shape, scale, np.float32), np.zeros(shape, np.float32)
    cos[..., :R] = np.tile(np.cos(angles) * turn, 2)
    sin[..., : R // 2] = -np.sin(angles) * turn
    sin[..., R // 2 : R] = np.sin(angles) * turn
    return cos, sin
