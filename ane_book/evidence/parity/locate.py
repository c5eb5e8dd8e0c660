"""Locate the first op at which a package differs from a rebuild from its source and recipe.

The package is written again from the source, and both run side by side, op by op, in single
precision, on the golden tokens. Both have the same names, so every value is compared.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
import shutil

from ane_book.bundle import Bundle
from ane_book.bundle.parts import Part
from ane_book.conversion.rebuild import Rebuild
from ane_book.evidence.parity.stage import padded
from ane_book.evidence.parity.walk import around, encoder_feeds
from ane_book.layout import PER_LAYER
from ane_book.runtime.model_runner import HostInputs
from ane_book.runtime.shards import slot_shapes
from mlprogram import MLProgram
from mlprogram.compare import Gap, diff
from mlprogram.files import regular_files, sha256
import numpy as np

TOLERANCE = 1e-6  # two runs of one program by the same ops differ in the last bit at most


def first_op(
    bundle: Bundle,
    again: Rebuild,
    golden: dict[str, np.ndarray],
    package: str,
    functions: Iterable[str],
) -> tuple[str, Gap] | None:
    """The function of a package and its first value beyond `TOLERANCE`; None if there is none.

    again: writes the package again, temporarily. If both are equal byte for byte, they are not run.
    """
    written = again.package(package)
    part = next(part for part in bundle.manifest.packages if part.package == package)
    try:
        if _content(bundle.path / package) == _content(written):
            return None
        for function in functions:
            own = part.called(function)
            ours = MLProgram(bundle.path / package, own, precision="fp32").plain()
            theirs = MLProgram(written, own, precision="fp32").plain()
            known = known_inputs(bundle, golden, ours, part, function)
            inputs = ours.random_inputs(0) | known
            if gap := diff(ours, theirs, inputs, TOLERANCE).first:
                return function, gap
    finally:
        shutil.rmtree(written)
    return None


def _content(package: Path) -> list[str]:
    """sha256 of the program and of its weights, without Manifest.json, which has random ids."""
    names = [name for name in regular_files(package) if Path(name).name != "Manifest.json"]
    return [sha256(package / name) for name in sorted(names)]


def golden_programs(bundle: Bundle) -> Iterator[tuple[Path, str, str, Callable]]:
    """Every function of every package of a bundle: the package, the function's name there and in
    the bundle, and what makes its `known_inputs` of its program."""
    golden = cache(bundle.golden)
    for part in bundle.manifest.packages:
        for function in part.functions:

            def inputs(program, part=part, function=function) -> dict[str, np.ndarray]:
                return known_inputs(bundle, golden(), program, part, function)

            yield bundle.path / part.package, part.called(function), function, inputs


def known_inputs(
    bundle: Bundle, golden: dict[str, np.ndarray], program: MLProgram, part: Part, function: str
) -> dict[str, np.ndarray]:
    """Those inputs of a part's program that are known for the first golden tokens, from slot 0: the
    host's inputs, PyTorch's hidden state, empty caches, and no adapter. What another package of the
    same layers computes is not."""
    T = part.functions[function].tokens
    if part.part == "experts":
        layer, n = part.span.start, part.expert or 0
        rows = {"x": golden["x"][layer], "gate": golden["gates"][layer, n : n + 1]}
        return {name: padded(own[:, :T], T) for name, own in rows.items()}
    hidden = golden["hidden"][around(bundle, part)[0]]
    if bundle.manifest.task != "text-generation":
        feeds = encoder_feeds(bundle, hidden.shape[1], T)
    else:
        feeds = HostInputs(bundle, np.dtype(np.float32)).of(function, golden["tokens"][:T], 0)
    feeds["hidden"] = padded(hidden[:, :T], T)
    if PER_LAYER in feeds and part.layers:  # of all layers
        feeds[PER_LAYER] = feeds[PER_LAYER][slice(*part.layers)]
    if bundle.manifest.experts and part.layers and part.layers[0]:
        feeds["y"] = padded(golden["y"][part.layers[0] - 1][:, :T], T)
    caches = [name for name in program.inputs if f"new_{name}" in program.outputs]
    feeds |= {n: np.zeros(program.inputs[n].sizes, np.float16) for n in caches}
    feeds |= {n: np.zeros(own, np.float16) for n, own in slot_shapes(bundle.manifest, part).items()}
    feeds |= {n: padded(golden[n][:, :T], T) for n in bundle.manifest.handed}
    return {n: a for n, a in feeds.items() if n in program.inputs}
