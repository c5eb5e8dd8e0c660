"""Run a bundle: sessions, sampling, streaming, and the two backends."""

from ane_book.runtime.backends import Backend, CoreMLBackend, MILBackend, choose_backend
from ane_book.runtime.sampling import Sampler
from ane_book.runtime.session import Result, Session, Stream

__all__ = [
    "Backend",
    "CoreMLBackend",
    "MILBackend",
    "Result",
    "Sampler",
    "Session",
    "Stream",
    "choose_backend",
]
