"""Write files atomically, and hash them."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
import hashlib
import os
from pathlib import Path

__all__ = ["sha256", "written_whole"]


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; the file replaces `path` at the end of the block.

    If the block raises, `path` is unchanged and the temporary file is removed. Its name contains
    the process id, so that two processes may write the same file. The content is synced to disk
    before the file is renamed, so that after a power failure there is the old file or the new one.
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
    """The sha256 of a file in hexadecimal. Raises OSError if it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
