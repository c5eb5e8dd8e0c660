"""What a call of the library or a request may say, as a list for a page: each with its default."""

from ane_book.options import Recipe, Sampling
from pydantic import BaseModel

#: Fields of a request that its own descriptions leave to OpenAI's reference.
CHAT = {
    "model": "by default the first that is served",
    "messages": "each with a `role` and a `content`",
}


def recipe() -> str:
    """The options of a conversion, as Markdown."""
    return _options(Recipe)


def sampling() -> str:
    """The options of an answer, as Markdown."""
    return _options(Sampling)


def _options(record: type[BaseModel]) -> str:
    lines = []
    for name, field in record.model_fields.items():
        usual = "" if field.default in (None, "", ()) else f", by default `{field.default}`"
        lines.append(f"- `{name}`{usual}: {field.description}")
    return "\n".join(lines)


def chat() -> str:
    """The fields of a conversation that is sent to the server, as Markdown."""
    from ane_serve.api.requests import Chat  # a distribution of its own

    lines = []
    for name, field in Chat.model_fields.items():
        ours = getattr(Sampling.model_fields.get(name), "description", "as OpenAI has it")
        lines.append(f"- `{name}`: {CHAT.get(name, field.description or ours)}")
    return "\n".join(lines)
