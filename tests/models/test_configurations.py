"""Configurations that will not do: each is refused by the field's name, in one line."""

from functools import cache

from _tiny import COMMON, tiny_model
from _zaya import tiny_zaya
from ane_book.errors import InvalidWeights, UnsupportedModel
from ane_book.weights.random import RandomSource
import pytest

BARE = ("gpt2", "bert", "phi3", "llama", "hunyuan_v1_dense", "qwen2", "gemma3_text", "granite",
        "olmo2", "smollm3", "ministral", "ministral3", "olmo3", "exaone4", "glm4")  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 12, "long_factor": [2.0] * 12}
BY_KIND = {"full_attention": {}, "sliding_attention": {"rope_type": "linear", "factor": 2.0}}
BY_LAYER = {"hybrid": {"rope_theta": 1e4, "partial_rotary_factor": 0.5},
            "hybrid_sliding": {"rope_theta": 1e4}}  # fmt: skip

#: Family -> changes of its configuration, and what is said of those that are not supported.
UNSUPPORTED = {
    "gpt2": [({}, "'gpt2' is not one .* supported: bert, exaone4, gemma3_text, gemma4, ")],
    "phi3": [
        ({"attention_bias": True}, "attention_bias = True is not"),
        ({"lm_head_bias": True}, "lm_head_bias = True is not"),
    ],
    "bert": [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type = 'relative_key'"),
        ({"is_decoder": True}, "is_decoder = True is not supported for bert models"),
        ({"add_cross_attention": True}, "add_cross_attention = True"),
        ({"hidden_act": "silu"}, "hidden_act = 'silu' is not .* gelu, gelu_new"),
    ],
    "llama": [
        ({"partial_rotary_factor": 0.5}, "0.5 is not .* llama models"),
        ({"rope_scaling": {"type": "dynamic", "alpha": 2.0}},
         "type 'dynamic' is not supported for llama models; supported: .*llama3, longrope, yarn"),
    ],
    "hunyuan_v1_dense": [
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "_dense models; .* with alpha"),
    ],
    "qwen2": [({"use_sliding_window": True}, "use_sliding_window = True")],
    "gemma3_text": [
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0 is not supported for"),
        ({"layer_types": ["full_attention"]}, "types = .'full_attention'. of 3 layers; every l"),
        ({"layer_types": ["a\nb"] * 10**5}, r"layer_types = .'a.nb', .{1,200} of 3 layers"),
        ({"layer_types": 3}, "layer_types = 3 of 3"),
        ({"rope_parameters": BY_KIND}, "of type 'linear' are not supported for the sliding_atten"),
    ],
    "granite": [({"mlp_bias": True}, "mlp_bias = True")],
    "granitemoehybrid": [
        ({"num_local_experts": 4}, "num_local_experts = 4 is not supported for g"),
        ({"mamba_conv_bias": False}, "mamba_conv_bias = False"),
        ({"mamba_proj_bias": True}, "mamba_proj_bias = True"),
        ({"time_step_limit": [0.1, {"__float__": "Infinity"}]}, r"limit = \[0.1, .* for gra"),
        ({"layer_types": ["conv"] * 3}, "full_attention, linear"),
    ],
    "olmo2": [({"attention_bias": True}, "attention_bias = True")],
    "smollm3": [
        ({"no_rope_layers": [1, 0]}, r"layers = \[1, 0\] of 3 layers; every layer needs a 1 \(rot"),
        ({"no_rope_layers": [1, 0, 2]}, "no_rope_layers = .1, 0, 2."),
        ({"layer_types": ["sliding_attention"] * 3}, "needs one of f"),
        ({"use_sliding_window": True}, "use_sliding_window = True"),
    ],
    "ministral3": [({}, "rope_parameters without llama_4_scaling_beta or")],
    "olmo3": [({"attention_bias": True}, "attention_bias = True")],
    "gemma4_text": [
        ({"enable_moe_block": True}, "enable_moe_block = True is not supported"),
        ({"use_bidirectional_attention": "all"}, "attention = 'all' is not"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"vocab_size_per_layer_input": 256}, "input = 256 of a vocabulary of"),
        ({"per_layer_config": {"1": {"head_dim": 20}}}, "heads that differ between"),
    ],
    "lfm2": [
        ({"conv_bias": True}, "conv_bias = True is not supported for l"),
        ({"layer_types": ["conv"]}, "of 3 layers; every layer needs one"),
        ({"layer_types": ["linear"] * 3}, "one of full_attention, conv"),
    ],
    "qwen3_5_text": [
        ({"attn_output_gate": False}, "attn_output_gate = False"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"layer_types": ["conv"] * 3}, "full_attention, linear"),
    ],
    "qwen3_moe": [
        ({"decoder_sparse_step": 0}, "decoder_sparse_step = 0 wi"),
        ({"mlp_only_layers": 3}, "mlp_only_layers = 3; a number"),
    ],
    "lfm2_moe": [({"conv_bias": True}, "conv_bias = True is not supported")],
    "zaya": [
        ({"attention_bias": True}, "attention_bias = True is not supported"),
        ({"lm_head_bias": True}, "lm_head_bias = True is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu' is not supported"),
        ({"num_experts_per_tok": 2}, "num_experts_per_tok = 2 is not"),
        ({"layer_types": ["hybrid"]}, "of 3 layers; every layer needs one of"),
        ({"layer_types": ["full"] * 3}, "one of hybrid, hybrid_sliding"),
        ({"rope_parameters": {"rope_theta": 1e4}}, "not by the type of layer"),
        ({"rope_parameters": {"hybrid": {"rope_type": "yarn", "factor": 2.0}}}, "of type 'yarn' a"),
        ({"layer_types": ["hybrid", "hybrid", "hybrid_sliding"], "sliding_window": 9,
          "rope_parameters": BY_LAYER}, "partial_rotary_factor of 0.5 and 1.0 in one model"),
        ({"layer_types": None, "num_hidden_layers": 10**9}, "of 1000000000 la"),
    ],
}  # fmt: skip

