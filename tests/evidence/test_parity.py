"""L1: a bundle that is its model, and bundles with one fault each: the right package, the right op.

The faults are planted in copies of a bundle of three shards, a layer each.
"""

import json

from _plant import change_weight, copied, exchange, flip, inflate_eps
from _tiny import tiny_model, write_checkpoint
import ane_book
from ane_book.bundle import Bundle
from ane_book.errors import InvalidInput
from ane_book.evidence.parity import EXACT, LEAST, check_parity
import numpy as np
import pytest

SHARD = "layers_01-02.mlpackage"
LIMIT = 100_000  # bytes, that only one layer of a tiny model stays under
D, HEADS = 16, 4  # of tiny llama


@pytest.fixture(scope="module")
def sound(tiny, tiny_bundle):
    """(bundle, folder of its source)"""
    return tiny_bundle("llama", kv="state", shard_limit=LIMIT)[1], tiny("llama")[1]


@pytest.fixture
def faulty(sound, tmp_path):
    return copied(sound[0], tmp_path)


@pytest.mark.parametrize(
    "family, recipe",
    [
        ("llama", {"kv": "host"}),
        ("gemma3_text", {}),
        pytest.param("qwen3", {"head_rows": 100, "shard_limit": 150_000}, marks=pytest.mark.long),
        pytest.param("qwen2", {"argmax_output": True}, marks=pytest.mark.long),
    ],
)
def test_what_conversion_writes_passes(tiny_bundle, family, recipe):
    found = check_parity(tiny_bundle(family, **recipe)[1])
    assert found.passed, str(found)
    assert found.exact and not found.source
    figures = found.figures()
    assert figures["cosine"] > 0.999 and figures["agreement"] == 1.0
    assert figures["error_fp32"] < EXACT < figures["error_fp16"]


@pytest.mark.long
def test_multipliers_that_half_precision_has_not_are_no_fault(tiny_bundle):
    """Granite's 0.22 is stored as 0.21997; a fault of one in ten thousand would be one."""
    changes = ("logits_scaling", 6.0), ("num_hidden_layers", 6), ("residual_multiplier", 0.22)
    found = check_parity(tiny_bundle("granite", changes)[1])
    assert found.passed and found.exact, str(found)
    assert found.figures()["error_fp32"] < EXACT / 10


def test_with_its_source_a_bundle_is_held_to_pytorch_anew(sound):
    found = check_parity(*sound)
    assert found.passed and found.source, str(found)
    names = [stage.name for stage in found.stages if stage.precision == "fp32"]
    assert names[0] == "embedding" and names[-1] == "whole" and names.count(SHARD) == 2


def test_what_is_a_number_in_single_precision_alone_fails(tmp_path):
    """What is beyond 65,504 is infinite in half precision, and then NaN."""
    model = tiny_model("llama")
    mlp = model.model.layers[0].mlp  # large in the middle, and after it as ever
    mlp.up_proj.weight.mul_(1e5)
    mlp.down_proj.weight.mul_(1e-5)
    folder = write_checkpoint(model, tmp_path / "checkpoint")
    bundle = ane_book.convert(str(folder), out=tmp_path / "bundle", context=32, prefill=8)
    found = check_parity(bundle)
    assert not found.passed and "cosine nan to PyTorch" in found.reason, found.reason
    assert "in fp16" in found.reason and found.figures()["error_fp32"] < EXACT


FAULTS = {
    "one weight flipped": ("feed_forward_down_weight_to_fp16", flip),
    "one rotary dimension with another's rows": (
        "attention_qkv_weight_to_fp16",
        exchange(slice(3, 4), slice(4, 5)),
    ),
    "two heads exchanged": (
        "attention_qkv_weight_to_fp16",
        exchange(slice(0, D), slice(D, 2 * D)),
    ),
}


@pytest.mark.parametrize("name, change", FAULTS.values(), ids=FAULTS)
def test_a_wrong_weight_is_named_by_shard_and_op(sound, faulty, name, change):
    change_weight(faulty / SHARD, name, change)
    found = check_parity(faulty, sound[1])
    assert not found.passed
    assert (found.package, found.first.op) == (SHARD, "conv"), found.reason
    weight = Bundle.open(faulty).path / found.package
    assert reads(weight, found.first.name).endswith(name)
    assert found.reason.startswith(f"{SHARD}, prefill: ") and "first apart: conv" in found.reason


