"""Files of the cache that hold code, or addresses: read only as this user wrote them.

A file is named KEY-SHA256.SUFFIX: by what it was made of, and by its own content. It lies in a
folder that only the user may write. One that is cut, damaged, another user's, a link, or open to
others' writing is not read.
"""

from collections.abc import Callable
import hashlib
import os
from pathlib import Path
import stat

from mlprogram.machine import cache_folder


def private_folder() -> Path:
    """The folder in the cache; raises OSError if others may write to it."""
    folder = cache_folder() / "kernels"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_users_alone(folder.lstat(), stat.S_ISDIR):
        raise PermissionError(f"others may write {folder}, or it is theirs")
    return folder


def opened(path: Path) -> int | None:
    """A descriptor of a file that is as it was written; None of any other."""
    try:  # no link is followed, and no pipe waited for
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with open(descriptor, "rb", closefd=False) as file:
        sound = _is_users_alone(os.fstat(descriptor), stat.S_ISREG)
        sound = sound and path.stem.endswith(hashlib.file_digest(file, "sha256").hexdigest())
    if sound:
        os.lseek(descriptor, 0, os.SEEK_SET)
        return descriptor
    os.close(descriptor)
    return None


def _is_users_alone(info: os.stat_result, kind: Callable[[int], bool]) -> bool:
    """Whether a file is of this kind, belongs to the user, and is writable by nobody else."""
    return kind(info.st_mode) and info.st_uid == os.geteuid() and not info.st_mode & 0o022
