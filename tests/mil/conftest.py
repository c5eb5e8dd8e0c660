"""What several tests of the executor share."""

from collections.abc import Callable
import weakref

import pytest


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
