"""Run a bundle: sessions, sampling, streaming, and the two backends."""

from ane_book.runtime.answer import Result, Stream
from ane_book.runtime.backends import Backend, CoreMLBackend, MILBackend, choose_backend
from ane_book.runtime.encoder import Embedder
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
