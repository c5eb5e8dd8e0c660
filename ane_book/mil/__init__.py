"""Run any Core ML ML Program on any machine: reader, executor, ops."""

from ane_book.mil.container import save
from ane_book.mil.executor import MLProgram, State
from ane_book.mil.pipeline import Pipeline, open_model

__all__ = ["MLProgram", "Pipeline", "State", "open_model", "save"]
