"""The errors of this library: one sentence each that says what is wrong, where, and what to do.

Every error a user can cause derives from `AneBookError`; the command line prints its message
without a traceback and exits with code 2. It does the same with an OSError that names its file: no
permission, no room, a name that is too long. Anything else that escapes is a bug of ours.

Messages name what stands in files that nobody vouches for. They can be shown as they are.
"""

from typing import TYPE_CHECKING

from mlprogram.errors import (  # noqa: F401  (those of the executor can be had here, too)
    InvalidInput,
    InvalidPackage,
    InvalidType,
    InvalidWeights,
    OutOfSpace,
    UnsupportedModel,
    UnsupportedOp,
    printable,
    refuse_pointer,
)
from mlprogram.errors import MLProgramError as AneBookError

if TYPE_CHECKING:
    from pydantic import ValidationError

#: What scores documents, and what weighs answers, since no code of this library does.
BY_LOGITS = (
    "a model that generates text does it by session.logits: book/api.md, 'Yes or no, or one of "
    "several'"
)


def first_fault(error: "ValidationError") -> str:
    """Where and what: the first thing that pydantic found wrong in a file, on one line."""
    first = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(map(str, first["loc"]))[:100]
    message = first["msg"].removeprefix("Value error, ")
    return printable(f"{place}: {message}" if place else message)[:300]


class UnknownModel(AneBookError):
    """A model name that is neither a reference model nor a bundle's folder."""


class WeightsNotFound(AneBookError):
    """No place that was tried holds the weights of the model; the message lists the places."""


class InvalidBundle(AneBookError):
    """A bundle's manifest is unreadable or disagrees with the files beside it."""


class PromptTooLong(AneBookError):
    """The prompt does not fit the context length that the bundle was compiled for."""


class SessionBusy(AneBookError):
    """A session is in the middle of another call or stream; it has one cache, for one at a time."""


class BackendUnavailable(AneBookError):
    """The backend that was asked for cannot run on this machine; the message says why."""


class TextCut(UserWarning):
    """A text has more tokens than the model reads: its vector is made of the first of them."""


class ScalesLeftOut(UserWarning):
    """A checkpoint says how another engine rounds activations, which a bundle does not do."""


class SchemeWarning(UserWarning):
    """A form of weights that is known to break models, or to leave the Neural Engine."""
