"""ONNX bundles as a source: every way to store a matrix, and the graphs that have them."""

from pathlib import Path

from _long import long_but
from _tiny_onnx import Bundle, Runtime, write
import ane_book
from ane_book.conversion.quantize.schemes import scheme_warning
from ane_book.errors import InvalidInput
from ane_book.evidence.parity import check_parity
from ane_book.runtime import Session
from ane_book.weights import open_source
from mlprogram.package.reader import Package
import numpy as np
import pytest

FORMS = {
    "int4": Bundle(),
    "int4 packed": Bundle(attention="packed", table="blocks"),
    "int4 zero points": Bundle(zeros="packed", table="blocks"),
    "int4 float zero points": Bundle(zeros="float"),
    "int4 rows of part of a block": Bundle(block=64, zeros="packed"),
    "int2": Bundle(bits=2, zeros="packed", table="blocks"),
    "int8": Bundle(bits=8, block=16, zeros="packed", table="blocks"),
    "fp32 tied": Bundle(bits=None, tied=True),
    "fp16 rotated before": Bundle(bits=None, dtype=np.float16, attention="rotated"),
    "qwen2": Bundle("qwen2", attention="packed", D=16, R=16, changes={"scale": 0.0}),
    "qwen3": Bundle("qwen3", D=32),
    "qwen3 rotated before": Bundle("qwen3", attention="rotated"),
    "phi3": Bundle("phi3", R=16, bits=8, attention="packed", window=24),
    "mistral": Bundle("mistral", window=24),
    "all in one file": Bundle(external=False, zeros="packed"),
}
RUN = ("fp16 rotated before", "qwen2", "qwen3 rotated before", "phi3")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """`made(name)` -> (folder, its weights), written once."""
    found = {}

    def make(name: str):
        if name not in found:
            folder = tmp_path_factory.mktemp("bundle") / "tiny"
            found[name] = folder, write(folder, FORMS[name])
        return found[name]

    return make


@pytest.mark.parametrize("name", FORMS)
def test_tensors_are_what_was_stored(made, name):
    folder, expected = made(name)
    source = open_source(folder)
    assert source.kind == "onnx"
    found = {n: source.tensor(n) for n in source.names()}
    for fused, parts in (("self_attn.qkv_proj", "qkv"), ("mlp.gate_up_proj", ("gate", "up"))):
        for n in [n for n in found if fused in n]:
            stem = n.split(fused)[0] + fused.split(".")[0]
            names = [f"{stem}.{part}_proj.weight" for part in parts]
            expected = expected | {n: np.concatenate([expected[part] for part in names])}
            for part in names:
                expected.pop(part)
    assert found.keys() == expected.keys()
    for n, array in found.items():
        assert array.dtype == np.float32 and array.flags.writeable and array.flags.c_contiguous
        assert array.shape == source.shape(n) == expected[n].shape
        np.testing.assert_array_equal(array, expected[n], err_msg=n)


@pytest.mark.parametrize("name", long_but(RUN, "fp16 rotated before", "phi3"))
def test_logits_are_onnxruntimes(made, name, tmp_path):
    folder, _ = made(name)
    form = FORMS[name]
    bundle = ane_book.convert(str(folder), out=tmp_path / "bundle", context=64, prefill=32)
    session = ane_book.load(bundle.path, precision="fp32")
    oracle = Runtime(folder, form.D)
    ids = np.random.default_rng(1).integers(0, form.V, 40).tolist()
    expected = np.concatenate([oracle.logits(ids[:30]), *(oracle.logits([i]) for i in ids[30:])])
    found = session.logits(ids)
    cosine = (found * expected).sum(1)
    cosine /= np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    assert cosine.min() > 0.9999, cosine
    np.testing.assert_allclose(found, expected, atol=0.02 * np.abs(expected).max())


def test_what_no_configuration_says_is_found_in_the_graph(tmp_path):
    write(tmp_path / "b", Bundle(theta=500000.0, P=2048, epsilon=3e-6, D=64, R=64))
    config = open_source(tmp_path / "b").config()
    assert (config["rope_theta"], config["rope_scaling"]) == (500000.0, None)
    assert config["rms_norm_eps"] == pytest.approx(3e-6)
    assert (config["intermediate_size"], config["vocab_size"]) == (96, 257)
    assert not config["tie_word_embeddings"]


def resident_file_bytes() -> int:
    """How much of mapped files this process holds in memory."""
    (line,) = (t for t in Path("/proc/self/status").read_text().splitlines() if "RssFile" in t)
    return 1024 * int(line.split()[1])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="asks Linux for its memory")
