"""Language models as two other converters write them, against `transformers` with the same weights.

ANEMLL (github.com/Anemll/Anemll) writes the decoder anew for the Neural Engine: one state for all
keys and values, 1x1 convolutions, the norm as a `layer_norm` of [x, -x], the softmax spelled out, a
head in parts, and two functions on one state.
0seba (github.com/0seba/coremlmodels) keeps channels first, takes the groups of heads one by one,
and makes the mask inside; its head gives of each part what sampling needs, maximum and log-sum-exp.

Letters: T query, P positions in the cache, H heads, G key-value heads, D head size, C channels.
"""

from _foreign import WAYS, agree, normal, package
from _foreign_decoders import ChannelDecoder, Decoder
from _foreign_llama import PROMPT, VOCABULARY, P, answer, causal, llama
import coremltools as ct
from mlprogram import MLProgram
import numpy as np
import pytest
import torch
from torch import nn

# --- ANEMLL -----------------------------------------------------------------------------------


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


T = 4  # tokens that `prefill` takes


def half_tensor(name: str, *shape) -> ct.TensorType:
    return ct.TensorType(name, shape, dtype=np.float16)


def convert_decoder(folder, length: int):
    model = Decoder(llama(), P)
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


def merge(folder, infer, prefill):
    """One package of two functions, which share weights and a state."""
    both, path = ct.utils.MultiFunctionDescriptor(), folder / "decoder.mlpackage"
    for name, part in {"infer": infer, "prefill": prefill}.items():
        both.add_function(str(part), "main", name)
    both.default_function_name = "infer"
    ct.utils.save_multifunction(both, str(path))
    return path


@pytest.fixture(scope="module")
def anemll(tmp_path_factory):
    """Embeddings, decoder of two functions and head."""
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
    parts = [convert_decoder(folder, length) for length in (1, T)]
    return embeddings, merge(folder, *parts), head


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


# --- 0seba ------------------------------------------------------------------------------------


def test_a_decoder_group_by_group(tmp_path):
    model, names = ChannelDecoder(llama(), P), ("key_cache", "value_cache")
    cache = half_tensor(None, *model.key_cache.shape)
    path = package(
        model,
        tmp_path / "decoder.mlpackage",
        (torch.zeros(1, 64, 1, T), torch.zeros(1, dtype=torch.int32)),
        inputs=[
            half_tensor("hidden", 1, 64, 1, T),
            ct.TensorType("position", (1,), dtype=np.int32),
        ],
        outputs=[ct.TensorType("y", dtype=np.float16)],
        states=[ct.StateType(cache, name=name) for name in names],
    )
    kinds = [operation.type for operation in MLProgram(path).operations]
    assert {"greater", "select", "split"} < {*kinds} and kinds.count("softmax") == 4
    tokens = torch.tensor([answer()[0][: 4 * T]])
    with torch.no_grad():
        whole = llama().model(tokens).last_hidden_state.mT.unsqueeze(2).numpy()  # (1, C, 1, n)
        embedded = llama().model.embed_tokens(tokens).mT.unsqueeze(2).numpy()
    steps = [slice(start, start + T) for start in range(0, 4 * T, T)]
    calls = [
        {"hidden": embedded[..., step], "position": np.array([step.start], np.int32)}
        for step in steps
    ]
    agree(path, calls, [{"y": whole[..., step]} for step in steps], single=2e-4)


class SamplingHead(Head):
    """Logits over a temperature, and of each part the maximum and the log-sum-exp below it."""

    def forward(self, hidden_states, temperature):
        x = hidden_states.permute(0, 2, 1).unsqueeze(2)
        parts = [part(x) * torch.reciprocal(temperature) for part in self.parts]
        tops = [part.amax(1, keepdim=True) for part in parts]
        rest = [
            torch.logsumexp(p - top, 1, keepdim=True) for p, top in zip(parts, tops, strict=True)
        ]
        return torch.cat(parts, 1), torch.cat(tops, 1), torch.cat(rest, 1)


def test_a_head_for_sampling(tmp_path):
    head, hidden = SamplingHead(llama()), normal(1, 2, 64)
    temperature = np.full(1, 0.75, np.float32)
    example = torch.from_numpy(hidden), torch.from_numpy(temperature)
    names = ("logits", "tops", "rest")
    path = package(
        head,
        tmp_path / "head.mlpackage",
        example,
        inputs=[ct.TensorType("hidden", hidden.shape), ct.TensorType("temperature", (1,))],
        outputs=[ct.TensorType(name) for name in names],
    )
    kinds = {operation.type for operation in MLProgram(path).operations}
    assert {"inverse", "reduce_log_sum_exp", "reduce_max", "sub"} < kinds
    with torch.no_grad():
        expected = {name: y.numpy() for name, y in zip(names, head(*example), strict=True)}
    calls = [{"hidden": hidden, "temperature": temperature}]
    agree(path, calls, [expected], single=2e-4)  # `inverse` adds 1e-4
    total = np.log(np.exp(expected["tops"] + expected["rest"]).sum(1))
    np.testing.assert_allclose(total, np.log(np.exp(expected["logits"]).sum(1)), rtol=1e-5)
