"""A tiny Llama of `transformers`, its greedy answer to a prompt, and a mask.

Letters: P positions in the cache.
"""

from functools import cache

from _foreign import halved
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

P, VOCABULARY, STEPS = 48, 257, 16
PROMPT = [3, 77, 200, 5, 9]

#: Matrices hold 16 numbers, multiples of this: a palette of 4 bits loses nothing of them.
STEP = 2.0**-6


@cache
def llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "norm" in name:
                value.add_(torch.randn_like(value) * 0.2)
            else:
                value.copy_((3 * value / STEP).round().clamp(-8, 7) * STEP)
    return halved(model)


@cache
def answer() -> tuple[list[int], np.ndarray]:
    """The prompt with its greedy answer, and the logits (positions, vocabulary) at each token."""
    prompt = torch.tensor([PROMPT])
    tokens = llama().generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=STEPS, do_sample=False
    )
    with torch.no_grad():
        return tokens[0].tolist(), llama()(tokens).logits[0].numpy()


def causal(start: int, length: int, end: int, closed: float) -> np.ndarray:
    """An additive mask (1, 1, length, end) for queries from position `start` on."""
    mask = np.zeros((1, 1, length, end), np.float16)
    mask[..., np.arange(end) > np.arange(start, start + length)[:, None]] = closed
    return mask
