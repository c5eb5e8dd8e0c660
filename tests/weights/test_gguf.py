"""GGUF against `transformers`, and every kind of bad file against its error."""

from collections.abc import Callable
import struct

from _gguf_names import ARCHITECTURES
from _long import long_but
from _tiny import REPRESENTATIVES
from _tiny_gguf import chatml_metadata, write_gguf
from _tiny_weights import (
    FAMILIES,
    LLAMA3,
    build,
    logits,
    parameters,
    rebuild,
    save_folder,
    tiny_config,
    tiny_model,
)
import ane_book
from ane_book.errors import InvalidWeights, UnsupportedModel
from ane_book.models import find, read_config
from ane_book.weights import open_source
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize
import numpy as np
import pytest
import torch

READ = [name for name in FAMILIES if name in ARCHITECTURES or find(name).gguf]


@pytest.mark.parametrize(
    ("family", "tied"),
    [*((name, False) for name in READ), *((name, True) for name in REPRESENTATIVES)],
)
def test_gguf_gives_the_model_back(tmp_path, family, tied):
    model = tiny_model(family, tied)
    source = open_source(write_gguf(tmp_path / "m.gguf", model))
    state = parameters(model, tied)
    assert source.kind == "gguf" and sorted(source.names()) == sorted(state)
    for name, expected in state.items():
        assert source.shape(name) == expected.shape
        least = 1e-6 if name.endswith("A_log") else 0  # a GGUF has -exp of it
        np.testing.assert_allclose(source.tensor(name), expected, rtol=least, err_msg=name)
    least = 1e-5 if family == "qwen3_5_text" else 0
    np.testing.assert_allclose(logits(rebuild(source)), logits(model), atol=least, rtol=0)


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


@pytest.mark.parametrize("family", ["lfm2", "lfm2_moe", "qwen3_5_text", "qwen3_moe"])
def test_gguf_says_the_configuration_of_layers_that_differ(tmp_path, family):
    model = tiny_model(family)
    found = read_config(open_source(write_gguf(tmp_path / "m.gguf", model)).config())
    expected = read_config(model.config.to_dict()).model_dump()
    assert found.model_dump() == {
        name: pytest.approx(value) if isinstance(value, float) else value
        for name, value in expected.items()
    }


@pytest.mark.parametrize("family", ["lfm2_moe", "qwen3_moe"])
def test_gguf_experts_are_parts_of_quantised_stacks(tmp_path, family):
    model = tiny_model(family)
    source = open_source(write_gguf(tmp_path / "m.gguf", model, Type.Q8_0))
    stacks = {n: array for n, array in parameters(model).items() if array.ndim == 3}
    stacks = {n: array for n, array in stacks.items() if ".experts." in n}
    assert len(stacks) >= 2
    for name, array in stacks.items():
        expected = dequantize(quantize(array, Type.Q8_0), Type.Q8_0)
        np.testing.assert_array_equal(source.tensor(name), expected, err_msg=name)


def test_gguf_layers_that_guess_ahead_are_left_out(tmp_path):
    model = tiny_model("qwen3_5_text")
    more = {"qwen35.block_count": 3, "qwen35.nextn_predict_layers": 1}
    extra = {"blk.2.nextn.eh_proj.weight": np.zeros((64, 128), np.float32),
             "blk.2.attn_norm.weight": np.zeros(64, np.float32)}  # fmt: skip
    source = open_source(write_gguf(tmp_path / "m.gguf", model, metadata=more, extra=extra))
    assert sorted(source.names()) == sorted(parameters(model))
    for ahead, message in ((0, "is missing"), (3, "3 of 3 layers guess"), (0.5, "0.5 of 3 layers")):
        more["qwen35.nextn_predict_layers"] = ahead
        with pytest.raises(InvalidWeights, match=message):
            open_source(write_gguf(tmp_path / "o.gguf", model, metadata=more, extra=extra))
    with pytest.raises(InvalidWeights, match="delta_heads: .*greater than 0"):
        none = {"qwen35.ssm.time_step_rank": 0}
        open_source(write_gguf(tmp_path / "n.gguf", model, metadata=none))


def test_gguf_tensors_longer_than_one_step(tmp_path, monkeypatch):
    model = tiny_model("qwen2")
    path = write_gguf(tmp_path / "m.gguf", model, Type.Q8_0)
    whole = open_source(path).tensor("model.embed_tokens.weight")
    monkeypatch.setattr("ane_book.weights.gguf.BLOCKS_AT_ONCE", 5)
    np.testing.assert_array_equal(open_source(path).tensor("model.embed_tokens.weight"), whole)


