"""Drafters, which guess tokens, so that the function `verify` checks several in one call.

A wrong guess costs time alone: a session draws each token as if there were no guesses. A guess that
equals the token drawn is accepted; another one is dropped, with all after it. With one draw a
token, the same seed gives the same tokens whatever the drafter. That is the rule of Leviathan et
al. 2023 (arXiv 2211.17192) for a drafter that does not draw: a guess x is taken with the model's
own probability p(x), and where it is not, what was drawn is distributed as p without x.

`Lookup` is prompt lookup: Saxena 2023 (github.com/apoorvumang/prompt-lookup-decoding).
"""

from itertools import takewhile
import json
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ane_book.errors import InvalidInput

if TYPE_CHECKING:
    from ane_book.runtime.session import Session

__all__ = ["Drafter", "Lookup", "Smaller", "choose_drafter", "guesses"]

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


class Smaller:
    """Guesses the likeliest tokens of a smaller model, in a session with a cache of its own."""

    def __init__(self, session: "Session"):
        self._session = session

    def propose(self, tokens: list[int], most: int) -> list[int]:
        own, found = self._session, []
        most = min(most, own.context - len(tokens) + 1)
        if most < 1:
            return []
        output = own.prefill(tokens[own.keep(tokens[:-1]) :])
        while True:
            found.append(int(output if isinstance(output, int) else output.argmax()))
            if len(found) == most:
                return found
            output = own.decode(found[-1])


def choose_drafter(draft: "Drafter | Session | str | None", session: "Session") -> Drafter | None:
    """The drafter for a session: "lookup", another session, or one of your own.

    Raises InvalidInput where the session's bundle has no `verify`, for a model with other tokens,
    and for anything else.
    """
    if draft is None:
        return None
    if draft != "lookup" and not (isinstance(draft, Drafter) or hasattr(draft, "prefill")):
        raise InvalidInput(f'draft must be "lookup", a session or None, not {draft!r:.80}')
    if session.block == 1:
        raise InvalidInput(
            f"{session.bundle.path}: converted without verify, it checks no guesses; convert it "
            "with --verify 8, or leave draft out"
        )
    if isinstance(draft, str):
        return Lookup()
    if isinstance(draft, Drafter):
        return draft
    if draft is session:
        raise InvalidInput("draft: a session cannot guess for itself; open a smaller model")
    if _tokens_of(draft) != _tokens_of(session):
        names = (each.bundle.manifest.name for each in (draft, session))
        raise InvalidInput("draft: {} has other tokens than {}".format(*names))
    return Smaller(draft)


def guesses(drafter: Drafter | None, tokens: list[int], most: int, vocabulary: int) -> list[int]:
    """A drafter's guesses after these tokens, up to the first that is outside the vocabulary: a
    model with the same tokenizer may have more rows."""
    if drafter is None or most < 1:
        return []
    proposed = drafter.propose(tokens, most)[:most]
    return list(takewhile(lambda guess: 0 <= guess < vocabulary, proposed))


def _tokens_of(session: "Session") -> tuple:
    """A tokenizer's vocabulary and added tokens, to compare two models."""
    bundle = session.bundle
    fields = json.loads((bundle.path / bundle.manifest.tokenizer.file).read_bytes())
    added = [(token["id"], token["content"]) for token in fields.get("added_tokens", [])]
    return fields["model"].get("vocab"), sorted(added)
