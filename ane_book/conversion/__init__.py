"""From weights to a bundle: `convert` finds the weights, plans, lowers, links and writes.

Bundles are cached by content: the source's bytes, the recipe and this library's own code make the
key, so chapters share a conversion and never see a stale one. `ANE_BOOK_CACHE` moves the cache.
"""

from hashlib import sha256
import json
from pathlib import Path
import shutil

from ane_book.bundle import Bundle, Recipe
from ane_book.config import DecoderConfig
from ane_book.conversion.build import BundleBuilder, Progress
from ane_book.conversion.plan import make_recipe
from ane_book.conversion.reference import find_reference, reference_models
from ane_book.device import cache_folder
from ane_book.errors import InvalidBundle, InvalidInput
from ane_book.weights import WeightSource, open_source
from ane_book.weights.hub import find_weights
from ane_book.weights.random import RandomSource
from filelock import FileLock

__all__ = ["convert", "reference_models"]

LIBRARY = Path(__file__).parent.parent
SHAPING = ("config.py", "rope.py", "bundle.py", "conversion/*.py", "models/*.py", "weights/*.py")


def convert(
    model: str,
    out: str | Path | None = None,
    source: str | Path | None = None,
    *,
    kv: str = "state",
    context: int = 512,
    prefill: int = 64,
    shard_limit: str | int = "1GB",
    head_rows: int = 16384,
    argmax_output: bool = False,
    quant: str = "none",
    quant_head: str | None = None,
    partition: str = "layers",
    force: bool = False,
    progress: Progress = lambda description, done, total: None,
) -> Bundle:
    """Convert a model to a bundle of Core ML packages, or find it in the cache.

    model: a reference model's name, a `.gguf` file, or a folder with config.json and safetensors.
    out: the bundle's folder, or the cache. source: weights of a reference model; "random" ones are
    made up. kv: "state" keeps the cache in Core ML's states, "host" passes it in and out.
    context: slots of the cache (S). prefill: tokens of a prompt's chunk (T). shard_limit: bytes of
    weights in one package. head_rows: rows in a part of the vocabulary. argmax_output: return the
    likeliest token's id. quant, quant_head: how weights of projections and of the head are stored,
    a name of `conversion.quantize.SCHEMES`; the head as the others when None. partition: "layers",
    "whole" or "projections" (`conversion.plan`). force: convert again.

    Raises UnknownModel, InvalidInput, OutOfSpace, WeightsNotFound, InvalidWeights and others.
    """
    recipe = make_recipe(
        kv=kv, context=context, prefill=prefill, shard_limit=shard_limit, head_rows=head_rows,
        argmax_output=argmax_output, quant=quant, quant_head=quant_head, partition=partition,
    )  # fmt: skip
    remembered = _Remembered(model, source, out, recipe)
    bundle = None if force else remembered.bundle
    if bundle is None:
        bundle = remembered.bundle = _build(*_open(model, source), recipe, out, force, progress)
    return bundle


def _build(
    name: str,
    weights: WeightSource,
    recipe: Recipe,
    out: str | Path | None,
    force: bool,
    progress: Progress,
) -> Bundle:
    """The bundle of these weights by this recipe: found where it was built before, or built."""
    config = DecoderConfig.from_hf(weights.config())
    if recipe.context > config.max_position:
        raise InvalidInput(
            f"context {recipe.context} is beyond the model's {config.max_position} positions"
        )
    if config.sliding_window and recipe.context > config.sliding_window:
        raise InvalidInput(
            f"context {recipe.context} is beyond the model's sliding window of "
            f"{config.sliding_window} tokens, and windows are not supported; take a shorter context"
        )
    builder = BundleBuilder(name, weights, config, recipe, progress)
    key = _digest(weights.fingerprint(), recipe)
    target = Path(out) if out else cache_folder() / "bundles" / f"{name}-{key[:16]}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(target.with_name(f"{target.name}.lock")):
        if force and target.exists():
            shutil.rmtree(target)
        exists = target.exists()
        return _existing(target, weights, recipe) if exists else builder.build(target, key)


class _Remembered:
    """Which bundle a reference model's name led to: a second call need not look for weights.

    Looking for them reads the file, and asks the hub where it is not there. Of a call that names
    weights or a folder nothing is remembered.
    """

    def __init__(self, model: str, source, out, recipe: Recipe):
        known = model in reference_models() and source is None and out is None
        self._file = cache_folder() / "names" / _digest(model, recipe) if known else None

    @property
    def bundle(self) -> Bundle | None:
        if not self._file or not self._file.is_file():
            return None
        try:
            return Bundle.open(self._file.read_text())
        except InvalidBundle:  # deleted or damaged: find out what is wrong by converting
            return None

    @bundle.setter
    def bundle(self, bundle: Bundle) -> None:
        if self._file:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.write_text(str(bundle.path))


def _open(model: str, source: str | Path | None) -> tuple[str, WeightSource]:
    """The model's name and its weights."""
    path = Path(model)
    if source is None and path.exists() and model not in reference_models():
        return path.name.removesuffix(".gguf"), open_source(path)
    reference = find_reference(model)
    if str(source) == "random":
        return reference.name, RandomSource(reference.config)
    return reference.name, open_source(find_weights(reference, source))


def _digest(origin: str, recipe: Recipe) -> str:
    """What a bundle's bytes depend on, as one hash: origin of the weights, recipe, and our code."""
    digest = sha256(origin.encode())
    digest.update(json.dumps(recipe.model_dump(), sort_keys=True).encode())
    for pattern in SHAPING:
        for file in sorted(LIBRARY.glob(pattern)):
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _existing(target: Path, source: WeightSource, recipe: Recipe) -> Bundle:
    """The bundle that is already there, if it is the one asked for."""
    bundle = Bundle.open(target)
    found = bundle.manifest
    if (found.source.fingerprint, found.recipe) != (source.fingerprint(), recipe):
        raise InvalidInput(
            f"{target} holds another conversion ({found.name}, {found.recipe}); "
            "choose another folder or pass force=True (--force)"
        )
    return bundle
