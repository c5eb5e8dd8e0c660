"""What stands in a sentence-transformers folder: read, or refused in one sentence."""

import json
from pathlib import Path

from ane_book.errors import InvalidWeights, UnsupportedModel
from ane_book.weights.sentences import sentence_settings
import pytest

BARE = ("Transformer", "Pooling")
LINEAR = {"in_features": 8, "out_features": 3, "bias": False}


def folder(
    place: Path, kinds=(*BARE, "Normalize"), pooling=None, own=None, dense=None, **cut
) -> Path:
    """A folder with these modules; own: of the file that has prompts; cut: of the one that has the
    length."""
    pooling = {"pooling_mode_mean_tokens": True} if pooling is None else pooling
    modules = [
        {"idx": i, "path": f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (place / "1_Pooling").mkdir()
    (place / "2_Dense").mkdir()
    files = {
        "modules.json": modules,
        "1_Pooling/config.json": {"include_prompt": True} | pooling,
        "2_Dense/config.json": dense and LINEAR | dense,
        "2_Dense/model.safetensors": dense,
        "config_sentence_transformers.json": own,
        "sentence_bert_config.json": cut,
    }
    for name, content in files.items():
        if content is not None and content != {}:
            (place / name).write_text(json.dumps(content))
    return place


def test_a_step_that_comes_twice_is_twice(tmp_path):
    place = folder(tmp_path, kinds=(*BARE, "Dense", "Dense"), dense={"out_features": 8})
    modules = json.loads((place / "modules.json").read_text())
    (place / "modules.json").write_text(json.dumps([*modules[:3], modules[2]]))
    dense = sentence_settings(place).settings["dense"]
    assert [step["folder"] for step in dense] == ["2_Dense", "2_Dense"]


def test_a_folder_without_says_nothing(tmp_path):
    found = sentence_settings(tmp_path)
    assert (found.settings, found.files, found.dense) == ({}, [], {})


POOLINGS = [("mean_tokens", "mean"), ("cls_token", "cls"), ("lasttoken", "last")]


@pytest.mark.parametrize(("theirs", "ours"), POOLINGS)
def test_pooling_and_length_are_read(tmp_path, theirs, ours):
    modes = dict.fromkeys(("cls_token", "mean_tokens", "max_tokens"), False) | {theirs: True}
    modes = {f"pooling_mode_{name}": on for name, on in modes.items()}
    place = folder(tmp_path, pooling=modes, max_seq_length=128, do_lower_case=False)
    assert sentence_settings(place).settings == {"pooling": ours, "max_seq_length": 128}
    assert [path.name for path in sentence_settings(place).files] == [
        "modules.json", "sentence_bert_config.json", "config.json",
    ]  # fmt: skip


@pytest.mark.parametrize(("mode", "ours"), [("mean", "mean"), ("lasttoken", "last")])
def test_pooling_in_one_field(tmp_path, mode, ours):
    place = folder(tmp_path, kinds=BARE, pooling={"pooling_mode": mode}, max_seq_length=None)
    assert sentence_settings(place).settings == {"pooling": ours}


def test_prompts_and_dimensions_are_read(tmp_path):
    own = {"prompts": {"query": "q: ", "document": ""}, "default_prompt_name": "query"}
    place = folder(tmp_path, own=own | {"truncate_dim": 64, "similarity_fn_name": "dot"})
    assert sentence_settings(place).settings == {
        "pooling": "mean", "prompts": own["prompts"], "default_prompt": "query", "dimensions": 64,
    }  # fmt: skip
    assert place / "config_sentence_transformers.json" in sentence_settings(place).files


def test_the_cosine_does_not_depend_on_a_vectors_length(tmp_path):
    place = folder(tmp_path, kinds=BARE, own={"similarity_fn_name": "cosine"})
    assert sentence_settings(place).settings == {"pooling": "mean"}


def test_dense_steps_are_read(tmp_path):
    dense = {"activation_function": "torch.nn.modules.linear.Identity"}
    place = folder(tmp_path, kinds=(*BARE, "Dense", "Normalize"), dense=dense)
    assert sentence_settings(place).settings["dense"] == [
        {"folder": "2_Dense", "inputs": 8, "outputs": 3, "bias": False, "activation": "identity"}
    ]
    assert [path.parent.name for path in sentence_settings(place).files][-1] == "2_Dense"


TWO = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}
WITHOUT_PROMPT = {"pooling_mode_mean_tokens": True, "include_prompt": False}
SELU = {"activation_function": "torch.nn.modules.activation.SELU"}

#: By what is said.
REFUSED = {
    "modules Transformer, Pooling, CNN are": {"kinds": (*BARE, "CNN")},
    "Normalize, Dense are not": {"kinds": (*BARE, "Normalize", "Dense")},
    "modules none are not supported": {"kinds": ()},
    "pooling by max is not .* cls or mean": {"pooling": {"pooling_mode_max_tokens": True}},
    "pooling by max is not supported; .* lasttoken": {"pooling": {"pooling_mode": "max"}},
    "by mean and cls is": {"pooling": TWO},
    "pooling by nothing is not": {"pooling": {"pooling_mode_mean_tokens": False}},
    "include_prompt = false": {"pooling": WITHOUT_PROMPT, "own": {"prompts": {"query": "q: "}}},
    "= 'dot' without a Normalize": {"kinds": BARE, "own": {"similarity_fn_name": "dot"}},
    "activation_function SELU is not .*Tanh": {"kinds": (*BARE, "Dense"), "dense": SELU},
    "do_lower_case = true is not supported": {"do_lower_case": True},
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_is_not_supported_is_named(tmp_path, said):
    with pytest.raises(UnsupportedModel, match=said):
        sentence_settings(folder(tmp_path, **REFUSED[said]))


#: By what is said: a file, and what it holds; None where it is missing.
DAMAGED = {
    "the weights of a Dense step; get it as well": ("2_Dense/model.safetensors", None),
    "2_Dense.config.json: not a file": ("2_Dense/config.json", None),
    "1_Pooling.config.json: holds a list, not an object": ("1_Pooling/config.json", []),
    "modules.json: holds a dict, not a list": ("modules.json", {}),
    r"'\.\./1_Pooling' is not a folder beside it": (
        "modules.json", [{"type": "Transformer"}, {"type": "x.Pooling", "path": "../1_Pooling"}]
    ),
}  # fmt: skip


@pytest.mark.parametrize("said", DAMAGED)
def test_damaged_files(tmp_path, said):
    name, content = DAMAGED[said]
    place = folder(tmp_path, kinds=(*BARE, "Dense"), dense={"bias": True})
    (place / name).unlink()
    if content is not None:
        (place / name).write_text(json.dumps(content))
    with pytest.raises(InvalidWeights, match=said):
        sentence_settings(place)
