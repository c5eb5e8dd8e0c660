"""Records are found from a checkout's folders, and missed with one clear error elsewhere."""

from ane_book import records
from ane_book.errors import InvalidInput
import pytest


def test_a_checkout_around_the_current_folder_comes_first(tmp_path, monkeypatch):
    (tmp_path / "research").mkdir()
    (tmp_path / "research" / "mine.json").write_text('{"a": 1}')
    (tmp_path / "book").mkdir()
    monkeypatch.chdir(tmp_path / "book")
    assert records.read("mine.json") == {"a": 1}
    assert records.find("mine.json").parent.parent == tmp_path


def test_the_library_s_own_checkout_is_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert records.read("measurements/decode.json")["results"]


def test_what_is_not_there_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match=r"research/none\.json is not here.*checkout"):
        records.find("none.json")
