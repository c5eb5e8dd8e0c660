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


@pytest.mark.parametrize(("theirs", "ours"), [("mean_tokens", "mean"), ("cls_token", "cls")])
def test_pooling_and_length_are_read(tmp_path, theirs, ours):
    modes = {"cls_token": False, "mean_tokens": False, "max_tokens": False, theirs: True}
    place = folder(tmp_path, pooling=modes, max_seq_length=128, do_lower_case=False)
    assert sentence_settings(place) == {"pooling": ours, "max_seq_length": 128}
    assert [path.name for path in sentence_files(place)] == [
        "modules.json", "sentence_bert_config.json", "config.json",
    ]  # fmt: skip


def test_a_length_that_is_not_said_is_not_there(tmp_path):
    place = folder(tmp_path, kinds=("Transformer", "Pooling"), max_seq_length=None)
    assert sentence_settings(place) == {"pooling": "mean"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kinds": ("Transformer", "Pooling", "Dense")}, "modules Transformer, Pooling, Dense are"),
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
