"""Open the model that a command names, and check that it is for the command's task."""

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
import inspect
from pathlib import Path
import sys
from typing import Any

from ane_book.cli.options import Packages
from ane_book.errors import InvalidBundle, InvalidPackage
from ane_book.evidence.inspect import is_bundle, refuse_weights
from mlprogram.progress import progress_bar


def load(model: str, task: str, precision: str, backend: str, **recipe: Any) -> Any:
    """A `Session`, `Embedder` or `Tagger`, as the task asks; recipe: what `ane_book.load` takes.

    Raises InvalidInput, before a conversion, for a model of another task.
    """
    import ane_book
    from ane_book.bundle import check_task
    from ane_book.runtime import choose_backend

    how = choose_backend(None if backend == "auto" else backend, precision)
    check_task(model, task_of(model), task)
    given = {name: value for name, value in recipe.items() if value is not None}
    with progress_bar() as progress:
        return ane_book.load(model, precision=precision, backend=how, progress=progress, **given)


def path_of(given: str) -> Path:
    """The path of a bundle or packages: as it is given, or of the bundle in the cache that a
    reference model is converted to on first use, or that was last used of those of some weights.

    Raises UnknownModel for a name of none of these, InvalidPackage for weights without a bundle.
    """
    import ane_book
    from ane_book.reference import find_reference, is_path

    path = Path(given)
    if not path.exists() and not is_path(given):
        find_reference(given)  # before what converts is imported
        with progress_bar() as progress:
            return ane_book.convert(given, progress=progress).path
    try:
        refuse_weights(path)
    except InvalidPackage:
        if (kept := _kept(path)) is None:
            raise
        print(f"{given}: its bundle in the cache is {kept}", file=sys.stderr)
        return kept
    return path


def handed(command: Callable) -> Callable:
    """A command of mlprogram's, with a `path_of` as the first that it takes."""

    @wraps(command)
    def call(path: str, **others: Any) -> None:
        command(path_of(path), **others)

    signature = inspect.signature(command)
    first, *others = signature.parameters.values()
    parameters = [first.replace(annotation=Packages), *others]
    vars(call)["__signature__"] = signature.replace(parameters=parameters)
    return call


def source_of(given: str, bundle: Path) -> str | None:
    """The weights that a bundle was made of, where it was they that led to it."""
    return given if Path(given).exists() and Path(given) != bundle else None


def _kept(weights: Path) -> Path | None:
    """The bundle in the cache that was last used of those that were made of these weights."""
    from ane_book.bundle import Bundle, cache
    from ane_book.weights import name_of, open_source

    name = name_of(weights)
    whole = (e.path for e in cache.entries() if e.kind == "bundles" and e.path == e.bundle)
    if not (named := [path for path in whole if path.name.rpartition("-")[0] == name]):
        return None
    made_of = open_source(weights).fingerprint()
    for path in named:
        with suppress(InvalidBundle):
            if Bundle.open(path).manifest.source.fingerprint == made_of:
                return path
    return None


def task_of(model: str) -> str:
    """The task of a bundle, or of a model that `convert` takes."""
    if is_bundle(model):
        from ane_book.bundle import Bundle

        return Bundle.open(model).manifest.task
    from ane_book.conversion import kept

    if bundle := kept(model):
        return bundle.manifest.task
    from ane_book.conversion.plan import find_config
    from ane_book.models import find

    return find(find_config(model).architecture).task
