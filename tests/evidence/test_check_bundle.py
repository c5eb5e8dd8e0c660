"""`ane-book check` of a bundle: both levels kept in its evidence, faults in numbers told."""

import json
import re
import shutil

from _full_disk import room_for
from _plant import change_weight, copied, flip
from ane_book.bundle import Bundle
from ane_book.cli import app
from ane_book.errors import OutOfSpace
import pytest
from typer.testing import CliRunner

WIDE = (("head_dim", 64),)


@pytest.fixture(scope="module")
def bundle(tiny_bundle, tmp_path_factory):
    _, made = tiny_bundle("llama", WIDE)
    folder = tmp_path_factory.mktemp("checked") / "bundle"
    return Bundle.open(shutil.copytree(made.path, folder))


def run(*arguments):
    return CliRunner().invoke(app, ["check", *map(str, arguments), "--no-github"])


def test_laws_are_kept_as_l0(tiny_bundle, tmp_path):
    folder = copied(tiny_bundle("llama", WIDE)[1], tmp_path)  # nobody has checked it
    assert Bundle.open(folder).evidence.levels["L0"].status == "unmeasured"
    assert run(folder).exit_code == 0
    kept = Bundle.open(folder).evidence.levels["L0"]
    assert kept.status == "passed" and kept.figures["errors"] == 0
    assert "activations" in kept.figures["rules"]


def test_rules_of_ones_own_are_not_kept(bundle, tmp_path):
    before = (bundle.path / "evidence.json").read_bytes()
    (tmp_path / "own.toml").write_text('[activations]\nseverity = "error"\n')
    assert run(bundle.path, "--rules", tmp_path / "own.toml").exit_code == 1
    assert (bundle.path / "evidence.json").read_bytes() == before


def test_parity_is_kept_as_l1(bundle):
    result = run(bundle.path, "--parity", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["parity"]["passed"] is True
    assert Bundle.open(bundle.path).evidence.levels["L1"].status == "passed"


def test_on_a_full_disk(bundle, tiny, tmp_path):
    (out := tmp_path / "out.sarif").write_text("as it was")
    for options in (["--sarif", out], ["--source", tiny("llama", **dict(WIDE))[1]]):
        with room_for(1000):
            result = run(bundle.path, *options)
        assert isinstance(result.exception, OutOfSpace), options
        assert out.read_text() == "as it was"


def test_parity_without_the_source_takes_nothing_from_parity_with_it(tiny, tiny_bundle, tmp_path):
    folder = copied(tiny_bundle("llama", WIDE, quant="int8")[1], tmp_path)
    assert run(folder, "--parity", "--source", tiny("llama", **dict(WIDE))[1]).exit_code == 0
    strong = Bundle.open(folder).evidence.levels["L1"]
    assert re.search(r"^at most [\d.e-]+ % from PyTorch in single precision, ", strong.reason)
    weak = run(folder, "--parity")
    assert "without its source: not held to more" in weak.stdout
    assert f"keeps the stronger measurement of {strong.date}: L1 passed: " in weak.stderr
    assert Bundle.open(folder).evidence.levels["L1"] == strong


def test_a_flipped_weight_is_an_annotation_and_code_1(bundle, tmp_path):
    folder = copied(bundle, tmp_path)
    (package,) = folder.glob("layers*.mlpackage")
    change_weight(package, "attention_out_weight_to_fp16", flip)
    before = (folder / "evidence.json").read_bytes()
    result = CliRunner().invoke(app, ["check", str(folder), "--parity", "--github"])
    assert (folder / "evidence.json").read_bytes() == before, "a checkout stays as it is"
    assert result.exit_code == 1
    assert "L1 parity failed: layers_00-03.mlpackage" in result.stdout
    assert f"::error file={package},title=parity::layers_00-03.mlpackage, " in result.stdout
    assert run(folder, "--parity").exit_code == 1
    assert Bundle.open(folder).evidence.levels["L1"].status == "failed"


def test_evidence_that_cannot_be_read_is_left_as_it_is(bundle, tmp_path):
    folder = copied(bundle, tmp_path)
    (folder / "evidence.json").write_text("{")
    result = run(folder)
    assert result.exit_code == 0 and "not kept in evidence.json: " in result.stderr
    assert (folder / "evidence.json").read_text() == "{"
