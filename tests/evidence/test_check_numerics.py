"""`check --numerics`: what each published fault of the engine's arithmetic changes in a bundle."""

import json

from _encoders import tiny_bert, write_encoder
from _plant import change_weight, copied
import ane_book
from ane_book.cli import app
from ane_book.errors import InvalidBundle, InvalidInput
from ane_book.evidence.numerics import CLAIMS, check_numerics
from ane_book.evidence.parity.locate import golden_inputs
from mlprogram import MLProgram
from mlprogram.ane import claims
from mlprogram.run.precision import FAULTS
import numpy as np
import pytest
from typer.testing import CliRunner


@pytest.fixture(scope="module")
def decoder(tiny_bundle):
    return tiny_bundle("llama", (("head_dim", 64),))[1]


@pytest.fixture(scope="module")
def found(decoder):
    return check_numerics(decoder)


def by_name(found):
    return {one.faults: one for one in found.effects}


def test_each_fault_has_a_claim_and_a_row(found):
    assert CLAIMS.keys() == FAULTS.keys()
    assert all(claims.find(name).support for name in CLAIMS.values())
    assert [one.faults for one in found.effects] == ["none, fp32", *FAULTS, "all"]


def test_faults_of_ops_that_a_model_lacks_change_no_bit(found):
    rows = by_name(found)
    for name in ("gelu", "softplus", "tanh", "sigmoid", "nonfinite"):
        assert (rows[name].largest, rows[name].changed, rows[name].first) == (0, 0, ""), name
    for name in ("accumulator", "products", "rounding", "silu", "all"):
        assert rows[name].largest > 0, name
    assert rows["silu"].largest > 3 * rows["none, fp32"].largest
    assert rows["silu"].first.startswith("layers_00-03.mlpackage, decode: silu ")
    assert rows["accumulator"].first


def test_the_table_names_claims_and_their_grades(found):
    said = str(found)
    assert "silu-small (measured)" in said and "sum-most (conflicting)" in said
    assert found.passed and "numerics passed: of " in said


def test_a_sum_that_the_accumulator_does_not_hold_fails(decoder, tmp_path):
    """Finite in half precision, and lost in the engine's sum."""
    folder = copied(decoder, tmp_path)
    bundle = ane_book.bundle.Bundle.open(folder)
    part = bundle.manifest.packages[0]
    program = MLProgram(folder / part.package, "decode", precision="fp32")
    inputs = golden_inputs(bundle, bundle.golden(), program, part, "decode")
    convs = {o.outputs[0][0]: o for o in program.operations if o.type == "conv"}
    state = program.make_state()
    peaks = {
        name: np.abs(y).max() for name, y in program.plain().trace(inputs, state) if name in convs
    }
    name, peak = list(peaks.items())[-1]  # the last product of the last layer
    weight = convs[name].inputs["weight"][0]

    def louder(values):
        values[:] = values.astype(np.float32) * (45_000 / peak)

    change_weight(folder / part.package, getattr(weight, "name", weight), louder)
    found = check_numerics(folder)
    rows = by_name(found)
    assert not found.passed and "0.97 is the least" in found.reason
    assert not rows["accumulator"].cosine >= 0.97 and rows["rounding"].cosine > 0.97
    json.dumps(found.facts(), allow_nan=False)


def test_vectors_and_labels_are_compared_too(tagger, tmp_path):
    model = tiny_bert("usual")
    folder = write_encoder(model, tmp_path / "encoder")
    rows = by_name(check_numerics(ane_book.convert(str(folder), out=tmp_path / "bundle")))
    assert rows["gelu"].changed is None and 0.97 < rows["gelu"].cosine < 1
    assert rows["silu"].largest == 0 and rows["gelu"].first
    labels = by_name(check_numerics(tagger("usual")[1]))
    assert labels["rounding"].changed is not None and labels["rounding"].largest > 0


def test_a_bundle_without_logits_is_refused(tiny_bundle):
    bundle = tiny_bundle("llama", argmax_output=True)[1]
    with pytest.raises(InvalidInput, match="convert it without"):
        check_numerics(bundle)


def test_the_command_prints_it_and_its_code_says_whether_it_holds(decoder):
    result = CliRunner().invoke(app, ["check", str(decoder.path), "--numerics", "--json"])
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)["numerics"]
    assert facts["passed"] and len(facts["effects"]) == len(FAULTS) + 2
    package = decoder.path / decoder.manifest.packages[0].package
    refused = CliRunner().invoke(app, ["check", str(package), "--numerics"])
    assert isinstance(refused.exception, InvalidBundle)
