"""What a decoder is, in numbers: the fields that the model, the bundle and the runtime agree on.

The names are those of this book; `DecoderConfig.from_hf` reads them from a Hugging Face
`config.json`. Rotary tables (`ane_book.rope`) and the mask are the host's work for every backend
and every model.

Reference: GQA, Ainslie et al. 2023 (arXiv 2305.13245).
"""

from dataclasses import dataclass
from typing import Annotated

from ane_book.errors import UnsupportedModel
from ane_book.rope import Rotary
import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["MASKED", "WIDEST", "DecoderConfig", "causal_mask", "plain_rope", "rope_tables"]

MASKED = -40000.0  # "not attended": large, finite and inside fp16, since the ANE mangles -inf


@dataclass(frozen=True)
class Family:
    """What a `config.json` leaves unsaid, the names of tensors in `transformers` included."""

    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    qk_norms: tuple[str, ...] = ()  # of the queries, of the keys
    rope_before_norm: bool = False  # queries and keys are rotated first, then normed
    qkv_bias: bool = False
    partial_rotary: bool = False  # `partial_rotary_factor` is in force
    sliding_window: bool = False  # `sliding_window` is in force
    default_window: int | None = None  # of a file that does not name one


FAMILIES = {
    "hunyuan_v1_dense": Family(
        qk_norms=("self_attn.query_layernorm", "self_attn.key_layernorm"), rope_before_norm=True
    ),
    "llama": Family(),
    "mistral": Family(sliding_window=True, default_window=4096),
    "phi3": Family(
        qkv=("self_attn.qkv_proj",),
        gate_up=("mlp.gate_up_proj",),
        partial_rotary=True,
        sliding_window=True,
    ),
    "qwen2": Family(qkv_bias=True),
    "qwen3": Family(qk_norms=("self_attn.q_norm", "self_attn.k_norm")),
}


