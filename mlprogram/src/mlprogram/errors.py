"""The errors of this library: one sentence each that says what is wrong, where, and what to do.

Every error that is caused by an input derives from `MLProgramError`; the command prints its message
without a traceback and exits with code 2. Any other exception is a bug of this library.

Messages quote untrusted files, so they are cleaned: they are safe to print on a terminal.
"""

from pathlib import Path
import re

LONGEST = 2000  # the most characters of a message, which may quote a file
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and line feed
POINTER = b"version https://git-lfs.github.com/spec/"  # how one of Git LFS begins


def printable(text: str) -> str:
    """Escape control characters, such as \\x1b, which a terminal would obey."""
    return CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


class MLProgramError(Exception):
    """Base class of all errors that an input causes."""

    def __str__(self) -> str:
        text, half = super().__str__(), LONGEST // 2
        if len(text) > LONGEST:  # what is wrong stands at both ends, what a file says in the middle
            text = f"{text[:half]} ... {text[-half:]}"
        return printable(text)


class InvalidPackage(MLProgramError):
    """A file or folder is not a valid package with an ML Program."""


class AbsentFile(InvalidPackage):
    """A file that a package names is not there, or a pointer of Git LFS stands in its place."""


class UnsupportedOp(MLProgramError):
    """An ML Program uses an op that the executor does not have."""


class InvalidInput(MLProgramError):
    """An argument, or an array given to a program, has the wrong name, shape, dtype or value."""


class InvalidType(InvalidInput, TypeError):
    """An argument has the wrong type. Also a TypeError, which is what coremltools raises."""


class InvalidWeights(MLProgramError):
    """A weight file is cut short or damaged, or a tensor is missing, left over or misshapen."""


class UnsupportedModel(MLProgramError):
    """The file is sound, but its architecture, tokenizer or tensor type is not one that we have."""


class OutOfSpace(MLProgramError):
    """The disk has no room for what is to be written; the message says where."""


def refuse_pointer(path: Path, error: type[MLProgramError]) -> None:
    """Raise `error` if a file is a pointer of Git LFS, whose content was not fetched.

    Raises OSError if the file cannot be opened.
    """
    with path.open("rb") as file:
        start = file.read(len(POINTER))
    if start == POINTER:
        raise error(
            f"{path}: a pointer of Git LFS in the place of the file itself; run `git lfs pull` in "
            "the repository that it comes from"
        )
