"""What `ane-serve`, a distribution of its own, adds to the command, and what is said without it."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from ane_book import __version__
from ane_book.errors import InvalidInput
from mlprogram.extras import missing

COMMANDS = {"serve": "serve", "bench": "bench_command"}  # functions of modules of these names


@cache
def _found() -> tuple[dict[str, Callable], str]:
    """The commands of ane-serve by name; or none, and why it cannot be used, in one line."""
    why = ""
    try:
        version = getattr(import_module("ane_serve"), "__version__", None)  # a bare folder has none
        if version == __version__:
            return {
                name: getattr(import_module(f"ane_serve.cli.{name}"), function)
                for name, function in COMMANDS.items()
            }, ""
        if version is not None:
            why = f"ane-serve {version} does not go with ane-book {__version__}; "
    except ImportError as error:
        if error.name != "ane_serve" or not isinstance(error, ModuleNotFoundError):
            why = f"ane-serve cannot be imported ({error}); "
    return {}, missing(f"{why}to use it", "ane-serve", f"ane-serve=={__version__}")


def served() -> dict[str, Callable]:
    """The commands of ane-serve by name; none where it cannot be used."""
    return _found()[0]


def absent() -> dict[str, str]:
    """The names of ane-serve's commands, where it cannot be used, and why not."""
    commands, why = _found()
    return {} if commands else {name: f"{name}: {why}" for name in COMMANDS}


def serving(module: str) -> Any:
    """A module of ane-serve; raises InvalidInput where it cannot be used."""
    commands, why = _found()
    if not commands:
        raise InvalidInput(why)
    return import_module(f"ane_serve.{module}")
