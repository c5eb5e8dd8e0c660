"""The key that a bundle is kept under: weights, options, the converter and its packages."""

from functools import cache
from hashlib import sha256
import importlib.metadata

version = cache(importlib.metadata.version)  # which parses a file, and every block asks

#: Goes up by one with every change of what a conversion writes, so that no bundle of an earlier
#: converter is taken for one of this; tests/conversion/test_converted.py notices such a change.
CONVERTER = 6

#: Packages whose versions change the bytes: they trace, lower, round or decode.
PACKAGES = ("coremltools", "gguf", "numpy", "torch")


def code_key() -> str:
    """The converter and the versions that it rests on, as text."""
    versions = [f"{name} {version(name).partition('+')[0]}" for name in PACKAGES]
    return ", ".join([f"converter {CONVERTER}", *versions])


def bundle_key(origin: object, options: dict) -> str:
    """What a bundle's bytes depend on, as one hash: origin of the weights, options, and code."""
    return sha256(f"{origin!r} {sorted(options.items())} {code_key()}".encode()).hexdigest()
