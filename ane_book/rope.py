"""Rotary position embedding: the host's tables of cosines and sines, under every scaling.

A scaling changes the frequencies of the pairs, or the size of cos and sin, and so nothing but the
tables: the graph is the same for all.

    linear      all frequencies divided by `factor`
    llama3      low frequencies divided by `factor`, high ones kept, those between interpolated
    yarn        low frequencies divided by `factor`, high ones kept, those between interpolated by
                their place among the pairs; cos and sin larger
    longrope    a divisor for each pair: `short_factor` or `long_factor`, by the context
    proportional
                only the first `partial_rotary_factor` of the pairs turn, as fast as if all did
    dynamic     HunYuan's: a larger base, theta * alpha^(R / (R - 2)); static in spite of its name

References: RoPE, Su et al. 2021 (arXiv 2104.09864); YaRN, Peng et al. 2023 (arXiv 2309.00071);
LongRoPE, Ding et al. 2024 (arXiv 2402.13753); all as in `transformers`, modeling_rope_utils.py and
modeling_hunyuan_v1_dense.py.
Dimensions: D head size, R rotated dimensions of it, T tokens.
"""

import math
from typing import Annotated

import numpy as np
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

WIDEST = 1 << 20  # a bound far beyond every model, so that a damaged file costs no memory

#: What something is multiplied or divided by: fp16 has it and its inverse.
Factor = Annotated[float, Field(ge=2**-14, le=2**14)]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Rotary:
    """What a model does to the first R of a head's D dimensions.

    Pair i, dimensions i and i + R/2, turns by position * theta^(-2i/R). The table `cos` of a
    position is s * cos of the angle for both of a pair, `sin` is -s * sin for the first and s * sin
    for the second, with s the root of attention's scale; beyond R, cos is s and sin 0.

    scaling: {} or "rope_type" with the fields of that type, as `config.json` and `transformers`
    have them.
    attention_scale: what scores are multiplied by; None is 1 / sqrt(D).
    """

    head_dim: Annotated[int, Field(gt=0, le=WIDEST)]  # D
    rotary_dim: Annotated[int, Field(ge=0, le=WIDEST)]  # R; 0: every angle is zero
    theta: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    scaling: dict
    max_position: Annotated[int, Field(gt=0, le=1 << 31)]
    attention_scale: Factor | None = None

    @property
    def kind(self) -> str | None:
        return self.scaling.get("rope_type")

    def check(self) -> None:
        """Raise ValueError unless the scaling gives numbers for every context."""
        try:
            with np.errstate(all="raise", under="ignore"):
                for context in (1, self.max_position):
                    tables = self.tables(np.array([0.0, context - 1.0]), context)
                    if not np.isfinite(tables).all():
                        raise ValueError("a field is no finite number")
        except (ArithmeticError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"rope_scaling of type {self.kind!r} cannot be used: {error!r}"
            ) from None

    def tables(
        self, positions: np.ndarray, context: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The tables cos and sin, each (1, 1, T, D) float32, for positions (T,).

        Two things ride along, so that the graph need not do them. The minus in `sin` turns
        rotate-half into a swap of halves: `y = x * cos + swap(x) * sin`. And by the root of
        attention's scale, D^(-1/4) mostly, the product of queries and keys has attention's
        1/sqrt(D), which as a constant of its own would be rounded to fp16 (D = 128: off by 1e-4).

        context: the slots of the cache, by default one more than the last position. LongRoPE's
        short or long divisors go by it, as in llama.cpp, since keys stay in a cache as they were
        rotated. `transformers` goes by the length of the sequence so far, and computes all keys
        anew once it is longer than the original context. So a bundle whose cache is longer than
        that gives the logits of `transformers` for sequences that are longer too, and others for
        shorter ones.
        """
        positions = np.asarray(positions, dtype=np.float64)
        angles = positions[:, None] * self._frequencies(context or int(positions.max()) + 1)
        R, given = self.rotary_dim, self.attention_scale  # angles: (T, R/2)
        scale = self.head_dim**-0.25 if given is None else math.sqrt(given)
        turn = scale * self.attention_factor
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
            theta *= math.pow(scaling["alpha"], R / (R - 2))
        frequencies = 1.0 / theta ** (np.arange(0, R, 2, dtype=np.float64) / R)
        if self.kind == "linear":
            return frequencies / scaling["factor"]
        if self.kind == "proportional":
            turning = int(scaling.get("partial_rotary_factor", 1.0) * R // 2)
            turned = np.where(np.arange(R // 2) < turning, frequencies, 0.0)
            return turned / scaling.get("factor", 1.0)
        if self.kind == "longrope":
            return frequencies / self._divisors(context)
        if self.kind == "yarn":
            kept = self._yarn_kept()
            return frequencies * (kept + (1.0 - kept) / self._factor)
        if self.kind != "llama3":
            return frequencies
        wavelength = 2 * math.pi / frequencies
        original = scaling["original_max_position_embeddings"]
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        kept = np.clip((original / wavelength - low) / (high - low), 0.0, 1.0)
        return frequencies * (kept + (1.0 - kept) / scaling["factor"])

    def _yarn_kept(self) -> np.ndarray:
        """How much each of the R / 2 pairs keeps its frequency: 1 for the fast, 0 for the slow."""
        R, scaling = self.rotary_dim, self.scaling

        def pair(turns: float) -> float:
            """The pair that turns so many times in the original context; most often a fraction."""
            original = scaling["original_max_position_embeddings"]
            return R * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(self.theta))

        low, high = pair(scaling.get("beta_fast") or 32), pair(scaling.get("beta_slow") or 1)
        if scaling.get("truncate", True):
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, R - 1)
        return 1.0 - np.clip((np.arange(R // 2) - low) / ((high - low) or 0.001), 0.0, 1.0)

    @property
    def _factor(self) -> float:
        """By what YaRN or LongRoPE stretched the context."""
        factor = self.scaling.get("factor")
        return factor or self.max_position / self.scaling["original_max_position_embeddings"]

    def _divisors(self, context: int) -> np.ndarray:
        """LongRoPE's divisor of each pair, for a cache of so many slots."""
        short = context <= self.scaling["original_max_position_embeddings"]
        name = "short_factor" if short else "long_factor"
        divisors = np.asarray(self.scaling[name], dtype=np.float64)
        if divisors.shape != (self.rotary_dim // 2,):
            raise ValueError(
                f"{name} has {divisors.size} numbers, but {self.rotary_dim} rotated "
                f"dimensions make {self.rotary_dim // 2} pairs"
            )
        return divisors

    @property
    def attention_factor(self) -> float:
        """By what YaRN and LongRoPE scale cos and sin: longer contexts need sharper attention."""
        if self.kind not in ("longrope", "yarn"):
            return 1.0
        if (given := self.scaling.get("attention_factor")) is not None:
            return given
        factor = self._factor
        if self.kind == "longrope":
            original = self.scaling["original_max_position_embeddings"]
            return math.sqrt(1.0 + math.log(factor) / math.log(original)) if factor > 1.0 else 1.0

        def larger(by: float = 1.0) -> float:
            return 0.1 * by * math.log(factor) + 1.0 if factor > 1.0 else 1.0

        mscale, all_dim = (self.scaling.get(key) for key in ("mscale", "mscale_all_dim"))
        return larger(mscale) / larger(all_dim) if mscale and all_dim else larger()
