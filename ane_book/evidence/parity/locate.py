"""The op at which a package parts from what its source and its recipe make of it.

The package is written once more from the source, and both run side by side, op by op, in single
precision, on the golden tokens. Names are the same on both sides, so every value is compared.
"""

from collections.abc import Iterable
import hashlib
from pathlib import Path
import tempfile

from ane_book.bundle import Bundle, regular_files
from ane_book.bundle.manifest import Part, called
from ane_book.conversion.again import Again
from ane_book.evidence.compare import Gap, diff
from ane_book.evidence.parity.walk import encoder_feeds, padded
from ane_book.mil import MLProgram
from ane_book.runtime.engine import Feeds
from ane_book.weights import WeightSource
import numpy as np

__all__ = ["first_op", "golden_again", "golden_inputs"]

TOLERANCE = 1e-6  # of two runs of one program by the same ops: equal but for the last bit


def golden_again(bundle: Bundle, source: WeightSource) -> dict[str, np.ndarray]:
    """The golden numbers, made anew by PyTorch from the source."""
    with tempfile.TemporaryDirectory() as folder:
        return Again(bundle, source, Path(folder)).golden()


def first_op(
    bundle: Bundle,
    source: WeightSource,
    part: Part,
    functions: Iterable[str],
    hidden: np.ndarray,
) -> tuple[str, Gap] | None:
    """The function of a part, and its first value beyond `TOLERANCE`; None where there is none.

    hidden: what comes before its layers, (C, T), of the golden tokens. A package that is the same
    to the byte is not run.
    """
    with tempfile.TemporaryDirectory() as folder:
        written = Again(bundle, source, Path(folder)).package(part.package)
        if _content(bundle.path / part.package) == _content(written):
            return None
        for function in functions:
            own = called(function, part.stretch)
            ours = MLProgram(bundle.path / part.package, own, precision="fp32").plain()
            theirs = MLProgram(written, own, precision="fp32").plain()
            inputs = golden_inputs(bundle, ours, function, hidden)
            if gap := diff(ours, theirs, inputs, TOLERANCE).first:
                return function, gap
    return None


def _content(package: Path) -> list[str]:
    """sha256 of the program and of its weights; a Manifest.json has names of its own."""
    found = []
    for name in sorted(regular_files(package)):
        if Path(name).name != "Manifest.json":
            with (package / name).open("rb") as file:
                found.append(hashlib.file_digest(file, "sha256").hexdigest())
    return found


def golden_inputs(
    bundle: Bundle, program: MLProgram, function: str, hidden: np.ndarray
) -> dict[str, np.ndarray]:
    """What a program takes of the host at the first golden tokens; caches are empty, and what
    another program of the same layers gives is random."""
    T, given = bundle.manifest.functions[function], program.random_inputs(0)
    if bundle.manifest.task != "text-generation":
        feeds = encoder_feeds(bundle, hidden.shape[1], T)
    else:
        ids = bundle.golden()["tokens"][:T]
        feeds = Feeds(bundle, np.dtype(np.float32)).of(function, ids, 0)
    feeds["hidden"] = padded(hidden[:, :T], T)
    caches = {n: np.zeros_like(a) for n, a in given.items() if f"new_{n}" in program.outputs}
    return given | caches | {n: a for n, a in feeds.items() if n in program.inputs}
