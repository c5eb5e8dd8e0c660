"""What the book needs of Sphinx and has to add itself.

* A page runs again when the libraries, their research or their pins change. What is kept of a page
  lives in a folder named after what all pages use, and is known by its cells and by the parts of
  the libraries that they name.
* Two errors in every reader's console go: thebe, which Jupyter Book brings along unasked and twice,
  and the theme's complaint, on a first visit, that nobody chose between light and dark.
* A list of citations holds items. docutils gives its entries a role that a list may not hold, so a
  screen reader would be told of an empty list.
* No line ends between a number and its percent sign.
* The single page that is printed as a PDF knows every node of every extension.
* {claim}`axis-most` links to that claim on "Every claim". Without such a claim it is a dead link.
* Search finds a word in American spelling where the page has it in British, and the other way.
"""

from collections.abc import Iterator
import hashlib
from importlib.metadata import distributions
from pathlib import Path
import re

from ane_book_pages import sources
from docutils import nodes
from mlprogram.ane.cost import chips
from sphinx import search
from sphinx.roles import XRefRole
from sphinx.search.en import SearchEnglish
from sphinx.util import logging

ROOT = Path(__file__).resolve().parents[2]
#: The workflow in .github keys its cache on the same files.
WHAT_CELLS_USE = (
    "ane_book/**/*",
    "families/src/ane_families/**/*",
    "mlprogram/src/mlprogram/**/*",
    "book/ane_book_pages/**/*",
    "research/**/*",
    "constraints.txt",
)
#: Folders that only those pages use whose cells have such words.
PARTS = {
    "ane_serve/src/ane_serve": re.compile(r"\b(ane_serve|serve|bench)\b"),
    "mlprogram/src/mlprogram/coreai": re.compile("coreai|aimodel"),
    "mlprogram/src/mlprogram/onnx": re.compile("onnx"),
}

logger = logging.getLogger(__name__)


def used(root: Path) -> list[Path]:
    """Every file that any cell may use: of the libraries kernels and texts too, research, pins."""
    parts = {path for part in PARTS for path in _files(root, f"{part}/**/*")}
    found = {path for pattern in WHAT_CELLS_USE for path in _files(root, pattern)}
    return sorted(found - parts)


def fingerprint(root: Path = ROOT) -> str:
    """Return 16 hex digits that change with any file that any cell may use, and the versions."""
    digest = _hashed(root, used(root))
    digest.update("\n".join(sorted({f"{d.name} {d.version}" for d in distributions()})).encode())
    return digest.hexdigest()[:16]


def parts_named(code: str | None = None, root: Path = ROOT) -> dict[str, str]:
    """The PARTS that such code names, or all, each with digits that change with any file of it."""
    return {
        part: _hashed(root, sorted(_files(root, f"{part}/**/*"))).hexdigest()
        for part, words in PARTS.items()
        if code is None or words.search(code)
    }


def _files(root: Path, pattern: str) -> Iterator[Path]:
    """Without what Python leaves beside them."""
    return (p for p in root.glob(pattern) if p.is_file() and "__pycache__" not in p.parts)


def _hashed(root: Path, files: list[Path]):
    digest = hashlib.sha256()
    for path in files:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest


def key_the_cache(app, config) -> None:
    """Keep outputs in this fingerprint's folder: a changed setting makes Sphinx read all pages."""
    config.nb_execution_cache_path = str(ROOT / "_build" / ".jupyter_cache" / fingerprint())
    config.book_parts = parts_named()


def quiet_the_console(app, pagename, templatename, context, doctree) -> None:
    """Drop sphinx_thebe's scripts, and start in the light or dark that the reader's system has."""
    context["default_mode"] = "auto"
    context["script_files"] = [
        script
        for script in context["script_files"]
        if "thebe" not in f"{script.filename} {script.attributes.get('body')}"
    ]


def citations_are_items(app, pagename, templatename, context, doctree) -> None:
    """Give the entries of a bibliography the role that their list asks for."""
    if "body" in context:
        context["body"] = context["body"].replace('role="doc-biblioentry"', 'role="listitem"')


def percent_signs_stay(app, pagename, templatename, context, doctree) -> None:
    """Put a no-break space between a number, which a cell may have made, and its percent sign."""
    if "body" in context:
        texts = re.split(r"(<pre.*?</pre>)", context["body"], flags=re.DOTALL)
        texts[::2] = [re.sub(r"(\d(?:</span>)*) %", r"\1&#160;%", text) for text in texts[::2]]
        context["body"] = "".join(texts)


class EitherSpelling(SearchEnglish):
    """English, in which -ise is -ize and -our is -or, in the index and in what a reader types.

    Other words that end so (raise, contour) are changed on both sides, and still meet.
    """

    ENDINGS = (
        (r"(?<=\w\w)is(?=(?:e[drs]?|ers|ing|able|ations?)$)", "iz"),
        (r"(?<=\w\w)our(?=(?:s|ed|ing|able|ite)?$)", "or"),
    )
    js_stemmer_code = SearchEnglish.js_stemmer_code + "".join(
        f"""
Stemmer = (function (Inner) {{
  return function () {{
    const inner = new Inner();
    this.stemWord = (word) => inner.stemWord(word.replace(/{ending}/, "{other}"));
  }};
}})(Stemmer);"""
        for ending, other in reversed(ENDINGS)
    )

    def stem(self, word: str) -> str:
        word = word.lower()
        for ending, other in self.ENDINGS:
            word = re.sub(ending, other, word, flags=re.ASCII)  # as JavaScript has \w
        return super().stem(word)


def link_claim(app, env, node, shown) -> nodes.reference | None:
    """The link of a {claim} to its place on the page of claims; None if no claim has the id."""
    name = node["reftarget"]
    if node["reftype"] != "claim" or name not in {**sources.everything(), **chips()}:
        return None
    page = app.builder.get_relative_uri(node["refdoc"], "claims")
    return nodes.reference("", "", shown, internal=True, refuri=f"{page}#{name}")


def print_all_nodes(app) -> None:
    """Let the single page that is printed know every node. Sphinx takes what extensions registered
    for a builder's own name alone, once one has: sphinx-exercise does, and folded cells are lost.
    """
    handlers = app.registry.translation_handlers
    handlers["singlehtml"] = handlers.get("html", {}) | handlers.get("singlehtml", {})


def setup(app):
    search.languages["en"] = EitherSpelling
    app.add_config_value("book_parts", {}, "env")
    app.add_role("claim", XRefRole(warn_dangling=True))
    app.connect("missing-reference", link_claim)
    app.connect("config-inited", key_the_cache)
    app.connect("builder-inited", print_all_nodes)
    # After the theme, at the default priority of 500.
    app.connect("html-page-context", quiet_the_console, priority=900)
    app.connect("html-page-context", citations_are_items)
    app.connect("html-page-context", percent_signs_stay)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
