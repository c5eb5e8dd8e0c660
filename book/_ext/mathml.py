"""Formulas as MathML, which every current browser draws and reads aloud by itself.

`$x$` and `$$ x $$` become some hundred bytes of markup at build time: no script, nothing from
elsewhere, where MathJax is a megabyte of another host's. docutils does the translation.

A browser draws them well only with a font that has an OpenType MATH table; without one, numerators
are cut off and roots do not grow. So the site brings STIX Two Math along, which the package ziamath
carries, cut to the characters that the pages' formulas have.
"""

from importlib.util import find_spec
from pathlib import Path
import re
import unicodedata

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from fontTools import subset
from sphinx.errors import ExtensionError

FONT = "STIXTwoMath-Regular.ttf"


def translated(node: nodes.Element, block: bool) -> str:
    """The formula's markup; raises ExtensionError with its place where it is no LaTeX."""
    text = node.astext()
    bare = re.sub(r"\\.", "", text)
    try:
        if bare.count("{") != bare.count("}"):
            raise ValueError("its braces do not match")  # which docutils lets pass
        return tex2mathml(text, as_block=block)
    except Exception as error:  # of any kind: an IndexError for a brace too few
        place = f"{node.source or node.document.current_source}:{node.line or '?'}"
        raise ExtensionError(f"{place}: the formula {text!r} has a fault: {error}") from None


def inline(writer, node: nodes.math) -> None:
    writer.body.append(translated(node, block=False))
    raise nodes.SkipNode


def block(writer, node: nodes.math_block) -> None:
    writer.body.append(writer.starttag(node, "div", CLASS="math"))
    if node["number"]:
        writer.body.append(f'<span class="eqno">({node["number"]})</span>')
    writer.body.append(f"{translated(node, block=True)}</div>\n")
    raise nodes.SkipNode


def characters_of(site: Path) -> set[str]:
    """Every character in the formulas of the pages, and its italic, in which letters are drawn."""
    pages = "".join(page.read_text("utf-8") for page in site.rglob("*.html"))
    formulas = "".join(re.findall(r"<math\b.*?</math>", pages, re.DOTALL))
    shown = set(re.sub(r"<[^>]+>|\s", "", formulas)) | {"√"}  # which no text of a root has
    # "𝑥" is "x" to Unicode's compatibility: so each letter's italic is found, Greek ones too.
    italics = {chr(code) for code in range(0x1D434, 0x1D7CC)}
    return shown | {one for one in italics if unicodedata.normalize("NFKC", one) in shown}


def bring_font(app, exception) -> None:
    """Write the font of formulas beside the style sheets, with the glyphs that the site needs."""
    if exception or app.builder.format != "html":
        return
    fonts = Path(find_spec("ziamath").submodule_search_locations[0], "fonts")
    # The name table stays, since it holds the licence; features stay, for larger and tighter forms.
    options = subset.Options(name_IDs=["*"], layout_features=["*"], hinting=False)
    font = subset.load_font(str(fonts / FONT), options)
    cutter = subset.Subsetter(options)
    cutter.populate(text="".join(sorted(characters_of(Path(app.outdir)))))
    cutter.subset(font)
    subset.save_font(font, str(Path(app.outdir, "_static", FONT)), options)


def setup(app):
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    app.connect("build-finished", bring_font)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
