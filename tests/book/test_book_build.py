"""The build itself, on books of one cell with the real settings: what fails, what runs again."""

from pathlib import Path
import re
import shutil
import subprocess
import sys

from _chromium import needs_chromium
from _small_books import add_page, build, shown, small_book
import book_ext
from fontTools.ttLib import TTFont
import mathml
from myst_nb.core.config import NbParserConfig
import nbformat
import one_page
import pytest
import run_pages
import yaml

ROOT = Path(__file__).resolve().parents[2]


def test_a_page_that_fails_fails_the_build_each_time_and_takes_no_other_with_it(tmp_path):
    """One raises in a hidden cell, one ends its kernel; both run again until they are mended."""
    small_book(tmp_path, "print('whole')")
    add_page(
        tmp_path, "raises", "x = 2\nassert x == 1, 'on purpose'", options=":tags: [remove-cell]\n\n"
    )
    add_page(tmp_path, "dies", "import os\nos._exit(3)")
    lines = (tmp_path / "book" / "raises.md").read_text().splitlines()
    line = lines.index("assert x == 1, 'on purpose'") + 1
    for _ in range(2):
        result = build(tmp_path)
        assert result.returncode == 1
        assert f"raises.md, cell 1, line {line}: AssertionError: on purpose" in result.stderr
        assert "dies.md, cell 1" in result.stderr and "2 pages of the book failed" in result.stdout
        site = tmp_path / "_build" / "html"
        box = (site / "raises.html").read_text()
        assert "failed-page" in box and "on purpose" in box
        assert "failed-page" in (site / "dies.html").read_text()
        whole = (site / "index.html").read_text()
        assert "whole" in whole and "failed-page" not in whole
    for name, wrong, right in (("raises", "x == 1", "x == 2"), ("dies", "os._exit(3)", "pass")):
        page = tmp_path / "book" / f"{name}.md"
        page.write_text(page.read_text().replace(wrong, right))
    result = build(tmp_path)
    assert result.returncode == 0, result.stderr
    assert "failed-page" not in (site / "raises.html").read_text()


def _page(folder: Path, name: str, code: str) -> one_page.Page:
    path = folder / f"{name}.md"
    path.write_text(code)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    config = NbParserConfig(execution_timeout=120)
    return one_page.Page(
        name, file=path.name, path=path, text=code, notebook=notebook, config=config
    )


def _printed(page) -> str:
    assert page.failure is None, page.failure
    return "".join(output.text for output in page.notebook.cells[0].outputs)


@pytest.mark.long
def test_pages_run_side_by_side_and_those_that_measure_time_one_at_a_time(tmp_path):
    """Each page waits to see the other's file: two that measure never see each other's."""
    meets = """
from pathlib import Path
import time
Path("{own}").touch()
for _ in range({tries}):
    if Path("{other}").exists():
        break
    time.sleep(0.1)
print("met:", Path("{other}").exists())
{end}"""
    two = {"a": "b", "b": "a"}
    queue = [
        _page(tmp_path, name, meets.format(own=name, other=other, tries=600, end=""))
        for name, other in two.items()
    ]
    run_pages.run_side_by_side(queue, 2, lambda page, running: None)
    assert [_printed(page) for page in queue] == ["met: True\n"] * 2
    end = "time.perf_counter()\nPath('{own}').unlink()"
    alone = [
        _page(
            tmp_path, name, meets.format(own=name, other=other, tries=5, end=end.format(own=name))
        )
        for name, other in {"c": "d", "d": "c"}.items()
    ]
    assert all(page.measures for page in alone)
    run_pages.run_side_by_side(alone, 2, lambda page, running: None)
    assert [_printed(page) for page in alone] == ["met: False\n"] * 2


