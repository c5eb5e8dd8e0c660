"""Language models as two other converters write them, against `transformers` with the same weights.

Apple's recipe ("On Device Llama 3.1 with Core ML", Machine Learning Research, November 2024) traces
the model of `transformers` with a cache of two states, a query of any length, and a mask whose last
size says where the cache ends. ANEMLL (github.com/Anemll/Anemll) writes the decoder anew for the
Neural Engine: one state for all keys and values, 1x1 convolutions, the norm as a `layer_norm` of
[x, -x], the softmax spelled out, a head in parts, and two functions on one state.

Letters: T query, P positions in the cache, L layers, H heads, G key-value heads, D head size.
"""

from functools import cache

from _foreign import WAYS, agree, halved, package
import ane_book  # noqa: F401  (silences coremltools)
from ane_book.errors import InvalidInput
from ane_book.mil import MLProgram
import coremltools as ct
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import LlamaConfig, LlamaForCausalLM

P, VOCABULARY, STEPS = 48, 257, 16
PROMPT = [3, 77, 200, 5, 9]


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
            value.add_(torch.randn_like(value) * 0.2) if "norm" in name else value.mul_(3)
    return halved(model)


@cache
def answer() -> tuple[list[int], np.ndarray]:
    """The prompt with its greedy answer, and the logits (positions, vocabulary) before each token."""
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


# --- Apple's recipe ---------------------------------------------------------------------------


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
    def __init__(self, model, fused: bool):
        super().__init__()
        self.model = model
        for layer in model.model.layers:  # with the default scale, attention stays one op
            layer.self_attn.scaling = None if fused else layer.self_attn.head_dim**-0.5
        config = model.config
        shape = config.num_hidden_layers, 1, config.num_key_value_heads, P, config.head_dim
        for name in ("keyCache", "valueCache"):
            self.register_buffer(name, torch.zeros(shape))

    def forward(self, inputIds, causalMask):
        cache = SliceCache(
            self.keyCache, self.valueCache, causalMask.shape[-1] - inputIds.shape[-1]
        )
        return self.model(
            inputIds, attention_mask=causalMask, past_key_values=cache, use_cache=True
        ).logits


@pytest.mark.parametrize("fused", [False, True], ids=["transformers 5", "transformers 4"])
def test_apples_recipe(fused, tmp_path):
    """`transformers` 5 passes a scale, which coremltools 9 spells out; version 4 passed none."""
    model = StatefulLlama(llama(), fused)
    query, end = (ct.RangeDim(1, P, default=1) for _ in range(2))
    state = dict(shape=model.keyCache.shape, dtype=np.float16)
    path = package(
        model,
        tmp_path / "recipe.mlpackage",
        (torch.zeros((1, 2), dtype=torch.int32), torch.zeros((1, 1, 2, 5))),
        inputs=[
            ct.TensorType("inputIds", (1, query), dtype=np.int32),
            ct.TensorType("causalMask", (1, 1, query, end), dtype=np.float16),
        ],
        outputs=[ct.TensorType("logits", dtype=np.float16)],
        states=[
            ct.StateType(ct.TensorType(**state), name=name) for name in ("keyCache", "valueCache")
        ],
    )
    attention = {o.type for o in MLProgram(path).operations} & {"scaled_dot_product_attention"}
    assert bool(attention) == fused
    tokens, logits = answer()
    chunks = [range(4), range(4, 5), *(range(i, i + 1) for i in range(5, len(tokens) - 1))]
    calls, expected = [], []
    for chunk in chunks:
        new = np.array([tokens[chunk.start : chunk.stop]], np.int32)
        mask = causal(chunk.start, len(chunk), chunk.stop, -np.inf)
        calls.append({"inputIds": new, "causalMask": mask})
        expected.append({"logits": logits[None, chunk.start : chunk.stop]})
    for results in agree(path, calls, expected, half=5e-3):
        chosen = [int(result["logits"][0, -1].argmax()) for result in results]
        assert chosen[1:] == tokens[len(PROMPT) :]
    program = MLProgram(path)
    with pytest.raises(InvalidInput, match="inputIds"):
        program.predict(calls[0] | {"inputIds": calls[0]["inputIds"][0]}, program.make_state())


# --- ANEMLL -----------------------------------------------------------------------------------


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


