"""`mlprogram faults --fix`: what it prints, and its exit codes."""

import json

from _command import end, mlprogram
from _pairs import HALF, INT, Form, _made
from _planted import mb, number
from mlprogram.cli import app
from mlprogram.errors import InvalidInput
import numpy as np
import pytest
from typer.testing import CliRunner

ROWS = ((4, 8), HALF)


@pytest.fixture
def package(tmp_path):
    """Write a package with a fault that is mended, and one of a warning that is not."""

    def network(_, x, y):
        picked = mb.gather_nd(x=x, indices=y, validate_indices=False)
        return mb.pow(x=number(2, x), y=picked)

    _made(network, True, Form((ROWS, ((2, 1), INT)))).save(str(tmp_path / "a.mlpackage"))
    return tmp_path / "a.mlpackage"


def run(package, *more):
    return CliRunner().invoke(app, ["faults", str(package), *map(str, more)])


@pytest.mark.parametrize(("fail_on", "code"), [("error", 0), ("warning", 1), ("never", 0)])
def test_the_exit_code_is_of_what_is_left(package, fail_on, code):
    assert run(package).exit_code == 1  # pow-two is an error
    result = run(package, "--fix", package.with_name("b.mlpackage"), "--fail-on", fail_on)
    assert result.exit_code == code
    assert "mended  pow-two" in result.stdout and "left    gather-nd-computed" in result.stdout


def test_told_to_end_it_leaves_nothing(package, monkeypatch):
    monkeypatch.setattr("mlprogram.package.container._write_package", end)
    done = mlprogram("faults", package, "--fix", package.with_name("b.mlpackage"))
    assert done.returncode == 143 and [*package.parent.iterdir()] == [package]


def test_the_system_and_the_version_that_are_asked_for_are_named(package):
    head = run(package, "--os", "macos26", "--coremltools", "9.0").stdout.splitlines()[0]
    assert head.endswith("and up; asked for macos26; asked for coremltools 9.0")


@pytest.mark.parametrize("more", [[], ["--fix", "c.mlpackage"]], ids=["look", "fix"])
def test_a_system_that_does_not_read_the_package_is_refused(package, more):
    refused = run(package, "--os", "macos14", *more).exception
    assert isinstance(refused, InvalidInput) and "macos14 does not read it" in str(refused)


def test_a_folder_is_not_mended(package):
    refused = run(package.parent, "--fix", package.with_name("b.mlpackage")).exception
    assert isinstance(refused, InvalidInput) and "one package is mended at a time" in str(refused)
    assert {one.name for one in package.parent.iterdir()} == {"a.mlpackage"}


def test_what_is_mended_or_left_is_what_was_listed(tmp_path):
    """An infinite mask, which is a law of the engine, too."""

    def masked(_, x):
        opened = mb.softmax(x=mb.add(x=x, y=number(-np.inf, x)), axis=-1)
        return mb.add(x=opened, y=mb.pow(x=number(2, x), y=x))

    path = tmp_path / "a.mlpackage"
    _made(masked, True, Form((ROWS,))).save(str(path))
    listed = {one["rule"] for one in json.loads(run(path, "--json").stdout)["findings"]}
    report = json.loads(run(path, "--json", "--fix", tmp_path / "b.mlpackage").stdout)
    assert {one["fault"] for one in report["mended"] + report["left"]} == listed
    assert "non-finite" in listed


def test_json(package):
    facts = json.loads(run(package, "--json", "--fix", package.with_name("b.mlpackage")).stdout)
    assert facts["ops"] == [2, 2] and facts["tried"] == 8
    assert [one["fault"] for one in facts["mended"]] == ["pow-two"]
