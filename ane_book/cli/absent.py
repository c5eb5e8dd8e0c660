"""What `ane-serve`, a distribution of its own, adds to the command, and what is said without it."""

from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

from ane_book import __version__
from ane_book.errors import InvalidInput
from mlprogram.extras import missing

__all__ = ["absent", "served", "serving"]

COMMANDS = {"serve": "serve", "bench": "bench_command"}  # functions of modules of these names


@cache
def _fault() -> str:
    """Why ane-serve cannot be used, in one line; "" if it can."""
    try:
        found = import_module("ane_serve").__version__
    except ModuleNotFoundError:
        return missing("to use it", "ane-serve", "ane-serve")
    if found == __version__:
        return ""
    return f"ane-serve {found} goes with ane-book {found}, and this is {__version__}: install its"


def served() -> dict[str, Callable]:
    """The commands of ane-serve by name; none where it cannot be used."""
    if _fault():
        return {}
    return {
        name: getattr(import_module(f"ane_serve.cli.{name}"), function)
        for name, function in COMMANDS.items()
    }


def absent() -> dict[str, str]:
    """The names of ane-serve's commands, where it cannot be used, and why not."""
    return {name: f"{name}: {_fault()}" for name in COMMANDS} if _fault() else {}


def serving(module: str) -> Any:
    """A module of ane-serve; raises InvalidInput where it cannot be used."""
    if _fault():
        raise InvalidInput(_fault())
    return import_module(f"ane_serve.{module}")
