"""Files written whole or not at all, and the hashes of what is in them."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
import hashlib
import os
from pathlib import Path

__all__ = ["sha256", "written_whole"]


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """The name to write a file under; it takes the place of `path` when the block has ended.

    Where that raises, the file that was there stays as it was, and nothing is left beside it. The
    name is this process' own, so two that write the same file do not meet. What is written reaches
    the disk before it has its name, so a machine that loses power has the old file or the new one.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield unfinished
        with unfinished.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        with suppress(OSError, ValueError):  # ValueError: a name that no file can have
            unfinished.unlink(missing_ok=True)


def sha256(path: Path) -> str:
    """The hash of a file's bytes, in hexadecimal. Raises OSError where it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
