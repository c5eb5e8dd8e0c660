"""The build itself, on books of one cell with the real settings: what fails, what runs again."""

import importlib.util
import json
from pathlib import Path
import shutil
import subprocess
import sys

import pytest

ROOT = Path(__file__).resolve().parents[1]


def small_book(root: Path, code: str) -> None:
    """A book of one page with one cell, under the settings and the extension of the real one."""
    header = (ROOT / "book" / "status.md").read_text().split("# Status")[0]
    (root / "book").mkdir()
    (root / "book" / "index.md").write_text(
        f"{header}# Small\n\n```{{code-cell}} ipython3\n{code}\n```\n"
    )
    (root / "book" / "_toc.yml").write_text("format: jb-book\nroot: index\n")
    for name in ("_config.yml", "book/_ext", "book/_static", "book/references.bib"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, root / name)


def build(root: Path) -> subprocess.CompletedProcess:
    program = Path(sys.executable).with_name("jupyter-book")
    command = [program, "build", "book"]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_failing_cell_fails_the_build_each_time(tmp_path):
    small_book(tmp_path, "raise ValueError('on purpose')")
    for _ in range(2):
        result = build(tmp_path)
        assert result.returncode != 0
        assert "on purpose" in result.stdout + result.stderr


@pytest.mark.slow
def test_a_page_runs_again_when_the_library_changes(tmp_path):
    small_book(tmp_path, "print('measured:', open('../ane_book/part.py').read())")
    (tmp_path / "ane_book").mkdir()
    runs = []
    for content in ("first", "first", "second"):
        (tmp_path / "ane_book" / "part.py").write_text(content)
        result = build(tmp_path)
        assert result.returncode == 0, result.stderr
        page = (tmp_path / "_build" / "html" / "index.html").read_text()
        assert f"measured: {content}" in page
        runs.append("Executing notebook" in result.stdout + result.stderr)
    assert runs == [True, False, True]


def test_the_caches_key_covers_all_that_cells_use(tmp_path):
    path = ROOT / "book" / "_ext" / "book_ext.py"
    spec = importlib.util.spec_from_file_location("book_ext", path)
    book_ext = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(book_ext)
    keys = [book_ext.fingerprint(tmp_path)]
    for name in ("ane_book/mil/reader.py", "research/measurements/m4.json", "constraints.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        for content in ("", json.dumps(name)):
            (tmp_path / name).write_text(content)
            keys.append(book_ext.fingerprint(tmp_path))
    assert len(set(keys)) == len(keys)
