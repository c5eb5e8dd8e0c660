"""Run any Core ML ML Program on any machine: reader, executor, ops."""

from ane_book.mil.container import save
from ane_book.mil.executor import MLProgram, State

__all__ = ["MLProgram", "State", "save"]
