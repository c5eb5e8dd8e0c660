"""Inputs of a package and of its source that are the same: paired by name or order, made or given.

A package's image input takes pixels, and its source what `images.Pixels` says. Whole numbers are
indices as a rule, and only the source knows which are valid: an ONNX graph by the tables that they
index, a module by its example.
"""

from collections.abc import Mapping
from pathlib import Path

from mlprogram.errors import InvalidInput
from mlprogram.onnx.source.graph import SourceGraph, SourceInput
from mlprogram.onnx.source.package import PackageRun
from mlprogram.package.description import Feature, by_name, load_inputs
import numpy as np


def paired(run: PackageRun, source: SourceGraph) -> dict[str, str]:
    """The source's name of each input of a package that a caller has to give.

    By name as coremltools cleans it, else by order where both have as many. Raises InvalidInput.
    """
    known = run.features
    named = by_name({name: name for name in source.inputs}, known)
    pairs = {ours: str(theirs) for ours, theirs in named.items() if ours in known}
    needed = [name for name, feature in known.items() if feature.fill is None]
    if len(pairs) == len(source.inputs) and {*needed} <= {*pairs}:
        return pairs
    if len(needed) == len(source.inputs):
        return dict(zip(needed, source.inputs, strict=True))
    raise InvalidInput(
        f"{run.path} takes {_listed(known)}, and its source {', '.join(source.inputs) or 'nothing'}"
        ": they have to be as many, or have the same names; is it the source of this package?"
    )


def for_package(
    run: PackageRun, source: SourceGraph, pairs: Mapping[str, str], given: Path | None, seed: int
) -> dict[str, np.ndarray]:
    """An array for each input of the package, in its layout.

    given: a .npz file by the package's names or the source's. Raises InvalidInput.
    """
    features = {name: run.features[name] for name in pairs}
    if given is None:
        return _made(features, source, pairs, seed)
    arrays = load_inputs(given)
    found = {}
    for name, feature in features.items():
        held = next((arrays[n] for n in (name, pairs[name]) if n in arrays), None)
        if held is None:
            raise InvalidInput(
                f"{given} has no array {name!r}; it has: {', '.join(arrays) or 'nothing'}"
            )
        if not feature.color and held.size == np.prod(feature.shape):
            held = held.reshape(feature.shape)
        found[name] = feature.array(held)
    return found


def _made(
    features: Mapping[str, Feature], source: SourceGraph, pairs: Mapping[str, str], seed: int
) -> dict[str, np.ndarray]:
    """Random arrays; of whole numbers those of the source."""
    generator = np.random.default_rng(seed)
    shapes = {pairs[name]: feature.shape for name, feature in features.items()}
    plausible = source.plausible(shapes, seed)
    made = {}
    for name, feature in features.items():
        theirs = source.inputs[pairs[name]]
        example = plausible.get(pairs[name], theirs.example)
        fits = example is not None and example.size == np.prod(feature.shape)
        if fits and not feature.color and (theirs.dtype.kind in "iub" or plausible):
            made[name] = feature.array(np.asarray(example).reshape(feature.shape))
        else:
            made[name] = feature.random(generator)
    return made


def for_source(name: str, array: np.ndarray, wanted: SourceInput) -> np.ndarray:
    """A package's array in the source's shape and dtype. Raises InvalidInput."""
    shape = wanted.shape
    if None in shape:
        fits = len(shape) == array.ndim and all(
            s in (None, had) for s, had in zip(shape, array.shape, strict=True)
        )
        if not fits and array.ndim != len(shape):
            raise InvalidInput(_unfit(name, array, shape))
        return array.astype(wanted.dtype)
    sizes = tuple(int(size or 1) for size in shape)
    if array.size != np.prod(sizes, dtype=int):
        raise InvalidInput(_unfit(name, array, shape))
    return array.reshape(sizes).astype(wanted.dtype)


def _unfit(name: str, array: np.ndarray, shape: tuple) -> str:
    return (
        f"input {name!r} of the package has shape {array.shape}, and the source takes {shape}: "
        "export the source for that shape, or convert the package for this one"
    )


def _listed(features: Mapping[str, Feature]) -> str:
    return ", ".join(features) or "nothing"
