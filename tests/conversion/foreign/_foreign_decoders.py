"""The decoders that other people's converters trace: what `transformers` has, written their way.

What each is like is said in `test_foreign_decoders.py` and `test_foreign_recipe.py`, which hold the
programs made of them to `transformers`; `research/measurements/foreign.py` times them.

Letters: L layers, T query, P positions in the cache, H heads, G key-value heads, D head size,
C channels.
"""

import torch
from torch import nn
from torch.nn import functional as F
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

# --- ANEMLL ---


def normalize(x, norm):
    """RMS norm over the last axis: [x, -x] has mean 0, so its layer norm is it."""
    doubled = torch.cat([x, -x], dim=-1)
    doubled = F.layer_norm(doubled, (2 * x.shape[-1],), eps=norm.variance_epsilon)
    return doubled[..., : x.shape[-1]] * norm.weight


def conv(x, linear):
    """A linear layer on x (1, C, 1, T) as a 1x1 convolution."""
    return F.conv2d(x, linear.weight[:, :, None, None])


def softmax(x):
    x = torch.exp(x - x.max(dim=-1, keepdim=True).values)
    return x / x.sum(dim=-1, keepdim=True)


def rotate(x, cos, sin, dim=-1):
    first, second = x.chunk(2, dim)
    return x * cos + torch.cat([-second, first], dim) * sin


class Decoder(nn.Module):
    """All layers; hidden_states (1, T, C), position_ids (T,), causal_mask, current_pos (1,)."""

    def __init__(self, model, positions: int):
        super().__init__()
        config = model.config
        self.layers, self.norm = model.model.layers, model.model.norm
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.size = config.head_dim
        cos, sin = model.model.rotary_emb(torch.zeros(1, 1, 1), torch.arange(positions)[None])
        self.register_buffer("cos", cos[0])  # (P, D)
        self.register_buffer("sin", sin[0])
        shape = 2 * config.num_hidden_layers, self.groups, positions, self.size
        self.register_buffer("kv_cache_0", torch.zeros(shape))

    def attend(self, x, layer, index, cos, sin, causal_mask, current_pos):
        length = x.shape[-1]

        def heads(y, count):  # (1, count * D, 1, T) -> (1, count, T, D)
            return y.view(1, count, self.size, length).permute(0, 1, 3, 2)

        query = rotate(heads(conv(x, layer.q_proj), self.heads), cos, sin)
        key = rotate(heads(conv(x, layer.k_proj), self.groups), cos, sin)
        value = heads(conv(x, layer.v_proj), self.groups)
        end = current_pos + length
        whole, repeat = [], self.heads // self.groups
        rows = index, len(self.layers) + index
        for row, new in zip(rows, (key, value), strict=True):
            self.kv_cache_0[row : row + 1, :, current_pos:end, :] = new
        for row in rows:
            stored = self.kv_cache_0[row : row + 1].squeeze(0)  # (G, P, D)
            whole.append(stored.unsqueeze(1).repeat(1, repeat, 1, 1).view(1, -1, *stored.shape[1:]))
        scores = torch.matmul(query, whole[0].transpose(-1, -2)) * self.size**-0.5 + causal_mask
        y = torch.matmul(softmax(scores), whole[1])  # (1, H, T, D)
        y = y.permute(0, 2, 1, 3).reshape(1, length, -1)
        return layer.o_proj(y)

    def forward(self, hidden_states, position_ids, causal_mask, current_pos):
        cos, sin = self.cos[position_ids], self.sin[position_ids]
        x, start = hidden_states, current_pos[0]
        for index, layer in enumerate(self.layers):
            h = normalize(x, layer.input_layernorm).permute(0, 2, 1).unsqueeze(2)
            x = x + self.attend(h, layer.self_attn, index, cos, sin, causal_mask, start)
            h = normalize(x, layer.post_attention_layernorm).permute(0, 2, 1).unsqueeze(2)
            gated = F.silu(conv(h, layer.mlp.gate_proj)) * conv(h, layer.mlp.up_proj)
            x = x + conv(gated, layer.mlp.down_proj).squeeze(2).permute(0, 2, 1)
        return normalize(x, self.norm)


# --- 0seba ---


def channel_norm(x, norm):
    """RMS norm over the channels of x (1, C, 1, T), by `split` of the doubled ones."""
    doubled = torch.cat([x, -x], 1).permute(0, 2, 3, 1)  # (1, 1, T, 2 * C)
    doubled = F.layer_norm(doubled, doubled.shape[-1:], eps=norm.variance_epsilon)
    return doubled.permute(0, 3, 1, 2).chunk(2, 1)[0] * norm.weight[:, None, None]


