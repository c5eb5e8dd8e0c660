"""`choose`: how likely a model takes each of some given answers, from one reading of the prompt.

The prompt is run once; each option is then run after it, and the cache goes back to the prompt's
end. The logarithms of the probabilities of an option's tokens are added, so the result is that of
an answer which begins with the option. Shares are these probabilities over their sum. A longer
option is less likely for its length alone: give options of a kind.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ane_book.errors import InvalidInput, PromptTooLong
from ane_book.runtime.logprobs import check_logits, log_softmax
from ane_book.runtime.session import Session
from ane_book.text.chat import Messages
import numpy as np


@dataclass(frozen=True)
class Option:
    """An answer that was given to choose.

    logprob: the logarithm of the probability that an answer begins with it. share: its probability
    among all options. tokens: how many it has.
    """

    text: str
    logprob: float
    share: float
    tokens: int


def choose(
    session: Session, prompt: str | Messages, options: Sequence[str], system: str | None = None
) -> list[Option]:
    """The options, with how likely each is, in the order given.

    Raises InvalidInput for fewer than two options, an empty one, one that is given twice, and where
    the bundle has no logits (argmax_output); PromptTooLong where prompt and option do not fit.
    """
    ids = session.encode(prompt, system)
    session.reset()
    *_, found = choosing(session, ids, options)
    return found or []


def choosing(
    session: Session, ids: list[int], options: Sequence[str]
) -> Iterator[list[Option] | None]:
    """The same for a prompt's tokens, of which the cache may hold some; yields None after each
    option, and the result last."""
    encoded = _encoded(session, options)
    longest = max(map(len, encoded))
    if len(ids) + longest > session.context:
        raise PromptTooLong(
            f"the prompt has {len(ids)} tokens, and the longest option {longest}; the context has "
            f"{session.context}"
        )
    logprobs = []
    for tokens in encoded:
        fresh = ids[session.keep(ids[:-1]) :]
        rows = session.logits([*fresh, *tokens[:-1]])[len(fresh) - 1 :]
        check_logits(rows)
        each = log_softmax(rows.astype(np.float64))
        logprobs.append(float(each[np.arange(len(tokens)), tokens].sum()))
        yield None
    shares = np.exp(np.array(logprobs) - max(logprobs))
    shares /= shares.sum()
    facts = zip(options, logprobs, shares.tolist(), map(len, encoded), strict=True)
    yield [Option(*each) for each in facts]


def _encoded(session: Session, options: Sequence[str]) -> list[list[int]]:
    if isinstance(options, str) or len(options) < 2:
        raise InvalidInput("give at least two options to choose between")
    if len(set(options)) < len(options):
        raise InvalidInput("an option is given twice")
    encoded = [session.plain_tokens(option) for option in options]
    if not all(encoded):
        raise InvalidInput("an option is empty")
    return encoded
