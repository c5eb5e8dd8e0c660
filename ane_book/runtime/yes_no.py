"""`YesNoReranker`: score documents by a decoder that says yes or no, such as Qwen3-Reranker.

    session = ane_book.load(folder)
    YesNoReranker(session).rank("Where do cats sleep?", ["On the sofa.", "A bridge."])

The score is the probability of "yes" between these two words, after the prompt on Qwen3-Reranker's
model card, for which that model was trained; another chat model answers it as well as it can. The
prompt's beginning with the query stays in the cache from one document to the next.

Reference: https://huggingface.co/Qwen/Qwen3-Reranker-0.6B
"""

from collections.abc import Sequence

from ane_book.errors import InvalidInput, PromptTooLong
from ane_book.runtime.logprobs import check_logits
from ane_book.runtime.reranker import Pair, Ranking
from ane_book.runtime.session import Session
from ane_book.text.process import check_text
import numpy as np

INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n"
)
BEHIND = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


class YesNoReranker(Ranking):
    """Relevance scores from a session of a decoder, from 0 to 1.

    instruction: what makes a document relevant, in English. What is too long loses its end.
    Raises InvalidInput for a bundle that returns no logits, or whose tokenizer splits yes or no.
    """

    def __init__(self, session: Session, instruction: str = INSTRUCTION):
        name = session.bundle.manifest.name
        if session.bundle.manifest.argmax_output:
            raise InvalidInput(f"{name} gives the likeliest token alone, so nothing of yes and no")
        self.session, self._instruction = session, instruction
        self._words = [session.token_id(word) for word in ("yes", "no")]
        self._before, self._behind = session.tokens(BEFORE), session.tokens(BEHIND)

    def _read(self, query: str, document: str, what: str, cut: bool) -> tuple[Pair, str]:
        check_text(query, "the query")
        check_text(document, what)
        said = f"<Instruct>: {self._instruction}\n<Query>: {query}\n<Document>: {document}"
        ids, most = self.session.plain_tokens(said), self.session.context
        tokens = len(self._before) + len(ids) + len(self._behind)
        if tokens > most and not cut:
            raise PromptTooLong(f"{what} and the query have {tokens:,} tokens; {most} at most")
        ids = ids[: len(ids) - max(0, tokens - most)]
        told = f"{what} and the query are cut to {most} of their {tokens:,} tokens"
        pair: Pair = [*self._before, *ids, *self._behind], []
        return pair, told * (tokens > most)

    def scores(self, pairs: Sequence[Pair]) -> np.ndarray:
        """As `Reranker.scores`; what the cache holds of a prompt is not run again."""
        return np.array([self._score(ids) for ids, _ in pairs], np.float32)

    def _score(self, ids: list[int]) -> float:
        logits = np.asarray(self.session.prefill(ids[self.session.keep(ids[:-1]) :]), np.float64)
        check_logits(logits)
        yes, no = logits[self._words]
        return float(1 / (1 + np.exp(no - yes)))
