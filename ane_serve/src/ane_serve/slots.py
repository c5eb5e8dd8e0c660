"""`Slots`: keep the caches of conversations in memory and on disk, for answers to go on from.

A cache belongs to the API key that asked, and to what computed it: a model, its adapter, its
arithmetic. Nobody else gets it. Memory and disk each hold at most the limit; the cache that was
least recently used is the first to leave either.

    FOLDER/lock                             locked by the server that uses the folder
    FOLDER/KEY/MAKER-CONTENT.safetensors    a cache, and the tokens that it is of

KEY is the start of the sha256 of the key's name, or "no-key". MAKER is the start of the sha256 of
what computed it. CONTENT is the sha256 of the file. No name has anything that a client sends.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
import logging
import os
from pathlib import Path
import re
import stat
from threading import RLock
from typing import NamedTuple, TypeVar
from weakref import finalize

from ane_book.errors import InvalidInput, OutOfSpace
from ane_serve.kept import Arrays, packed, tokens_of, unpacked
from mlprogram.files import telling, written_whole
import numpy as np
from safetensors import SafetensorError

NO_KEY = "no-key"
FOLDER = re.compile(rf"[0-9a-f]{{32}}|{NO_KEY}")
FILE = re.compile(r"([0-9a-f]{16})-([0-9a-f]{64})\.safetensors")
INSTEAD = "give another folder (--cache-dir)"
PART = ".part"  # how the name ends of a file that is being written (`written_whole`)

log = logging.getLogger("ane_serve")

Each = TypeVar("Each")


class Whose(NamedTuple):
    """To whom a cache belongs: the folder of a key, and the fingerprint of what computed it."""

    folder: str
    maker: str


def whose(key: str | None, *made_by: str) -> Whose:
    """What these compute for the key of this name; None: without a key."""
    folder = NO_KEY if key is None else sha256(key.encode()).hexdigest()[:32]
    return Whose(folder, sha256("\n".join(made_by).encode()).hexdigest()[:16])


@dataclass(eq=False)
class _Kept:
    """A cache of tokens (n,): in memory, in a file of `size` bytes, or both."""

    whose: Whose
    tokens: np.ndarray
    arrays: Arrays | None = None
    path: Path | None = None
    size: int = 0

    @property
    def bytes(self) -> int:
        """Of memory."""
        return sum(array.nbytes for array in (self.arrays or {}).values())


class Found(NamedTuple):
    """A cache of tokens, of which the first `usable` are asked for."""

    arrays: Arrays
    tokens: list[int]
    usable: int


class Slots:
    """The caches of conversations.

    most: how many stay in memory. limit: most bytes of those, and most bytes of files. folder: of
    the files, made where it is missing; None: there are none.

    hits, tokens: how many answers went on from a cache, and from how many tokens, by the place of
    the cache: "session" (of the answer before), "memory" or "disk".

    Raises InvalidInput for a folder that another server uses, that others may look into, or that
    cannot be used.
    """

    def __init__(self, most: int, limit: int, folder: Path | None = None):
        self._most, self._limit, self._folder = most, limit, folder
        self.hits, self.tokens = Counter[str](), Counter[str]()
        self._turn, self._told = RLock(), set[str]()
        self._kept: list[_Kept] = []  # the least recently used first
        if folder is not None:
            self._unlock = finalize(self, os.close, _locked(folder))
            with telling(folder, INSTEAD):
                self._kept += self._found(folder)
            self._make_room(0)

    def close(self) -> None:
        """Leave the folder to another server."""
        if self._folder is not None:
            self._unlock()

    @property
    def bytes(self) -> dict[str, int]:
        """What the caches take, in memory and on disk."""
        with self._turn:
            memory = sum(kept.bytes for kept in self._kept)
            return {"memory": memory, "disk": sum(kept.size for kept in self._kept)}

    def find(
        self, whose: Whose, ids: Sequence[int], held: int, width: int, goes_back: bool
    ) -> Found | None:
        """The cache that has most of these tokens (n,); None if none has more than `held`, which
        the session has by itself.

        width: tokens of a call; only whole calls count. goes_back: whether the first tokens of a
        cache serve as well, or all alone.
        """
        wanted, found, place = np.asarray(ids), None, "session"

        def has(kept: _Kept) -> int:
            shared = _shared(kept.tokens, wanted)
            return shared // width * width if goes_back or shared == len(kept.tokens) else 0

        with self._turn:
            for kept in sorted(self._own(whose), key=has, reverse=True):
                if has(kept) <= held:
                    break
                arrays = self._arrays(kept)
                if arrays is not None:
                    place = "disk" if kept.arrays is None else "memory"
                    found = Found(arrays, kept.tokens.tolist(), has(kept))
                    self._touch(kept)
                    break
            count = held if found is None else found.usable
            if count:
                self.hits[place] += 1
                self.tokens[place] += count
        return found

    def has(self, whose: Whose, ids: Sequence[int], goes_back: bool) -> bool:
        """Whether a cache of these tokens (n,) is here, or of more where it serves as well; it
        counts as used."""
        tokens = np.asarray(ids)
        with self._turn:
            for kept in self._own(whose):
                whole = len(kept.tokens) == len(tokens)
                if (whole or goes_back) and _shared(kept.tokens, tokens) == len(tokens):
                    self._touch(kept)
                    return True
        return False

    def put(self, whose: Whose, ids: Sequence[int], arrays: Arrays) -> None:
        """Keep a cache of these tokens (n,), in place of those whose tokens it begins with.

        Where it cannot be written to the disk, the log says so, once.
        """
        tokens = np.asarray(ids)
        with self._turn:
            own = self._own(whose)
            former = [kept for kept in own if _shared(kept.tokens, tokens) == len(kept.tokens)]
            if any(len(kept.tokens) == len(tokens) for kept in former):
                return
            new = _Kept(whose, tokens, arrays)
            self._write(new, former)
            for kept in former:
                self._forget(kept, disk=new.path is not None)
            self._kept.append(new)
            if new.bytes > self._limit:
                self._tell("a cache was not kept", f"its {new.bytes:,} bytes exceed --cache-limit")
                self._forget(new, disk=False)
            self._let_go()

    def _own(self, whose: Whose) -> list[_Kept]:
        return [kept for kept in self._kept if kept.whose == whose]

    def _touch(self, kept: _Kept) -> None:
        """Make it the most recently used, for a server that starts later, too."""
        self._kept.remove(kept)
        self._kept.append(kept)
        if kept.path is not None:
            with suppress(OSError):
                os.utime(kept.path)

    def _forget(self, kept: _Kept, memory: bool = True, disk: bool = True) -> None:
        if memory:
            kept.arrays = None
        if disk and kept.path is not None:
            with suppress(OSError):
                kept.path.unlink()
            kept.path, kept.size = None, 0
        if kept.arrays is None and kept.path is None and kept in self._kept:
            self._kept.remove(kept)

    def _let_go(self) -> None:
        """Keep the limits of memory."""
        held = [kept for kept in self._kept if kept.arrays is not None]
        taken = sum(kept.bytes for kept in held)
        for i, kept in enumerate(held):
            if len(held) - i <= self._most and taken <= self._limit:
                return
            taken -= kept.bytes
            self._forget(kept, disk=False)

    # --- files

    def _found(self, folder: Path) -> Iterator[_Kept]:
        """Yield what the folder has, the least recently used first."""
        own = [each for each in folder.iterdir() if FOLDER.fullmatch(each.name)]
        files = [path for each in own if _is(stat.S_ISDIR, each) for path in each.iterdir()]
        files = [path for path in files if _is(stat.S_ISREG, path)]
        for path in sorted(files, key=lambda path: path.lstat().st_mtime_ns):
            if path.name.endswith(PART):  # a server was killed while it wrote
                path.unlink()
            elif name := FILE.fullmatch(path.name):
                tokens = _read(path, tokens_of)
                if tokens is not None:
                    size = path.stat().st_size
                    yield _Kept(Whose(path.parent.name, name[1]), tokens, path=path, size=size)

    def _arrays(self, kept: _Kept) -> Arrays | None:
        """The arrays of a cache; None, and it is forgotten, if its file is damaged."""
        if kept.arrays is not None or kept.path is None:
            return kept.arrays
        arrays = _read(kept.path, _whole)
        if arrays is None:
            self._forget(kept)
        return arrays

    def _write(self, new: _Kept, former: Sequence[_Kept]) -> None:
        """Write a cache to a file of its own; where the limit is near, `former` leaves first."""
        if self._folder is None or new.arrays is None:
            return
        data = packed(new.arrays, new.tokens)
        folder = self._folder / new.whose.folder
        path = folder / f"{new.whose.maker}-{sha256(data).hexdigest()}.safetensors"
        if len(data) > self._limit:
            return
        self._make_room(len(data), former)
        try:
            with telling(path):
                folder.mkdir(mode=0o700, exist_ok=True)
                with written_whole(path) as part, open(part, "wb", opener=_private) as file:
                    file.write(data)
        except (InvalidInput, OutOfSpace) as error:
            self._tell("a cache is in memory alone", str(error))
        else:
            new.path, new.size = path, len(data)

    def _tell(self, what: str, why: str) -> None:
        """Write a line into the log, if it is the first about this."""
        if what not in self._told:
            log.warning("%s, and others may follow it: %s", what, why)
        self._told.add(what)

    def _make_room(self, size: int, first: Sequence[_Kept] = ()) -> None:
        """Delete files until so many more bytes are within the limit."""
        on_disk = [kept for kept in [*first, *self._kept] if kept.path is not None]
        for kept in on_disk:
            if self.bytes["disk"] + size <= self._limit:
                return
            self._forget(kept, memory=False)


def _shared(a: np.ndarray, b: np.ndarray) -> int:
    """How many first tokens two arrays share."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    return int(differs.argmax()) if differs.any() else n


