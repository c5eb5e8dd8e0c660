"""`mlprogram faults --fix`: what it prints, and its exit codes."""

import json

from _pairs import HALF, INT, Form, _made
from _planted import mb, number
from mlprogram.cli import app
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


def test_json(package):
    facts = json.loads(run(package, "--json", "--fix", package.with_name("b.mlpackage")).stdout)
    assert facts["ops"] == [2, 2] and facts["tried"] == 8
    assert [one["fault"] for one in facts["mended"]] == ["pow-two"]
