"""Device rows on the page: each prediction beside what a Mac answered, wrong ones first.

The rows here are made up, to test the table. The page shows only what is filed.
"""

import ast
from pathlib import Path

from ane_book_pages.reports import rows
from mlprogram.ane.mac.row import check_row
from mlprogram.ane.mac.row.form import FORMAT, NOT_FINITE, UNITS
import pytest

ROOT = Path(__file__).parents[2]


def a_row(name: str = "convolutions", system: str = "macOS 26.1", **engine) -> dict:
    """A row of one package; engine: what is other than right on CPU_AND_NE."""
    right = {"first_s": 0.1, "second_s": 0.1, "median_ms": 1.0, "min_ms": 1.0, "difference": 0.001}
    units = {each: {"ops": {"cpu": 16}} | right for each in UNITS}
    units["CPU_AND_NE"] |= engine
    if "failed" in engine:
        units["CPU_AND_NE"] = engine
    package = {
        "name": name, "sha256": "0" * 32, "predicted": {"chip": "m4", "ANE": 16},
        "as_predicted": [4, 16], "units": units,
    }  # fmt: skip
    row = {
        "format": FORMAT, "date": "2026-11-30", "chip": "Apple M4", "system": system,
        "coremltools": "9.0", "mlprogram": "0.2.0", "fitted": False, "packages": [package],
    }  # fmt: skip
    check_row(row)
    return row


def test_nothing_is_shown_that_is_not_filed():
    names = {path.name for path in (ROOT / "research" / "rows").iterdir()} - {"README.md"}
    assert len(rows.filed()) == len(names)


def test_wrong_predictions_come_first():
    found = rows.judged([a_row(difference=0.01), a_row(difference=NOT_FINITE)])
    assert [line.wrong for line in found] == [1.0, 0.75, 0.75, *[0.0] * 7]
    assert found[0].found == "values that are no numbers" and "CPU_AND_NE" in found[0].predicted
    placed = found[1]
    assert (placed.machine, placed.package) == ("Apple M4, macOS 26.1", "convolutions")
    assert (placed.predicted, placed.found) == ("ops: 16 ane", "16 cpu; 4 of 16 as predicted")


def test_numbers_far_from_the_executors_are_wrong():
    (line,) = (line for line in rows.judged([a_row(difference=0.2)]) if line.wrong == 1)
    assert line.found == "20 % apart"


def test_a_program_that_the_engine_failed_at_was_predicted_wrong():
    row = a_row(failed="hung at loading on CPU_AND_NE")
    del row["packages"][0]["as_predicted"]
    (line, *_) = rows.judged([row])
    assert (line.found, line.wrong) == ("no plan; hung at loading on CPU_AND_NE", 1.0)


@pytest.mark.parametrize(
    ("package", "system", "kept", "wrong"),
    [
        ("state-slice", "macOS 26.1", False, 0.0),
        ("state-slice", "macOS 26.1", True, 1.0),
        ("layer-state", "macOS 26.4", True, 1.0),
        ("state-slice", "macOS 15.5", False, 1.0),
        ("state-slice", "macOS 27.0", True, 0.0),
        ("state-select", "macOS 26.1", True, 0.0),
        ("state-select", "macOS 26.1", False, 1.0),
    ],
)
def test_a_state_is_held_to_what_the_claim_says_of_the_system(package, system, kept, wrong):
    lines = rows.judged([a_row(package, system, kept=kept)])
    (line,) = (line for line in lines if line.predicted.startswith("a written state"))
    assert line.found == ("kept" if kept else "lost") and line.wrong == wrong


def test_a_row_that_was_fitted_to_judges_nothing():
    assert rows.judged([a_row() | {"fitted": True}]) == []


def names_rows(source: str) -> bool:
    """Whether a program has to do with filed rows, by a module's name or a path."""
    modules, folders = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom | ast.Import):
            of = getattr(node, "module", None) or ""
            modules |= {part for each in node.names for part in f"{of}.{each.name}".split(".")}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            folders |= {*node.value.split("/")[:-1]}
    return bool({"row", "rows"} & modules or "rows" in folders)


def test_what_fits_reads_no_rows():
    """Of all that reads figures only the page's module has the rows."""
    pages, ane = "book/ane_book_pages", "mlprogram/src/mlprogram/ane"
    fits = {f"{pages}/{of}/fitting.py" for of in ("decode", "segmenter")}
    fits |= {f"{ane}/laws/calibrate.py", "research/experiments/fit_segmenter.py"}
    folders = (pages, "research", "benchmarks", *(f"{ane}/{n}" for n in ("cost", "laws")))
    folders += (f"{ane}/placement",)
    files = {path for folder in folders for path in (ROOT / folder).rglob("*.py")}
    asked = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in files}
    assert fits <= asked.keys()
    assert {name for name, source in asked.items() if names_rows(source)} == {
        f"{pages}/reports/{name}.py" for name in ("__init__", "rows")
    }