def _read(path: Path, read: Callable[[Path], Each]) -> Each | None:
    """What is read of a file; None, and the file is deleted, if it is damaged."""
    try:
        return read(path)
    except (OSError, ValueError, SafetensorError) as error:
        log.warning("dropped the damaged cache %s: %s", path, error)
        with suppress(OSError):
            path.unlink()
        return None


def _is(kind: Callable[[int], bool], path: Path) -> bool:
    """Whether a path is of this kind itself: no link, nor a pipe, which one would wait for."""
    return kind(path.lstat().st_mode)


def _whole(path: Path) -> Arrays:
    data = path.read_bytes()
    if sha256(data).hexdigest() not in path.name:
        raise ValueError("its content has changed")
    return unpacked(data)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, mode=0o600)


def _locked(folder: Path) -> int:
    """Make the folder, and lock it until what is returned is closed; raises InvalidInput."""
    try:
        import fcntl
    except ImportError:
        raise InvalidInput("--cache-dir needs a system that locks files; leave it out") from None
    with telling(folder, INSTEAD):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise InvalidInput(
                f"{folder}: it is not for its owner alone, as people's conversations have to be; "
                f"`chmod 700` it, or {INSTEAD}"
            )
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            said = f"{folder}: another server keeps its caches there; {INSTEAD}"
            raise InvalidInput(said) from None
    return lock