@pytest.mark.parametrize("kind", ["llama", "gemma3_text"])
def test_rows_come_as_the_whole_tensor_has_them(kind, tmp_path):
    source = open_source(write_gguf(tmp_path / "m.gguf", tiny_model(kind), Type.Q8_0))
    layer = "model.layers.0.self_attn.q_proj.weight"  # of which llama.cpp reorders rows
    for name in ("model.embed_tokens.weight", "model.norm.weight", layer):
        parts = [*source.rows(name, 7)]
        assert {len(part) for part in parts[:-1]} == {7}
        np.testing.assert_array_equal(np.concatenate(parts), source.tensor(name))


def test_gguf_defaults_and_rope_scaling(tmp_path):
    model = tiny_model("qwen2")
    absent = {"qwen2.rope.freq_base": None, "qwen2.attention.key_length": None}
    config = open_source(write_gguf(tmp_path / "a.gguf", model, metadata=absent)).config()
    assert config["rope_theta"] == 10000.0 and config["head_dim"] == 16
    factor = {"qwen2.rope.scaling.factor": 4.0}
    for i, linear in enumerate((  # the later two are of older files
        {"qwen2.rope.scaling.type": "linear"} | factor, factor, {"qwen2.rope.scale_linear": 4.0}
    )):  # fmt: skip
        config = open_source(write_gguf(tmp_path / f"{i}.gguf", model, metadata=linear)).config()
        assert config["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    none = {"qwen2.rope.scaling.type": "none"} | factor
    config = open_source(write_gguf(tmp_path / "n.gguf", model, metadata=none)).config()
    assert config["rope_scaling"] is None


#: `rope_scaling` of config.json, and what llama.cpp's converter makes of it.
YARN = {
    "plain": ({}, {}),
    "betas": (
        {"beta_fast": 16.0, "beta_slow": 2.0},
        {"yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0},
    ),
    "attention": ({"attention_factor": 1.25}, {"yarn_attn_factor": 1.25}),
    "log": ({"mscale": 1.0, "mscale_all_dim": 0.5}, {"yarn_log_multiplier": 0.5}),
}


@pytest.mark.parametrize("kind", YARN)
def test_gguf_yarn(tmp_path, kind):
    fields, stored = YARN[kind]
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    model = build(tiny_config("qwen3", rope_scaling=scaling | fields))
    stored = {"type": "yarn", "factor": 4.0, "original_context_length": 32} | stored
    metadata = {f"qwen3.rope.scaling.{key}": value for key, value in stored.items()}
    source = open_source(write_gguf(tmp_path / "m.gguf", model, metadata=metadata))
    np.testing.assert_allclose(logits(rebuild(source)), logits(model), atol=1e-6)
    ours = read_config(source.config()).rotary.tables(np.arange(40.0), 40)
    theirs = read_config(model.config.to_dict()).rotary.tables(np.arange(40.0), 40)
    np.testing.assert_array_equal(ours, theirs)
    metadata["qwen3.rope.scaling.yarn_ext_factor"] = 0.5
    with pytest.raises(UnsupportedModel, match="yarn_ext_factor = 0.5 with yarn"):
        open_source(write_gguf(tmp_path / "m.gguf", model, metadata=metadata))


def test_a_llama_with_a_window_is_a_mistral(tmp_path):
    model = tiny_model("mistral")
    path = write_gguf(tmp_path / "m.gguf", model, metadata={"llama.attention.sliding_window": 64})
    source = open_source(path)
    assert source.config()["model_type"] == "mistral"
    assert read_config(source.config()).sliding_window == 64


def test_gguf_llama3_scaling_is_its_divisors(tmp_path):
    config = tiny_config("llama", rope_theta=500000.0, rope_scaling=LLAMA3, head_dim=64)
    model = build(config)
    plain = 500000.0 ** (-np.arange(0, 64, 2) / 64)
    divisors = plain / model.model.rotary_emb.inv_freq.numpy()
    assert divisors.max() == pytest.approx(8.0) and divisors.min() == pytest.approx(1.0)
    extra = {"rope_freqs.weight": divisors}
    source = open_source(write_gguf(tmp_path / "m.gguf", model, extra=extra))
    scaling = source.config()["rope_scaling"]
    assert scaling["short_factor"] == scaling["long_factor"] == pytest.approx(divisors.tolist())
    assert scaling["attention_factor"] == 1.0
    np.testing.assert_allclose(logits(rebuild(source)), logits(model), atol=1e-6)


def longrope(pairs: int = 6) -> dict:
    """Phi's scaling as config.json has it: beyond 32 positions the long divisors count."""
    return {
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0] * pairs,
            "long_factor": [1.0 + i for i in range(pairs)],
        },
        "original_max_position_embeddings": 32,
    }


def divisors(changes: dict) -> dict[str, np.ndarray]:
    """The same as llama.cpp has it: two tensors."""
    scaling = changes["rope_scaling"]
    return {f"rope_factors_{n}.weight": scaling[f"{n}_factor"] for n in ("short", "long")}


