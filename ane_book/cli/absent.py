"""What `ane-serve`, a distribution of its own, adds to the command, and what is said without it."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from ane_book import __version__
from ane_book.errors import InvalidInput
from mlprogram.extras import missing

COMMANDS = {"serve": "serve", "bench": "bench_command"}  # functions of modules of these names


def served() -> tuple[dict[str, Callable], dict[str, str], dict[str, str]]:
    """The commands of ane-serve by name, those that cannot be used with the reason, and options
    that are gone with what takes their place."""
    try:
        return (
            {name: getattr(serving(f"cli.{name}"), own) for name, own in COMMANDS.items()},
            {},
            serving("cli").GONE,
        )
    except InvalidInput as error:
        return {}, {name: f"{name}: {error}" for name in COMMANDS}, {}


def serving(module: str) -> Any:
    """A module of ane-serve; raises InvalidInput where it cannot be used."""
    try:
        version = getattr(import_module("ane_serve"), "__version__", "unknown")  # of a bare folder
        if version != __version__:
            raise ImportError(f"version {version} does not go with ane-book {__version__}")
        return import_module(f"ane_serve.{module}")
    except Exception as error:  # of whatever kind: the other commands need none of it
        why = f"ane-serve cannot be used ({error}); for it"
        raise InvalidInput(missing(why, "ane-serve", f"ane-serve=={__version__}")) from None
