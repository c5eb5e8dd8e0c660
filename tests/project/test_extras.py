"""The remedy for a package that is missing: a line that works where it is printed."""

import importlib
from pathlib import Path
import re
import sys
import tomllib

from ane_book.evidence import original
from mlprogram import extras
from mlprogram.errors import MLProgramError
from packaging.requirements import Requirement
import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {"mlprogram": ROOT / "mlprogram", "ane-book": ROOT, "ane-serve": ROOT / "ane_serve"}


def extra(needed: str) -> list[str]:
    """What an extra stands for, by pyproject.toml: of "mlprogram[onnx]"."""
    name, _, own = needed.rstrip("]").partition("[")
    project = tomllib.loads((FOLDERS[name] / "pyproject.toml").read_text())["project"]
    return project["optional-dependencies"][own]


@pytest.mark.parametrize(
    ("package", "needed", "install", "use"),
    [
        (
            "ray",
            "ane-serve[cluster]",
            '-e ./mlprogram -e . -e "./ane_serve[cluster]"',
            lambda: importlib.import_module("ane_serve.cluster.connection"),
        ),
        (
            "transformers",
            "ane-book[transformers]",
            '-e ./mlprogram -e ".[transformers]"',
            lambda: original.model({}, {}),
        ),
    ],
)
def test_a_package_that_is_missing(package, needed, install, use, monkeypatch):
    monkeypatch.delitem(sys.modules, "ane_serve.cluster.connection", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MLProgramError) as raised:
        use()
    assert str(raised.value).endswith(f"-c constraints.txt {install}`; {package} is missing")
    assert any(Requirement(each).name == package for each in extra(needed))


def test_no_line_names_a_package_that_no_index_has():
    """But an argument of `missing`, which makes a line of it."""
    libraries = [ROOT / name for name in ("ane_book", "ane_serve", "families", "mlprogram")]
    sources = [file for folder in libraries for file in folder.rglob("*.py")]
    sources += (ROOT / "book").glob("*.md")
    wrong = re.compile(r"install[^\n`]*ane-(?:book|serve)\[(?!book\] @)")
    assert not [path for path in sources if wrong.search(path.read_text())]


@pytest.mark.parametrize("needed", ["ane-book[grammar]", "mlprogram[onnx]", "ane-serve[cluster]"])
def test_installed_from_a_wheel(needed, monkeypatch, tmp_path):
    """The command names the packages themselves, as the wheel's metadata have them."""
    monkeypatch.setattr(extras, "CHECKOUT", tmp_path)
    command = re.search("`pip install (.*)`", extras.missing("to try it", needed, "x"))[1]
    found = {str(Requirement(each)) for each in re.findall('"(.*?)"', command)}
    assert found == {str(Requirement(each)) for each in extra(needed)}
    monkeypatch.setattr("importlib.metadata.requires", lambda name: None)
    assert (
        extras.missing("to try it", needed, "x") == 'to try it, run `pip install "x"`; x is missing'
    )
