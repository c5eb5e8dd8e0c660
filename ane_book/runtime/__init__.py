"""Run a bundle: sessions, sampling, streaming, and the two backends."""

from ane_book.runtime.answer import Result, Stream
from ane_book.runtime.backends import Backend, CoreMLBackend, MILBackend, choose_backend
from ane_book.runtime.choosing import Option, choose
from ane_book.runtime.embedder import Embedder
from ane_book.runtime.reranker import Ranked, Reranker
from ane_book.runtime.sampling import Sampler
from ane_book.runtime.session import Session
from ane_book.runtime.tags import Tagger
from ane_book.runtime.yes_no import YesNoReranker

__all__ = [
    "Backend",
    "CoreMLBackend",
    "Embedder",
    "MILBackend",
    "Option",
    "Ranked",
    "Reranker",
    "Result",
    "Sampler",
    "Session",
    "Stream",
    "Tagger",
    "YesNoReranker",
    "choose",
    "choose_backend",
]
