"""What a command opens: a model that is for the command's task, or the folder of a bundle."""

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from ane_book.cli.options import given, names
from ane_book.errors import InvalidPackage
from ane_book.progress import progress_bar

if TYPE_CHECKING:
    from ane_book.runtime import Embedder, Session, Tagger

__all__ = ["load", "load_draft", "path_of", "task_of"]


def load(
    model: str, task: str, *, precision: str, backend: str, force: bool, **recipe: str | int | None
) -> "Session | Embedder | Tagger":
    """The model, on a backend; InvalidInput, before it is converted, if it is for another task."""
    import ane_book
    from ane_book.bundle import check_task
    from ane_book.runtime import choose_backend

    chosen = choose_backend(None if backend == "auto" else backend, precision)
    check_task(model, task_of(model), task)
    with progress_bar() as progress:
        how = {"precision": precision, "backend": chosen, "force": force, "progress": progress}
        return ane_book.load(model, **how, **given(**recipe))


def load_draft(
    draft: str | None, *, precision: str, backend: str, force: bool
) -> "Session | str | None":
    """Who guesses tokens: "lookup" and None as they are, or a smaller model."""
    if draft in (None, "lookup"):
        return draft
    return load(draft, "text-generation", precision=precision, backend=backend, force=force)


def path_of(given: str) -> Path:
    """A path as it is; of a reference model's name its bundle, converted on first use.

    InvalidPackage where there is nothing and a model's name is close, which was meant then.
    """
    from ane_book.reference import is_path

    path = Path(given)
    if path.exists() or is_path(given):
        return path
    models = names("")
    if given not in models:
        near = get_close_matches(given.lower(), models, cutoff=0.4)
        if not near:
            return path
        raise InvalidPackage(f"{given}: no such package; did you mean {' or '.join(near)}?")
    import ane_book

    with progress_bar() as progress:
        return ane_book.convert(given, progress=progress).path


def task_of(model: str) -> str:
    """What a bundle, or what `convert` takes, is for."""
    if Path(model, "manifest.json").exists():
        from ane_book.bundle import Bundle

        return Bundle.open(model).manifest.task
    from ane_book.conversion.plan import find_config
    from ane_book.models import find

    return find(find_config(model).architecture).task
