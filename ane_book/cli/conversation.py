"""Read and write a conversation in a JSON file."""

import json
from pathlib import Path
import stat
from typing import Final, Literal

from ane_book.errors import InvalidInput, first_fault
from mlprogram.files import written_whole
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

FORMAT: Final = "ane-book chat 1"
MOST = 1 << 24  # bytes


class _ConversationRecord(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class SavedMessage(_ConversationRecord):
    role: Literal["user", "assistant"]
    content: str


class Saved(_ConversationRecord):
    """What is kept of a conversation: questions and answers in turns, and how they were made."""

    format: Literal["ane-book chat 1"] = FORMAT
    model: str = Field(max_length=1000)
    system: str | None = None
    messages: list[SavedMessage]

    @model_validator(mode="after")
    def _check(self) -> "Saved":
        roles = [message.role for message in self.messages]
        if roles != ["user", "assistant"] * (len(roles) // 2):
            raise ValueError("messages are a question and its answer, and so on")
        return self


def read_conversation(path: Path) -> Saved:
    """Read a file of `write_conversation`; raises InvalidInput for any other file."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST:
            raise InvalidInput(f"{path}: not a regular file of at most {MOST:,} bytes")
        return Saved.model_validate_json(path.read_bytes())
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        why = first_fault(error)
        raise InvalidInput(f"{path}: not a conversation that /save wrote: {why}") from None
    except ValueError as error:  # a path with a null character
        raise InvalidInput(f"{path}: {error}") from None


def write_conversation(path: Path, saved: Saved) -> None:
    """Write a conversation to a file that only its owner may read.

    It replaces an older conversation, but no other file. Raises InvalidInput.
    """
    text = json.dumps(saved.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"
    try:
        if path.exists() or path.is_symlink():
            read_conversation(path)
        with written_whole(path) as unfinished:
            unfinished.touch(0o600, exist_ok=False)
            unfinished.write_bytes(text.encode())
    except InvalidInput as error:
        raise InvalidInput(f"{error}; it stays as it is: give another name") from None
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be written ({error.strerror})") from None
    except ValueError as error:  # a path with a null character, half a character in a text
        raise InvalidInput(f"{path}: cannot be written ({error})") from None