def test_gguf_longrope(tmp_path):
    changes = longrope()
    model = build(tiny_config("phi3", **changes))
    extra = divisors(changes)
    source = open_source(write_gguf(tmp_path / "m.gguf", model, extra=extra))
    scaling = source.config()["rope_scaling"]
    assert scaling["short_factor"] == changes["rope_scaling"]["short_factor"]
    assert scaling["long_factor"] == changes["rope_scaling"]["long_factor"]
    np.testing.assert_allclose(logits(rebuild(source)), logits(model), atol=1e-6)  # 40 > 32
    stated = {"phi3.rope.scaling.attn_factor": 1.5, "phi3.attention.sliding_window": 64}
    source = open_source(write_gguf(tmp_path / "f.gguf", model, extra=extra, metadata=stated))
    assert source.config()["rope_scaling"]["attention_factor"] == 1.5
    assert source.config()["sliding_window"] == 64


def test_gguf_longrope_that_will_not_do(tmp_path):
    changes = longrope()
    model, extra = build(tiny_config("phi3", **changes)), divisors(changes)
    for name in extra:
        path = write_gguf(tmp_path / "m.gguf", model, extra=extra, drop=(name,))
        with pytest.raises(InvalidWeights, match=f"tensor {name} is missing"):
            open_source(path)
    cut = extra | {"rope_factors_long.weight": np.ones(5)}
    with pytest.raises(InvalidWeights, match="long_factor has 5 numbers.* 12 rotated .* 6 pairs"):
        open_source(write_gguf(tmp_path / "m.gguf", model, extra=cut))
    odd = {"phi3.rope.dimension_count": 11}
    with pytest.raises(InvalidWeights, match="11 of head_dim 16 dimensions are rotated"):
        open_source(write_gguf(tmp_path / "m.gguf", model, extra=extra, metadata=odd))


def test_gguf_hunyuan_has_its_scaling_in_the_base(tmp_path):
    scaling = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}
    model = build(tiny_config("hunyuan_v1_dense", rope_scaling=scaling))
    source = open_source(write_gguf(tmp_path / "m.gguf", model))
    assert source.config()["rope_theta"] == pytest.approx(50000.0 * 1000 ** (32 / 30))
    np.testing.assert_allclose(logits(rebuild(source)), logits(model), atol=1e-6)


