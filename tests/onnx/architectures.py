"""Tiny architectures of `transformers`, of random weights, and what each of them is given.

An entry is (configuration, inputs) under the architecture's name in `transformers`; where a whole
model is not what is exported, "name.part" says which part is. Sizes are the smallest that keep what
makes an architecture itself: two layers, heads, windows, stages.
"""

from collections.abc import Callable

import numpy as np

BODY = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
TEXT = BODY | {"vocab_size": 120, "max_position_embeddings": 66}
NARROW = TEXT | {"embedding_size": 16}
DECODER = TEXT | {"num_key_value_heads": 2, "head_dim": 8, "use_cache": False}
EXPERTS = DECODER | {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
GPT = {"vocab_size": 120, "n_positions": 64, "n_embd": 32, "n_layer": 2, "n_head": 4}
STACKS = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}
SEQ2SEQ = STACKS | {"vocab_size": 120, "max_position_embeddings": 64}
T5 = {"vocab_size": 120, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
IMAGE = BODY | {"image_size": 32, "patch_size": 8}
STAGES = {"embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
SPEECH = BODY | {
    "conv_dim": (16, 16, 16),
    "conv_stride": (5, 2, 2),
    "conv_kernel": (10, 3, 3),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "vocab_size": 40,
}
DETECTOR = STACKS | {"num_queries": 9}
PATCHED = {
    "hidden_sizes": [16, 32],
    "num_attention_heads": [2, 4],
    "num_encoder_blocks": 2,
    "depths": [2, 2],
    "sr_ratios": [2, 1],
    "patch_sizes": [7, 3],
    "strides": [4, 2],
    "mlp_ratios": [2, 2],
}

TEXT_ENCODERS = {
    "albert": NARROW,
    "bert": TEXT,
    "convbert": NARROW | {"conv_kernel_size": 3},
    "deberta": TEXT | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "deberta-v2": TEXT
    | {
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 4,
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
    },
    "distilbert": {"vocab_size": 120, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    "electra": NARROW,
    "esm": TEXT | {"pad_token_id": 1, "position_embedding_type": "rotary"},
    "eurobert": DECODER | {"pad_token_id": 1},
    "fnet": TEXT,
    "ibert": TEXT,
    "longformer": TEXT | {"attention_window": [4, 4]},
    "mobilebert": NARROW | {"intra_bottleneck_size": 16, "num_feedforward_networks": 2},
    "modernbert": TEXT | {"global_attn_every_n_layers": 2, "local_attention": 6, "pad_token_id": 1},
    "mpnet": TEXT,
    "rembert": TEXT | {"input_embedding_size": 16, "output_embedding_size": 16},
    "roberta": TEXT,
    "roformer": NARROW,
    "squeezebert": TEXT | {"embedding_size": 32},
    "xlm": {"vocab_size": 120, "emb_dim": 32, "n_layers": 2, "n_heads": 4},
    "xlnet": {"vocab_size": 120, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64},
    "bart.encoder": SEQ2SEQ,
    "marian.encoder": SEQ2SEQ | {"pad_token_id": 1},
    "t5.encoder": T5,
    "umt5.encoder": T5,
}
DECODERS = {
    "bloom": {"vocab_size": 120, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    "codegen": GPT | {"rotary_dim": 4},
    "falcon": TEXT | {"alibi": False},
    "gemma2": DECODER | {"sliding_window": 4, "query_pre_attn_scalar": 8},
    "gemma3_text": DECODER | {"sliding_window": 4, "query_pre_attn_scalar": 8},
    "gpt2": GPT,
    "gpt_neo": {
        "vocab_size": 120,
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 4,
    },
    "gpt_neox": TEXT,
    "gpt_oss": EXPERTS | {"num_local_experts": 4, "sliding_window": 4},
    "lfm2": DECODER | {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3},
    "llama": DECODER,
    "mamba": {"vocab_size": 120, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    "opt": TEXT | {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "qwen2": DECODER,
    "qwen3": DECODER,
    "qwen3_moe": EXPERTS | {"num_experts": 4},
}
VISION = {
    "beit": IMAGE | {"use_relative_position_bias": True},
    "convnext": {"hidden_sizes": [16, 32], "depths": [1, 2], "num_stages": 2},
    "convnextv2": {"hidden_sizes": [16, 32], "depths": [1, 2], "num_stages": 2},
    "dinov2": IMAGE,
    "dinov3_vit": IMAGE,
    "efficientnet": {"width_coefficient": 0.25, "depth_coefficient": 0.5, "hidden_dim": 320},
    "focalnet": {"image_size": 32, "embed_dim": 16, "depths": [1, 1], "focal_levels": [2, 2]},
    "hiera": {
        "embed_dim": 16,
        "image_size": [32, 32],
        "depths": [1, 1, 1],
        "num_heads": [1, 2, 4],
        "query_stride": [2, 2],
        "num_query_pool": 2,
        "masked_unit_size": [8, 8],
        "patch_stride": [2, 2],
        "patch_size": [3, 3],
        "patch_padding": [1, 1],
    },
    "levit": {
        "image_size": 64,
        "hidden_sizes": [16, 32, 32],
        "num_attention_heads": [2, 2, 4],
        "depths": [1, 1, 1],
        "key_dim": [8, 8, 8],
    },
    "mobilenet_v2": {"depth_multiplier": 0.25},
    "mobilevit": {
        "image_size": 64,
        "hidden_sizes": [16, 24, 32],
        "neck_hidden_sizes": [8, 8, 16, 16, 16, 24, 32],
    },
    "mobilevitv2": {"image_size": 64, "width_multiplier": 0.25},
    "poolformer": {"hidden_sizes": [16, 32], "depths": [1, 1], "num_encoder_blocks": 2},
    "pvt_v2": PATCHED,
    "regnet": {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "groups_width": 8},
    "resnet": {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 2]},
    "segformer": PATCHED,
    "swiftformer": {"image_size": 64, "embed_dims": [16, 16, 32, 32], "depths": [1, 1, 1, 1]},
    "swin": STAGES | {"image_size": 32, "patch_size": 2},
    "swin2sr": STAGES | {"image_size": 16, "window_size": 4, "upscale": 2},
    "swinv2": STAGES | {"image_size": 32, "patch_size": 2},
    "vit": IMAGE,
    "yolos": IMAGE | {"image_size": [32, 32], "num_detection_tokens": 5},
}
AUDIO = {
    "hubert": SPEECH,
    "sew": SPEECH | {"squeeze_factor": 2},
    "wav2vec2": SPEECH,
    "wav2vec2-conformer": SPEECH,
    "wavlm": SPEECH,
}


def _ids(batch: int, length: int, random) -> dict[str, np.ndarray]:
    """Rows of which all but the first end in padding."""
    ids = random.integers(3, 120, (batch, length))
    mask = np.arange(length)[None] < length - 2 * np.arange(batch)[:, None]
    return {"input_ids": np.where(mask, ids, 1), "attention_mask": mask.astype(np.int64)}


def _text(batch: int, random) -> dict[str, np.ndarray]:
    return _ids(batch, 8 + 4 * (batch > 2), random)


def _boxed(batch: int, random) -> dict[str, np.ndarray]:
    found = _text(batch, random)
    corners = random.integers(0, 50, (*found["input_ids"].shape, 2))
    found["bbox"] = np.concatenate([corners, corners + random.integers(0, 50, corners.shape)], -1)
    return found


def _picture(size: int) -> Callable:
    def made(batch: int, random) -> dict[str, np.ndarray]:
        return {"pixel_values": random.standard_normal((batch, 3, size, size), np.float32)}

    return made


def _sound(batch: int, random) -> dict[str, np.ndarray]:
    length = 1600 + 400 * (batch > 2)
    return {"input_values": random.standard_normal((batch, length), np.float32)}


def _wave(name: str) -> Callable:
    def made(batch: int, random) -> dict[str, np.ndarray]:
        return {name: random.standard_normal((batch, 1, 320), np.float32)}

    return made


def _mel(bins: int, frames: int, name: str = "input_features") -> Callable:
    def made(batch: int, random) -> dict[str, np.ndarray]:
        return {name: random.standard_normal((batch, bins, frames), np.float32)}

    return made


def _pair(batch: int, random) -> dict[str, np.ndarray]:
    return _text(batch, random) | _picture(32)(batch, random)


def _clip(batch: int, random) -> dict[str, np.ndarray]:
    return {"pixel_values": random.standard_normal((batch, 4, 3, 32, 32), np.float32)}


BACKBONE = {
    "model_type": "resnet",
    "embedding_size": 16,
    "hidden_sizes": [16, 32, 32, 32],
    "depths": [1, 1, 1, 1],
    "layer_type": "basic",
}
TOWERS = {"text_config": TEXT | {"projection_dim": 16}, "vision_config": IMAGE}
OTHERS = {
    "canine": (TEXT | {"local_transformer_stride": 4, "num_hash_buckets": 64}, _text),
    "layoutlm": (TEXT | {"max_2d_position_embeddings": 128}, _boxed),
    "lilt": (TEXT | {"hidden_size": 48, "max_2d_position_embeddings": 128}, _boxed),
    "whisper.encoder": (
        SEQ2SEQ | {"num_mel_bins": 16, "max_source_positions": 20, "pad_token_id": 1},
        _mel(16, 40),
    ),
    "audio-spectrogram-transformer": (
        BODY | {"num_mel_bins": 16, "max_length": 32, "patch_size": 8},
        _mel(32, 16, "input_values"),
    ),
    "speech_to_text.encoder": (
        SEQ2SEQ | {"input_feat_per_channel": 16, "conv_channels": 32, "max_source_positions": 50},
        _mel(40, 16),
    ),
    "wav2vec2-bert": (
        BODY | {"feature_projection_input_dim": 16, "conv_depthwise_kernel_size": 5},
        _mel(20, 16),
    ),
    "clip": (TOWERS | {"projection_dim": 16}, _pair),
    "siglip": (TOWERS, _pair),
    "detr": (DETECTOR | {"use_timm_backbone": False, "backbone_config": BACKBONE}, _picture(64)),
    "conditional_detr": (
        DETECTOR | {"use_timm_backbone": False, "backbone_config": BACKBONE},
        _picture(64),
    ),
    "rt_detr": (
        DETECTOR
        | {"encoder_in_channels": [32, 32, 32], "encoder_hidden_dim": 32, "num_denoising": 0}
        | {"decoder_in_channels": [32, 32, 32], "feat_strides": [8, 16, 32]}
        | {
            "backbone_config": BACKBONE | {"model_type": "rt_detr_resnet", "out_indices": [2, 3, 4]}
        },
        _picture(64),
    ),
    "videomae": (IMAGE | {"num_frames": 4}, _clip),
    "dpt": (
        IMAGE | {"is_hybrid": False, "backbone_out_indices": [0, 1], "neck_hidden_sizes": [8, 16]},
        _picture(32),
    ),
    "encodec.encoder": (
        {"num_filters": 4, "hidden_size": 16, "upsampling_ratios": [4, 2], "num_lstm_layers": 1},
        _wave("hidden_states"),
    ),
    "dac.encoder": (
        {"encoder_hidden_size": 8, "downsampling_ratios": [2, 4], "hidden_size": 16},
        _wave("hidden_state"),
    ),
    "patchtst": (
        {"num_input_channels": 3, "context_length": 32, "patch_length": 8, "patch_stride": 8}
        | {"d_model": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 32},
        lambda batch, random: {"past_values": random.standard_normal((batch, 32, 3), np.float32)},
    ),
}


def _picture_of(name: str, config: dict) -> Callable:
    size = config.get("image_size", 64)
    return _picture(size if isinstance(size, int) else size[0])


ARCHITECTURES = (
    {name: (config, _text) for name, config in (TEXT_ENCODERS | DECODERS).items()}
    | {name: (config, _picture_of(name, config)) for name, config in VISION.items()}
    | {name: (config, _sound) for name, config in AUDIO.items()}
    | OTHERS
)
