"""Read and write a conversation in a JSON file: its messages, as OpenAI's API has them."""

import json
from pathlib import Path
import stat
from typing import Literal

from ane_book.errors import InvalidInput, first_fault
from mlprogram.files import written_whole
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

MOST = 1 << 24  # bytes


class SavedMessage(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    role: Literal["system", "user", "assistant"]
    content: str


def read_conversation(path: Path) -> list[dict[str, str]]:
    """The messages in a file of `write_conversation`; raises InvalidInput for any other file."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST:
            raise InvalidInput(f"{path}: not a regular file of at most {MOST:,} bytes")
        messages = TypeAdapter(list[SavedMessage]).validate_json(path.read_bytes())
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}") from None
    except ValidationError as error:
        why = first_fault(error)
        raise InvalidInput(f"{path}: not a conversation that /save wrote: {why}") from None
    except ValueError as error:  # a path with a null character
        raise InvalidInput(f"{path}: {error}") from None
    return [message.model_dump() for message in messages]


def write_conversation(path: Path, messages: list[dict[str, str]]) -> None:
    """Write messages to a file that only its owner may read.

    It replaces an older conversation, but no other file. Raises InvalidInput.
    """
    text = json.dumps(messages, indent=1, ensure_ascii=False) + "\n"
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
