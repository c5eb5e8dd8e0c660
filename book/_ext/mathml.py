"""Formulas as MathML, which every current browser draws and reads aloud by itself.

`$x$` and `$$ x $$` become some hundred bytes of markup at build time: no script, no fonts, nothing
from elsewhere, where MathJax is a megabyte of another host's. docutils does the translation.
"""

import re

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.errors import ExtensionError


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


def setup(app):
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
