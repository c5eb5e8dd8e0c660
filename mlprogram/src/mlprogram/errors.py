"""The errors of this library: one sentence each that says what is wrong, where, and what to do.

Every error that an input is to blame for derives from `MLProgramError`; the command prints its
message without a traceback and exits with code 2. Anything else that escapes is a bug of ours.

Messages name what stands in files that nobody vouches for. They can be shown as they are.
"""

from pathlib import Path
import re

LONGEST = 2000  # characters of a message, which may quote a file
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and line feed
POINTER = b"version https://git-lfs.github.com/spec/"  # how one of Git LFS begins


def printable(text: str) -> str:
    """The text with control characters spelled out, such as \\x1b: a terminal obeys those."""
    return CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


class MLProgramError(Exception):
    """Base of all errors that the input, not the library, is to blame for."""

    def __str__(self) -> str:
        text, half = super().__str__(), LONGEST // 2
        if len(text) > LONGEST:  # what is wrong stands at both ends, what a file says in the middle
            text = f"{text[:half]} ... {text[-half:]}"
        return printable(text)


class InvalidPackage(MLProgramError):
    """A folder is not a sound `.mlpackage` that holds an ML Program."""


class UnsupportedOp(MLProgramError):
    """An ML Program uses an op that the executor does not have."""


class InvalidInput(MLProgramError):
    """An argument, or an array given to a program, has the wrong name, shape, dtype or value."""


class InvalidType(InvalidInput, TypeError):
    """What was given is of a type that is not taken; a TypeError as well, as coremltools has it."""


def refuse_pointer(path: Path, error: type[MLProgramError]) -> None:
    """Raise `error` for what Git LFS leaves in the place of a file until that is fetched.

    OSError where the file cannot be opened.
    """
    with path.open("rb") as file:
        start = file.read(len(POINTER))
    if start == POINTER:
        raise error(
            f"{path}: a pointer of Git LFS in the place of the file itself; run `git lfs pull` in "
            "the repository that it comes from"
        )
