"""Open the model that a command names, and check that it is for the command's task."""

from collections.abc import Callable
from functools import wraps
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

from ane_book.cli.options import given, names
from ane_book.errors import InvalidInput, InvalidPackage
from mlprogram.progress import progress_bar

if TYPE_CHECKING:
    from ane_book.runtime import Embedder, Session, Tagger


class Opening(TypedDict):
    """A command's options about how to open a model."""

    precision: str
    backend: str
    force: bool


@overload
def load(
    model: str, task: Literal["text-generation"], how: Opening, **recipe: Any
) -> "Session": ...


@overload
def load(model: str, task: Literal["embedding"], how: Opening, **recipe: Any) -> "Embedder": ...


@overload
def load(
    model: str, task: Literal["token-classification"], how: Opening, **recipe: Any
) -> "Tagger": ...


def load(model: str, task: str, how: Opening, **recipe: Any) -> "Session | Embedder | Tagger":
    """Open the model on a backend; raises InvalidInput before converting one for another task."""
    import ane_book
    from ane_book.bundle import check_task
    from ane_book.runtime import choose_backend

    backend = choose_backend(None if how["backend"] == "auto" else how["backend"], how["precision"])
    check_task(model, task_of(model), task)
    with progress_bar() as progress:
        return ane_book.load(
            model,
            precision=how["precision"],
            backend=backend,
            force=how["force"],
            progress=progress,
            **given(**recipe),
        )


def load_talker(model: str, how: Opening, adapter: Path | None, **recipe: Any) -> "Session":
    """A model that generates text, which answers with an adapter where one is given."""
    if adapter is not None and not adapter.is_dir():
        raise InvalidInput(f"--adapter {adapter}: there is no such folder")
    session = load(model, "text-generation", how, **recipe)
    if adapter is not None:
        session.use(adapter)
    return session


def path_of(given: str) -> Path:
    """A path as it is, or for a reference model's name its bundle, converted on first use.

    Raises InvalidPackage as `existing` does.
    """
    if Path(given).exists() or given not in names(""):
        return existing(Path(given))
    import ane_book

    with progress_bar() as progress:
        return ane_book.convert(given, progress=progress).path


def handed(command: Callable, opened: Callable[[Any], Path], **arguments: Any) -> Callable:
    """A command of `mlprogram` as one of `ane-book`, which also knows bundles, weights and models.

    arguments: those that are paths, each with its type and help here, or None for what it has;
    `opened` finds what they name.
    """

    @wraps(command)
    def call(**given: Any) -> Any:
        paths = {name: opened(given[name]) for name in arguments if given.get(name) is not None}
        try:
            return command(**given | paths)
        except InvalidPackage:
            from ane_book.evidence import inspect as contents

            for path in paths.values():
                if opened is path_of:  # of folders all packages are taken
                    contents.refuse_alone(path)
                else:
                    contents.refuse_bundle(path)
                    contents.refuse_weights(path)
            raise

    signature = inspect.signature(command, eval_str=True)
    own = {name: kind for name, kind in arguments.items() if kind is not None}
    changed = [
        each.replace(annotation=own.get(name, each.annotation))
        for name, each in signature.parameters.items()
    ]
    vars(call)["__signature__"] = signature.replace(parameters=changed)
    call.__annotations__ = {each.name: each.annotation for each in changed}
    return call


def existing(path: Path) -> Path:
    """The path of a package; raises InvalidPackage if there is none, with what is named like it."""
    if path.exists():
        return path
    if str(path) in names(""):
        raise InvalidPackage(
            f"{path}: no such package, but a model: `ane-book convert {path}` prints the folder "
            "with its packages"
        )
    from ane_book.reference import near_names

    near = " or ".join(near_names(str(path)))
    raise InvalidPackage(f"{path}: no such package" + (f"; did you mean {near}?" if near else ""))


def task_of(model: str) -> str:
    """The task of a bundle, or of a model that `convert` takes."""
    if Path(model, "manifest.json").exists():
        from ane_book.bundle import Bundle

        return Bundle.open(model).manifest.task
    from ane_book.conversion import kept

    if bundle := kept(model):
        return bundle.manifest.task
    from ane_book.conversion.plan import find_config
    from ane_book.models import find

    return find(find_config(model).architecture).task