#: The same of those that no model has.
INVALID = {
    "bert": [
        ({"sentence_transformers": "x"}, "sentence_transformers is not an"),
        ({"num_attention_heads": 5}, "128 channels do not divide by 5 heads"),
    ],
    "phi3": [
        ({"rope_scaling": LONG | {"short_factor": [1.0] * 16}},
         "short_factor has 16 numbers, but 24 rotated dimensions make 12 pairs"),
        ({"rope_scaling": LONG | {"long_factor": [1.0] * 11}}, "long_factor has 11 numbers"),
        ({"rope_scaling": {"type": "su"}}, "'longrope' .*'short_factor'"),
        ({"partial_rotary_factor": 0.72}, "23 of head_dim 32 dimensions"),
        ({"partial_rotary_factor": 1.5}, "48 of head_dim 32 dimensions"),
    ],
    "llama": [
        ({"rope_scaling": {"type": "linear"}}, "'linear' .*'factor'"),
        ({"rope_scaling": YARN | {"factor": float("nan")}}, "'yarn' cannot .*no finite number"),
        ({"rope_scaling": YARN | {"factor": "4"}}, "'yarn' cannot be"),
        ({"rope_scaling": YARN, "original_max_position_embeddings": -1}, "'yarn' .*math domain"),
        ({"rope_theta": float("inf")}, "rope_theta: .*finite"),
        ({"rope_theta": -1e4}, "rope_theta: .*greater than 0"),
        ({"rope_theta": 0}, "rope_theta: .*greater than 0"),
        ({"rms_norm_eps": 1e308}, "rms_norm_eps: .*less than or equal"),
        ({"tie_word_embeddings": "maybe"}, "tied_embeddings: .*boolean"),
        ({"num_hidden_layers": 10**9}, "num_layers: .*10000"),
        ({"num_hidden_layers": 0}, "num_layers: .*greater than 0"),
        ({"hidden_size": 1 << 30}, "hidden_size: .*1048576"),
        ({"head_dim": 1 << 30}, "head_dim: .*1048576"),
        ({"vocab_size": 1 << 40}, "vocab_size: .*16777216"),
        ({"num_key_value_heads": -2}, "num_kv_heads: .*greater than 0"),
        ({"max_position_embeddings": 1 << 60}, "max_position: "),
    ],
    "hunyuan_v1_dense": [
        ({"rope_scaling": {"type": "dynamic", "alpha": -2.0}}, "'dynamic' .*math domain"),
        ({"rope_scaling": YARN | {"attention_factor": 0.0}}, "an attention factor of 0.0 is no us"),
        ({"rope_scaling": YARN | {"attention_factor": float("nan")}}, "'yarn' .*no finite number"),
    ],
    "gemma3_text": [
        ({"rope_parameters": BY_KIND | {"full_attention": "x"}}, "full_attention is not an object"),
        ({"rope_parameters": {"full_attention": {}}}, "s: sliding_attention is not an object"),
        ({"query_pre_attn_scalar": 5e-324}, "attention_scale: .*less than or equal to 16384"),
        ({"query_pre_attn_scalar": 0}, "no use"),
        ({"sliding_window": None}, "sliding_window: "),
    ],
    "granite": [
        ({"logits_scaling": 0.0}, "logits_scaling: "),
        ({"logits_scaling": 5e-324}, "logits_scaling: .*greater"),
        ({"attention_multiplier": 1e308}, "attention_multiplier: "),
        ({"residual_multiplier": 1e308}, "residual_multiplier: .*less"),
        ({"embedding_multiplier": 1e308}, "embedding_multiplier: "),
    ],
    "granitemoehybrid": [
        ({"mamba_n_groups": 3}, "8 Mamba heads do not div"),
        ({"mamba_d_conv": 1}, "taps: .*greater than or"),
        ({"time_step_limit": 3}, "no use"),
    ],
    "ministral": [
        ({"sliding_window": None, "layer_types": ["sliding_attention"] * 3},
         "layer_types has sliding_attention, but there is no sliding_window"),
    ],
    "olmo3": [({"sliding_window": None}, "sliding_window: ")],
    "exaone4": [({"sliding_window_pattern": "LLLG"}, "no use")],
    "glm4": [({"partial_rotary_factor": 0.3}, "9 of head_dim 32 dimensions")],
    "gemma4_text": [
        ({"num_kv_shared_layers": 6}, "none before them is full"),
        ({"num_kv_shared_layers": 9}, "9 of 7 layers share keys and values"),
        ({"final_logit_softcapping": -1.0}, "softcap"),
    ],
    "lfm2": [({"conv_L_cache": 1}, "taps: .*greater than or equal to 2")],
    "qwen3_5_text": [
        ({"linear_num_value_heads": 5}, "5 value heads do not div"),
        ({"linear_conv_kernel_dim": 0}, "taps: .*greater than or"),
    ],
    "qwen3_moe": [
        ({"num_experts_per_tok": 8}, "takes 8 experts of 7"),
        ({"num_local_experts": 3000}, "num_experts: .*2048"),
        ({"num_local_experts": 2000, "num_hidden_layers": 60}, "59 layers of 2000 experts"),
        ({"moe_intermediate_size": 0}, "expert_size: .*greater"),
    ],
    "lfm2_moe": [
        ({"routed_scaling_factor": 0.0}, "gate_scale: .*greater"),
        ({"num_dense_layers": None}, "a value that is no use"),
    ],
    "zaya": [
        ({"layer_types": ["hybrid_sliding"] * 3}, "need a sliding_window"),
        ({"rope_parameters": {"hybrid": {}}}, "'rope_theta' is missing"),
        ({"rope_parameters": {"other": {}}}, "hybrid is not an object"),
        ({"cca_time0": 0}, "taps.*greater than 0"),
        ({"num_experts": 5000}, "num_experts: .*2047"),
        ({"num_key_value_heads": 1, "head_dim": 9, "rope_parameters": None}, "9 dimensions have"),
        ({"router_hidden_size": 0}, "router_size: .*greater than 0"),
    ],
}  # fmt: skip


CASES = [
    (family, error, *row)
    for error, table in ((UnsupportedModel, UNSUPPORTED), (InvalidWeights, INVALID))
    for family, rows in table.items()
    for row in rows
]


@cache
def fields_of(family: str) -> dict:
    if family == "zaya":
        return tiny_zaya("usual").config.to_dict()
    if family not in BARE:
        return tiny_model(family).config.to_dict()
    fields = COMMON | {"model_type": family, "rms_norm_eps": 1e-5, "num_attention_heads": 4}
    fields |= {"hidden_size": 128, "original_max_position_embeddings": 64}
    if family == "gemma3_text":
        fields |= {"sliding_window": 8, "query_pre_attn_scalar": 16}
    return fields | ({"partial_rotary_factor": 0.75} if family == "phi3" else {})


@pytest.mark.parametrize(("family", "error", "changes", "message"), CASES)
def test_a_configuration_that_will_not_do(family, error, changes, message):
    with pytest.raises(error, match=message) as caught:
        RandomSource(fields_of(family) | changes)
    assert str(caught.value).startswith("the configuration: ") and "\n" not in str(caught.value)
