"""Pages as notebooks: numbers, citations and claims in their text, and the code that is left."""

import json
from pathlib import Path

import nbformat
from page_code import for_readers
import pytest
import to_notebooks

ROOT = Path(__file__).parents[2]
HEAD = """\
---
kernelspec:
  {display_name: Python 3, name: python3}
---

# A page

"""
CELL = """
```{code-cell} ipython3
:tags: [remove-cell]

from ane_book_pages import figures
from myst_nb import glue

figures.bars
glue("ms", 1.25, display=False)
```
"""


@pytest.fixture
def page(tmp_path, monkeypatch):
    """Writes a page, with the values of its names, and gives what its notebook has in its cells."""
    monkeypatch.setattr(to_notebooks, "VALUES", tmp_path / "values.json")
    monkeypatch.setattr(to_notebooks, "BUILT", tmp_path)

    def write(text: str, **values: str) -> Path:
        (tmp_path / "values.json").write_text(json.dumps({"small": values}))
        to_notebooks.values.cache_clear()
        (tmp_path / "small.md").write_text(f"{HEAD}{text}\n{CELL}")
        return tmp_path / "small.md"

    yield write
    to_notebooks.values.cache_clear()


def words(page: Path) -> str:
    cells = to_notebooks.notebook(page, {"small"}).cells
    return "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def test_a_number_stands_where_the_page_has_its_name(page):
    text = "It takes {glue:text}`ms:.1f` ms."
    assert "It takes 1.2 ms." in words(page(text, **{"ms:.1f": "1.2"}))
    with pytest.raises(SystemExit, match=r"small\.md: .* has no `ms:\.1f`: .*--values"):
        words(page(text, **{"ms:.2f": "1.25"}))


SITE = "<article><p>{}</p><aside>{}</aside></article>"


def test_numbers_are_recorded_from_the_built_page(page, tmp_path):
    """Footnotes stand at its end there, wherever the source has them."""
    source = page("[^a]: {glue:text}`a`.\n\n{glue:text}`b:,` and[^a] {glue:text}`b:,`.")
    a, b = (f'<span class="pasted-text">{text}</span>' for text in ("one", "2,000"))
    (tmp_path / "small.html").write_text(SITE.format(b + b, a))
    assert to_notebooks.shown(source) == {"a": "one", "b:,": "2,000"}
    to_notebooks.record([source])
    assert to_notebooks.values() == {"small": {"a": "one", "b:,": "2,000"}}
    for other in (SITE.format(b, a), SITE.format(b + b.replace("2", "3"), a)):
        (tmp_path / "small.html").write_text(other)
        with pytest.raises(ValueError, match=r"another small\.md than book/: run `make book`"):
            to_notebooks.shown(source)


def test_citations_and_claims_are_links(page):
    text = "{cite:p}`zhang2019rmsnorm,su2021rope` {cite:t}`anemll` claim {claim}`axis-most`"
    said = words(page(text))
    assert "([Zhang and Sennrich, 2019](https://arxiv.org/abs/1910.07467); [Su et al., 20" in said
    assert "[Anemll (202" in said
    assert "claim [`axis-most`](https://ane-book.github.io/ane-book/claims.html#axis-most)" in said


def test_references_to_other_pages_are_links_and_footnotes_are_numbers(page):
    text = (
        "{ref}`why <wired-bytes>`[^b] {ref}`there <here>`[^a]\n\n(here)=\n\n[^a]: A.\n[^b]: `[^c]`."
    )
    said = words(page(text))
    assert f"[why]({to_notebooks.SITE}/from-a-layer-to-packages.md)" in said
    assert "<sup>1</sup> there<sup>2</sup>" in said
    assert said.endswith("<sup>2</sup> A.\n\n<sup>1</sup> `[^c]`.")


def test_the_first_cell_says_what_to_install(page):
    first = to_notebooks.notebook(page(""), {"small"}).cells[0].source
    title, _, said = first.partition("\n\n")
    assert title == "# A page"
    assert "`mlprogram` and `ane-book`" in said and "`jupyter` and `matplotlib`" in said
    assert "weights" in to_notebooks.how_to_run('load("smollm2-135m-instruct")')
    assert "weights" not in said + to_notebooks.how_to_run("# SmolLM2's sizes")


CODE = """\
from math import pi
from myst_nb import glue

# shown
glue("pi", pi, display=False)
x = 2

for name, value in (("x", x),):
    glue(name, value, display=False)
print(x)"""
CHECKS = """\
y = [each for each in range(x)]
# of the page alone
assert y == [0, 1] and x > 1
with pytest.raises(ValueError):
    int("y")
z = y[-1]
kept.append(z)"""


@pytest.mark.parametrize(
    ("cells", "left"),
    [
        ([(CODE, False)], ["x = 2\n\nprint(x)"]),
        ([(CHECKS, True)], ["y = [each for each in range(x)]\nz = y[-1]\nkept.append(z)"]),
        ([("y = 1\nassert y", True), ("print(2)", False)], ["", "print(2)"]),
        ([("y = 1\nassert y", True), ("print(y)", False)], ["y = 1", "print(y)"]),
        ([("y = 1\nassert y", True), ("y = 2\nprint(y)", False)], ["", "y = 2\nprint(y)"]),
        # a function looks its names up when it is called
        ([("def f():\n    return y", False), ("y = 1", True), ("f()", False)], None),
        ([("if y:\n    n = 1", True), ("[n for n in y]", False)], ["", "[n for n in y]"]),
        ([("import a, b\nimport c", False), ("assert a", True)], ["import b\nimport c", ""]),
        ([("import a", False), ("x = a", True), ("def f():\n    x", True)], ["", "", ""]),
        ([("%%writefile a.py\nglue(1)", False)], None),
    ],
)
def test_a_notebook_has_the_code_that_readers_need(cells, left):
    assert for_readers(cells) == ([source for source, _ in cells] if left is None else left)


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda p: p.stem)
def test_notebooks_do_without_the_build(path):
    code = [c.source for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
    assert not [source for source in code if "myst_nb" in source or "glue(" in source]
