"""What several tests of the executor share."""

from collections.abc import Callable
from functools import cache
import itertools
from pathlib import Path
import weakref

from _package import ADD, write
import pytest


@pytest.fixture
def make(tmp_path) -> Callable:
    """`make(operations, ...)` writes a package."""
    count = itertools.count()
    return lambda *args, **kwargs: write(tmp_path / f"{next(count)}.mlpackage", *args, **kwargs)


@pytest.fixture
def package(make):
    """A sound package of one op: y = x + x."""
    return make([ADD])


@pytest.fixture(scope="session")
def decoder_of(tmp_path_factory) -> Callable[[int], Path]:
    """`decoder_of(tokens)` -> the package of `_decoder.py`, made once."""
    from _decoder import decoder  # coremltools and torch, of which some tests need neither

    folder = tmp_path_factory.mktemp("decoders")
    return cache(lambda tokens: decoder(folder / f"{tokens}.mlpackage", tokens))


@pytest.fixture
def watched(monkeypatch) -> Callable:
    """`most = watched(module, name)`: how many results of that function were alive at once."""

    def watch(module, name: str) -> Callable[[], int]:
        function, made, counts = getattr(module, name), [], [0]

        def counting(*arguments):
            result = function(*arguments)
            made.append(weakref.ref(result))
            counts.append(sum(reference() is not None for reference in made))
            return result

        monkeypatch.setattr(module, name, counting)
        return lambda: max(counts)

    return watch
