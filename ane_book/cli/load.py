"""Open the model that a command names, and check that it is for the command's task."""

from pathlib import Path
from typing import Any

from ane_book.evidence.inspect import is_bundle
from mlprogram.progress import progress_bar


def load(model: str, task: str, precision: str, backend: str, force: bool, **recipe: Any) -> Any:
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
        return ane_book.load(
            model, precision=precision, backend=how, force=force, progress=progress, **given
        )


def path_of(given: str) -> Path:
    """A path as it is, or for a reference model's name its bundle, converted on first use.

    Raises UnknownModel for a name of neither.
    """
    import ane_book
    from ane_book.reference import find_reference, is_path

    if Path(given).exists() or is_path(given):
        return Path(given)
    find_reference(given)  # before what converts is imported
    with progress_bar() as progress:
        return ane_book.convert(given, progress=progress).path


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