def test_what_was_read_does_not_stay_in_memory(tmp_path):
    write(tmp_path / "b", Bundle(bits=None, L=1, C=512, F=8192))  # three matrices of 17 MB
    source = open_source(tmp_path / "b")
    before = resident_file_bytes()
    for name in source.names():
        source.tensor(name)
    assert resident_file_bytes() - before < 10_000_000


def test_the_tokenizer_is_the_folders(made):
    files = open_source(made("int4")[0]).tokenizer()
    assert files.eos_token_ids == (256,)


# --- the integers as they are


def blocks_of(package) -> list[dict]:
    """What the blockwise constants of a package hold, in order: their operands by name."""
    found = []
    for operation in Package(package).functions["decode"].operations():
        if operation.type == "constexpr_blockwise_shift_scale":
            found.append({key: item.array() for key, (item,) in operation.inputs.items()})
    return found


@pytest.mark.filterwarnings("ignore::ane_book.errors.SchemeWarning")
@pytest.mark.parametrize("name", ["int4 packed", "int8", "int2"])
def test_stored_integers_reach_the_package_as_they_are(made, name, tmp_path):
    folder, weights = made(name)
    source = open_source(folder)
    bundle = ane_book.convert(
        str(folder), out=tmp_path / "b", quant="stored", context=64, prefill=32
    )
    layers, head = (blocks_of(bundle.path / part.package) for part in bundle.manifest.packages)
    assert len(layers) == 4 * FORMS[name].L and len(head) == 1
    names = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]
    parts = [source.integers(f"model.layers.0.{part}.weight") for part in names]
    data, scale = (np.concatenate([getattr(p, n) for p in parts]) for n in ("data", "scale"))
    np.testing.assert_array_equal(layers[0]["data"][:, :, 0, 0], data)
    np.testing.assert_array_equal(layers[0]["scale"][:, :, 0, 0], scale.astype(np.float16))
    assert ("offset" in layers[0]) == bool(FORMS[name].zeros)
    for operands, meant in ((layers[3], "model.layers.0.mlp.down_proj"), (head[0], "lm_head")):
        wide = operands["data"].astype(np.float32)
        block = wide.shape[1] // operands["scale"].shape[1]
        if "offset" in operands:
            wide -= np.repeat(operands["offset"].astype(np.float32), block, axis=1)
        wide = wide * np.repeat(operands["scale"].astype(np.float32), block, axis=1)
        np.testing.assert_allclose(wide[:, :, 0, 0], weights[f"{meant}.weight"], rtol=2**-10.9)
    logits = ane_book.load(bundle.path, precision="fp32").logits(range(20))
    expected = Runtime(folder, FORMS[name].D).logits(list(range(20)))
    np.testing.assert_allclose(logits, expected, atol=0.03 * np.abs(expected).max())
    if name == "int8":  # parity makes each package of the source once more
        parity = check_parity(bundle, folder)
        assert parity.passed, parity.reason


@pytest.mark.filterwarnings("ignore::ane_book.errors.SchemeWarning")
def test_stored_needs_integers(made, tmp_path):
    for name in ("fp32 tied", "int4 float zero points"):
        with pytest.raises(InvalidInput, match="no integers"):
            ane_book.convert(str(made(name)[0]), out=tmp_path / "b", quant="stored")
        assert not open_source(made(name)[0]).has_integers()
    assert open_source(made("int8")[0]).has_integers()
    assert scheme_warning("stored").startswith("stored: a weight whose scales change")


@pytest.mark.long
def test_argmax_output_and_tiers_give_the_tokens_of_the_logits(made, tmp_path):
    """Integers as they are, the choice in the program, and a move between caches in the answer."""
    folder, _ = made("int4 zero points")
    recipe = {"context": 64, "prefill": 16, "quant": "stored"}
    one = ane_book.convert(str(folder), out=tmp_path / "one", **recipe)
    recipe |= {"argmax_output": True, "tiers": (16, 32)}
    tiered = ane_book.convert(str(folder), out=tmp_path / "tiered", **recipe)
    whole, choosing = (Session(bundle, precision="fp32") for bundle in (one, tiered))
    token = int(whole.prefill([1, 2, 3]).argmax())
    assert choosing.prefill([1, 2, 3]) == token
    for _ in range(33):
        expected = int(whole.decode(token).argmax())
        assert choosing.decode(token) == expected
        token = expected
    assert choosing.position == 36 and all(choosing.tiers.values())
