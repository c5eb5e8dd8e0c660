"""Families of other distributions: found by an entry point, named where they are not installed."""

from ane_book import models
from ane_book.errors import UnsupportedModel
from ane_book.models import architectures, find, find_gguf, read_config
from ane_families import FAMILIES
import pytest

GROUP = "ane_book.families"


@pytest.fixture
def installed(monkeypatch):
    """`installed(*entries)`: there are no other entry points than these."""

    def make(*entries):
        monkeypatch.setattr(models, "entry_points", lambda group: {GROUP: entries}[group])
        architectures.cache_clear()

    yield make
    monkeypatch.undo()
    architectures.cache_clear()


def test_they_are_found():
    assert {each.name for each in FAMILIES} < set(architectures())


def test_all_are_told_of():
    names = {each.name for each in FAMILIES}
    assert names | {each.gguf.architecture for each in FAMILIES if each.gguf} == set(models.MORE)


POOLED = {"sentence_transformers": {"pooling": "mean"}}


@pytest.mark.parametrize(
    ("ask", "name"),
    [
        (lambda: read_config({"model_type": "gemma3_text"}), "gemma3_text"),
        (lambda: read_config({"model_type": "qwen3"} | POOLED), "qwen3-embedding"),
        (lambda: find("granite"), "granite"),
        (lambda: find_gguf("qwen35"), "qwen35"),
    ],
)
def test_where_they_are_not_installed_they_are_named(ask, name, installed):
    installed()
    with pytest.raises(UnsupportedModel) as caught:
        ask()
    said = str(caught.value)
    assert said.startswith(f"{name} is a family of ane-families; to use it, run `")
    assert "pip install" in said and "families`" in said and "\n" not in said


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: read_config({"model_type": "gpt2"}), "model_type 'gpt2' is not .*: bert"),
        (lambda: read_config({"model_type": ["llama"]}), "is not one this library converts"),
        (lambda: read_config({}), "it has no model_type, which names .*; supported: bert"),
        (lambda: read_config({"model_type": "llama"} | POOLED), "embedding is not supported for"),
        (lambda: find({}), "architecture {} is not one"),
        (lambda: find_gguf("mamba"), "architecture 'mamba' is not supported; supported: .*llama"),
    ],
)
def test_an_unknown_family_is_refused_with_those_that_are_known(ask, message):
    with pytest.raises(UnsupportedModel, match=message):
        ask()


class Entry:
    value = "other:FAMILIES"

    def __init__(self, *families):
        self.families = families

    def load(self):
        return self.families


def test_a_family_of_another_distribution(installed):
    class Other(type(find("llama"))):
        model_type = "other"
        gguf = None

    installed(Entry(Other()))
    assert type(find("other")) is Other and "granite" not in architectures()


def test_two_of_one_name_are_refused(installed):
    own = find("llama")
    installed(Entry(own))
    with pytest.raises(UnsupportedModel, match="other:FAMILIES: there is a family named 'llama'"):
        find("qwen2")
