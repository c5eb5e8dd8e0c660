"""Run a bundle: sessions, sampling, streaming, and the two backends."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ane_book.runtime.answer import Result, Stream
    from ane_book.runtime.backends import Backend, CoreMLBackend, MILBackend, choose_backend
    from ane_book.runtime.encoder import Embedder
    from ane_book.runtime.sampling import Sampler
    from ane_book.runtime.session import Session
    from ane_book.runtime.tags import Tagger

__all__ = [
    "Backend", "CoreMLBackend", "Embedder", "MILBackend", "Result", "Sampler", "Session", "Stream",
    "Tagger", "choose_backend",
]  # fmt: skip

#: The modules of the public names. Each is imported at first use: a session needs no tagger.
_HOMES = {
    "Backend": "backends", "CoreMLBackend": "backends", "Embedder": "encoder",
    "MILBackend": "backends", "Result": "answer", "Sampler": "sampling", "Session": "session",
    "Stream": "answer", "Tagger": "tags", "choose_backend": "backends",
}  # fmt: skip


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'ane_book.runtime' has no attribute {name!r}")
    return getattr(import_module(f"ane_book.runtime.{_HOMES[name]}"), name)
