"""What the host computes for a bundle: rotary tables far into a text, and the causal mask."""

from ane_book.host import causal_mask
from ane_book.models import read_config
import numpy as np
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding


def test_rotary_tables_are_transformers():
    reference = LlamaConfig(hidden_size=256, num_attention_heads=4)
    positions = np.array([0, 1, 7, 100, 1999])
    given = torch.zeros(1, 5, 256), torch.from_numpy(positions)[None]
    cos, sin = (table[0].numpy() for table in LlamaRotaryEmbedding(reference)(*given))
    our_cos, our_sin = read_config(reference.to_dict()).rotary.tables(positions)
    assert our_cos.dtype == our_sin.dtype == np.float32
    # transformers multiplies positions in float32: at 2,000 radians that is off by 1e-4
    scale = 64**-0.25  # attention's 1/sqrt(D), half of it in the queries, half in the keys
    np.testing.assert_allclose(our_cos[0, 0], cos * scale, atol=3e-4)
    np.testing.assert_allclose(our_sin[0, 0, :, 32:], sin[:, 32:] * scale, atol=3e-4)
    np.testing.assert_array_equal(our_sin[..., :32], -our_sin[..., 32:])


class TestHostTables:
    def test_mask_lets_through_the_past_and_nothing_else(self):
        mask = causal_mask(position=2, tokens=3, context=4)[0, 0] == 0
        expected = ["1100100", "1100110", "1100111"]
        assert ["".join(str(int(seen)) for seen in row) for row in mask] == expected

    def test_a_window_counts_the_token_itself(self):
        mask = causal_mask(position=3, tokens=2, context=4, window=2)[0, 0] == 0
        expected = ["001010", "000011"]
        assert ["".join(str(int(seen)) for seen in row) for row in mask] == expected
