"""Run any Core ML ML Program on any machine: reader, executor, ops."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ane_book.mil.package.container import save
    from ane_book.mil.run.pipeline import Pipeline, open_model
    from ane_book.mil.run.program import MLProgram, State

__all__ = ["MLProgram", "Pipeline", "State", "open_model", "save"]

#: Where the names live; each is imported at first use: what only reads a package needs no torch.
_HOMES = {
    "MLProgram": "ane_book.mil.run.program",
    "Pipeline": "ane_book.mil.run.pipeline",
    "State": "ane_book.mil.run.program",
    "open_model": "ane_book.mil.run.pipeline",
    "save": "ane_book.mil.package.container",
}


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'ane_book.mil' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
