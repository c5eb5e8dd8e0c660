"""The index of experiments: every benchmark is in it, and a wrong entry is told by name."""

from pathlib import Path

from ane_book_pages import records
from ane_book_pages.reports import experiments

ROOT = Path(__file__).parents[2]


def test_every_benchmark_is_in_the_index():
    said = " ".join(one.run for one in experiments.own())
    known = {"full_size.py": "make full-size"}
    for folder in ("benchmarks", "research/measurements"):
        for path in ROOT.glob(f"{folder}/[!_]*.py"):
            assert known.get(path.name, path.name) in said, path.name


def test_every_command_is_one():
    targets = (ROOT / "Makefile").read_text()
    for one in experiments.own() + experiments.for_a_mac():
        how, what, *_ = one.run.split()
        found = f"\n{what}:" in targets if how == "make" else (ROOT / what).is_file()
        assert found, one


def test_what_an_entry_says_is_at_length_is_a_page():
    for one in experiments.own():
        assert (ROOT / "book" / f"{one.more}.md").is_file(), one


def test_every_published_figure_is_in_it_once():
    rows = records.read("measurements/published.json")["rows"]
    text = "; ".join(one.result for one in experiments.published())
    assert text.count("; ") >= len(rows) - 1
    assert all(f"{row['value']:,} {row['unit']}" in text for row in rows)


ENTRY = {
    "question": "q", "setup": "s", "result": "{opening[rounds]} rounds", "verdict": "yes",
    "means": "m", "run": "make test", "more": "reports", "reads": ["measurements/opening.json"],
}  # fmt: skip


def test_figures_are_written_as_asked():
    read = {"a": {"1": 0.125, "rows": [{"kind": "hit"}, {"kind": "miss"}], "bytes": 2_500_000_000}}
    said = "{a[1]:%.1} {a[rows]:count} {a[rows]:count kind=hit} {a[bytes]:GB.1} {a[bytes]:MB.0}"
    found = experiments._Figures().vformat(said, (), read)
    assert found == "12.5 % 2 1 2.5 GB 2,500 MB"
    assert experiments._own("odd", ENTRY, "'odd'").result == "5 rounds"
