"""`Reranker`: score documents for a query with the bundle of a cross-encoder.

    reranker = ane_book.load(folder)
    for found in reranker.rank("Where do cats sleep?", ["On the sofa.", "A bridge."]):
        print(found.relevance_score, found.index)

A model of this kind reads query and document together, as one text, so nothing of a document can be
kept for the next query: rank what a search by vectors found, not everything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
import warnings

from ane_book.errors import InvalidInput, InvalidType, PromptTooLong, TextCut
from ane_book.runtime.embedder import checked_texts
from ane_book.runtime.pooled import PooledEncoder
from ane_book.text.process import check_text
import numpy as np

Pair = tuple[list[int], list[int]]  # token ids, and the type of each


@dataclass(frozen=True)
class Ranked:
    """A document by its place in the list that was given, and how relevant it is: higher is more.

    Scores are from 0 to 1 where the model's own is a sigmoid, and any number where it is none.
    """

    index: int
    relevance_score: float


class Ranking:
    """What scores pairs of a query and a document."""

    def scores(self, pairs: Sequence[Pair]) -> np.ndarray:
        """The relevance score of each encoded pair, float32 (n,), in the order given."""
        raise NotImplementedError

    def _read(self, query: str, document: str, what: str, cut: bool) -> tuple[Pair, str]:
        """A pair, encoded and cut, and the sentence that tells of the cut; "" without one."""
        raise NotImplementedError

    def rank(
        self, query: str, documents: Sequence[str], top_n: int | None = None, cut: bool = True
    ) -> list[Ranked]:
        """The documents, or the `top_n` best, the most relevant first; of equals, the first first.

        cut: shorten the longer of query and document until both have `max_tokens` tokens together,
        as `transformers` does, and warn with one TextCut. Without it such a pair raises
        PromptTooLong. Raises InvalidType (a TypeError too) for anything but a str and a list of
        str, and InvalidInput for a str that is not valid text, or a `top_n` below 1.
        """
        if not isinstance(query, str):
            raise InvalidType(f"the query is {type(query).__name__}, not str")
        if top_n is not None and top_n < 1:
            raise InvalidInput(f"top_n must be 1 or more, not {top_n}")
        documents = checked_texts(documents, "rank")
        read = [self._read(query, text, f"document {i}", cut) for i, text in enumerate(documents)]
        if long := [told for _, told in read if told]:
            more = f"; so are {len(long) - 1:,} more of {len(read):,} documents" * (len(long) > 1)
            warnings.warn(TextCut(long[0] + more), stacklevel=2)
        return ranked(self.scores([pair for pair, _ in read]))[:top_n]

    def encode(
        self, query: str, document: str, what: str = "the document", cut: bool = True
    ) -> Pair:
        """The token ids of a pair, and their types; `what` is the document's name in an error or a
        warning. cut: as `rank` has it."""
        pair, told = self._read(query, document, what, cut)
        if told:
            warnings.warn(TextCut(told), stacklevel=2)
        return pair


class Reranker(Ranking, PooledEncoder):
    """Relevance scores from a bundle."""

    task = "reranking"

    def _read(self, query: str, document: str, what: str, cut: bool) -> tuple[Pair, str]:
        """A pair, encoded and cut, and the sentence that tells of the cut; "" without one."""
        check_text(query, "the query")
        check_text(document, what)
        pair = self._tokenizer.encode_pair(query, document)
        tokens, most = len(pair[0]), self.max_tokens
        if tokens <= most:
            return pair, ""
        if not cut:
            raise PromptTooLong(f"{what} and the query have {tokens:,} tokens; {most} at most")
        told = f"{what} and the query are cut to {most} of their {tokens:,} tokens"
        return self._tokenizer.encode_pair(query, document, most), told

    def scores(self, pairs: Sequence[Pair]) -> np.ndarray:
        """The relevance score of each encoded pair, float32 (n,), in the order given."""
        ids, types = [ids for ids, _ in pairs], [types for _, types in pairs]
        logits = self.columns(ids, types)[:, 0]
        if self._says.score == "identity":
            return logits
        return 1 / (1 + np.exp(-logits.astype(np.float64))).astype(np.float32)


def ranked(scores: np.ndarray) -> list[Ranked]:
    """Scores (n,) in their order, the highest first."""
    order = np.argsort(-scores, kind="stable")
    return [Ranked(int(i), float(str(scores[i]))) for i in order]
