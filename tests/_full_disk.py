"""A disk that takes no more, as far as this process can tell."""

from collections.abc import Iterator
from contextlib import contextmanager
import sys
from unittest.mock import patch


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file of this process may grow beyond so many bytes."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        with patch.object(sys, "dont_write_bytecode", True):  # or Python keeps half a module
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
