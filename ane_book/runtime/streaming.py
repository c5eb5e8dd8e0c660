"""Text from tokens while they arrive.

A token of a byte-level vocabulary may end in the middle of a character, so text is held back until
the bytes are whole; with stop strings, also while it could still turn into one. What comes out,
joined, is what decoding all tokens at once gives, cut at the first stop string.
"""

from collections.abc import Mapping
from typing import Protocol


class TokenDecoder(Protocol):
    """Decodes token ids: `tokenizers.Tokenizer`, or one in a process of its own."""

    def decode_batch(self, sequences: list[list[int]]) -> list[str]:
        """The text of each sequence of token ids."""


INCOMPLETE = "\ufffd"  # what a decoder puts for bytes that are not (yet) a character


class TextStream:
    """Feed token ids, get text that will not change any more. Special tokens give no text, but for
    those in `shown`, by id."""

    def __init__(
        self,
        tokenizer: TokenDecoder,
        stops: tuple[str, ...] = (),
        shown: Mapping[int, str] | None = None,
    ):
        self._tokenizer, self._stops, self._shown = tokenizer, stops, shown or {}
        # Text of `_window` up to `_known` is out; earlier ids stay in it only because some decoders
        # treat the first token of a text differently.
        self._window: list[int] = []
        self._known = 0
        self._held = ""
        self.stopped = False  # a stop string came; nothing follows

    def add(self, token_id: int) -> str:
        """The text that this token makes final, often one word, sometimes nothing."""
        if token_id in self._shown:
            before = self._decode(final=True)
            self._window, self._known = [], 0
            return self._release(before + self._shown[token_id], final=False)
        self._window.append(token_id)
        return self._release(self._decode(final=False), final=False)

    def finish(self) -> str:
        """The text that was still held back."""
        return self._release(self._decode(final=True), final=True)

    def _decode(self, final: bool) -> str:
        shown, text = self._tokenizer.decode_batch([self._window[: self._known], self._window])
        if len(text) == len(shown) or (text.endswith(INCOMPLETE) and not final):
            return ""
        self._window, self._known = self._window[self._known :], len(self._window) - self._known
        return text[len(shown) :]

    def _release(self, text: str, final: bool) -> str:
        if self.stopped:
            return ""
        text = self._held + text
        ends = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if ends:
            self.stopped, self._held = True, ""
            return text[: min(ends)]
        keep = 0 if final else max((overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
