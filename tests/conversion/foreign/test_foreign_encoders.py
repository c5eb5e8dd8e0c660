"""Encoders of `transformers` by coremltools' path from torch, against torch itself."""

from _foreign import check, normal, package, seeded
import coremltools as ct
import numpy as np
import torch
from torch import nn
from transformers import BertConfig, BertModel, ViTConfig, ViTForImageClassification, WhisperConfig
from transformers.models.whisper.modeling_whisper import WhisperEncoder

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}


class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        config = BertConfig(
            vocab_size=97, intermediate_size=48, max_position_embeddings=32, **SMALL
        )
        self.model = BertModel(config)

    def forward(self, input_ids, attention_mask):
        # `transformers` 5 makes its own mask with `new_ones`, which coremltools 9 lacks
        mask = (1.0 - attention_mask[:, None, None, :].float()) * -1e4
        found = self.model(input_ids, attention_mask=mask)
        return found.last_hidden_state, found.pooler_output


def test_a_text_encoder(tmp_path):
    """BERT with a padded sequence: the mask is computed inside, from integers."""
    model = seeded(Bert)
    ids = np.random.default_rng(0).integers(0, 97, (2, 9)).astype(np.int32)
    mask = (np.arange(9) < [[9], [6]]).astype(np.int32)
    path = package(
        model,
        tmp_path / "bert.mlpackage",
        (torch.from_numpy(ids), torch.from_numpy(mask)),
        inputs=[ct.TensorType(name, ids.shape, dtype=np.int32) for name in ("ids", "mask")],
        outputs=[ct.TensorType("states"), ct.TensorType("pooled")],
        minimum_deployment_target=ct.target.iOS17,
    )
    check(model, path, [(ids, mask)], "states pooled")


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        config = ViTConfig(image_size=16, patch_size=4, intermediate_size=48, num_labels=7, **SMALL)
        self.model = ViTForImageClassification(config)

    def forward(self, image):
        return self.model(image).logits


def test_a_vision_transformer(tmp_path):
    model, image = seeded(ViT), normal(1, 3, 16, 16)
    path = package(
        model,
        tmp_path / "vit.mlpackage",
        (torch.from_numpy(image),),
        inputs=[ct.TensorType("image", image.shape)],
        outputs=[ct.TensorType("y")],
    )
    check(model, path, [(image,)])


class Speech(nn.Module):
    """The encoder of Whisper: two convolutions over time, GELU, attention."""

    def __init__(self):
        super().__init__()
        sizes = {"num_mel_bins": 8, "d_model": 32, "max_source_positions": 12}
        layers = {"encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 48}
        self.model = WhisperEncoder(WhisperConfig(**sizes, **layers))

    def forward(self, mel):
        return self.model(mel).last_hidden_state


def test_a_speech_encoder(tmp_path):
    model, mel = seeded(Speech), normal(1, 8, 24)
    path = package(
        model,
        tmp_path / "whisper.mlpackage",
        (torch.from_numpy(mel),),
        inputs=[ct.TensorType("mel", mel.shape)],
        outputs=[ct.TensorType("y")],
        minimum_deployment_target=ct.target.iOS16,
    )
    check(model, path, [(mel,)])
