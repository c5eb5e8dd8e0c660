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

FAR = 1.5  # times the record, or a part of it


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


def beside(name: str, here: float) -> str:
    """A ratio of times that a page has measured just now, in words, beside its record.

    name: of the figure in measurements/pages.json. here: times, such as 2.1. Nothing follows from
    it: where the two are far from each other, the words say so.
    """
    words = f"{_times(here)} times here"
    if (recorded := read("measurements/pages.json")["figures"].get(name)) is None:
        return f"{words}; nobody has recorded it"
    words += f", {_times(recorded)} when it was recorded"
    near = recorded / FAR < here < recorded * FAR
    return words if near else f"{words} (this machine was busy, or is of another kind)"


def live(name: str, here: float) -> None:
    """Glue such a ratio, and what `beside` says of it by `name` with `_beside`.

    research/measurements/pages.py records every ratio that a page tells of in this way.
    """
    from myst_nb import glue  # with the book only

    glue(name, float(here), display=False)
    glue(f"{name}_beside", beside(name, float(here)), display=False)


def _times(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 20 else f"{ratio:.1f}" if ratio >= 2 else f"{ratio:.2f}"
