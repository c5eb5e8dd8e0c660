"""A prompt or a conversation as the messages that a chat template takes.

The text of a message goes in as it is, and a marker of the layout in it, such as "<|im_end|>", is
read as that marker: `transformers` does so by default. Where strangers write messages, as to a
server, `TextProcess.literal` cuts such markers in two, so that they are read as text.
"""

from collections.abc import Iterable
import json
from typing import Any

from ane_book.errors import InvalidInput, InvalidType

THOUGHTS = {"<think>": "</think>", "[THINK]": "[/THINK]"}  # how a thought begins and ends
DEEPEST = 100  # lists and objects within each other that a stranger may send

#: A conversation: [{"role": "user", "content": "..."}, ...].
Messages = list[dict]


def as_messages(prompt: str | Messages, system: str | None = None) -> Messages:
    """A prompt or a conversation as messages, with the system prompt in front when there is one.

    An empty system prompt is a message with empty content: many templates put a default in place of
    a missing one. Raises InvalidInput when a message lacks a role or content, and InvalidType for
    what is neither a text nor several messages.
    """
    if isinstance(prompt, str):
        messages = [{"role": "user", "content": prompt}]
    elif isinstance(prompt, dict) or not isinstance(prompt, Iterable):
        raise InvalidType(
            "a prompt is a text, a list of messages or a list of token ids, not "
            f"{type(prompt).__name__}"
        )
    else:
        messages = [_plain_message(message, i) for i, message in enumerate(prompt)]
    if not messages:
        raise InvalidInput("there are no messages; give a prompt or at least one message")
    if system is None:
        return messages
    if messages[0]["role"] == "system":
        raise InvalidInput("the system prompt is given twice: as an argument and as first message")
    return [{"role": "system", "content": system}, *messages]


def _plain_message(message, index: int) -> dict:
    """The message rebuilt from plain JSON values: a template must not meet objects with methods."""
    if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
        raise InvalidInput(f'message {index} is not of the form {{"role": ..., "content": ...}}')
    try:
        plain = json.loads(json.dumps(message))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"message {index} is not plain JSON: {error}") from None
    if not isinstance(plain["role"], str):
        raise InvalidInput(f"message {index}: its role is not a string")
    return plain


def thought_tags(template: str) -> tuple[str, str] | None:
    """The tags around a model's thought, where its chat template has some."""
    return next((tags for tags in THOUGHTS.items() if tags[0] in template), None)


def too_deep(value: Any) -> bool:
    """Whether lists and objects of a JSON value lie deeper in each other than is taken."""
    level = [value]
    for _ in range(DEEPEST):
        nested = [each for each in level if isinstance(each, list | dict)]
        level = [v for each in nested for v in (each.values() if isinstance(each, dict) else each)]
    return any(isinstance(each, list | dict) for each in level)