def random_blocks(rng: np.random.Generator, shape: tuple[int, int], stored: Type) -> np.ndarray:
    """Bytes of a quantised matrix: any will do, but an fp16 scale below 1 is never inf or NaN."""
    weights, size = GGML_QUANT_SIZES[stored]
    return rng.integers(0, 0x3C, (shape[0], shape[1] // weights * size), dtype=np.uint8)


@pytest.mark.parametrize("stored", [Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.Q2_K, Type.Q3_K])
def test_gguf_k_quants(tmp_path, stored):
    model = build(tiny_config("llama", hidden_size=256, num_hidden_layers=1))
    rng = np.random.default_rng(0)
    name = "model.layers.0.mlp.gate_proj.weight"
    blocks = random_blocks(rng, (96, 256), stored)
    path = write_gguf(tmp_path / "m.gguf", model, extra={name: blocks}, types={name: stored})
    np.testing.assert_array_equal(open_source(path).tensor(name), dequantize(blocks, stored))


@pytest.mark.parametrize(
    ("family", "stored"),
    long_but(
        [("llama", Type.Q4_1), ("phi3", Type.Q8_0), ("hunyuan_v1_dense", Type.Q4_0)],
        ("phi3", Type.Q8_0),
    ),
)
def test_gguf_and_its_dequantised_copy_give_the_same_bundle(tmp_path, family, stored):
    """Issue 4's unit of truth: byte for byte, whatever the weights came in."""
    changes = longrope() if family == "phi3" else {}
    model = build(tiny_config(family, num_hidden_layers=1, **changes))
    extra = divisors(changes) if changes else {}
    path = write_gguf(tmp_path / "m.gguf", model, stored, chatml_metadata(), extra=extra)
    source = open_source(path)
    model.load_state_dict({n: torch.from_numpy(source.tensor(n)) for n in source.names()})
    folder = save_folder(tmp_path / "folder", model)
    (folder / "tokenizer.json").write_text(source.tokenizer().json)
    one, two = (
        ane_book.convert(str(weights), out=tmp_path / name, context=48, prefill=8)
        for name, weights in (("one", path), ("two", folder))
    )
    assert one.manifest.files == two.manifest.files and len(one.manifest.files) > 6
    for name in one.manifest.files:
        if not name.endswith(".npz"):  # zip archives carry the time
            assert (one.path / name).read_bytes() == (two.path / name).read_bytes(), name
    for name, array in one.golden().items():
        np.testing.assert_allclose(array, two.golden()[name], atol=1e-6)


def after(name: bytes, offset: int, form: str, value: int) -> Callable[[bytes], bytes]:
    """Another number in a tensor's row of the table: rank, dimensions, type, offset."""

    def change(content: bytes) -> bytes:
        number, at = struct.pack(form, value), content.index(name) + len(name) + offset
        return content[:at] + number + content[at + len(number) :]

    return change


def entries(changes: dict) -> dict:
    return {"metadata": {f"llama.{key}": value for key, value in changes.items()}}


Q, NORM, ROW = "model.layers.1.self_attn.q_proj.weight", "model.norm.weight", b"output_norm.weight"
WIDE = {"embedding_length": 2**30, "attention.key_length": None}

#: By error and what it says: how a file is written, or what is done to its bytes.
REFUSED = {
    InvalidWeights: {
        f"tensor {Q} is missing": {"drop": (Q,)},
        "tensor token_embd.weight is missing": {"drop": ("model.embed_tokens.weight",)},
        "asks for|left over": {"extra": {Q.replace("weight", "bias"): np.zeros(128)}},
        rf"tensor {NORM} has shape \(65,\).*\(64,\)": {"extra": {NORM: np.zeros(65)}},
        "rope_freqs.weight has divisors that are no numbers above 0": {
            "extra": {"rope_freqs.weight": np.linspace(-1, 8, 16)}
        },
        r"rope_freqs.weight has shape \(4096,\)": {"extra": {"rope_freqs.weight": np.ones(4096)}},
        "num_layers: .*greater than 0": entries({"block_count": 0}),
        "num_layers: .*10000": entries({"block_count": 2**31}),
        "heads of 268435456 dimensions": entries(WIDE),
        "hidden_size: .*1048576": entries(WIDE | {"attention.head_count": 2**20}),
        "heads of 1073741824 dimensions": entries({"attention.key_length": 2**30}),
        "heads of 0 dim": entries({"attention.key_length": 0, "rope.dimension_count": 8}),
        "no number llama.embedding_length": entries({"embedding_length": None}),
        "4 heads do not divide by 3": entries({"attention.head_count_kv": 3}),
        "head_count is 0": entries({"attention.head_count": 0}),
        "tensor .* ends at byte .*cut short": lambda content: content[:-100],
        "file of 300; the file is cut short": lambda content: content[:300],
        "the file is empty; get it again": lambda content: b"",
        "not a GGUF file .*are read from .gguf files and": lambda content: b"GGML" + content[4:],
        "output_norm.weight ends at byte 184467440737": after(ROW, 16, "<Q", 2**64 - 32),
        "output_norm.weight ends at byte 36893488147": after(ROW, 4, "<Q", 2**63),
        "output_norm.weight has 4294967295 dimensions": after(ROW, 0, "<I", 2**32 - 1),
    },
    UnsupportedModel: {
        "'mamba'.*supported: exaone4, gemma3, glm4, granite, hunyuan-": {"architecture": "mamba"},
        "bert with a pooling_type .* take the folder with": {
            "architecture": "bert", "metadata": {"bert.pooling_type": 1}
        },
        "llama with a pooling_type makes vectors or scores": entries({"pooling_type": 3}),
        "one of 3 files of a model.* --merge FIRST_FILE": {"metadata": {"split.count": 3}},
        r"architecture \['llama'\] is not": {"metadata": {"general.architecture": ["llama"]}},
        "tensor output_norm.weight has type I32": {"types": {NORM: Type.I32}},
        "head_count_kv differs between": entries({"attention.head_count_kv": [2, 1]}),
        "llama with a mixture of experts": entries({"expert_count": 8}),
        "partial_rotary_factor = 0.5 is not": entries({"rope.dimension_count": 16}),
        "scaling.type 'ntk'": entries({"rope.scaling.type": "ntk", "rope.scaling.factor": 4.0}),
        "scaling.type 'yarn' beside rope_freqs.weight": entries({"rope.scaling.type": "yarn"})
        | {"extra": {"rope_freqs.weight": np.ones(16)}},
        "GGUF version 50331648": lambda content: content[:4] + b"\0\0\0\3" + content[8:],
        "output_norm.weight is of unknown type 999": after(ROW, 12, "<I", 999),
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("error", "said"), [(error, said) for error, cases in REFUSED.items() for said in cases]
)
def test_gguf_that_will_not_do(tmp_path, error, said):
    how = REFUSED[error][said]
    written = {} if callable(how) else how
    path = write_gguf(tmp_path / "m.gguf", tiny_model("llama"), **written)
    if callable(how):
        path.write_bytes(how(path.read_bytes()))
    with pytest.raises(error, match=said) as caught:
        open_source(path)
    assert str(path) in str(caught.value)
