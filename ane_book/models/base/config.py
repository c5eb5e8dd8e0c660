"""The hyperparameters of a dense decoder, upper bounds for those of any model, and how rotary
embedding is named in a `config.json`.

Reference: GQA, Ainslie et al. 2023 (arXiv 2305.13245).
"""

from typing import Annotated

from ane_book.errors import InvalidWeights
from ane_book.rope import WIDEST, Rotary
from pydantic import BaseModel, ConfigDict, Field, model_validator

# Bounds far beyond every model, so that a damaged file costs neither time nor memory.
Width = Annotated[int, Field(gt=0, le=WIDEST)]
Layers = Annotated[int, Field(gt=0, le=10_000)]
Vocabulary = Annotated[int, Field(gt=0, le=1 << 24)]
Count = Annotated[int, Field(gt=0, le=1 << 31)]
Real = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ModelConfig(BaseModel):
    """The hyperparameters of a model; every architecture adds its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    architecture: str  # `model_type` in config.json, with a variant behind it where there is one


class DecoderConfig(ModelConfig):
    """The hyperparameters of a dense decoder; an architecture that has more subclasses it.

    The names are this library's own; `Dense.config` reads them from a `config.json`.
    """

    hidden_size: Width  # C
    intermediate_size: Width  # F
    num_layers: Layers  # L
    num_heads: Width  # H, query heads
    num_kv_heads: Width  # K, key/value heads; H / K = G queries share one
    head_dim: Width  # D
    vocab_size: Vocabulary  # V
    rms_norm_eps: Annotated[float, Field(ge=0, le=1)]
    rope_theta: Real
    rope_scaling: dict | None = None  # "rope_type" and what goes with it: see ane_book.rope
    partial_rotary_factor: Annotated[float, Field(gt=0, le=WIDEST)] = 1.0  # R / D
    max_position: Count
    sliding_window: Count | None = None  # tokens that a token attends to, itself included
    tied_embeddings: bool = False

    @model_validator(mode="after")
    def _check(self) -> "DecoderConfig":
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"{self.num_heads} heads do not divide by {self.num_kv_heads} KV heads"
            )
        if self.rotary_dim % 2 or not 0 < self.rotary_dim <= self.head_dim:
            raise ValueError(
                f"{self.rotary_dim} of head_dim {self.head_dim} dimensions are rotated "
                f"(partial_rotary_factor {self.partial_rotary_factor}); rotary embedding needs "
                "pairs: an even number, up to all of them"
            )
        self.rotary.check()
        return self

    @property
    def norm_epsilon(self) -> float:
        return self.rms_norm_eps

    @property
    def group(self) -> int:
        """G: how many query heads share one key/value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def rotary_dim(self) -> int:
        """R: only the first R of a head's D dimensions are rotated."""
        # Rounded down as in `transformers`, but 60/88 of 88 is 60 here, not 59.
        return int(self.head_dim * self.partial_rotary_factor + 1e-6)

    @property
    def rotary(self) -> Rotary:
        """The rotary embedding of blocks of kind `FULL`, without an attention scale."""
        return Rotary(
            head_dim=self.head_dim,
            rotary_dim=self.rotary_dim,
            theta=self.rope_theta,
            scaling=self.rope_scaling or {},
            max_position=self.max_position,
        )

    @property
    def widths(self) -> tuple[int, int, int, int]:
        """C, F, Q and KV: the dimensions of a layer's matrices."""
        Q, KV = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        return self.hidden_size, self.intermediate_size, Q, KV


def plain_rope(config: dict, place: str = "config.json") -> dict:
    """Rewrite a `config.json` in the style of transformers 4: `rope_theta`, `rope_scaling` (a dict
    or None) and, if it is named, `partial_rotary_factor` at the top level.

    transformers 5 writes all three as `rope_parameters` = {rope_theta, rope_type, ...}. A model
    with several kinds of block has one such dict per kind; that is returned unchanged. Raises
    InvalidWeights, whose message begins with `place`, where one is no dict.
    """
    for field in ("rope_parameters", "rope_scaling"):
        if not isinstance(config.get(field), dict | None):
            raise InvalidWeights(f"{place}: {field} is {config[field]!r}, not an object")
    parameters = config.get("rope_parameters") or {}
    if any(isinstance(value, dict) for value in parameters.values()):
        return dict(config)
    top = {"rope_theta", "partial_rotary_factor"}
    scaling = config.get("rope_scaling") or {k: v for k, v in parameters.items() if k not in top}
    result = {key: value for key, value in config.items() if key != "rope_parameters"}
    theta = config.get("rope_theta")
    result["rope_theta"] = parameters.get("rope_theta") if theta is None else theta
    if partial := config.get("partial_rotary_factor") or parameters.get("partial_rotary_factor"):
        result["partial_rotary_factor"] = partial
    result["rope_scaling"] = None if rope_type(scaling) == "default" else scaling
    return result


def rope_type(scaling: dict) -> str:
    return scaling.get("rope_type") or scaling.get("type") or "default"
