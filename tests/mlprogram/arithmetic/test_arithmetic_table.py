"""The table itself: whole, consistent with the code, and each row tested."""

import ast
from functools import cache
from importlib import import_module
from pathlib import Path
import re
from subprocess import run
import sys

from mlprogram import arithmetic
from mlprogram.analysis.touched import PREDICATES
from mlprogram.ops import OPS, OTHERS
import pytest

ROOT = Path(__file__).parents[3]
ROWS = arithmetic.rows()
SOURCE = re.compile(r"[\w.-]+/[\w.-]+(#\d+|@[0-9a-f]{7,40} \S+)")


@cache
def functions_of(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_a_row_is_whole(row):
    assert all(SOURCE.fullmatch(e.source) and e.says for e in row.evidence) and row.evidence
    assert row.topic and row.documented
    assert {*row.ops} <= OPS.keys()
    module, _, name = row.place.rpartition(".")
    assert callable(getattr(import_module(module), name))
    path, _, test = row.test.partition("::")
    assert test in functions_of(path)
    if path.startswith("tests/mlprogram/arithmetic/"):
        assert test == "test_" + row.id.replace("-", "_")


@pytest.mark.parametrize("row", ROWS.values(), ids=list(ROWS))
def test_the_default_follows_from_the_grade(row):
    """Where nothing can be chosen, and where the executor does a third thing, `why` says so."""
    assert row.grade in ("apple", "measured twice", "measured", "reported", "documented")
    assert row.default in ("documented", "reported", "neither")
    if not row.why and row.default != "neither":
        is_sure = row.grade in ("apple", "measured twice")
        assert row.default == ("reported" if is_sure else "documented")
    if row.grade in ("apple", "measured twice", "measured"):
        assert row.reported


def test_what_can_be_chosen_is_what_the_ops_register():
    chosen = {name for name, row in ROWS.items() if not row.why}
    assert {other.row for other in OTHERS.values()} == chosen
    for name, other in OTHERS.items():
        row = ROWS[other.row]
        assert name in row.ops and other.op.static == OPS[name].static
        assert other.op.parameters - {"_out"} == OPS[name].parameters - {"_out"}
        if row.default == other.reading:  # then its function is the place
            assert row.place.endswith("." + other.op.function.__name__)
    for row in ROWS.values():
        if not row.why:
            assert {*row.ops} <= OTHERS.keys(), row.id


def test_predicates_are_of_rows():
    assert PREDICATES.keys() <= ROWS.keys()
    assert not [name for name in PREDICATES if not ROWS[name].ops]


def test_reading_the_table_needs_no_torch():
    code = "import sys\nfrom mlprogram import arithmetic\narithmetic.rows()\nprint(*sys.modules)"
    done = run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "mlprogram.arithmetic" in done.stdout.split() and "torch" not in done.stdout.split()
