"""An answer's text in parts: what the model thought, what it says, and the tools that it calls."""

from collections.abc import Iterator
from typing import Literal

from ane_book.runtime.streaming import overlap
from ane_book.text.tools import ToolForm

__all__ = ["THINK", "Part", "Splitting"]

Part = Literal["reasoning", "content"]
THINK, THOUGHT = "<think>", "</think>"


class Splitting:
    """Takes a text piece by piece; `add` yields pieces of its parts as they become final.

    form: of the tools that the answer may call; None without tools. thinks: whether the model marks
    what it thinks. begun: whether its prompt ended within that.
    `calls` has the calls after the end, {"name": str, "arguments": JSON text} each.
    """

    def __init__(self, form: ToolForm | None, thinks: bool, begun: bool):
        self._form = form
        self._part: str = "reasoning" if begun else "begin" if thinks else "content"
        self._held, self._said = "", False
        self.calls: list[dict] = []

    def add(self, text: str) -> Iterator[tuple[Part, str]]:
        """Take the next piece of the text."""
        self._held += text
        if self._part == "begin" and not self._begin():
            return
        if self._part == "reasoning":
            yield from self._until(THOUGHT, "content")
        if self._part == "content":
            yield from self._content()

    def finish(self) -> Iterator[tuple[Part, str]]:
        """What was held back; an unfinished call is text."""
        if self._part == "calls":
            assert self._form is not None
            self.calls = self._form.calls(self._held) or []
            self._held = "" if self.calls else self._form.opening + self._held
        if self._held:
            yield ("reasoning" if self._part == "reasoning" else "content"), self._held

    def _begin(self) -> bool:
        """Whether it is known if the text begins with a thought."""
        start = self._held.lstrip()
        if start != THINK and THINK.startswith(start):
            return False
        thinks = start.startswith(THINK)
        self._part = "reasoning" if thinks else "content"
        self._held = start[len(THINK) :] if thinks else self._held
        return True

    def _content(self) -> Iterator[tuple[Part, str]]:
        if not self._said:  # white space between a thought, or nothing, and what is said
            self._held = self._held.lstrip()
            if not self._held:
                return
            self._said = True
            if self._form and not self._form.opening and self._held.startswith("{"):
                self._part = "calls"
                return
        if self._form and self._form.opening:
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
