"""The executor by the name that it had here: `mlprogram` is a library of its own now."""

import mlprogram


def __getattr__(name: str):
    return getattr(mlprogram, {"open_model": "open"}.get(name, name))
