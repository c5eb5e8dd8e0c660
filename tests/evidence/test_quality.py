"""L3: a bundle against the model before it was quantised, on two texts."""

import json
import shutil

from _command import ane_book as command
from ane_book.evidence.quality import check_quality
from ane_book.runtime import Session
import pytest


@pytest.fixture(scope="module")
def quantised(tiny, tiny_bundle):
    """(bundle, folder of its source)"""
    return tiny_bundle("llama", quant="lut4")[1], tiny("llama")[1]


def test_a_bundle_in_half_precision_loses_next_to_nothing(tiny_bundle):
    level = check_quality(tiny_bundle("llama")[1], tokens=128)
    assert level.status == "passed", level
    for text in ("prose", "code"):
        assert abs(level.figures[f"{text}_change"]) < 0.01
        assert level.figures[f"{text}_agreement"] > 0.95


def test_a_model_that_guesses_is_not_judged_by_its_perplexity_alone(tiny_bundle):
    bundle = tiny_bundle("llama")[1]
    level = check_quality(bundle, tokens=128)
    vocabulary = Session(bundle, backend="mil").tokenizer.get_vocab_size()
    least = min(level.figures["prose_perplexity"], level.figures["code_perplexity"])
    assert least > 1.1 * vocabulary  # its weights are random
    assert f"no better than chance among {vocabulary:,} tokens" in level.reason


def test_a_quantised_one_is_held_to_its_source(quantised):
    level = check_quality(*quantised, tokens=128)
    assert level.status in ("passed", "failed")
    assert level.figures["prose_divergence"] > 0 and level.figures["prose_agreement"] < 1
    assert f"{level.figures['prose_perplexity']:.4g}" in level.reason or "code" in level.reason
    change = max(level.figures["prose_change"], level.figures["code_change"])
    assert check_quality(*quantised, tokens=128, most=change - 0.01).status == "failed"


def test_somebody_elses_code_sees_what_the_bundle_and_its_twin_have_in_common(
    tiny, tiny_bundle, tmp_path
):
    bundle, folder = tiny_bundle("llama")[1], tiny("llama")[1]
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


@pytest.mark.parametrize("independent", [False, True])
def test_without_its_source_it_is_unmeasured(quantised, independent):
    level = check_quality(quantised[0], independent=independent)
    assert level.status == "unmeasured" and "--source" in level.reason


@pytest.mark.parametrize("recipe, said", [({"argmax_output": True}, "no logits")])
def test_what_gives_no_logits_is_unmeasured(tiny_bundle, recipe, said):
    assert said in check_quality(tiny_bundle("qwen2", **recipe)[1]).reason


def test_the_command_keeps_it_as_l3(tiny_bundle):
    bundle = tiny_bundle("llama")[1]
    done = command("quality", bundle.path, "--tokens", "64", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "passed"
    assert bundle.evidence.levels["L3"].status == "passed"


@pytest.mark.parametrize("independent", [False, True])
def test_the_command_names_its_texts_and_what_they_are_compared_with(quantised, independent):
    bundle, folder = quantised
    options = ["--source", folder, "--tokens", "64", *(["--independent"] if independent else [])]
    done = command("quality", bundle.path, *options)
    verdict, table = done.stdout.split("\n\n")
    said = "transformers' model of its source's" if independent else "the same model, not quantised"
    assert f": against {said}" in verdict and "the worse of two texts" in verdict
    rows = table.splitlines()
    assert rows[1].startswith("prose  62 tokens ") and rows[1].endswith("chapters of the ANE Book")
    assert rows[2].startswith("code   62 tokens ") and rows[2].endswith("Python, of this library")
