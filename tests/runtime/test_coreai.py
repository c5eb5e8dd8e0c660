"""Bundles by Core AI's runtime: tokens and numbers are the executor's, and how large assets are."""

from _in_both import ARCHITECTURES, compared
from _long import long_but
from _tiny import REPRESENTATIVES, prompt
from ane_book.cli import app
from ane_book.errors import InvalidInput
from ane_book.runtime import Session
from mlprogram import coreai
import pytest
from typer.testing import CliRunner

pytest.importorskip("coreai", reason="coreai-core is not installed")
pytestmark = pytest.mark.usefixtures("empty_cache")

FORMS = {
    "state": {},
    "host": {"kv": "host"},
    "select": {"state_write": "select"},
    "apple": {"form": "apple"},
    "tiers": {"tiers": (16,)},
    "one": {"functions": "one", "verify": 8},
    "silu": {"silu": "tanh"},
    "int8": {"quant": "int8"},
    "int4": {"quant": "int4"},
    "lut4": {"quant": "lut4"},
    "lut6": {"quant": "lut6"},
    "argmax": {"argmax_output": True},
}
#: These have ops that no other family has.
FAMILIES = (*REPRESENTATIVES[1:], "gemma4_text", "lfm2_moe")
CASES = [("llama", form) for form in FORMS] + [(family, "state") for family in FAMILIES]


@pytest.mark.parametrize("family, form", long_but(CASES, ("llama", "state"), ("llama", "lut4")))
def test_tokens_are_the_executors(family, form, tiny_bundle):
    _, bundle = tiny_bundle(family, **FORMS[form])
    here, there = (Session(bundle, "fp32", backend) for backend in ("mil", "coreai"))
    ids = prompt(11)
    found = there.generate(ids, max_tokens=16).token_ids
    assert found == here.generate(ids, max_tokens=16).token_ids
    assert len(found) > 2


@pytest.mark.parametrize(
    "kind, name",
    long_but(
        [("decoder", "zaya")]
        + [(k, n) for k, names in ARCHITECTURES.items() if k != "decoder" for n in names],
        ("embedder", "bert"),
    ),
)
def test_other_architectures_give_the_executors_numbers(kind, name):
    found = compared(kind, name)
    if kind == "decoder":
        assert found["equal"] == found["tokens"] > 2
    else:
        assert found["numbers"] > 1 and found["difference"] < 1e-5


def size(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def test_functions_share_their_weights(tiny_bundle, tmp_path):
    _, bundle = tiny_bundle("llama")
    part = bundle.manifest.packages[0]
    assert len(part.functions) == 2
    asset = coreai.save_asset(bundle.path / part.package, tmp_path / "layers.aimodel")
    weights = size(bundle.path / part.package / "Data" / "com.apple.CoreML" / "weights")
    assert size(asset) < 1.5 * weights


def test_palettes_are_carried_as_indices(tiny_bundle, tmp_path):
    plain, few = (
        bundle.path / bundle.manifest.packages[0].package
        for bundle in (tiny_bundle("llama", quant=quant)[1] for quant in ("none", "lut4"))
    )
    asset = coreai.save_asset(few, tmp_path / "lut4.aimodel")
    assert size(asset) < 0.5 * size(plain / "Data" / "com.apple.CoreML" / "weights")


def test_convert_writes_assets_from_the_command_line(tiny, tmp_path):
    _, folder = tiny("llama")
    arguments = [str(folder), "--out", str(tmp_path / "both"), "--context", "32"]
    run = CliRunner().invoke(app, ["convert", *arguments, "--prefill", "8", "--to", "coreai"])
    assert run.exit_code == 0, run.output
    names = {file.stem for file in (tmp_path / "both").glob("*.mlpackage")}
    assert names == {file.stem for file in (tmp_path / "both").glob("*.aimodel")}
    assert len(names) == 2


def test_an_asset_where_a_bundle_belongs(tmp_path):
    (tmp_path / "p.aimodel").mkdir()
    (tmp_path / "p.aimodel" / "main.mlirb").write_bytes(b"")
    run = CliRunner().invoke(app, ["run", str(tmp_path / "p.aimodel"), "Hello"])
    assert f"`ane-book check {tmp_path}/p.aimodel` looks at it" in str(run.exception)


def test_without_the_extra_it_says_what_to_install(tiny_bundle, monkeypatch):
    monkeypatch.setattr("mlprogram.package.asset.find_spec", lambda name: None)
    _, bundle = tiny_bundle("llama")
    with pytest.raises(InvalidInput, match=r'mlprogram\[coreai\]"`; coreai-core is missing'):
        Session(bundle, "fp16", "coreai")
