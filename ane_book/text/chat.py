"""Chat templates, rendered as `transformers` renders them, without importing it.

A chat model was trained on one exact layout of roles and markers; the layout travels with the model
as a Jinja template. A template comes from a file that somebody else wrote, so it runs in a sandbox,
and that in a process with limits (`ane_book.text.process`): no sandbox bounds `9 ** 9 ** 9`.

The text of a message goes in as it is, and a marker of the layout in it, such as "<|im_end|>", is
read as that marker: `transformers` does so by default. Where strangers write messages, as to a
server, `apart` cuts such markers in two, so that they are read as text.

Reference: https://huggingface.co/docs/transformers/chat_templating (and its
`utils/chat_template_utils.py` for the names a template may use).
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import lru_cache
import json
import re
from typing import Any

from ane_book.errors import InvalidInput, InvalidType
from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["Messages", "apart", "as_messages", "render"]

#: A conversation: [{"role": "user", "content": "..."}, ...].
Messages = list[dict]


class _Generation(Extension):
    """`{% generation %}` marks what the model said, for training; rendering is its body alone."""

    tags = {"generation"}  # noqa: RUF012 -- as the base class has it

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _raise_exception(message: str):
    raise TemplateError(message)


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    # Jinja's own filter escapes <, > and & for HTML, which the model has never seen.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


@lru_cache(maxsize=8)
def _compile(template: str):
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    try:
        return environment.from_string(template)
    except Exception as error:  # the compiler folds constants, so it meets all that code can raise
        raise InvalidInput(
            f"the model's chat template is not valid Jinja: {_reason(error)}"
        ) from None


def _reason(error: Exception) -> str:
    """The message of an error, with its type unless the template raised it."""
    named = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
    return f"{named}{error}"


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


def apart(value: Any, markers: Sequence[str], cut: str) -> Any:
    """A JSON value with `cut` within each marker that a text of it has, where it is to be cut."""
    if not markers:
        return value
    pattern = re.compile("|".join(re.escape(each) for each in sorted(markers, key=len)[::-1]))
    return _each_text(value, lambda text: pattern.sub(lambda m: f"{m[0][0]}{cut}{m[0][1:]}", text))


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _each_text(each, change) for key, each in value.items()}
    return [_each_text(each, change) for each in value] if isinstance(value, list) else value


def render(
    template: str,
    messages: Messages,
    *,
    add_generation_prompt: bool = True,
    bos_token: str | None = None,
    eos_token: str | None = None,
    now: datetime | None = None,
    tools: Sequence[dict] | None = None,
) -> str:
    """Render messages as the text that the model reads; it holds all special tokens already.

    now: for a template that writes the date; by default what the clock says. tools: functions that
    the model may ask for, where the template knows any.
    Raises InvalidInput with the template's own words when it refuses the messages.
    """
    tokens = {"bos_token": bos_token, "eos_token": eos_token}
    try:
        return _compile(template).render(
            messages=messages,
            tools=tools,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            strftime_now=lambda layout: (now or datetime.now()).strftime(layout),
            **{name: token for name, token in tokens.items() if token is not None},
        )
    except Exception as error:  # a template is a program, and may fail as any
        raise InvalidInput(
            f"the model's chat template refuses these messages: {_reason(error)}"
        ) from None
