"""`mlprogram check`: exit codes, forms of output, and bad input, from a terminal's side."""

import json
import os
import subprocess
import sys

from _broken import BROKEN, sound
from _command import mlprogram, refused
from _full_disk import room_for
from mlprogram.ane import laws
from mlprogram.cli import app
from mlprogram.cli.check import write_sarif
from mlprogram.errors import InvalidInput, OutOfSpace
import pytest
from typer.testing import CliRunner


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """A folder with a sound package, one with a warning and one with an error."""
    folder = tmp_path_factory.mktemp("packages")
    make = {one.rule: one.make for one in BROKEN}
    sound().save(str(folder / "sound.mlpackage"))
    make["max-pool"]().save(str(folder / "warning.mlpackage"))
    make["conv-width"]().save(str(folder / "error.mlpackage"))
    return folder


def run(*arguments, **environment):
    arguments = ["check", *map(str, arguments)]
    return CliRunner().invoke(app, arguments, env={"GITHUB_ACTIONS": "", **environment})


@pytest.mark.parametrize(
    ("name", "options", "code"),
    [
        ("sound", ["--fail-on", "note"], 0),
        ("warning", [], 0),
        ("warning", ["--fail-on", "warning"], 1),
        ("error", [], 1),
        ("error", ["--fail-on", "never"], 0),
    ],
)
def test_exit_code(packages, name, options, code):
    assert run(packages / f"{name}.mlpackage", *options).exit_code == code


def test_json_is_all_of_the_output(packages):
    result = run(packages, "--json", GITHUB_ACTIONS="true")
    facts = json.loads(result.stdout)
    assert facts["packages"] == 3 and facts["errors"] == 1
    assert f"::error file={packages}/error.mlpackage" in result.stderr


def test_sarif_is_written(packages, tmp_path):
    assert run(packages, "--sarif", tmp_path / "out.sarif").exit_code == 1
    log = json.loads((tmp_path / "out.sarif").read_text())
    assert [r["level"] for r in log["runs"][0]["results"]] == ["error", "warning", "note", "note"][
        : len(log["runs"][0]["results"])
    ]


def test_sarif_on_a_full_disk_leaves_the_former(packages, tmp_path):
    (out := tmp_path / "out.sarif").write_text("as it was")
    with room_for(100):
        result = run(packages, "--sarif", out)
    assert isinstance(result.exception, OutOfSpace) and str(out) in str(result.exception)
    assert "error.mlpackage" in result.stdout and out.read_text() == "as it was"
    assert [*tmp_path.iterdir()] == [out]


@pytest.mark.skipif(os.name == "nt", reason="links and pipes are POSIX's")
def test_sarif_in_a_folder_that_is_not_there_to_a_link_and_to_a_device(packages, tmp_path):
    report = laws.check(packages / "sound.mlpackage")
    with pytest.raises(InvalidInput, match=f"{tmp_path}/no/out.sarif: No such file"):
        write_sarif(tmp_path / "no" / "out.sarif", report)
    (link := tmp_path / "link").symlink_to("out.sarif")
    write_sarif(link, report)
    assert link.is_symlink() and json.loads((tmp_path / "out.sarif").read_text())
    os.mkfifo(pipe := tmp_path / "pipe")
    opened = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_sarif(pipe, report)
    assert os.read(opened, 1) == b"{"
    os.close(opened)


@pytest.mark.parametrize(
    ("options", "github", "annotated"),
    [
        ([], "", False),
        ([], "true", True),
        (["--github"], "", True),
        (["--no-github"], "true", False),
    ],
)
def test_annotations(packages, options, github, annotated):
    result = run(packages / "error.mlpackage", *options, GITHUB_ACTIONS=github)
    assert ("::error file=" in result.stdout) == annotated


def test_own_rules(packages, tmp_path):
    (tmp_path / "own.toml").write_text('[max-pool]\nseverity = "error"\n')
    result = run(packages, "--rules", tmp_path / "own.toml")
    assert result.exit_code == 1 and result.stdout.endswith("1 error in 3 packages\n")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("model.mlpackage", None, "no such package"),
        ("", None, "no .mlpackage"),
        ("README.md", "text", "not a .mlpackage, .mlmodelc or .mlmodel"),
        ("rules.toml", '[max-pool]\ngrade = "certain"', "unknown key 'grade'"),
    ],
)
def test_bad_input_is_one_line_and_code_2(packages, tmp_path, name, content, said):
    if content is not None:
        (tmp_path / name).write_text(content)
    words = [tmp_path / name]
    if name == "rules.toml":
        words = [packages / "sound.mlpackage", "--rules", tmp_path / name]
    assert said in refused("check", *words, by=mlprogram)


def test_neither_torch_nor_coremltools_is_imported(packages):
    """What makes a check of a small package a matter of moments."""
    code = (
        "import sys; from mlprogram.ane import laws; laws.check(sys.argv[1]).text();"
        "print({'torch', 'coremltools', 'pydantic'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code, str(packages / "error.mlpackage")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout == "set()\n"
