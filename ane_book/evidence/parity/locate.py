"""The op at which a package parts from what its source and its recipe make of it.

The package is written once more from the source, and both run side by side, op by op, in single
precision, on the golden tokens. Names are the same on both sides, so every value is compared.
"""

from pathlib import Path
import tempfile

from ane_book.bundle import Bundle
from ane_book.conversion.again import Again
from ane_book.evidence.compare import Gap, diff
from ane_book.evidence.parity.walk import padded
from ane_book.mil import MLProgram
from ane_book.runtime.embedder import text_mask
from ane_book.runtime.engine import Feeds
from ane_book.weights import WeightSource
import numpy as np

__all__ = ["first_op", "golden_again"]

TOLERANCE = 1e-6  # of two runs of one program by the same ops: equal but for the last bit


def golden_again(bundle: Bundle, source: WeightSource) -> dict[str, np.ndarray]:
    """The golden numbers, made anew by PyTorch from the source."""
    with tempfile.TemporaryDirectory() as folder:
        return Again(bundle, source, Path(folder)).golden()


def first_op(
    bundle: Bundle,
    source: WeightSource,
    package: str,
    function: str,
    hidden: np.ndarray,
) -> Gap | None:
    """The first value beyond `TOLERANCE`, of a function of a package; None where there is none.

    hidden: what comes before the package, (C, T), of the golden tokens.
    """
    ours = MLProgram(bundle.path / package, function, precision="fp32").plain()
    with tempfile.TemporaryDirectory() as folder:
        written = Again(bundle, source, Path(folder)).package(package)
        theirs = MLProgram(written, function, precision="fp32").plain()
        return diff(ours, theirs, _inputs(bundle, ours, function, hidden), TOLERANCE).first


def _inputs(
    bundle: Bundle, program: MLProgram, function: str, hidden: np.ndarray
) -> dict[str, np.ndarray]:
    """What a program takes of the host at the first golden tokens; caches are empty, and a matrix
    that is a program alone has random columns where its inputs are not the hidden state's."""
    T = bundle.manifest.functions[function]
    given = program.random_inputs(0) | {"hidden": padded(hidden[:, :T], T)}
    if given["hidden"].shape != program.inputs["hidden"].shape:
        given["hidden"] = program.random_inputs(0)["hidden"]
    if bundle.manifest.task == "embedding":
        return given | {"mask": text_mask([hidden.shape[1]], T)}
    ids = bundle.golden()["tokens"][:T]
    feeds = Feeds(bundle, np.dtype(np.float32)).of(function, ids, 0)
    caches = {n: np.zeros(a.shape, a.dtype) for n, a in given.items() if n not in feeds}
    feeds = {n: a for n, a in feeds.items() if n in program.inputs}
    return given | caches | feeds | {"hidden": given["hidden"]}
