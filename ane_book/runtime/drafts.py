"""Drafters, which guess tokens, so that the function `verify` checks several in one call.

A wrong guess costs time alone: a session draws each token as if there were no guesses. A guess that
equals the token drawn is accepted; another one is dropped, with all after it. With one draw a
token, the same seed gives the same tokens whatever the drafter. That is the rule of Leviathan et
al. 2023 (arXiv 2211.17192) for a drafter that does not draw: a guess x is taken with the model's
own probability p(x), and where it is not, what was drawn is distributed as p without x.

`Lookup` is prompt lookup: Saxena 2023 (github.com/apoorvumang/prompt-lookup-decoding).
"""

from itertools import takewhile
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ane_book.errors import InvalidInput

if TYPE_CHECKING:
    from ane_book.runtime.session import Session


NGRAM = 3  # tokens that a lookup compares at most


@runtime_checkable
class Drafter(Protocol):
    """Guesses how a text goes on."""

    def propose(self, tokens: list[int], most: int) -> list[int]:
        """Guess at most so many tokens after these, which are prompt and answer so far."""
        ...


class Lookup:
    """Guesses what followed where the last tokens occurred before; for one text, which grows."""

    def __init__(self):
        self._after: dict[tuple[int, ...], int] = {}  # tokens -> the position after the last one
        self._read = 0

    def propose(self, tokens: list[int], most: int) -> list[int]:
        for end in range(self._read + 1, len(tokens)):  # what nothing follows yet is left out
            for n in range(1, min(NGRAM, end) + 1):
                self._after[tuple(tokens[end - n : end])] = end
        self._read = max(len(tokens) - 1, 0)
        for n in range(min(NGRAM, len(tokens)), 0, -1):
            if (at := self._after.get(tuple(tokens[-n:]))) is not None:
                return tokens[at : at + most]
        return []


def choose_drafter(draft: Drafter | str, session: "Session") -> Drafter:
    """The drafter for a session: "lookup", or one of your own.

    Raises InvalidInput for anything else, and where the session's bundle has no `verify`.
    """
    if draft != "lookup" and not isinstance(draft, Drafter):
        raise InvalidInput(f'draft must be "lookup", a drafter or None, not {draft!r:.80}')
    if session.block == 1:
        raise InvalidInput(
            f"{session.bundle.path}: converted without verify, it checks no guesses; convert it "
            "with --verify 8, or leave draft out"
        )
    return Lookup() if isinstance(draft, str) else draft


def guesses(drafter: Drafter, tokens: list[int], most: int, vocabulary: int) -> list[int]:
    """A drafter's guesses after these tokens, up to the first that is outside the vocabulary."""
    if most < 1:
        return []
    proposed = drafter.propose(tokens, most)[:most]
    return list(takewhile(lambda guess: 0 <= guess < vocabulary, proposed))
