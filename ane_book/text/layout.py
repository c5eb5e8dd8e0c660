"""The records of a chat template as texts around contents, which hosts without Jinja join.

Names, descriptions and the docstrings of records go into `research/manifest.schema.json`.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Segment = Annotated[str, Field(max_length=1 << 16)]
#: Which ends of a text lose what Python's `str.isspace` calls whitespace, or newlines alone.
Strip = Literal["none", "both", "left", "right", "left newlines"]


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


#: A form of dates: days, months and years, but nothing that changes within a day.
DATE = r"^[^%]*(%[aAbBdmYy][^%]*)+$"


class ChatSystem(Record):
    """How a chat template lays out a system prompt."""

    before: Segment = Field(description="What stands before its content")
    after: Segment = Field(description="What stands between its content and the user's")
    strip: Strip = "none"
    empty: Segment | None = Field(
        None,
        description="What stands for all three where nothing is left of the content; null: nothing "
        "is different then",
    )
    last: bool = Field(
        False,
        description="The three stand before the content of the last user message; otherwise before "
        "that of the first, and there in place of `start`",
    )
    joined: bool = Field(
        False,
        description="With the user's content behind them, they lose whitespace at the end as one "
        "text, and the user's content loses none at its beginning",
    )


class ChatSegments(Record):
    """A chat template as the texts around contents; hosts without Jinja join them.

    A conversation is an optional system prompt, then user and assistant in turn, beginning and
    ending with the user: `start`, a user's content, `reply`, an assistant's content, `next`, a
    user's content, ..., `end`.
    """

    start: Segment = Field(
        description="Before the first user's content; with a default system prompt, if there is one"
    )
    reply: Segment = Field(description="Between a user's content and the assistant's")
    next: Segment = Field(description="Between an assistant's content and the user's")
    end: Segment = Field(description="After the last user's content; with the generation prompt")
    system: ChatSystem | None = Field(None, description="null: a system prompt is refused")
    user: Strip = Field("none", description="What user's contents lose")
    assistant: Strip = Field("none", description="What assistant's contents lose")
    cut: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        description="Where an assistant's content has this, only what follows its last place is "
        "laid out, such as after the end of a thought",
    )
    cut_strip: Strip = Field("none", description="What that loses")
    nonempty: bool = Field(
        False, description="An empty content of user or assistant, once stripped, is refused"
    )
    outside: list[Annotated[str, Field(min_length=1)]] = Field(
        [],
        description="A conversation with any of these in a content is refused: the template lays "
        "it out in another way",
    )
    date: Annotated[str, Field(pattern=DATE)] | None = Field(
        None,
        description="Where the texts hold this, such as %d %b %Y, the date stands there, as C's "
        "strftime writes it in English",
    )
