"""Records are found from a checkout's folders, and missed with one clear error elsewhere."""

from importlib.util import module_from_spec, spec_from_file_location
import json
from pathlib import Path
import re

from ane_book.errors import InvalidInput
from ane_book_pages import records
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
    assert all(row["results"] for row in records.read("measurements/decode.json").values())


def test_a_record_keeps_a_row_for_each_processor(tmp_path, monkeypatch):
    file = Path(__file__).parents[2] / "benchmarks" / "_common.py"
    common = module_from_spec(spec := spec_from_file_location("benchmarks_common", file))
    spec.loader.exec_module(common)
    monkeypatch.setattr(common, "MEASUREMENTS", tmp_path)
    common.record("speed", {"results": 1}, by_processor=True)
    here = common.processor()
    monkeypatch.setattr(common, "processor", lambda: here | {"processor": "another"})
    for result in (2, 3):  # measured again
        common.record("speed", {"results": result}, by_processor=True)
    rows = json.loads((tmp_path / "speed.json").read_text())
    found = {name: row["results"] for name, row in rows.items()}
    assert found == {here["processor"]: 1, "another": 3}
    assert all(name == row["machine"]["processor"] for name, row in rows.items())
    assert set(here["flags"]) <= set(common.FLAGS)


def test_every_live_ratio_of_a_page_is_recorded_with_its_moment():
    record = records.read("measurements/pages.json")
    live = {
        name: page.stem
        for page in (Path(__file__).parents[2] / "book").glob("*.md")
        for name in re.findall(r'^ *records\.live\(f?"([^"]+)"', page.read_text("utf-8"), re.M)
    }
    of_page = {figure: page for page, told in record["pages"].items() for figure in told["values"]}
    for name, page in live.items():
        named = re.compile(re.sub(r"\{\w+\}", r"\\w+", name))
        assert any(named.fullmatch(f) and of == page for f, of in of_page.items()), name
    assert of_page.keys() == record["figures"].keys()
    assert set(live.values()) == record["pages"].keys()
    for told in record["pages"].values():
        assert told["recorded"].keys() == {"date", "commit", "load", "note"}


def test_what_is_not_there_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match=r"research/none\.json is not here.*checkout"):
        records.find("none.json")
