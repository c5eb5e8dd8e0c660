"""An answer's text in parts: what the model thought, what it says, and the tools that it calls."""

from collections.abc import Iterator
from typing import Literal

from ane_book.runtime.answer import overlap
from ane_serve.tools.calls import CallPart, CallReader
from ane_serve.tools.tools import ToolForm, Tools

Part = Literal["reasoning", "content"]
WHITE = " \t\r\n"  # as in grammars of calls


class Splitting:
    """Takes a text piece by piece; `add` yields pieces of its parts as they become final.

    form: how the model calls these tools. must: whether it has to call one. tags: around what it
    thinks, if it marks that. begun: whether its prompt ended within a thought.
    `calls` has the calls so far, {"name": str, "arguments": JSON text} each; `whole` says whether
    none was cut.
    """

    def __init__(
        self, form: ToolForm, tools: Tools, must: bool, tags: tuple[str, str] | None, begun: bool
    ):
        self._form, self._tools, self._must = form, tools, must
        self._part: str = "reasoning" if begun else "begin" if tags else "content"
        self._think, self._thought = tags or ("", "")
        self._held, self._said = "", False
        self._reader: CallReader | None = None
        self.calls: list[dict] = []

    @property
    def whole(self) -> bool:
        return self._reader is None or self._reader.whole

    def add(self, text: str) -> Iterator[tuple[Part, str] | CallPart]:
        """Take the next piece of the text."""
        self._held += text
        if self._part == "begin" and not self._begin():
            return
        if self._part == "reasoning":
            yield from self._until(self._thought, "content")
        if self._part == "content":
            yield from self._content()
        if self._part == "calls":
            yield from self._called()

    def finish(self) -> Iterator[tuple[Part, str]]:
        """What was held back; nothing of a call that ended before its name was whole."""
        thinks = self._part == "reasoning"
        if self._held and (thinks or not self._must):
            yield ("reasoning" if thinks else "content"), self._held

    def _called(self) -> Iterator[CallPart]:
        if self._reader is None:
            self._reader = self._form.reader(self._tools)
        new, self._held = self._held, ""
        for part in self._reader.add(new):
            if part.name:
                self.calls.append({"name": part.name, "arguments": ""})
            self.calls[part.index]["arguments"] += part.arguments
            yield part

    def _begin(self) -> bool:
        """Whether it is known if the text begins with a thought."""
        start = self._held.lstrip(WHITE)
        if start != self._think and self._think.startswith(start):
            return False
        thinks = start.startswith(self._think)
        self._part = "reasoning" if thinks else "content"
        self._held = start[len(self._think) :] if thinks else self._held
        return True

    def _content(self) -> Iterator[tuple[Part, str]]:
        if not self._said:  # white space between a thought, or nothing, and what is said
            self._held = self._held.lstrip(WHITE)
            if not self._held:
                return
            self._said = True
            if self._tools and not self._form.opening and self._held.startswith("{"):
                self._part = "calls"
                return
        if self._tools and self._form.opening:
            yield from self._until(self._form.opening, "calls")
        elif self._held:
            yield "content", self._held
            self._held = ""

    def _until(self, mark: str, then: str) -> Iterator[tuple[Part, str]]:
        """Pass on what is before a mark, and go on with the next part behind it."""
        part: Part = "reasoning" if self._part == "reasoning" else "content"
        before, found, behind = self._held.partition(mark)
        if found:
            self._held, self._part = behind, then
        else:
            keep = overlap(self._held, mark)
            before = self._held[: len(self._held) - keep]
            self._held = self._held[len(before) :]
        if before:
            yield part, before
