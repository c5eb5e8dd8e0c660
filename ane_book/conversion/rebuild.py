"""Repeat parts of a conversion from a bundle's source: its golden numbers, or one package.

The parity check compares a bundle with these; conversion itself does not use them. Everything is
written to a folder of the caller's.
"""

from pathlib import Path

from ane_book.bundle import Bundle
from ane_book.conversion.build import BundleBuilder
from ane_book.errors import InvalidInput, WeightsNotFound
from ane_book.models import read_config
from ane_book.reference import reference_models
from ane_book.weights import WeightSource, open_source
from ane_book.weights.hub import find_weights
from ane_book.weights.random import RandomSource
import numpy as np


def source_of(bundle: Bundle, given: str | Path | None = None) -> WeightSource | None:
    """Open the weights that a bundle was made of: `given`, or a reference model's if they are here.

    Returns None where none are given and none are found; nothing is downloaded. Raises InvalidInput
    where the given ones are not those that the bundle was made of.
    """
    references, manifest = reference_models(), bundle.manifest
    if given is not None and str(given) != "random":
        source = open_source(given)
    elif manifest.source.kind == "random" and manifest.name in references:
        source = RandomSource(references[manifest.name].config)
    elif manifest.name in references:
        try:
            source = open_source(find_weights(references[manifest.name], online=False))
        except WeightsNotFound:
            return None
    else:
        return None
    if source.fingerprint() == manifest.source.fingerprint:
        return source
    if given is None:
        return None
    raise InvalidInput(
        f"{given}: not the weights that {bundle.path} was made of ("
        f"{', '.join(manifest.source.files) or manifest.source.kind}, by their sha256)"
    )


class Rebuild:
    """Repeats the conversion of a bundle piece by piece, in a folder."""

    def __init__(self, bundle: Bundle, source: WeightSource, folder: Path):
        config = read_config(source.config())
        self._folder = folder
        self._builder = BundleBuilder(bundle.manifest.name, source, config, bundle.recipe)
        self._builder.work_in(folder)
        for name, write in self._builder.tables.items():  # a tied head reads one, too
            write(folder / name)

    def golden(self) -> dict[str, np.ndarray]:
        """Compute the golden numbers with PyTorch; see `Bundle.golden`."""
        builder, path = self._builder, self._folder / "golden.npz"
        for layers, _ in builder.plan.groups():
            for _ in builder.golden.layers(layers):
                pass
        for program in builder.plan.head:
            for _ in builder.parts(program, builder.golden):
                pass
        builder.golden.write(path)
        with np.load(path) as file:
            return dict(file)

    def package(self, name: str) -> Path:
        """Write one of the bundle's packages again; returns its path."""
        builder, path = self._builder, self._folder / name
        encoding = builder.encoding
        if encoding.file and not (schemes := self._folder / encoding.file).exists():
            tokenizer = self._folder / "tokenizer.json"  # a bit budget is calibrated all over again
            tokenizer.write_text(builder.tokenizer.json, "utf-8")
            encoding.prepare(schemes, lambda step: None)
        program = next(p for p in builder.plan.programs if p.package == name)
        weights = builder.parts(program) if program.parts else builder.states(program.layers)
        builder.write(path, program, weights)
        return path
