"""Run a bundle: sessions, sampling, streaming, and the two backends."""

from typing import TYPE_CHECKING

from ane_book.errors import BY_LOGITS
from ane_book.runtime.answer import Result, Stream
from ane_book.runtime.backends import Backend, CoreMLBackend, MILBackend, choose_backend
from ane_book.runtime.embedder import Embedder
from ane_book.runtime.sampling import Sampler
from ane_book.runtime.session import Session
from ane_book.runtime.tags import Tagger

__all__ = [
    "Backend",
    "CoreMLBackend",
    "Embedder",
    "MILBackend",
    "Result",
    "Sampler",
    "Session",
    "Stream",
    "Tagger",
    "choose_backend",
]

if not TYPE_CHECKING:  # which would take any name for one of this module's

    def __getattr__(name: str):
        if name in ("Reranker", "YesNoReranker", "choose"):
            raise ImportError(f"ane_book.runtime.{name}: {BY_LOGITS}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
