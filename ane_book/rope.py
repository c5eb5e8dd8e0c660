"""Rotary position embedding: the host's tables of cosines and sines, under every scaling.

A scaling changes the frequencies of the pairs, or the size of cos and sin, and so nothing but the
tables: the graph is the same for all.

    linear      all frequencies divided by `factor`
    llama3      low frequencies divided by `factor`, high ones kept, those between interpolated
    longrope    a divisor for each pair: `short_factor` or `long_factor`, by the context
    dynamic     HunYuan's: a larger base, theta * alpha^(R / (R - 2)); static in spite of its name

References: RoPE, Su et al. 2021 (arXiv 2104.09864); LongRoPE, Ding et al. 2024 (arXiv 2402.13753);
the others as in `transformers`, modeling_rope_utils.py and modeling_hunyuan_v1_dense.py.
Dimensions: D head size, R rotated dimensions of it, T tokens.
"""

from dataclasses import dataclass
import math

import numpy as np

__all__ = ["Rotary"]


@dataclass(frozen=True)
class Rotary:
    """What a model does to the first R of a head's D dimensions."""

    head_dim: int  # D
    rotary_dim: int  # R
    theta: float
    scaling: dict  # {} or "rope_type" with the fields of that type, as `config.json` names them
    max_position: int

    @property
    def kind(self) -> str | None:
        return self.scaling.get("rope_type")

    def check(self) -> None:
        """Raise ValueError unless the scaling has all that the tables need, for every context."""
        try:
            for context in (1, self.max_position):
                self.tables(np.zeros(1), context)
        except (ArithmeticError, KeyError, TypeError) as error:
            raise ValueError(
                f"rope_scaling of type {self.kind!r} cannot be used: {error!r}"
            ) from None

    def tables(self, positions: np.ndarray, context: int) -> tuple[np.ndarray, np.ndarray]:
        """cos and sin, each (1, 1, T, D) float32: see `ane_book.config.rope_tables`."""
        angles = positions[:, None] * self._frequencies(context)  # (T, R/2)
        scale, R = self.head_dim**-0.25, self.rotary_dim
        turn = scale * self._attention_factor()
        shape = (1, 1, len(positions), self.head_dim)
        cos, sin = np.full(shape, scale, np.float32), np.zeros(shape, np.float32)
        cos[..., :R] = np.tile(np.cos(angles) * turn, 2)
        sin[..., : R // 2] = -np.sin(angles) * turn
        sin[..., R // 2 : R] = np.sin(angles) * turn
        return cos, sin

    def _frequencies(self, context: int) -> np.ndarray:
        """Rotation per position of each of the R / 2 pairs, in radians, float64."""
        R, theta, scaling = self.rotary_dim, self.theta, self.scaling
        if self.kind == "dynamic":
            theta *= scaling["alpha"] ** (R / (R - 2))
        frequencies = 1.0 / theta ** (np.arange(0, R, 2, dtype=np.float64) / R)
        if self.kind == "linear":
            return frequencies / scaling["factor"]
        if self.kind == "longrope":
            return frequencies / self._divisors(context)
        if self.kind != "llama3":
            return frequencies
        wavelength = 2 * math.pi / frequencies
        original = scaling["original_max_position_embeddings"]
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        keep = np.clip((original / wavelength - low) / (high - low), 0.0, 1.0)
        return frequencies * (keep + (1.0 - keep) / scaling["factor"])

    def _divisors(self, context: int) -> np.ndarray:
        """LongRoPE's divisor of each pair, for a cache of so many slots."""
        short = context <= self.scaling["original_max_position_embeddings"]
        name = "short_factor" if short else "long_factor"
        divisors = np.asarray(self.scaling[name], dtype=np.float64)
        if divisors.shape != (self.rotary_dim // 2,):
            raise ValueError(
                f"rope_scaling: {name} has {divisors.size} numbers, but {self.rotary_dim} rotated "
                f"dimensions make {self.rotary_dim // 2} pairs"
            )
        return divisors

    def _attention_factor(self) -> float:
        """By what LongRoPE scales cos and sin: longer contexts need sharper attention."""
        if self.kind != "longrope":
            return 1.0
        if given := self.scaling.get("attention_factor"):
            return given
        original = self.scaling["original_max_position_embeddings"]
        factor = self.scaling.get("factor") or self.max_position / original
        return math.sqrt(1.0 + math.log(factor) / math.log(original)) if factor > 1.0 else 1.0
