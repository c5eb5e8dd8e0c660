"""What the host computes for a bundle: rotary tables and the causal mask."""

from ane_book.host import causal_mask
from ane_book.models import DecoderConfig
import numpy as np
import pytest


def tiny_config(**changes) -> DecoderConfig:
    fields = {
        "architecture": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "vocab_size": 257,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position": 2048,
    }
    return DecoderConfig(**fields | changes)


class TestHostTables:
    @pytest.mark.parametrize(
        "scaling",
        [
            None,
            {"rope_type": "linear", "factor": 4.0},
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 256,
            },
        ],
        ids=["plain", "linear", "llama3"],
    )
    @pytest.mark.parametrize("theta", [10000.0, 1e6])
    def test_rotary_tables_are_transformers(self, scaling, theta):
        import torch
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        reference = LlamaConfig(
            hidden_size=256,
            num_attention_heads=4,
            head_dim=64,
            max_position_embeddings=2048,
            rope_parameters={"rope_type": "default", **(scaling or {}), "rope_theta": theta},
        )
        positions = np.array([0, 1, 7, 100, 1999])
        cos, sin = LlamaRotaryEmbedding(reference)(
            torch.zeros(1, 5, 256), torch.from_numpy(positions)[None]
        )
        config = tiny_config(head_dim=64, rope_theta=theta, rope_scaling=scaling)
        our_cos, our_sin = config.rotary.tables(positions)
        assert our_cos.shape == our_sin.shape == (1, 1, 5, 64)
        assert our_cos.dtype == our_sin.dtype == np.float32
        # transformers multiplies positions in float32: at 2,000 radians that is off by 1e-4
        scale = 64**-0.25  # attention's 1/sqrt(D), half of it in the queries, half in the keys
        np.testing.assert_allclose(our_cos[0, 0], cos[0].numpy() * scale, atol=3e-4)
        np.testing.assert_allclose(our_sin[0, 0, :, 32:], sin[0, :, 32:].numpy() * scale, atol=3e-4)
        np.testing.assert_array_equal(our_sin[..., :32], -our_sin[..., 32:])

    def test_mask_lets_through_the_past_and_nothing_else(self):
        mask = causal_mask(position=2, tokens=3, context=4)[0, 0] == 0
        expected = ["1100100", "1100110", "1100111"]
        assert ["".join(str(int(seen)) for seen in row) for row in mask] == expected

    def test_a_window_counts_the_token_itself(self):
        mask = causal_mask(position=3, tokens=2, context=4, window=2)[0, 0] == 0
        expected = ["001010", "000011"]
        assert ["".join(str(int(seen)) for seen in row) for row in mask] == expected
