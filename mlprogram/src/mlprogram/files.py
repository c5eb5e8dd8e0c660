"""Write files and folders whole or not at all, hash them, and say why the system refuses one."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
import errno
import hashlib
import os
from pathlib import Path
import shutil
import stat
from typing import BinaryIO

from mlprogram.errors import InvalidInput, InvalidWeights, OutOfSpace, refuse_pointer

IGNORED = {".DS_Store", "Thumbs.db", "desktop.ini"}  # what systems leave in folders by themselves


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; the file replaces `path` at the end of the block.

    If the block raises, `path` is unchanged and the temporary file is removed. Its name is drawn:
    several may write the same file, and nobody else can have a link ready there. The content is
    synced to disk before the file is renamed, so that after a power failure there is the old file
    or the new one.
    """
    unfinished = path.with_name(f"{path.name}.{os.urandom(8).hex()}.part")
    try:
        yield unfinished
        with unfinished.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError as error:
        if error.filename == str(unfinished):
            error.filename = str(path)  # the name that the user knows
        raise
    finally:
        with suppress(OSError, ValueError):  # ValueError: a name that no file can have
            unfinished.unlink(missing_ok=True)


def sha256(path: Path) -> str:
    """The sha256 of a file in hexadecimal. Raises OSError if it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def regular_files(folder: Path) -> dict[str, int]:
    """Bytes of every regular file below a folder, by its path in it; links are not followed."""
    sizes = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            with suppress(FileNotFoundError):  # deleted just now
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    sizes[path.relative_to(folder).as_posix()] = status.st_size
    return sizes


def content_hash(folder: Path) -> str:
    """sha256 of all files of a package, and of their names."""
    digest = hashlib.sha256()
    for name in sorted(regular_files(folder)):
        digest.update(name.encode() + bytes.fromhex(sha256(folder / name)))
    return digest.hexdigest()


def check_file(path: Path) -> None:
    """Raise InvalidWeights for an unreadable file, a folder, a pipe (which reading would wait for),
    or a Git LFS pointer."""
    if not path.is_file():
        raise InvalidWeights(f"{path}: not a file")
    try:
        refuse_pointer(path, InvalidWeights)
    except OSError as error:
        raise InvalidWeights(f"{path}: cannot be read: {error}") from None


def refuse_others(folder: Path, names: Iterable[str], is_ours: Callable[[str], bool]) -> None:
    """Raise InvalidInput where a file of a folder is somebody else's, and would be lost with it."""
    for name in names:
        if not is_ours(name) and Path(name).name not in IGNORED:
            raise InvalidInput(
                f"{folder} holds {name}, which is not part of it and would be lost; move it away"
            )


def exchange(new: Path, target: Path) -> None:
    """Put the folder `new` in the place of `target`; a former one is NAME.replaced meanwhile, and
    comes back if it cannot be replaced. Raises InvalidInput where that name is taken."""
    if not target.exists():
        new.rename(target)
        return
    old = former_place(target)
    for name in regular_files(new):  # before the old one goes, the new one is on the disk
        with (new / name).open("rb+") as file:
            os.fsync(file.fileno())
    try:
        target.rename(old)
        new.rename(target)
    finally:
        if not target.exists():
            old.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def former_place(target: Path) -> Path:
    """Where `exchange` puts the former folder meanwhile. Raises InvalidInput if it is taken."""
    old = target.with_name(f"{target.name}.replaced")
    if os.path.lexists(old):
        raise InvalidInput(f"{old} is in the way; move it away")
    return old


@contextmanager
def telling(place: Path, instead: str = "name another folder") -> Iterator[None]:
    """Turn errors of the file system into OutOfSpace or InvalidInput, in one sentence."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        where = getattr(error, "filename", None) or place
        if is_full(error):
            raise OutOfSpace(
                f"{where}: {os.strerror(errno.ENOSPC)}; make room, or name another folder"
            ) from None
        if isinstance(error, RuntimeError):
            raise
        reason = error.strerror or error
        raise InvalidInput(f"{where}: {reason}; {instead}") from None


@contextmanager
def private_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write that its user alone can read; of a link, the target is replaced.

    As `written_whole`, whole or not at all. Raises InvalidInput for a place that is no file or
    cannot be written to, and OutOfSpace.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        raise InvalidInput(f"{path}: not a file; name another one")
    with telling(path, "name another file"), written_whole(path) as unfinished:
        new = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(new, "wb") as file:
            yield file


def is_full(error: OSError | RuntimeError) -> bool:
    """Whether a write failed for want of room."""
    full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if getattr(error, "errno", None) in full:
        return True
    if isinstance(error, shutil.Error):  # of a folder's files, each with its reason as a text
        return any(f"[Errno {number}]" in str(error) for number in full)
    # coremltools' writer of weights (C++) and numpy's `tofile` know only that not all was written.
    return "FileWriter" in str(error) or "requested and" in str(error)