class ChannelDecoder(Decoder):
    """All layers; hidden (1, C, 1, T) and the position (1,) of its first column."""

    def __init__(self, model, positions: int):
        super().__init__(model, positions)
        del self.kv_cache_0
        for name in ("key_cache", "value_cache"):
            shape = len(self.layers), self.groups, positions, self.size
            self.register_buffer(name, torch.zeros(shape))

    def attend(self, x, layer, index, cos, sin, mask, start):
        end = start + x.shape[-1]
        query, key, value = (
            conv(x, linear).view(1, -1, self.size, x.shape[-1])  # (1, n, D, T)
            for linear in (layer.q_proj, layer.k_proj, layer.v_proj)
        )
        self.key_cache[index : index + 1, :, start:end] = rotate(key.transpose(2, 3), cos, sin)
        self.value_cache[index : index + 1, :, start:end] = value.transpose(2, 3)
        query = rotate(query, cos.T, sin.T, dim=-2)
        stored = self.key_cache[index : index + 1], self.value_cache[index : index + 1]
        groups = zip(*(y.chunk(self.groups, 1) for y in (query, *stored)), strict=True)
        found = []
        for q, k, v in groups:
            scores = k @ q / self.size**0.5 + mask  # (1, H / G, P, T)
            found.append(scores.softmax(2).transpose(-1, -2) @ v)
        y = torch.cat(found, 1).transpose(2, 3).reshape(1, -1, 1, x.shape[-1])
        return conv(y, layer.o_proj)

    def forward(self, hidden, position):
        places = position + torch.arange(hidden.shape[-1], dtype=torch.int32)
        cos, sin = self.cos[places], self.sin[places]
        slots = torch.arange(len(self.cos), dtype=torch.int32)
        closed = slots[:, None] > places[None]  # (P, T)
        mask, x = torch.where(closed, -40000.0, 0.0)[None, None], hidden
        for index, layer in enumerate(self.layers):
            h = channel_norm(x, layer.input_layernorm)
            x = x + self.attend(h, layer.self_attn, index, cos, sin, mask, position[0])
            h = channel_norm(x, layer.post_attention_layernorm)
            gated = F.silu(conv(h, layer.mlp.gate_proj)) * conv(h, layer.mlp.up_proj)
            x = x + conv(gated, layer.mlp.down_proj)
        return channel_norm(x, self.norm)


# --- Apple's recipe and torch.export ---


class SliceCache:
    """What `transformers` asks of a cache, over two buffers (L, 1, G, P, D)."""

    is_compileable = False

    def __init__(self, keys, values, seen: int):
        self.keys, self.values, self.seen = keys, values, seen

    def get_seq_length(self, layer: int = 0) -> int:
        return self.seen

    def update(self, key, value, layer: int):
        end = self.seen + key.shape[2]
        self.keys[layer, :, :, self.seen : end, :] = key
        self.values[layer, :, :, self.seen : end, :] = value
        return self.keys[layer, :, :, :end, :], self.values[layer, :, :, :end, :]


class StatefulLlama(nn.Module):
    def __init__(self, model, positions: int, fused: bool):
        super().__init__()
        self.model = model
        for layer in model.model.layers:  # with the default scale, attention stays one op
            layer.self_attn.scaling = None if fused else layer.self_attn.head_dim**-0.5
        config = model.config
        shape = config.num_hidden_layers, 1, config.num_key_value_heads, positions, config.head_dim
        for name in ("keyCache", "valueCache"):
            self.register_buffer(name, torch.zeros(shape))

    def forward(self, inputIds, causalMask):
        cache = SliceCache(
            self.keyCache, self.valueCache, causalMask.shape[-1] - inputIds.shape[-1]
        )
        return self.model(
            inputIds, attention_mask=causalMask, past_key_values=cache, use_cache=True
        ).logits


class SlotCache(nn.Module):
    """One token: ids (1, 1) at position (1,); the caches are (L, G, P, D)."""

    def __init__(self, model, positions: int):
        super().__init__()
        self.model = model
        config = model.config
        shape = config.num_hidden_layers, config.num_key_value_heads, positions, config.head_dim
        self.register_buffer("keys", torch.zeros(shape))
        self.register_buffer("values", torch.zeros(shape))

    def attend(self, attention, x, index, rotary, mask, position):
        q, k, v = (
            linear(x).view(1, 1, -1, attention.head_dim).transpose(1, 2)  # (1, n, 1, D)
            for linear in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        q, k = apply_rotary_pos_emb(q, k, *rotary)
        self.keys[index][:, position], self.values[index][:, position] = k[0], v[0]
        repeat = q.shape[1] // k.shape[1]
        k, v = (y[index][None].repeat_interleave(repeat, 1) for y in (self.keys, self.values))
        y = F.scaled_dot_product_attention(q, k, v, mask)
        return attention.o_proj(y.transpose(1, 2).flatten(2))

    def forward(self, ids, position):
        llama = self.model.model
        x = llama.embed_tokens(ids)
        rotary = llama.rotary_emb(x, position[None])
        closed = torch.arange(self.keys.shape[2])[None] > position[:, None]  # (1, P)
        mask = torch.where(closed, -40000.0, 0.0)
        for index, layer in enumerate(llama.layers):
            h = layer.input_layernorm(x)
            x = x + self.attend(layer.self_attn, h, index, rotary, mask, position)
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.model.lm_head(llama.norm(x))