def test_dead_links_fail_the_build_and_are_told_by_page_and_line(tmp_path):
    """Under the flags of .ci/run: a page, a place in one, a role, a term, a picture, a claim."""
    dead = ["[a](gone.md)", "[b](#gone)", "{ref}`gone`", "{term}`gone`", "![c](gone.png)"]
    dead += ["{claim}`gone`"]
    small_book(tmp_path, "pass", "\n\n".join(dead))
    first = (tmp_path / "book" / "index.md").read_text().splitlines().index(dead[0]) + 1
    result = build(tmp_path, "-n", "-W", "--keep-going")
    assert result.returncode != 0
    told = {int(n) for n in re.findall(r"index\.md:(\d+): WARNING: .*gone", result.stderr)}
    assert told >= {first + 2 * i for i in range(len(dead))}, result.stderr


@pytest.mark.long
@pytest.mark.parametrize(("folder", "again"), [("ane_book", "2"), ("ane_serve/src/ane_serve", "1")])
def test_pages_run_again_when_a_library_changes_that_they_use(tmp_path, folder, again):
    small_book(tmp_path, f"print('measured:', open('../{folder}/part.py').read())")
    add_page(tmp_path, "other", "pass")
    (tmp_path / folder).mkdir(parents=True)
    runs = []
    for content in ("first", "first", "second"):
        (tmp_path / folder / "part.py").write_text(content)
        result = build(tmp_path)
        assert result.returncode == 0, result.stderr
        assert f"measured: {content}" in shown(tmp_path)
        runs += re.findall(r"(\d+) pages? ran", result.stdout) or ["none"]
    assert runs == ["2", "none", again]


@pytest.mark.long
def test_formulas_are_markup_and_a_broken_one_is_named(tmp_path):
    formulas = (
        "It takes $t = \\frac{b}{B}$ seconds, not $5.\n\n$$\nx^2\n$$ (square)\n\nSee {eq}`square`."
    )
    small_book(tmp_path, "pass", formulas)
    result = build(tmp_path)
    assert result.returncode == 0, result.stderr
    page = (tmp_path / "_build" / "html" / "index.html").read_text()
    assert page.count("<math") == 2 and "<mfrac>" in page and "not $5." in page
    assert (
        'id="equation-square"' in page and '<a class="reference internal" href="#equation-' in page
    )
    assert "mathjax" not in re.sub(r'class="[^"]*"', "", page).lower()
    font = TTFont(tmp_path / "_build" / "html" / "_static" / mathml.FONT)
    drawn = {chr(code) for code in font.getBestCmap()}
    assert "MATH" in font and {"t", "𝑡", "𝑏", "𝑥", "2", "=", "√"} <= drawn and "ℵ" not in drawn
    text = (tmp_path / "book" / "index.md").read_text()
    (tmp_path / "book" / "index.md").write_text(text.replace("x^2", "\\frac{1}{"))
    result = build(tmp_path)
    assert result.returncode != 0
    assert "index.md" in result.stderr and "has a fault" in result.stderr


@pytest.mark.long
def test_a_page_that_moved_leads_to_where_it_went(tmp_path):
    small_book(tmp_path, "pass", "## Here\n\nText.")
    config = tmp_path / "_config.yml"
    settings = yaml.safe_load(config.read_text())
    settings["sphinx"]["config"]["redirects"] = {"00-old": "index.html"}
    config.write_text(yaml.safe_dump(settings))
    result = build(tmp_path, "-n", "-W", "--keep-going")
    assert result.returncode == 0, result.stderr
    moved = shown(tmp_path, "00-old")
    assert '<link rel="canonical" href="index.html">' in moved
    assert 'location.replace("index.html" + location.hash)' in moved


@pytest.mark.long
def test_a_changed_style_sheet_reaches_the_site(tmp_path):
    small_book(tmp_path, "pass")
    assert build(tmp_path).returncode == 0
    sheet = tmp_path / "book" / "_static" / "book.css"
    sheet.write_text(sheet.read_text() + "body {color: #123456}")
    assert build(tmp_path).returncode == 0
    assert "#123456" in (tmp_path / "_build" / "html" / "_static" / "book.css").read_text()