class Embeddings(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.embed = model.model.embed_tokens

    def forward(self, input_ids):
        return self.embed(input_ids)


class Head(nn.Module):
    """The vocabulary in four parts, each an output of its own."""

    def __init__(self, model):
        super().__init__()
        self.parts = nn.ModuleList()
        for weight in model.lm_head.weight.split(VOCABULARY // 4 + 1):
            self.parts.append(nn.Conv2d(weight.shape[1], len(weight), 1, bias=False))
            self.parts[-1].weight = nn.Parameter(weight[:, :, None, None], requires_grad=False)

    def forward(self, hidden_states):
        x = hidden_states.permute(0, 2, 1).unsqueeze(2)  # (1, T, C) -> (1, C, 1, T)
        return tuple(part(x).squeeze(2).transpose(1, 2) for part in self.parts)


class Decoder(nn.Module):
    """All layers; hidden_states (1, T, C), position_ids (T,), causal_mask, current_pos (1,)."""

    def __init__(self, model):
        super().__init__()
        config = model.config
        self.layers, self.norm = model.model.layers, model.model.norm
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.size = config.head_dim
        positions = torch.arange(P)[None]
        cos, sin = model.model.rotary_emb(torch.zeros(1, 1, 1), positions)
        self.register_buffer("cos", cos[0])  # (P, D)
        self.register_buffer("sin", sin[0])
        shape = 2 * config.num_hidden_layers, self.groups, P, self.size
        self.register_buffer("kv_cache_0", torch.zeros(shape))

    def rotate(self, x, cos, sin):
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-second, first], dim=-1) * sin

    def attend(self, x, layer, index, cos, sin, causal_mask, current_pos):
        length = x.shape[-1]

        def heads(y, count):  # (1, count * D, 1, T) -> (1, count, T, D)
            return y.view(1, count, self.size, length).permute(0, 1, 3, 2)

        query = self.rotate(heads(conv(x, layer.q_proj), self.heads), cos, sin)
        key = self.rotate(heads(conv(x, layer.k_proj), self.groups), cos, sin)
        value = heads(conv(x, layer.v_proj), self.groups)
        end = current_pos + length
        whole = []
        for row, new in ((index, key), (len(self.layers) + index, value)):
            self.kv_cache_0[row : row + 1, :, current_pos:end, :] = new
            stored = self.kv_cache_0[row : row + 1].squeeze(0)  # (G, P, D)
            repeat = self.heads // self.groups
            whole.append(stored.unsqueeze(1).repeat(1, repeat, 1, 1).view(1, -1, P, self.size))
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


T = 4  # tokens that `prefill` takes


def half_tensor(name: str, *shape) -> ct.TensorType:
    return ct.TensorType(name, shape, dtype=np.float16)


def convert_decoder(folder, length: int):
    model = Decoder(llama())
    example = (
        torch.zeros(1, length, 64),
        torch.zeros(length, dtype=torch.int32),
        torch.zeros(1, 1, length, P),
        torch.zeros(1, dtype=torch.int32),
    )
    return package(
        model,
        folder / f"decoder_{length}.mlpackage",
        example,
        inputs=[
            half_tensor("hidden_states", 1, length, 64),
            ct.TensorType("position_ids", (length,), dtype=np.int32),
            half_tensor("causal_mask", 1, 1, length, P),
            ct.TensorType("current_pos", (1,), dtype=np.int32),
        ],
        outputs=[ct.TensorType("output_hidden_states", dtype=np.float16)],
        states=[ct.StateType(half_tensor(None, *model.kv_cache_0.shape), name="kv_cache_0")],
    )


@pytest.fixture(scope="module")
def anemll(tmp_path_factory):
    """Embeddings, decoder with the functions `infer` and `prefill`, and head."""
    folder = tmp_path_factory.mktemp("anemll")
    lengths = ct.EnumeratedShapes([[1, 1], [1, T]], default=[1, 1])
    embeddings = package(
        Embeddings(llama()),
        folder / "embeddings.mlpackage",
        (torch.zeros((1, 1), dtype=torch.int32),),
        inputs=[ct.TensorType("input_ids", lengths, dtype=np.int32)],
        outputs=[ct.TensorType("hidden_states", dtype=np.float16)],
    )
    head = package(
        Head(llama()),
        folder / "head.mlpackage",
        (torch.zeros(1, 1, 64),),
        inputs=[half_tensor("hidden_states", 1, 1, 64)],
        outputs=[ct.TensorType(f"logits{i}", dtype=np.float16) for i in range(1, 5)],
    )
    both = ct.utils.MultiFunctionDescriptor()
    both.add_function(str(convert_decoder(folder, 1)), "main", "infer")
    both.add_function(str(convert_decoder(folder, T)), "main", "prefill")
    both.default_function_name = "infer"
    ct.utils.save_multifunction(both, str(folder / "decoder.mlpackage"))
    return embeddings, folder / "decoder.mlpackage", head


@pytest.mark.parametrize("precision, optimize", WAYS)
def test_anemlls_functions_share_a_state(anemll, precision, optimize):
    """`infer` makes the state, `prefill` fills it with the prompt, and both go on in turns."""
    embed, decode, head = (MLProgram(p, None, precision, optimize=optimize) for p in anemll)
    assert decode.functions == ["infer", "prefill"] and decode.name == "infer"
    spelled_out = {"reduce_max", "exp", "reduce_sum", "real_div", "layer_norm", "slice_update"}
    assert spelled_out < {operation.type for operation in decode.operations}
    tokens, logits = answer()
    state, start = decode.make_state(), 0
    tolerance = 1e-4 if precision == "fp32" else 5e-3  # the rotary tables are stored in half
    while start < len(tokens) - 1:
        length = T if start in (0, 8, 12) else 1
        new = np.array([tokens[start : start + length]], np.int32)
        hidden = decode.function("prefill" if length > 1 else "infer").predict(
            {
                "hidden_states": embed.predict({"input_ids": new})["hidden_states"],
                "position_ids": np.arange(start, start + length, dtype=np.int32),
                "causal_mask": causal(start, length, P, -np.inf),
                "current_pos": np.array([start], np.int32),
            },
            state,
        )["output_hidden_states"]
        parts = head.predict({"hidden_states": hidden[:, -1:]})
        assert list(parts) == ["logits1", "logits2", "logits3", "logits4"]
        start += length
        found = np.concatenate(list(parts.values()), -1)[0, 0]
        assert np.abs(found - logits[start - 1]).max() <= tolerance * np.abs(logits).max()
        assert start < len(PROMPT) or found.argmax() == tokens[start]
    assert state.read_state("kv_cache_0").any((0, 1, 3)).sum() == start
