"""L3: a bundle against the model before it was quantised, on two texts."""

import json
import shutil
import subprocess
import sys

from _command import ane_book as command
from _plant import change_weight, copied
from _tiny import tiny_model, write_checkpoint
import ane_book
from ane_book.bundle import Bundle
from ane_book.errors import InvalidInput
from ane_book.evidence import loss
from ane_book.evidence.quality import check_quality
import pytest
from tokenizers import Tokenizer
import torch


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """The folder of a tiny model that knows a little of both texts: perplexity needs no less."""
    model, folder = tiny_model("llama"), tmp_path_factory.mktemp("taught") / "weights"
    tokenizer = Tokenizer.from_file(str(write_checkpoint(model, folder) / "tokenizer.json"))
    texts = [torch.tensor([tokenizer.encode(t[:256]).ids]) for t in map(loss.text, loss.TEXTS)]
    optimizer = torch.optim.Adam(model.requires_grad_(True).parameters(), lr=3e-3)
    for text in texts * 40:
        optimizer.zero_grad()
        model(text, labels=text).loss.backward()
        optimizer.step()
    model.half().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def plain(taught):
    return ane_book.convert(str(taught), out=taught.with_name("plain"), context=32, prefill=8)


@pytest.fixture(scope="module")
def quantised(taught):
    """(bundle, folder of its source)"""
    out = taught.with_name("lut4")
    return ane_book.convert(str(taught), out=out, quant="lut4", context=32, prefill=8), taught


def test_a_bundle_in_half_precision_loses_next_to_nothing(plain):
    level = check_quality(plain, tokens=128)
    assert level.status == "passed", level
    for text in ("prose", "code"):
        assert abs(level.figures[f"{text}_change"]) < 0.01
        assert level.figures[f"{text}_agreement"] > 0.95


def test_of_a_model_that_guesses_it_is_unmeasured(tiny_bundle):
    bundle = tiny_bundle("llama")[1]  # its weights are random
    level = check_quality(bundle, tokens=128)
    assert level.status == "unmeasured"
    assert "no better than chance among 257 tokens" in level.reason
    done = command("quality", bundle.path, "--tokens", "64")
    assert done.returncode == 3 and "L3 quality unmeasured: the original guesses" in done.stdout
    assert bundle.evidence.levels["L3"].status == "unmeasured"


def test_logits_that_are_no_numbers_are_a_failure(plain, tmp_path):
    folder = copied(plain, tmp_path)
    for package in folder.glob("layers*.mlpackage"):
        change_weight(package, "feed_forward_down_weight_to_fp16", lambda weight: weight.fill(6e4))
    done = command("quality", folder, "--tokens", "64")
    assert done.returncode == 1 and "perplexity nan" in done.stdout, done.stderr
    assert Bundle.open(folder).evidence.levels["L3"].status == "failed"


def test_a_quantised_one_is_held_to_its_source(quantised):
    level = check_quality(*quantised, tokens=128)
    assert level.status in ("passed", "failed")
    assert level.figures["prose_divergence"] > 0 and level.figures["prose_agreement"] < 1
    assert f"{level.figures['prose_perplexity']:.4g}" in level.reason or "code" in level.reason
    change = max(level.figures["prose_change"], level.figures["code_change"])
    assert check_quality(*quantised, tokens=128, most=change - 0.01).status == "failed"


def test_somebody_elses_code_sees_what_the_bundle_and_its_twin_have_in_common(
    plain, taught, tmp_path
):
    bundle, folder = plain, taught
    sound = check_quality(bundle, folder, tokens=128, independent=True)
    assert sound.status == "passed" and sound.figures["prose_divergence"] < 1e-4
    wrong = shutil.copytree(bundle.path, tmp_path / "wrong")
    manifest = json.loads((wrong / "manifest.json").read_text())
    (rotary,) = manifest["host"]["rotary"].values()
    rotary["theta"] *= 50
    (wrong / "manifest.json").write_text(json.dumps(manifest))
    for independent in (False, True):
        level = check_quality(wrong, folder, tokens=128, independent=independent)
        assert (level.figures["prose_divergence"] > 1e-3) == independent


def test_only_the_independent_check_needs_transformers(taught, tmp_path):
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "import ane_book\n"
        "from ane_book.evidence.quality import check_quality\n"
        f"source, out = {str(taught)!r}, {str(tmp_path / 'made')!r}\n"
        "made = ane_book.convert(source, out=out, context=32, prefill=8)\n"
        "print(ane_book.Session(made, backend='mil').generate('Hi', max_tokens=4).token_ids)\n"
        "print(check_quality(made, tokens=64).status)\n"
        "check_quality(made, source, independent=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    ids, status = done.stdout.splitlines()
    assert len(json.loads(ids)) == 4 and status in ("passed", "failed"), done.stderr
    assert done.stderr.splitlines()[-1].endswith("; transformers is missing")


@pytest.mark.parametrize("independent", [False, True])
def test_without_its_source_it_is_unmeasured(quantised, independent):
    level = check_quality(quantised[0], independent=independent)
    assert level.status == "unmeasured" and "--source" in level.reason


def test_another_models_weights_are_refused_where_none_are_needed_too(plain, tmp_path):
    other = write_checkpoint(tiny_model("llama"), tmp_path / "other")
    with pytest.raises(InvalidInput, match="not the weights"):
        check_quality(plain, other)


def test_what_gives_no_logits_is_unmeasured(tiny_bundle):
    assert "no logits" in check_quality(tiny_bundle("qwen2", argmax_output=True)[1]).reason


def test_the_command_keeps_the_stronger_as_l3(plain, taught):
    options = "--source", taught, "--tokens", "64"
    done = command("quality", plain.path, *options, "--independent", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "passed"
    strong = plain.evidence.levels["L3"]
    assert strong.status == "passed" and "transformers' model" in strong.reason
    done = command("quality", plain.path, *options)
    assert "against its own weights in single precision" in done.stdout
    assert f"keeps the stronger measurement of {strong.date}: L3 passed: " in done.stderr
    assert plain.evidence.levels["L3"] == strong