@needs_chromium
@pytest.mark.long
def test_the_whole_book_prints_as_a_pdf(tmp_path):
    small_book(tmp_path, "print('printed')", "$x^2$")
    add_page(tmp_path, "other", "1 / 2", ":tags: [hide-input]\n\n")
    command = [sys.executable, tmp_path / "book" / "_ext" / "pdf.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = (tmp_path / "_build" / "ane-book.pdf").read_bytes()
    assert made.startswith(b"%PDF-") and made.rstrip().endswith(b"%%EOF")
    assert len(re.findall(rb"/Type\s*/Page\b", made)) >= 2  # each page of the book begins one


def test_the_caches_key_changes_with_every_file_of_the_libraries(tmp_path):
    """Kernels, texts and tables too; not with what Python leaves beside them."""
    ignored = shutil.ignore_patterns("__pycache__")
    libraries = ("ane_book", "book/ane_book_pages", "families/src/ane_families")
    for library in (*libraries, "mlprogram/src/mlprogram"):
        shutil.copytree(ROOT / library, tmp_path / library, ignore=ignored)
    for part in ("coreai", "onnx"):  # PARTS
        shutil.rmtree(tmp_path / "mlprogram/src/mlprogram" / part)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    (tmp_path / "ane_book" / "__pycache__").mkdir()
    (tmp_path / "ane_book" / "__pycache__" / "cli.pyc").write_bytes(b"made")
    assert book_ext.used(tmp_path) == sorted(files)
    kinds = {path.suffix: path for path in files}
    assert {".py", ".c", ".h", ".toml", ".txt"} <= kinds.keys()
    keys = {book_ext.fingerprint(tmp_path)}
    for path in kinds.values():
        path.write_bytes(path.read_bytes() + b"\n")
        keys.add(book_ext.fingerprint(tmp_path))
    assert len(keys) == 1 + len(kinds)


@pytest.mark.parametrize(
    ("code", "part"),
    [
        ("from ane_serve.app import create_app", "ane_serve/src/ane_serve"),
        ('run(["ane-book", "serve", folder])', "ane_serve/src/ane_serve"),
        ("mlprogram.coreai.save_asset(path)", "mlprogram/src/mlprogram/coreai"),
        ("import onnx", "mlprogram/src/mlprogram/onnx"),
    ],
)
def test_a_part_changes_what_is_kept_of_the_pages_whose_cells_name_it(tmp_path, code, part):
    file = tmp_path / part / "deeper" / "a.py"
    file.parent.mkdir(parents=True)
    seen = []
    for text in ("1", "2"):
        file.write_text(text)
        seen.append((book_ext.fingerprint(tmp_path), book_ext.parts_named("observed", tmp_path)))
        seen.append((*book_ext.parts_named(code, tmp_path).items(),))
    assert seen[0] == seen[2] and seen[0][1] == {}
    assert seen[1] != seen[3] and [name for name, _ in seen[1]] == [part]


def test_the_caches_key_changes_with_measurements_pins_and_what_is_installed(tmp_path, monkeypatch):
    keys = {book_ext.fingerprint(tmp_path)}
    measured = "research/conformance.json", "research/measurements/m4.json"
    read = "research/train/page.txt", "research/train/held_out.jsonl", "research/experiments/a.py"
    for name in (*measured, *read, "constraints.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
        keys.add(book_ext.fingerprint(tmp_path))
    for version in ("1.0", "1.1"):
        metadata = tmp_path / "site" / "torch_extra.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True, exist_ok=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: torch-extra\nVersion: {version}\n")
        monkeypatch.syspath_prepend(metadata.parents[1])
        keys.add(book_ext.fingerprint(tmp_path))
    assert len(keys) == 9


def test_the_workflow_keys_its_cache_on_the_same_files():
    text = (ROOT / ".github" / "workflows" / "book.yml").read_text()
    (key,) = re.findall(r"key: outputs-.*hashFiles\((.*)\)", text)
    assert re.findall(r"'(.*?)'", key) == [*book_ext.WHAT_CELLS_USE, "book/*.md"]
