"""Privacy Filter: a token classifier that finds names, addresses, telephone numbers and secrets.

An encoder with gpt-oss's layers: every token attends to a band of W tokens on both sides; each head
has a sink; the feed-forward is a mixture of experts with a top-k router; the last package returns N
logits per token, one for each label.

Labels are BIOES: for each kind of span B (begins), I (inside), E (ends) and S (a single token), and
O (outside of all spans). The host decodes them to spans (`ane_book.runtime.tags`).

Letters: see `ane_book.models.base`; here also W band, N labels.

References: openai/privacy-filter, its model card; gpt-oss model card (arXiv 2508.10925);
`transformers`, modeling_openai_privacy_filter.py.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar

from ane_book.errors import UnsupportedModel
from ane_book.host import Host, check_labels
from ane_book.models.base.architecture import FULL, Architecture, Parameters, TensorSpec
from ane_book.models.base.config import Count, DecoderConfig, Width
from ane_book.models.base.dense import sizes, typed_scaling
from ane_book.models.base.experts import Experts, check_taken
from ane_book.models.base.signature import BlockSignature, attention
from ane_book.options import Strategy
from pydantic import Field, model_validator

if TYPE_CHECKING:
    from torch import nn


Positive = Annotated[float, Field(gt=0, le=1000)]
Label = Annotated[str, Field(pattern=r"^[!-~]{1,100}$")]

#: The kinds of spans in the default configuration of `transformers`.
KINDS = (
    "account_number", "private_address", "private_date", "private_email", "private_person",
    "private_phone", "private_url", "secret",
)  # fmt: skip
LABELS = ("O", *(f"{part}-{kind}" for kind in KINDS for part in "BIES"))
YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


class PrivacyFilterConfig(DecoderConfig):
    """Privacy Filter's hyperparameters. `sliding_window` is W: the tokens seen on each side."""

    sliding_window: Count
    num_experts: Annotated[int, Field(gt=0, le=2048)]  # E; order is counted in fp16
    experts_per_token: Width  # k
    swiglu_alpha: Positive
    swiglu_limit: Positive
    labels: Annotated[tuple[Label, ...], Field(max_length=10_000)]
    experts: Strategy = "packed"  # how they are laid out

    @model_validator(mode="after")
    def _check_choice(self) -> "PrivacyFilterConfig":
        check_taken(self.experts_per_token, self.num_experts)
        check_labels(self.labels)
        return self

    @property
    def reach(self) -> int:
        """The receptive field: how many tokens away an input can still change a token's labels."""
        return self.num_layers * self.sliding_window

    @property
    def max_tokens(self) -> int:
        """The most tokens in one call. With 4 * reach of a longer text, half of the tokens have
        their whole receptive field inside the call."""
        return min(self.max_position, max(512, 4 * self.reach), 1 << 14)