def reads(package, value: str) -> str:
    """The name of the weight that made a value of `prefill`."""
    from mlprogram.package.reader import Package

    operations = Package(package).functions["prefill"].operations()
    operation = next(o for o in operations if value in dict(o.outputs))
    return next(a for binding in [operation.inputs["weight"]] for a in binding)


@pytest.mark.parametrize("function", ["prefill", "decode"])
def test_an_inflated_eps_is_named_though_half_precision_hides_it(sound, faulty, function):
    inflate_eps(faulty / SHARD, function, 100.0)
    found = check_parity(faulty, sound[1])
    assert not found.passed
    assert (found.package, found.function, found.first.op) == (SHARD, function, "layer_norm")
    assert found.figures()["cosine"] > LEAST, "half precision alone would have let it pass"


def test_rotary_tables_of_another_model_are_named_as_the_hosts(faulty):
    manifest = json.loads((faulty / "manifest.json").read_text())
    manifest["host"]["rotary"]["rope"]["rotary_dim"] -= 2
    (faulty / "manifest.json").write_text(json.dumps(manifest))
    found = check_parity(faulty)
    assert not found.passed and found.reason.startswith("manifest.json: host: rotary is ")


def test_without_its_source_the_shard_is_still_named(faulty):
    change_weight(faulty / SHARD, *FAULTS["two heads exchanged"])
    found = check_parity(faulty)
    assert (found.passed, found.package, found.first) == (False, SHARD, None)
    assert "--source" in found.reason


def test_golden_numbers_of_another_model_are_told(sound, faulty):
    numbers = Bundle.open(faulty).golden()
    numbers["hidden"][2] += 0.01
    size = (faulty / "golden.npz").stat().st_size
    np.savez(faulty / "golden.npz", **numbers)
    assert (faulty / "golden.npz").stat().st_size == size
    found = check_parity(faulty, sound[1])
    assert not found.passed and found.reason.startswith("golden.npz: hidden is ")


def test_a_quantised_bundle_is_held_to_its_recipe_where_the_source_is(tiny, tiny_bundle, tmp_path):
    _, bundle = tiny_bundle("llama", quant="int8", shard_limit=LIMIT)
    source = tiny("llama")[1]
    whole = check_parity(bundle, source)
    assert whole.passed and whole.exact, str(whole)
    assert not check_parity(bundle).exact
    faulty = copied(bundle, tmp_path)
    package = next(part.package for part in bundle.manifest.shards)
    inflate_eps(faulty / package, "decode", 100.0)
    assert check_parity(faulty).passed, "too little to be seen through the rounding"
    found = check_parity(faulty, source)
    assert (found.passed, found.package, found.function) == (False, package, "decode")
    assert found.first.op == "layer_norm"


def test_another_source_is_refused(sound, tiny):
    with pytest.raises(InvalidInput, match="not the weights that .* was made of"):
        check_parity(sound[0], tiny("qwen3")[1])


def test_an_encoder_is_held_to_its_vector(tmp_path):
    from _encoders import tiny_bert, write_encoder

    folder = tmp_path / "bert"
    folder.mkdir()
    write_encoder(tiny_bert("usual"), folder)
    bundle = ane_book.convert(str(folder), out=tmp_path / "bundle")
    found = check_parity(bundle, folder)
    assert found.passed, str(found)
    faulty = copied(bundle, tmp_path)
    package = bundle.manifest.packages[0].package
    change_weight(faulty / package, "layer1_qkv_weight_to_fp16", flip)
    wrong = check_parity(faulty, folder)
    assert (wrong.passed, wrong.package, wrong.first.op) == (False, package, "conv")


def small(weight: np.ndarray) -> None:
    """The sign of a weight too small to be seen in what a package gives."""
    flat = weight.reshape(-1)
    nonzero = np.flatnonzero(flat)
    flat[nonzero[np.abs(flat[nonzero]).argmin()]] *= -1


def test_with_its_source_no_weight_is_too_small_to_be_found(sound, faulty):
    change_weight(faulty / SHARD, "attention_out_weight_to_fp16", small)
    assert check_parity(faulty).passed, "by what the package gives it is not seen"
    found = check_parity(faulty, sound[1])
    assert (found.passed, found.package, found.first and found.first.op) == (False, SHARD, "conv")
