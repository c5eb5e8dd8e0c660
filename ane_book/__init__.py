"""Language models on Apple's Neural Engine: convert them, check them, run them anywhere.

    import ane_book

    session = ane_book.load("smollm2-135m-instruct")
    print(session.generate("What is the capital of France?").text)

The library is the companion of the ANE Book; each part says in which chapter it is taught.
Importing it sets one thing in the process that imports it: GOMP_SPINCOUNT, unless that is set.
"""

from typing import TYPE_CHECKING, Any, Unpack

# First: it says how OpenMP's threads wait, which works if torch comes after it.
import mlprogram  # noqa: F401

if TYPE_CHECKING:
    from pathlib import Path

    from ane_book.bundle import Bundle
    from ane_book.conversion import convert
    from ane_book.conversion.plan import Plan
    from ane_book.evidence.laws import check
    from ane_book.options import RecipeOptions
    from ane_book.reference import reference_models
    from ane_book.runtime import Embedder, Session, Tagger
    from ane_book.runtime.backends import Backend
    from mlprogram import MLProgram
    from mlprogram.ane.placement import place

__all__ = [
    "Bundle",
    "Embedder",
    "MLProgram",
    "Session",
    "Tagger",
    "check",
    "convert",
    "load",
    "place",
    "plan",
    "reference_models",
]
__version__ = "0.2.0"

#: Where the public names live; each is imported at first use, since torch alone takes a second.
_HOMES = {
    "Bundle": "ane_book.bundle",
    "Embedder": "ane_book.runtime",
    "MLProgram": "mlprogram",
    "Session": "ane_book.runtime",
    "Tagger": "ane_book.runtime",
    "check": "ane_book.evidence.laws",
    "convert": "ane_book.conversion",
    "place": "mlprogram.ane.placement",
    "reference_models": "ane_book.reference",
}


def load(
    model: "str | Path",
    *,
    precision: str = "fp16",
    backend: "Backend | str | None" = None,
    force: bool = False,
    **recipe: Any,
) -> "Session | Embedder | Tagger":
    """A bundle's folder, or a reference model, which is converted at first use, ready to be used.

    It is a `Session` for a model that generates text, an `Embedder` for one that makes vectors, and
    a `Tagger` for one that labels tokens.

    precision: "fp16" or, with the executor, "fp32" or "ane" (`MLProgram`). backend: "mil", "coreml"
    or a `Backend`; None for the best that runs here. force: run a bundle that failed parity by its
    own evidence, too. recipe: what `convert` takes (kv, context, prefill, source, progress, ...); a
    bundle is held to it.
    """
    from ane_book import runtime
    from ane_book.bundle import Bundle
    from ane_book.evidence.inspect import is_bundle

    backend = runtime.choose_backend(backend, precision)  # refused before a conversion
    if is_bundle(model):
        from ane_book.bundle.cache import mark_used

        bundle = Bundle.open(model)
        mark_used(bundle.path)
        if any(value is not None for name, value in recipe.items() if name != "progress"):
            from ane_book.conversion.recipe import hold_to  # what converts, torch and all

            hold_to(bundle, recipe)
    else:
        from ane_book.conversion import convert

        bundle = convert(str(model), **recipe)
    match bundle.manifest.task:
        case "embedding":
            return runtime.Embedder(bundle, precision, backend, force)
        case "token-classification":
            return runtime.Tagger(bundle, precision, backend, force)
    return runtime.Session(bundle, precision, backend, force)


def plan(model: "str | Path", **recipe: "Unpack[RecipeOptions]") -> "Plan":
    """What a conversion would write, before a weight is read: programs, bytes, calls a token.

    `mlprogram.ane.cost.predict` says what a token then takes on a chip, by `work_of` in
    `ane_book.evidence.cost`.

    model: as in `convert`. recipe: fields of `ane_book.options.Recipe`.
    """
    from ane_book.conversion.plan import find_config
    from ane_book.conversion.plan import plan as cut
    from ane_book.conversion.recipe import make_recipe

    config = find_config(str(model))
    return cut(config, make_recipe(config, **recipe))


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'ane_book' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})  # a shell completes what was not imported yet, too
