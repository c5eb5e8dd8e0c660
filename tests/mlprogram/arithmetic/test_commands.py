"""`mlprogram run --semantics`, and what `mlprogram diff` names where two sides part."""

from functools import partial
import json

import _command
from _command import mlprogram
from _package import const, op, typed
from mlprogram import MLProgram, diff
import numpy as np
import pytest

refused = partial(_command.refused, by=mlprogram)
X = np.array([-7.0, 7.0], np.float32)
SIGN = "depends on how Core ML computes the remainder of negative numbers (mod-sign), at 'y': "


def package(make, divisor: float):
    operation = op("mod", {"y": typed("fp32", 2)}, x="x", y=const(divisor))
    return make([operation], ("y",), {"x": typed("fp32", 2)})


@pytest.fixture
def negative(tmp_path):
    np.savez(tmp_path / "x.npz", x=X)
    return tmp_path / "x.npz"


@pytest.mark.parametrize("semantics, least", [("documented", 1), ("reported", -3), (None, -3)])
def test_run_computes_by_the_semantics(make, negative, semantics, least):
    given = ["--semantics", semantics] if semantics else []
    done = mlprogram("run", package(make, 4.0), "--inputs", negative, *given, "--json")
    facts = json.loads(done.stdout)
    assert facts["semantics"] == semantics and facts["outputs"]["y"]["min"] == least
    text = mlprogram("run", package(make, 4.0), "--inputs", negative, *given).stdout
    assert (f", arithmetic as {semantics}," in text) == bool(semantics)


def test_unknown_semantics_are_one_line(make):
    assert "semantics must be" in refused("run", package(make, 4.0), "--semantics", "torch")


def test_where_two_packages_part_what_it_depends_on_is_named(make, negative):
    both = [package(make, 4.0), package(make, 5.0)]
    done = mlprogram("diff", *both, "--inputs", negative)
    lines = done.stdout.splitlines()
    assert done.returncode == 1 and sum(line.startswith(SIGN) for line in lines) == 1
    assert lines[-1] == "outputs apart: y"
    facts = json.loads(mlprogram("diff", *both, "--inputs", negative, "--json").stdout)
    assert facts["arithmetic"] == {"mod-sign": ["y"]}


def test_what_parts_before_the_outputs_is_enough(make):
    """The order of two remainders is the same in both readings, and they are not."""
    two = typed("fp32", 2)
    operations = [
        op("mod", {"a": two}, x="x", y=const(4.0)),
        op("argsort", {"y": typed("int32", 2)}, x="a"),
    ]
    path = make(operations, ("y",), {"x": two})
    programs = [MLProgram(path, semantics=s) for s in ("reported", "documented")]
    found = diff(*programs, {"x": np.float32([-7, 2])})
    assert found.equal and found.first.name == "a"
    assert "(mod-sign), at 'a': " in str(found) and "(sort-nan), at 'y': " in str(found)
