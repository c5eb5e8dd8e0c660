"""A page as it is written, and as the last build ran it: its prose, its names, what it printed."""

import ast
from functools import cache
import re

from _site import ROOT, SITE
from bs4 import BeautifulSoup
import jupytext
import numpy as np


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
    built = BeautifulSoup((SITE / f"{page}.html").read_text("utf-8"), "html.parser")
    return "".join(box.get_text() for box in built.select(".cell_output pre"))
