"""What the benchmarks have measured: the files of the repository's `research/`.

    from ane_book_pages import records

    records.read("measurements/decode.json")["results"]

A checkout has them: the folder that a page runs in, or one above it. An installed library brings
those that the pages read, in `share/ane-book/research` of its environment.
"""

import json
from pathlib import Path
import sysconfig
from typing import Any

from ane_book.errors import InvalidInput
from ane_book_pages.records import conformance

__all__ = ["LIVE", "conformance", "find", "live", "read"]

LIVE = "live "  # what names of live ratios begin with


def find(name: str) -> Path:
    """The file of `research/` of this name, such as "measurements/decode.json".

    Raises InvalidInput where neither a checkout nor the installed library has such a file.
    """
    here, installed = Path.cwd(), Path(sysconfig.get_path("data"), "share", "ane-book")
    for place in (here, *here.parents, *Path(__file__).parents, installed):
        if (file := place / "research" / name).is_file():
            return file
    raise InvalidInput(
        f"research/{name} is not here: neither a checkout of the repository around, nor among what "
        f"is installed in {installed}. Run this in a checkout."
    )


def read(name: str) -> Any:
    """What is in such a file of JSON."""
    return json.loads(find(name).read_text(encoding="utf-8"))


def live(name: str, here: float) -> None:
    """Glue a ratio of times that a page has measured just now, such as 2.1.

    No sentence states it, since it differs from machine to machine. Sentences state what
    research/measurements/pages.py recorded of it in measurements/pages.json.
    """
    from myst_nb import glue  # with the book only

    glue(f"{LIVE}{name}", float(here), display=False)
