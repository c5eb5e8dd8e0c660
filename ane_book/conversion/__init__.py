"""From weights to a bundle: `convert` finds the weights, plans, lowers, links and writes.

Bundles are cached by content: the source's bytes, the recipe and the converter's number
make the key, so chapters share a conversion and never see a stale one (`ane_book.bundle.cache`).
What converts is imported by a conversion: a kept bundle is found without it.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Unpack
import warnings

from ane_book.bundle import Bundle, cache
from ane_book.conversion.target import check_ours, check_place, is_empty, recover
from ane_book.conversion.target.key import bundle_key
from ane_book.errors import InvalidBundle, InvalidInput, SchemeWarning
from ane_book.options import Recipe, RecipeOptions
from ane_book.reference import find_reference, reference_models
from mlprogram.files import telling

if TYPE_CHECKING:
    from ane_book.conversion.build import BundleBuilder, Progress
    from ane_book.weights import WeightSource

ELSEWHERE = "name another folder, or another cache by ANE_BOOK_CACHE"


def convert(
    model: str,
    out: str | Path | None = None,
    source: str | Path | None = None,
    *,
    force: bool = False,
    progress: "Progress" = lambda description, done, total: None,
    **recipe: Unpack[RecipeOptions],
) -> Bundle:
    """Convert a model to a bundle of Core ML packages, or find it in the cache.

    model: a reference model's name, a `.gguf` file, or a folder with config.json and safetensors,
    or of ONNX Runtime GenAI.
    out: the bundle's folder, which must be new, empty or a bundle's; by default one in the cache.
    source: weights of a reference model; "random" ones are made up. force: convert again, and
    replace what is there. recipe: fields of `ane_book.options.Recipe`; a quantisation that is known
    to break models warns (SchemeWarning).

    Raises UnknownModel, InvalidInput, OutOfSpace, WeightsNotFound, InvalidWeights and others.
    """
    if not (recipe or out or source or force) and (bundle := kept(model)):
        cache.mark_used(bundle.path)
        return bundle
    from ane_book.conversion.build import BundleBuilder
    from ane_book.conversion.quantize.schemes import scheme_warning
    from ane_book.conversion.recipe import make_recipe
    from ane_book.models import read_config

    chosen = make_recipe(**recipe)  # refuses options that fit no model, before looking for weights
    if warning := scheme_warning(chosen.quant, chosen.quant_head):
        warnings.warn(warning, SchemeWarning, stacklevel=2)
    folder = None if out is None else Path(out)
    if folder is not None:
        with telling(folder, ELSEWHERE):
            check_place(folder)
    # Of a reference model: a second call then looks for no weights.
    key = _key(model, dict(recipe)) if source is None and out is None else None
    bundle = _recalled(key) if key and not force else None
    if bundle is None:
        name, weights = _open(model, source)
        config = read_config(weights.config())
        builder = BundleBuilder(name, weights, config, make_recipe(config, **recipe), progress)
        bundle = _build(builder, folder, force)
        if key:
            cache.remember(key, bundle.path)
    cache.mark_used(bundle.path)
    return bundle


def _build(builder: "BundleBuilder", out: Path | None, force: bool) -> Bundle:
    """Open the bundle that the builder would make if it is there already, or else build it."""
    key = bundle_key(builder.source.fingerprint(), builder.recipe.model_dump())
    target = out or cache.bundles() / f"{builder.name}-{key[:16]}"
    with telling(target, ELSEWHERE), cache.locked(target):
        recover(target)
        if not force and not is_empty(target):
            try:
                return _existing(target, builder.source, builder.recipe)
            except InvalidBundle as error:
                if out:
                    hint = "" if "--force" in str(error) else ", by --force (force=True)"
                    raise InvalidBundle(f"{error}{hint}") from None
        if out:  # in the cache everything is ours
            check_ours(target)
        return builder.build(target, key)


def kept(model: str) -> Bundle | None:
    """The bundle in the cache that a reference model's name alone stands for, if there is one."""
    key = _key(model, {})
    return _recalled(key) if key else None


def _key(model: str, options: dict) -> str | None:
    """What the name of a reference model's bundle is kept under; None for any other model."""
    known = reference_models().get(model)
    # Models that were trained here ship with the library: their weights may have changed.
    return bundle_key(known, options) if known and not known.trained else None


def _recalled(key: str) -> Bundle | None:
    path = cache.recall(key)
    try:
        return Bundle.open(path) if path else None
    except InvalidBundle:  # damaged: find out by converting
        return None


def _open(model: str, source: str | Path | None) -> tuple[str, "WeightSource"]:
    """The model's name and its weights."""
    from ane_book.weights import name_of, open_source
    from ane_book.weights.hub import find_weights
    from ane_book.weights.random import RandomSource

    path = Path(model)
    if path.exists() and model not in reference_models():
        if source is not None:
            raise InvalidInput(
                f"{model}: is a path, whose own weights are read; a source (--source) is for the "
                "name of a reference model"
            )
        return name_of(path), open_source(path)
    reference = find_reference(model)
    if str(source) == "random":
        return reference.name, RandomSource(reference.config)
    return reference.name, open_source(find_weights(reference, source))


def _existing(target: Path, source: "WeightSource", recipe: Recipe) -> Bundle:
    """Open the bundle that is already there; raises InvalidInput if it is another conversion."""
    bundle = Bundle.open(target)
    manifest = bundle.manifest
    if (manifest.source.fingerprint, manifest.recipe) != (source.fingerprint(), recipe):
        told = [
            f"{name}={old}, not {new}"
            for name in Recipe.model_fields
            if (old := getattr(manifest.recipe, name)) != (new := getattr(recipe, name))
        ]
        differs = f" with {', '.join(told)}" if told else ", from other weights"
        raise InvalidInput(
            f"{target} holds another conversion, of {manifest.name}{differs}; "
            "choose another folder, or write over it by --force (force=True)"
        )
    return bundle
