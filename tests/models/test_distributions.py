"""Families of other distributions: found by an entry point, named where they are not installed."""

from ane_book import models
from ane_book.errors import UnsupportedModel
from ane_book.models import architectures, find, find_gguf, read_config
from ane_families import FAMILIES
import pytest


@pytest.fixture
def installed(monkeypatch):
    """`installed(*entries)`: there are no other entry points than these."""

    def make(*entries):
        monkeypatch.setattr(models, "entry_points", lambda group: {models.GROUP: entries}[group])
        architectures.cache_clear()

    yield make
    monkeypatch.undo()
    architectures.cache_clear()


def test_they_are_found():
    assert {each.name for each in FAMILIES} < set(architectures())


POOLED = {"sentence_transformers": {"pooling": "mean"}}


@pytest.mark.parametrize(
    "ask",
    [
        lambda: read_config({"model_type": "gemma3_text"}),
        lambda: read_config({"model_type": "qwen3"} | POOLED),
        lambda: find("granite"),
        lambda: find_gguf("qwen35"),
    ],
)
def test_where_they_are_not_installed_an_error_says_how_to(ask, installed):
    installed()
    with pytest.raises(UnsupportedModel) as caught:
        ask()
    said = str(caught.value)
    assert "; for more families, run `" in said and "\n" not in said
    assert "pip install" in said and "families`" in said


class Entry:
    name, value = "other", "other:FAMILIES"

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


@pytest.mark.parametrize("found", [1 / 2, ImportError("no module named 'moved'")])
def test_one_that_cannot_be_imported_is_named(installed, found):
    """It isn't a list of families, or its folder is elsewhere by now."""

    class Gone(Entry):
        def load(self):
            if isinstance(found, ImportError):
                raise found
            return found

    installed(Gone())
    with pytest.raises(UnsupportedModel, match="^other:FAMILIES, .* uninstall its distribution$"):
        find("llama")


def test_two_of_one_name_are_refused(installed):
    own = find("llama")
    installed(Entry(own))
    with pytest.raises(UnsupportedModel, match="other:FAMILIES: there is a family named 'llama'"):
        find("qwen2")