# Bounds far beyond every model, so that a damaged file costs neither time nor memory.
WIDEST = 1 << 20
Width = Annotated[int, Field(gt=0, le=WIDEST)]
Count = Annotated[int, Field(gt=0, le=1 << 31)]
Real = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class DecoderConfig(BaseModel):
    """A dense decoder of the Llama, Mistral, Qwen2/2.5/Qwen3, Phi-3/Phi-4-mini or HunYuan
    families."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    architecture: str  # a key of FAMILIES: `model_type` in config.json
    hidden_size: Width  # C
    intermediate_size: Width  # F
    num_layers: Annotated[int, Field(gt=0, le=10_000)]  # L
    num_heads: Width  # H, query heads
    num_kv_heads: Width  # K, key/value heads; H / K = G queries share one
    head_dim: Width  # D
    vocab_size: Annotated[int, Field(gt=0, le=1 << 24)]  # V
    rms_norm_eps: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    rope_theta: Real
    rope_scaling: dict | None = None  # "rope_type" and what goes with it: see ane_book.rope
    partial_rotary_factor: float = 1.0  # R / D
    max_position: Count
    sliding_window: Count | None = None  # tokens that one token sees, itself included
    qkv_bias: bool = False
    qk_norm: bool = False
    tied_embeddings: bool = False

    @model_validator(mode="after")
    def _check(self) -> "DecoderConfig":
        if self.architecture not in FAMILIES:
            raise ValueError(f"architecture {self.architecture!r} is none of {', '.join(FAMILIES)}")
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
        if self.family.rope_before_norm and self.rotary.kind == "longrope":
            raise ValueError("longrope scales queries and keys, and the norm after it undoes that")
        return self

    @property
    def group(self) -> int:
        """G: how many query heads share one key/value head."""
        return self.num_heads // self.num_kv_heads

    @property
    def rotary_dim(self) -> int:
        """R: the first dimensions of a head, which are rotated; the others stay as they are."""
        # Rounded down as in `transformers`, but 60/88 of 88 is 60 here, not 59.
        return int(self.head_dim * self.partial_rotary_factor + 1e-6)

    @property
    def rotary(self) -> Rotary:
        """The rotary embedding by itself."""
        return Rotary(
            head_dim=self.head_dim,
            rotary_dim=self.rotary_dim,
            theta=self.rope_theta,
            scaling=self.rope_scaling or {},
            max_position=self.max_position,
        )

    @property
    def family(self) -> Family:
        """What the architecture says by itself."""
        return FAMILIES[self.architecture]

    @classmethod
    def from_hf(cls, config: dict) -> "DecoderConfig":
        """Read the fields of a Hugging Face `config.json` (classic or transformers-5 style).

        Raises UnsupportedModel for a `model_type`, activation or rotary scaling that we do not
        have.
        """
        name = config.get("model_type")
        if name not in FAMILIES:
            raise UnsupportedModel(
                f"config.json: model_type {name!r} is not one this library converts; "
                f"supported: {', '.join(sorted(FAMILIES))}"
            )
        family, config = FAMILIES[name], plain_rope(config)
        _refuse_unsupported(name, config)
        heads = config["num_attention_heads"]
        return cls(
            architecture=name,
            hidden_size=config["hidden_size"],
            intermediate_size=config["intermediate_size"],
            num_layers=config["num_hidden_layers"],
            num_heads=heads,
            num_kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or config["hidden_size"] // heads,
            vocab_size=config["vocab_size"],
            rms_norm_eps=config["rms_norm_eps"],
            rope_theta=config["rope_theta"],
            rope_scaling=_read_scaling(name, config),
            partial_rotary_factor=config.get("partial_rotary_factor") or 1.0,
            max_position=config["max_position_embeddings"],
            sliding_window=_window(family, config),
            tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            qkv_bias=family.qkv_bias,
            qk_norm=bool(family.qk_norms),
        )


def _window(family: Family, config: dict) -> int | None:
    if not family.sliding_window:
        return None
    return config.get("sliding_window", family.default_window) or None


def _refuse_unsupported(name: str, config: dict) -> None:
    """Refuse what would convert without a word and then answer wrongly."""
    family, partial = FAMILIES[name], config.get("partial_rotary_factor")
    unsupported = {
        "hidden_act": config.get("hidden_act", "silu") != "silu",
        "mlp_bias": bool(config.get("mlp_bias")),
        "lm_head_bias": bool(config.get("lm_head_bias")),
        "use_sliding_window": bool(config.get("use_sliding_window")),
        "attention_bias": bool(config.get("attention_bias", family.qkv_bias)) != family.qkv_bias,
        "partial_rotary_factor": not family.partial_rotary and partial not in (None, 1.0),
    }
    for field, refused in unsupported.items():
        if refused:
            raise UnsupportedModel(
                f"config.json: {field} = {config[field]!r} is not supported for {name} models"
            )


def plain_rope(config: dict) -> dict:
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
    result["rope_scaling"] = None if _rope_type(scaling) == "default" else scaling
    return result


def _rope_type(scaling: dict) -> str:
    return scaling.get("rope_type") or scaling.get("type") or "default"


def _read_scaling(name: str, config: dict) -> dict | None:
    """The scaling of a `plain_rope` configuration; refuses a type that `Rotary` lacks."""
    scaling, kinds = config["rope_scaling"], ("linear", "llama3", "longrope", "yarn")
    if scaling is None:
        return None
    kind = "longrope" if _rope_type(scaling) == "su" else _rope_type(scaling)  # as it was in 2024
    # HunYuan's "dynamic" is static by its alpha; any other's depends on the sequence.
    static = kind == "dynamic" and name == "hunyuan_v1_dense" and scaling.get("alpha")
    if kind not in kinds and not static:
        raise UnsupportedModel(
            f"config.json: rope_scaling of type {kind!r} is not supported for {name} models; "
            f"supported: default, {', '.join(kinds)}, and for hunyuan_v1_dense dynamic with alpha"
        )
    if kind in ("llama3", "longrope", "yarn"):  # at the top, as in Phi's files, it has priority
        field = "original_max_position_embeddings"
        original = config.get(field) or scaling.get(field) or config["max_position_embeddings"]
        scaling = scaling | {field: original}
    return {key: value for key, value in scaling.items() if key != "type"} | {"rope_type": kind}


def rope_tables(
    config: DecoderConfig, positions: np.ndarray, context: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of the rotary angles, each (1, 1, T, D) float32, for positions (T,).

    Two things ride along, so that the graph need not do them. The first half of `sin` is negated,
    which turns rotate-half into a swap of halves: `y = x * cos + swap(x) * sin`. And both tables
    are scaled by D^(-1/4): queries and keys pass through them, so their product has attention's
    1/sqrt(D), which as a constant of its own would be rounded to fp16 (D = 128: off by 1e-4).
    Dimensions R and after, which are not rotated, have cos = D^(-1/4) and sin = 0.

    context: the slots of the cache, by default one more than the last position. LongRoPE's short
    or long divisors go by it, as in llama.cpp, since keys stay in a cache as they were rotated.
    `transformers` goes by the length of the sequence so far, and computes all keys anew once it is
    longer than the original context. So a bundle whose cache is longer than that gives the logits
    of `transformers` for sequences that are longer too, and others for shorter ones.
    """
    positions = np.asarray(positions, dtype=np.float64)
    return config.rotary.tables(positions, context or int(positions.max()) + 1)


def causal_mask(position: int, tokens: int, context: int) -> np.ndarray:
    """The additive mask (1, 1, T, S + T) float32 of a call with T tokens from slot `position` on.

    Columns 0..S-1 are the slots of the cache, of which the first `position` are filled; columns
    S..S+T-1 are the tokens of this call, of which token t sees itself and those before it.
    """
    mask = np.full((1, 1, tokens, context + tokens), MASKED, dtype=np.float32)
    mask[..., :position] = 0.0
    mask[0, 0, :, context:] = np.triu(np.full((tokens, tokens), MASKED, dtype=np.float32), k=1)
    return mask