class PrivacyFilter(Architecture):
    """`model_type` "openai_privacy_filter": openai/privacy-filter and models fine-tuned from it."""

    model_type = "openai_privacy_filter"
    task = "token-classification"
    causal = False
    Config = PrivacyFilterConfig
    fixed: ClassVar = {"attention_bias": True, "token_classification_bias": True}

    def read(self, fields: dict) -> dict:
        theta, scaling = fields.get("rope_theta"), fields["rope_scaling"]
        if scaling is not None:
            scaling = typed_scaling(scaling, ("linear", "yarn"), self.model_type)
        elif theta is None:  # no field about rotary embedding at all
            scaling = YARN
        return sizes(fields) | {
            "architecture": self.name,
            "rms_norm_eps": fields.get("rms_norm_eps", 1e-5),
            "rope_theta": 150000.0 if theta is None else theta,
            "rope_scaling": scaling,
            "sliding_window": fields["sliding_window"],
            "num_experts": fields.get("num_local_experts") or fields["num_experts"],
            "experts_per_token": fields["num_experts_per_tok"],
            "swiglu_alpha": fields.get("swiglu_alpha", 1.702),
            "swiglu_limit": fields.get("swiglu_limit", 7.0),
            "labels": _labels(fields.get("id2label")),
        }

    def signature(self, config: PrivacyFilterConfig, kind: str) -> BlockSignature:
        return replace(attention(config), keeps={}, mixture=self.experts(config))

    def experts(self, config: PrivacyFilterConfig) -> Experts:
        """The mixture of experts of each layer."""
        return Experts(
            config.num_experts,
            config.hidden_size,
            config.intermediate_size,
            config.experts,
            biases=True,
            flipped=True,
            taken=config.experts_per_token,
        )

    def block(self, config: PrivacyFilterConfig, kind: str = FULL) -> "nn.Module":
        from ane_book.models.base.encoder import SinkAttention, SparseBlock
        from ane_book.models.base.experts.layers import Mixture, TopGates
        from ane_book.models.base.layers import ClampedSwiGLU
        from ane_book.models.base.projection import Projection

        C, H, K, D = config.hidden_size, config.num_heads, config.num_kv_heads, config.head_dim
        activation = ClampedSwiGLU(config.swiglu_alpha, config.swiglu_limit)
        return SparseBlock(
            SinkAttention(C, H, K, D, bias=True),
            Projection(C, config.num_experts, bias=True),
            TopGates(config.experts_per_token),
            Mixture(self.experts(config), activation),
            config.rms_norm_eps,
        )

    def ends(self, config: PrivacyFilterConfig) -> "dict[str, nn.Module]":
        from ane_book.models.base.encoder import Labels

        return {"last": Labels(config.hidden_size, len(config.labels), config.rms_norm_eps)}

    def host(self, config: PrivacyFilterConfig) -> Host:
        return Host(rotary={"rope": config.rotary}, masks={})

    def parameters(self, config: PrivacyFilterConfig, kind: str = FULL) -> Parameters:
        C, _, Q, KV = config.widths
        H, E, D = config.num_heads, config.num_experts, config.head_dim
        heads = {"q": (Q, D), "k": (KV, D), "v": (KV, 0)}  # rows, and `pairs` of a TensorSpec
        norm = (TensorSpec("input_layernorm.weight", (C,)),)
        found: Parameters = {"attention_norm.weight": norm}
        for name, shape in (("weight", (C,)), ("bias", ())):
            found[f"attention.qkv.{name}"] = tuple(
                TensorSpec(f"self_attn.{part}_proj.{name}", (rows, *shape), pairs=pairs)
                for part, (rows, pairs) in heads.items()
            )
        return found | {
            "attention.sinks": (TensorSpec("self_attn.sinks", (H,)),),
            "attention.out.weight": (TensorSpec("self_attn.o_proj.weight", (C, Q)),),
            "attention.out.bias": (TensorSpec("self_attn.o_proj.bias", (C,)),),
            "mixture_norm.weight": (TensorSpec("post_attention_layernorm.weight", (C,)),),
            "router.weight": (TensorSpec("mlp.router.weight", (E, C)),),
            "router.bias": (TensorSpec("mlp.router.bias", (E,)),),
            **self.experts(config).parameters(),
        }

    def outer(self, config: PrivacyFilterConfig) -> dict[str, TensorSpec]:
        C, N = config.hidden_size, len(config.labels)
        return {
            "embedding": TensorSpec("model.embed_tokens.weight", (config.vocab_size, C)),
            "last.norm.weight": TensorSpec("model.norm.weight", (C,)),
            "last.score.weight": TensorSpec("score.weight", (N, C)),
            "last.score.bias": TensorSpec("score.bias", (N,)),
        }


def _labels(names: dict | None) -> tuple[str, ...]:
    """The labels in the order of their ids, from `id2label` in config.json, else `LABELS`."""
    if names is None:
        return LABELS
    if not isinstance(names, dict):
        raise UnsupportedModel("config.json: id2label is not an object of numbers and labels")
    numbers = {int(number): name for number, name in names.items()}
    if sorted(numbers) != list(range(len(numbers))):
        raise UnsupportedModel("config.json: id2label does not number its labels from 0 on")
    return tuple(numbers[i] for i in range(len(numbers)))
