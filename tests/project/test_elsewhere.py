"""Notebooks from the wheel, with no checkout around; `make elsewhere` runs all of them."""

import os
from pathlib import Path
import re
import runpy
import subprocess
import sys

from coremltools.models import model
import pytest

ROOT = Path(__file__).parents[2]
RUN = ROOT / "tests" / "elsewhere" / "run.py"


@pytest.mark.long
def test_notebooks_run_from_the_wheel():
    """One that reads claims, and one that reads records, reports and scripts."""
    names = ["numbers", "reports"]
    done = subprocess.run(
        [sys.executable, str(RUN), *names, names[0]], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, summary = done.stdout.splitlines()
    assert [line.split()[::2] for line in lines] == [[name, "s"] for name in names]
    assert summary.startswith("2 of 2 notebooks ran to their end, in ")


def test_core_ml_is_kept_on_the_cpu(monkeypatch):
    class CoreML:
        def __init__(self, *given):
            self.given = given

    monkeypatch.setattr(model, "_MLModelProxy", CoreML)
    runpy.run_path(str(RUN.with_name("cpu_only.py")))
    assert model._MLModelProxy("a", "ALL", "main", {}).given == ("a", "CPU_ONLY", "main", {})


def test_what_a_notebook_does_not_name_is_not_installed():
    hidden = runpy.run_path(str(RUN))["hidden"](ROOT / "notebooks" / "families.ipynb").split()
    assert {"myst_nb", "ane_serve"} <= {*hidden} and not {"transformers", "ane_families"} & {
        *hidden
    }
    asked = (
        "import importlib.metadata as m, hide; print([*m.entry_points(group='ane_book.families')])"
    )
    own = os.environ | {"HIDDEN": "ane_families myst_nb", "PYTHONPATH": str(RUN.parent)}
    command = [sys.executable, "-c", f"{asked}; import myst_nb"]
    done = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n" and "import of myst_nb halted" in done.stderr


@pytest.mark.long
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a git checkout")
def test_readmes_line_installs_from_git(tmp_path):
    """From a bare clone of this checkout, and nothing else with it."""
    subprocess.run(["git", "clone", "-q", "--bare", ROOT, tmp_path / "clone"], check=True)
    line = re.search("^pip install (.*git\\+.*)$", (ROOT / "README.md").read_text(), re.M)[1]
    ours = line.replace("https://github.com/ane-book/ane-book", f"file://localhost{tmp_path}/clone")
    names = re.findall('"(.*?)"', ours)
    assert [each.split()[0] for each in names] == ["mlprogram", "ane-book"]
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", tmp_path / "installed", *names], check=True)
    own = os.environ | {"PYTHONPATH": str(tmp_path / "installed")}
    for module in ("mlprogram", "ane_book"):
        command = [sys.executable, "-m", module, "--version"]
        done = subprocess.run(command, cwd=tmp_path, env=own, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "installed" / module / "py.typed").exists()
