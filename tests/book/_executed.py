"""A page as it is written, and as the last build ran it: its prose, its names, what it printed."""

import ast
from functools import cache
import re

from _site import ROOT
import jupytext
import nbformat
import numpy as np

RAN = ROOT / "_build" / "jupyter_execute"


@cache
def source(page: str) -> str:
    return (ROOT / "book" / f"{page}.md").read_text("utf-8")


@cache
def prose(page: str) -> str:
    """The page without its code, in one line."""
    return " ".join(re.sub(r"```\{code-cell\}.*?```", "", source(page), flags=re.S).split())


def defined(page: str, name: str):
    """The first thing that a page gives this name: a literal, arithmetic or a function."""
    cells = [cell.source for cell in jupytext.reads(source(page), "md:myst").cells
             if cell.cell_type == "code"]  # fmt: skip
    for node in ast.parse("\n".join(cells)).body:
        names = {getattr(node, "name", "")} | {ast.unparse(t) for t in getattr(node, "targets", [])}
        if name in names:
            scope = {"np": np}
            exec(compile(ast.Module([node], []), page, "exec"), scope)
            return scope[name]
    raise NameError(f"book/{page}.md defines no {name}")


@cache
def printed(page: str) -> str:
    """What a page's cells printed when the site was built, in order."""
    notebook = nbformat.read(RAN / f"{page}.ipynb", as_version=4)
    outputs = [out for cell in notebook.cells for out in cell.get("outputs", [])]
    return "".join(out.text for out in outputs if out.output_type == "stream")
