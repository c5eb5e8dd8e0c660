"""What the benchmarks have measured: the files of the repository's `research/`.

    from ane_book import records

    records.read("measurements/decode.json")["results"]

They belong to the repository and are no part of an installed library. A page that runs elsewhere
finds them in a checkout: the folder that it runs in, or one above it.
"""

import json
from pathlib import Path
from typing import Any

from ane_book.errors import InvalidInput

__all__ = ["find", "read"]


def find(name: str) -> Path:
    """The file of `research/` of this name, such as "measurements/decode.json".

    Raises InvalidInput where there is no checkout around, or no such file in it.
    """
    here = Path.cwd()
    for place in (here, *here.parents, *Path(__file__).parents):
        if (file := place / "research" / name).is_file():
            return file
    raise InvalidInput(
        f"research/{name} is not here: it belongs to the repository, and an installed library does "
        "not have it. Run this in a checkout of the repository."
    )


def read(name: str) -> Any:
    """What is in such a file of JSON."""
    return json.loads(find(name).read_text(encoding="utf-8"))
