"""What stands in a sentence-transformers folder: read, or refused in one sentence."""

import json
from pathlib import Path

from ane_book.errors import InvalidWeights, UnsupportedModel
from ane_book.weights.sentences import sentence_files, sentence_settings
import pytest


def folder(place: Path, kinds=("Transformer", "Pooling", "Normalize"), pooling=None, **cut) -> Path:
    pooling = {"mean_tokens": True} if pooling is None else pooling
    modules = [
        {"idx": i, "path": f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (place / "modules.json").write_text(json.dumps(modules))
    (place / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{name}": on for name, on in pooling.items()}
    (place / "1_Pooling" / "config.json").write_text(json.dumps(modes | {"include_prompt": True}))
    if cut:
        (place / "sentence_bert_config.json").write_text(json.dumps(cut))
    return place


def test_a_folder_without_says_nothing(tmp_path):
    assert sentence_settings(tmp_path) == {}
    assert sentence_files(tmp_path) == []


POOLINGS = [("mean_tokens", "mean"), ("cls_token", "cls"), ("lasttoken", "last")]


@pytest.mark.parametrize(("theirs", "ours"), POOLINGS)
def test_pooling_and_length_are_read(tmp_path, theirs, ours):
    modes = {"cls_token": False, "mean_tokens": False, "max_tokens": False, theirs: True}
    place = folder(tmp_path, pooling=modes, max_seq_length=128, do_lower_case=False)
    assert sentence_settings(place) == {"pooling": ours, "max_seq_length": 128}
    assert [path.name for path in sentence_files(place)] == [
        "modules.json", "sentence_bert_config.json", "config.json",
    ]  # fmt: skip


def settings(place: Path, **fields) -> Path:
    (place / "config_sentence_transformers.json").write_text(json.dumps(fields))
    return place


def test_pooling_in_one_field(tmp_path):
    place = folder(tmp_path)
    for mode, ours in (("mean", "mean"), ("lasttoken", "last")):
        (place / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": mode}))
        assert sentence_settings(place) == {"pooling": ours}
    (place / "1_Pooling" / "config.json").write_text('{"pooling_mode": "max"}')
    with pytest.raises(UnsupportedModel, match="pooling by max is not supported; .* lasttoken"):
        sentence_settings(place)


def test_prompts_and_dimensions_are_read(tmp_path):
    own = {"prompts": {"query": "q: ", "document": ""}, "default_prompt_name": "query"}
    place = settings(folder(tmp_path), **own, truncate_dim=64, similarity_fn_name="dot")
    assert sentence_settings(place) == {
        "pooling": "mean", "prompts": own["prompts"], "default_prompt": "query", "dimensions": 64,
    }  # fmt: skip
    assert place / "config_sentence_transformers.json" in sentence_files(place)


def test_what_depends_on_a_vectors_length_is_refused(tmp_path):
    place = folder(tmp_path, kinds=("Transformer", "Pooling"))
    with pytest.raises(UnsupportedModel, match="similarity_fn_name = 'dot' without a Normalize"):
        sentence_settings(settings(place, similarity_fn_name="dot"))
    assert sentence_settings(settings(place, similarity_fn_name="cosine")) == {"pooling": "mean"}


def test_a_prompt_that_the_mean_leaves_out_is_refused(tmp_path):
    place = settings(folder(tmp_path), prompts={"query": "q: "})
    modes = {"pooling_mode_mean_tokens": True, "include_prompt": False}
    (place / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    with pytest.raises(UnsupportedModel, match="include_prompt = false is not supported"):
        sentence_settings(place)


def dense(place: Path, **fields) -> Path:
    fields = {"in_features": 8, "out_features": 3, "bias": False} | fields
    (place / "2_Dense").mkdir()
    (place / "2_Dense" / "config.json").write_text(json.dumps(fields))
    (place / "2_Dense" / "model.safetensors").touch()
    return place


def test_dense_steps_are_read(tmp_path):
    place = folder(tmp_path, kinds=("Transformer", "Pooling", "Dense", "Normalize"))
    read = sentence_settings(dense(place, activation_function="torch.nn.modules.linear.Identity"))
    assert read["dense"] == [
        {"folder": "2_Dense", "inputs": 8, "outputs": 3, "bias": False, "activation": "identity"}
    ]
    assert [path.parent.name for path in sentence_files(place)][-1] == "2_Dense"


@pytest.mark.parametrize(
    ("fields", "gone", "error", "message"),
    [
        ({"activation_function": "torch.nn.modules.activation.SELU"}, "", UnsupportedModel,
         "activation_function SELU is not supported; supported: Identity, Tanh"),
        ({}, "model.safetensors", InvalidWeights, "the weights of a Dense step; get it as well"),
        ({}, "config.json", InvalidWeights, "2_Dense.config.json: not a file"),
    ],
)  # fmt: skip
def test_dense_steps_that_will_not_do(tmp_path, fields, gone, error, message):
    place = dense(folder(tmp_path, kinds=("Transformer", "Pooling", "Dense")), **fields)
    if gone:
        (place / "2_Dense" / gone).unlink()
    with pytest.raises(error, match=message):
        sentence_settings(place)


def test_a_length_that_is_not_said_is_not_there(tmp_path):
    place = folder(tmp_path, kinds=("Transformer", "Pooling"), max_seq_length=None)
    assert sentence_settings(place) == {"pooling": "mean"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kinds": ("Transformer", "Pooling", "CNN")}, "modules Transformer, Pooling, CNN are"),
        ({"kinds": ("Transformer", "Pooling", "Normalize", "Dense")}, "Normalize, Dense are not"),
        ({"kinds": ()}, "modules none are not supported"),
        ({"pooling": {"max_tokens": True}}, "pooling by max_tokens is not supported; .* cls_token"),
        ({"pooling": {"mean_tokens": True, "cls_token": True}}, "by mean_tokens and cls_token"),
        ({"pooling": {}}, "pooling by nothing is not"),
        ({"do_lower_case": True}, "do_lower_case = true is not supported"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path, changes, message):
    with pytest.raises(UnsupportedModel, match=message):
        sentence_settings(folder(tmp_path, **changes))


def test_damaged_files(tmp_path):
    place = folder(tmp_path)
    (place / "1_Pooling" / "config.json").write_text("[]")
    with pytest.raises(InvalidWeights, match=r"1_Pooling.config.json: holds a list, not an object"):
        sentence_settings(place)
    (place / "modules.json").write_text("{}")
    with pytest.raises(InvalidWeights, match=r"modules.json: holds a dict, not a list"):
        sentence_settings(place)
    outside = [{"type": "Transformer"}, {"type": "x.Pooling", "path": "../1_Pooling"}]
    (place / "modules.json").write_text(json.dumps(outside))
    with pytest.raises(InvalidWeights, match=r"'\.\./1_Pooling' is not a folder beside it"):
        sentence_settings(place)
    with pytest.raises(InvalidWeights, match="is not a folder beside it"):
        sentence_files(place)
