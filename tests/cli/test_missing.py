"""Commands whose extra, or whose distribution, is missing: one line, with what to do."""

import re
import sys
from types import ModuleType

import ane_book
from ane_book import cli
from ane_book.cli.absent import served
from ane_book.runtime import grammar
import mlprogram.cli
from mlprogram.cli.commands import command_line
from mlprogram.errors import MLProgramError
import pytest

SERVE = ("-e ./mlprogram -e . -e ./ane_serve", f"ane-serve=={ane_book.__version__}")


def error(app, *arguments: object) -> str:
    """What a command says that fails."""
    with pytest.raises(MLProgramError) as raised:
        app([*map(str, arguments)], standalone_mode=False)
    said = str(raised.value)
    assert "\n" not in said
    return said


def assert_remedy(said: str, install: str, package: str) -> None:
    """That the line ends in a command for this checkout, and what is missing."""
    command = rf'run `cd ".+" && pip install -c constraints\.txt {re.escape(install)}`'
    assert re.search(rf"{command}; {re.escape(package)} is missing$", said), said


@pytest.fixture
def without(monkeypatch):
    """Hide a module from what imports it or looks for it."""
    return lambda name: monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.parametrize(
    ("module", "app", "arguments", "install", "package"),
    [
        ("onnx", mlprogram.cli.app, "convert x.onnx --out y.mlpackage",
         '-e "./mlprogram[onnx]"', "onnx"),
        ("coreai", mlprogram.cli.app, "save x.mlpackage y.aimodel",
         '-e "./mlprogram[coreai]"', "coreai-core"),
    ],
)  # fmt: skip
def test_an_extra(module, app, arguments, install, package, without, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.onnx").write_bytes(b"")
    without(module)
    assert_remedy(error(app, *arguments.split()), install, package)


def test_a_form_without_llguidance(tiny_bundle, monkeypatch):
    bundle = tiny_bundle("llama", kv="state")[1].path
    monkeypatch.setattr(grammar, "llguidance", None)
    said = error(cli.app, "run", bundle, "Hi", "--backend", "mil", "--json-schema", "{}")
    assert_remedy(said, '-e ./mlprogram -e ".[grammar]"', "llguidance")


def _other() -> ModuleType:
    other = ModuleType("ane_serve")
    other.__version__ = "0.0.9"
    return other


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (None, "import of ane_serve halted; None in sys.modules"),
        (ModuleType("ane_serve"), "version unknown does not go with"),  # the checkout's folder
        (_other(), f"version 0.0.9 does not go with ane-book {ane_book.__version__}"),
        ("raise ImportError('half of it')", "half of it"),
        ("import no_such", "No module named 'no_such'"),
        ("1 / 0", "division by zero"),
    ],
)
def test_ane_serve(found, why, monkeypatch, tmp_path):
    if isinstance(found, str):
        (tmp_path / "ane_serve").mkdir()
        (tmp_path / "ane_serve/__init__.py").write_text(found)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "ane_serve", raising=False)
    else:
        monkeypatch.setitem(sys.modules, "ane_serve", found)
    commands, absent, _ = served()
    app = command_line("", "", cli.COMMANDS | {"Serve": commands}, absent)
    for command in ("serve", "bench"):
        said = error(app, command, "nothing")
        assert said.startswith(f"{command}: ane-serve cannot be used ({why}")
        assert_remedy(said, *SERVE)
    said = error(app, "plan", "zaya-small", "--machines", 2)
    assert said.startswith(f"ane-serve cannot be used ({why}")
    assert_remedy(said, *SERVE)
    assert not commands
