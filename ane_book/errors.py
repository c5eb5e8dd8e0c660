"""The errors of this library: one sentence each that says what is wrong, where, and what to do.

Every error a user can cause derives from `AneBookError`; the command line prints its message
without a traceback and exits with code 2. It does the same with an OSError that names its file: no
permission, no room, a name that is too long. Anything else that escapes is a bug of ours.

Messages name what stands in files that nobody vouches for. They can be shown as they are.
"""

from pathlib import Path
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

LONGEST = 2000  # characters of a message, which may quote a file
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and line feed
POINTER = b"version https://git-lfs.github.com/spec/"  # how one of Git LFS begins


def printable(text: str) -> str:
    """The text with control characters spelled out, such as \\x1b: a terminal obeys those."""
    return CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def first_fault(error: "ValidationError") -> str:
    """Where and what: the first thing that pydantic found wrong in a file, on one line."""
    first = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(map(str, first["loc"])) or "the file"
    return printable(f"{place}: {first['msg']}")[:300]


class AneBookError(Exception):
    """Base of all errors that the input, not the library, is to blame for."""

    def __str__(self) -> str:
        text, half = super().__str__(), LONGEST // 2
        if len(text) > LONGEST:  # what is wrong stands at both ends, what a file says in the middle
            text = f"{text[:half]} ... {text[-half:]}"
        return printable(text)


class UnknownModel(AneBookError):
    """A model name that is neither a reference model nor a bundle's folder."""


class WeightsNotFound(AneBookError):
    """No place that was tried holds the weights of the model; the message lists the places."""


class InvalidWeights(AneBookError):
    """A weight file is cut short or damaged, or a tensor is missing, left over or misshapen."""


class UnsupportedModel(AneBookError):
    """The file is sound, but its architecture, tokenizer or tensor type is not one that we have."""


class InvalidPackage(AneBookError):
    """A folder is not a sound `.mlpackage` that holds an ML Program."""


class UnsupportedOp(AneBookError):
    """An ML Program uses an op that the executor does not have."""


class InvalidInput(AneBookError):
    """An argument, or an array given to a program, has the wrong name, shape, dtype or value."""


class InvalidType(InvalidInput, TypeError):
    """What was given is of a type that is not taken; a TypeError as well, as coremltools has it."""


class OutOfSpace(AneBookError):
    """The disk has no room for what is to be written; the message says where."""


class InvalidBundle(AneBookError):
    """A bundle's manifest is unreadable or disagrees with the files beside it."""


class PromptTooLong(AneBookError):
    """The prompt does not fit the context length that the bundle was compiled for."""


class SessionBusy(AneBookError):
    """A session is in the middle of another call or stream; it has one cache, for one at a time."""


class BackendUnavailable(AneBookError):
    """The backend that was asked for cannot run on this machine; the message says why."""


class ServerError(AneBookError):
    """A server that was asked by its URL did not answer as OpenAI's API has it."""


class MachineLost(AneBookError):
    """A machine of a cluster is gone, and what it was at work on could not go on elsewhere."""


class TextCut(UserWarning):
    """A text has more tokens than the model reads: its vector is made of the first of them."""


class SchemeWarning(UserWarning):
    """A form of weights that is known to break models, or to leave the Neural Engine."""


def refuse_pointer(path: Path, error: type[AneBookError]) -> None:
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
