"""The remedy for a package that is missing: a line that works where it is printed."""

from pathlib import Path
import re
import subprocess
import sys
import tomllib

from mlprogram import extras
from packaging.requirements import Requirement
import pytest

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize(
    ("package", "extra", "code"),
    [
        ("ray", "cluster", "import ane_serve.cluster.connection"),
        ("onnx", "onnx", "from mlprogram.onnx.file import load_onnx; load_onnx()"),
    ],
)
def test_a_package_that_is_missing(package, extra, code):
    code = f"import sys; sys.modules[{package!r}] = None; {code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    error = done.stderr.splitlines()[-1]
    assert error.endswith(f'-c constraints.txt -e mlprogram -e ".[{extra}]"`; {package} is missing')
    assert any(Requirement(each).name == package for each in EXTRAS[extra])


def test_no_line_names_a_package_that_no_index_has():
    sources = [*(ROOT / "ane_book").rglob("*.py"), *(ROOT / "book").glob("*.md")]
    found = [path for path in sources if re.search(r"ane-book\[(?!book\] @)", path.read_text())]
    assert not found


@pytest.mark.parametrize("extra", ["serve", "onnx", "cluster"])
def test_installed_from_a_wheel(extra, monkeypatch, tmp_path):
    """The command names the packages themselves, as the wheel's metadata have them."""
    monkeypatch.setattr(extras, "CHECKOUT", tmp_path)
    command = re.search("`pip install (.*)`", extras.missing("to try it", extra, "x"))[1]
    found = {str(Requirement(each)) for each in re.findall('"(.*?)"', command)}
    assert found == {str(Requirement(each)) for each in EXTRAS[extra]}
    monkeypatch.setattr(extras, "requires", lambda name: None)
    assert (
        extras.missing("to try it", extra, "x") == 'to try it, run `pip install "x"`; x is missing'
    )


def test_names_are_counted():
    said = [extras.missing("", "onnx", *"abc"[:count]).rpartition("; ")[2] for count in (1, 2, 3)]
    assert said == ["a is missing", "a and b are missing", "a, b and c are missing"]
