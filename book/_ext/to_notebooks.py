"""Write notebooks/*.ipynb from the book's pages: the same code, prose that any Jupyter shows.

    python book/_ext/to_notebooks.py     # all pages that have code

What MyST gives a page is put into plain Markdown: boxes become quotations, terms and references
their words, links to pages links to notebooks. A figure that the build would fill in (`glue`) is
named as the cell has it that computes it; what it would include of a file is put in.
"""

from hashlib import sha256
from pathlib import Path
import re
import sys
from textwrap import dedent

import jupytext
import nbformat

BOOK = Path(__file__).resolve().parents[1]
NOTEBOOKS = BOOK.parent / "notebooks"
SITE = "https://github.com/ane-book/ane-book/blob/main/book"
LANGUAGE = {"display_name": "Python 3", "language": "python", "name": "python3"}

BOX = re.compile(r"^(:{3,})\{([\w-]+)\} *(.*)\n((?::[\w-]+:.*\n)*)((?s:.*?))^\1 *$", re.M)
SOLUTION = re.compile(r"^```\{solution-(start|end)\}.*\n(?::[\w-]+:.*\n)*```$", re.M)
LABEL = re.compile(r"^\(([\w-]+)\)=\n(#+ (.*))?", re.M)
EXERCISE = re.compile(r"^(?::{3,}|```)\{exercise\} *(.*)\n:label: ([\w-]+)", re.M)
FENCED = re.compile(r"^```\{exercise\} *(.*)\n:label: [\w-]+\n((?s:.*?))^```$", re.M)
LISTING = re.compile(r"^```\{literalinclude\} (\S+)\n((?::[\w-]+:.*\n)*)```$", re.M)
OPTION = re.compile(r"^:([\w-]+): *(.*)$", re.M)
DIRECTIVE = re.compile(r"^```\{[\w-]+\}(?s:.*?)^```$", re.M)
GLUE = re.compile(r"\{glue:[\w]+\}`([^`:]*)(?::[^`]*)?`")
ROLE = re.compile(r"\{(term|ref|doc|claim|numref|cite:[pt])\}`(?:([^`<]*?) *<([^`>]*)>|([^`]*))`")
PAGE = re.compile(r"\]\(([\w-]+)\.md(#[\w-]+)?\)")


def code_pages() -> list[Path]:
    """Pages that run, by their front matter."""
    return sorted(p for p in BOOK.glob("*.md") if "\nkernelspec:" in p.read_text("utf-8")[:500])


def named(text: str) -> dict[str, str]:
    """Labels of a page, and the headings or exercises that they stand at."""
    found = {label: heading for label, _, heading in LABEL.findall(text) if heading}
    exercises = EXERCISE.findall(text)
    return found | {label: f"exercise “{title or label}”" for title, label in exercises}


def listing(path: str, options: dict[str, str]) -> str:
    """The lines of a file that `literalinclude` shows, as a block of code.

    Raises StopIteration where the file has no line with the text that an option names.
    """
    lines = (BOOK / path).read_text("utf-8").splitlines()
    options = {name: re.sub(r"^(['\"])(.*)\1$", r"\2", text) for name, text in options.items()}
    first = next(i for i, line in enumerate(lines) if options["start-at"] in line)
    behind, last = int("end-at" in options), options.get("end-at") or options["end-before"]
    end = next(i for i, line in enumerate(lines) if i > first and last in line) + behind
    shown = dedent("\n".join(lines[first:end])).strip()
    return f"```{options['language']}\n{shown}\n```"


def plain(text: str, labels: dict[str, str], pages: set[str]) -> str:
    """A cell of MyST as plain Markdown."""

    def role(match: re.Match) -> str:
        kind, words, target, alone = match.groups()
        if kind == "numref":
            return f"Figure *{(target or alone).removeprefix('fig-')}*"
        if kind.startswith("cite"):
            return f"[{words or alone}]"
        if kind == "claim":
            return f"[`{alone}`](claims.md#{alone})"
        if kind == "doc":
            return f"[{words or alone}]({target or alone}.md)"
        return words or labels.get(alone, alone)

    def box(match: re.Match) -> str:
        _, kind, title, _, body = match.groups()
        title = title or kind.capitalize()
        if kind == "exercise":
            return exercise(title, body)
        lines = [f"**{title}**", "", *body.strip().splitlines()]
        return "\n".join(f"> {line}".rstrip() for line in lines)

    def exercise(title: str, body: str) -> str:
        return f"### Exercise{f': {title}' if title else ''}\n{body}"

    text = FENCED.sub(lambda match: exercise(*match.groups()), BOX.sub(box, text))
    text = SOLUTION.sub(lambda m: "**Solution**" if m[1] == "start" else "", text)
    text = LABEL.sub(lambda m: m[2] or "", text)
    text = LISTING.sub(lambda m: listing(m[1], dict(OPTION.findall(m[2]))), text)
    text = DIRECTIVE.sub("", text)
    text = GLUE.sub(r"`\1`", text)
    text = ROLE.sub(role, text)
    text = PAGE.sub(
        lambda m: f"]({m[1]}.ipynb)" if m[1] in pages else f"]({SITE}/{m[1]}.md{m[2] or ''})", text
    )
    return text.strip()


def caption(cell) -> str:
    """What stands under a code cell's figure, or ""."""
    figure = cell.metadata.get("mystnb", {}).get("figure", {})
    if not figure:
        return ""
    name = figure["name"].removeprefix("fig-")
    return f"Figure *{name}*: {' '.join(figure['caption'].split())}"


def notebook(page: Path, pages: set[str]) -> nbformat.NotebookNode:
    """A page as a notebook without outputs."""
    source = page.read_text("utf-8")
    labels, cells = named(source), []
    for cell in jupytext.reads(source, fmt="md:myst").cells:
        if cell.cell_type == "code":
            cells.append(nbformat.v4.new_code_cell(cell.source, metadata=cell.metadata))
            said = caption(cell)
        else:
            said = cell.source
        if words := plain(said, labels, pages):
            cells.append(nbformat.v4.new_markdown_cell(words))
    for number, cell in enumerate(cells):
        cell.id = sha256(f"{page.stem} {number}".encode()).hexdigest()[:8]
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": LANGUAGE})


def main(folder: Path = NOTEBOOKS) -> None:
    """Write all of them, and delete what has no page any more."""
    pages = code_pages()
    names = {page.stem for page in pages}
    for page in pages:
        nbformat.write(notebook(page, names), folder / f"{page.stem}.ipynb")
    for path in folder.glob("*.ipynb"):
        if path.stem not in names:
            path.unlink()


if __name__ == "__main__":
    sys.exit(main())
