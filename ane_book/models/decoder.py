"""The dense decoder of the families in `ane_book.config.FAMILIES`, in ANE form.

It is the one description of these models: conversion lowers its `Block` and `Head`, tests hold it
to `transformers`, and chapters call it directly. Embedding lookup, rotary tables and the mask are
the host's work (`ane_book.config`), so none of them is here.

Letters are those of `ane_book.models.layers`.
"""

from collections.abc import Callable

from ane_book.config import DecoderConfig
from ane_book.models.layers import Attention, FeedForward, RMSNorm, projection
import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["Block", "Decoder", "Head", "Winner", "block_weights", "head_weights"]


class Block(nn.Module):
    """One layer: norm, attention, residual, norm, feed-forward, residual."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attention = Attention(config)
        self.feed_forward_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.feed_forward = FeedForward(config)

    def forward(self, hidden, rope_cos, rope_sin, mask, keys, values):
        """hidden (1,C,1,T), this layer's cache (1,K,S,D) -> hidden, new keys, values (1,K,T,D)."""
        y, new_keys, new_values = self.attention(
            self.attention_norm(hidden), rope_cos, rope_sin, mask, keys, values
        )
        hidden = hidden + y
        hidden = hidden + self.feed_forward(self.feed_forward_norm(hidden))
        return hidden, new_keys, new_values


class Head(nn.Module):
    """Final norm and vocabulary projection, split along the vocabulary.

    splits: rows of each part; the ANE takes no axis over 65,536 and converters prefer 16,384.
    """

    def __init__(self, config: DecoderConfig, splits: tuple[int, ...]):
        super().__init__()
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.parts = nn.ModuleList(projection(config.hidden_size, rows) for rows in splits)

    def forward(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """hidden (1, C, 1, T) -> logits (1, V_i, 1, T) of each part."""
        hidden = self.norm(hidden)
        return tuple(part(hidden) for part in self.parts)


class Winner(nn.Module):
    """The id of the largest logit over all parts: each part's winner, then the winner of those.

    No axis ever spans the vocabulary, and of equal logits the first wins, as in `torch.argmax`.
    """

    def __init__(self, splits: tuple[int, ...]):
        super().__init__()
        self.offsets = [sum(splits[:i]) for i in range(len(splits))]

    def forward(self, *logits: Tensor) -> Tensor:
        """Parts (1, V_i, 1, T) -> token ids, int32 (1, T)."""
        best = torch.cat([part.max(dim=1, keepdim=True).values for part in logits], dim=1)
        tokens = [part.argmax(dim=1, keepdim=True).to(torch.int32) for part in logits]
        tokens = [ids + offset for ids, offset in zip(tokens, self.offsets, strict=True)]
        winner = best.argmax(dim=1, keepdim=True)  # (1, 1, 1, T)
        return torch.cat(tokens, dim=1).gather(1, winner).view(1, -1)


def block_weights(config: DecoderConfig, layer: int, read: Callable[[str], np.ndarray]) -> dict:
    """The parameters of layer `layer` as a state dict of `Block`.

    read(name) gives a tensor under its `transformers` name, float32, (out, in) order.
    """
    C, D, H, K = config.hidden_size, config.head_dim, config.num_heads, config.num_kv_heads
    base, family = f"model.layers.{layer}", config.family

    def rows(*names: str) -> Tensor:
        return torch.from_numpy(np.concatenate([read(f"{base}.{name}") for name in names]))

    def matrix(*modules: str) -> Tensor:
        return rows(*[f"{module}.weight" for module in modules])[:, :, None, None]

    weights = {
        "attention_norm.weight": rows("input_layernorm.weight").view(1, C, 1, 1),
        "attention.qkv.weight": matrix(*family.qkv),
        "attention.out.weight": matrix("self_attn.o_proj"),
        "feed_forward_norm.weight": rows("post_attention_layernorm.weight").view(1, C, 1, 1),
        "feed_forward.gate_up.weight": matrix(*family.gate_up),
        "feed_forward.down.weight": matrix("mlp.down_proj"),
    }
    if config.qkv_bias:
        weights["attention.qkv.bias"] = rows(*[f"{module}.bias" for module in family.qkv])
    if config.qk_norm:
        q, k = (rows(f"{module}.weight") for module in family.qk_norms)
        weights["attention.qk_norm"] = torch.cat([q.expand(H, D), k.expand(K, D)])[None, :, None, :]
    return weights


def head_weights(
    config: DecoderConfig, splits: tuple[int, ...], read: Callable[[str], np.ndarray]
) -> dict:
    """The parameters of `Head` as a state dict; a tied head reads the embedding."""
    name = "model.embed_tokens.weight" if config.tied_embeddings else "lm_head.weight"
    parts = torch.from_numpy(read(name))[:, :, None, None].split(list(splits))
    norm = torch.from_numpy(read("model.norm.weight")).view(1, -1, 1, 1)
    return {"norm.weight": norm} | {f"parts.{i}.weight": part for i, part in enumerate(parts)}


class Decoder(nn.Module):
    """The whole decoder, for tests and chapters: hidden states in, logits and new rows out."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.head = Head(config, (config.vocab_size,))

    @classmethod
    def from_weights(cls, config: DecoderConfig, read: Callable[[str], np.ndarray]) -> "Decoder":
        """Build the decoder from a reader of named tensors, every tensor accounted for."""
        decoder = cls(config)
        for i, layer in enumerate(decoder.layers):
            layer.load_state_dict(block_weights(config, i, read))
        decoder.head.load_state_dict(head_weights(config, (config.vocab_size,), read))
        return decoder.eval().requires_grad_(False)

    def forward(self, hidden, rope_cos, rope_sin, mask, keys, values):
        """hidden (1,C,1,T), cache (L,K,S,D) -> logits (1,V,1,T), new keys and values (L,K,T,D)."""
        new_keys, new_values = [], []
        for layer, k, v in zip(self.layers, keys.split(1), values.split(1), strict=True):
            hidden, new_k, new_v = layer(hidden, rope_cos, rope_sin, mask, k, v)
            new_keys.append(new_k)
            new_values.append(new_v)
        (logits,) = self.head(hidden)
        return logits, torch.cat(new_keys), torch.cat(new_values)
