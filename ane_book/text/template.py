"""Chat templates, rendered as `transformers` renders them, without importing it.

A chat model was trained on one exact layout of roles and markers; the layout travels with the model
as a Jinja template. A template comes from a file that somebody else wrote, so it runs in a sandbox,
and that in a process with limits (`ane_book.text.process`): no sandbox bounds `9 ** 9 ** 9`.

Reference: https://huggingface.co/docs/transformers/chat_templating (and its
`utils/chat_template_utils.py` for the names a template may use).
"""

from collections.abc import Collection, Sequence
from datetime import datetime
from functools import lru_cache
import json

from ane_book.errors import InvalidInput
from ane_book.text.chat import Messages, thought_tags
from jinja2 import TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


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
    """The template, and the names of what it is given."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    try:
        names = meta.find_undeclared_variables(environment.parse(template))
        return environment.from_string(template), names
    except Exception as error:  # the compiler folds constants, so it meets all that code can raise
        raise InvalidInput(
            f"the model's chat template is not valid Jinja: {_reason(error)}"
        ) from None


def _reason(error: Exception) -> str:
    """The message of an error, with its type unless the template raised it."""
    named = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
    return f"{named}{error}"


def _switches(effort: str, names: Collection[str], thinks: bool) -> dict[str, str | bool]:
    """What a template is told of how much the model is to think.

    names: of what the template is given. gpt-oss' and newer ones of Mistral's know the effort by
    its name; those of Qwen3, SmolLM3 and EXAONE 4 whether to think, Granite 3.3's by a shorter
    name. thinks: whether it has tags of a thought.
    """
    named = {"reasoning_effort": effort} if "reasoning_effort" in names else {}
    thinking = effort not in ("none", "minimal")
    found = named | {n: thinking for n in ("enable_thinking", "thinking") if n in names}
    if not found and (thinking or thinks):
        raise InvalidInput(
            f"reasoning_effort: this model's chat template has no switch for {effort!r}; leave it "
            "out"
        )
    return found


def render(
    template: str,
    messages: Messages,
    *,
    add_generation_prompt: bool = True,
    bos_token: str | None = None,
    eos_token: str | None = None,
    now: datetime | None = None,
    tools: Sequence[dict] | None = None,
    effort: str | None = None,
) -> str:
    """Render messages as the text that the model reads; it holds all special tokens already.

    now: for a template that writes the date; by default what the clock says. tools: functions that
    the model may ask for, where the template knows any. effort: how much the model is to think.
    Raises InvalidInput with the template's own words when it refuses the messages.
    """
    tokens = {"bos_token": bos_token, "eos_token": eos_token}
    compiled, names = _compile(template)
    thinks = thought_tags(template) is not None
    switches = {} if effort is None else _switches(effort, names, thinks)
    try:
        return compiled.render(
            messages=messages,
            tools=tools,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            strftime_now=lambda layout: (now or datetime.now()).strftime(layout),
            **{name: token for name, token in tokens.items() if token is not None},
            **switches,
        )
    except Exception as error:  # a template is a program, and may fail as any
        raise InvalidInput(
            f"the model's chat template refuses these messages: {_reason(error)}"
        ) from None
