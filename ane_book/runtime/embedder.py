"""`Embedder`: turn texts into vectors with an encoder's bundle.

    embedder = ane_book.load("all-minilm-l6-v2")
    vectors = embedder.embed(["A cat.", "A kitten."])    # float32 (2, 384), of length 1

Letters: C hidden size, E numbers of a vector, n texts.
"""

from collections.abc import Iterable, Sequence
import warnings

from ane_book.errors import InvalidBundle, InvalidInput, InvalidType, PromptTooLong, TextCut
from ane_book.runtime.pooled import PooledEncoder
from ane_book.text.process import check_text
import numpy as np


class Embedder(PooledEncoder):
    """Sentence vectors from a bundle."""

    task = "embedding"

    @property
    def size(self) -> int:
        """Numbers of a vector where nothing else is asked for."""
        return self._says.dimensions or self._whole

    @property
    def prompts(self) -> dict[str, str]:
        """What the model's texts may have before them, by name."""
        return self._says.prompts

    def embed(
        self,
        texts: Sequence[str],
        cut: bool = True,
        prompt: str | None = None,
        dimensions: int | None = None,
    ) -> np.ndarray:
        """A vector for each text, float32 (n, E), each of length 1.

        Their products are their cosines: `vectors @ vectors.T`. A vector is made of those of its
        text's tokens, as the model was trained for: their mean, the first or the last. An empty
        text has a vector; a list of none gives (0, E).

        cut: shorten a text of more than `max_tokens` tokens, special tokens included, as
        sentence-transformers does, and warn with one TextCut for the list. Without it such a text
        raises PromptTooLong.

        prompt: the name of one of `prompts`, or a text, that stands before each text; by default
        the model's own default, "" for none. dimensions: cut vectors to so many numbers, and scale
        them to length 1 again, which is for models that were trained for it.

        Raises InvalidType (a TypeError too) for anything but a list of str, and InvalidInput for a
        str that is not valid text, an unknown prompt, or more dimensions than there are.
        """
        texts, before = checked_texts(texts, "embed"), self.prompt(prompt)
        read = [self._read(before + text, f"text {i}", cut) for i, text in enumerate(texts)]
        long = [self._cut(f"text {i}", n) for i, (_, n) in enumerate(read) if n > self.max_tokens]
        if long:
            more = f"; so are {len(long) - 1:,} more of {len(texts):,} texts" * (len(long) > 1)
            warnings.warn(TextCut(long[0] + more), stacklevel=2)
        return self.vectors([ids for ids, _ in read], dimensions)

    def prompt(self, asked: str | None = None) -> str:
        """The text of the prompt that is asked for, by its name or as it is; raises InvalidInput
        for one word that is no name."""
        name = self._says.default_prompt if asked is None else asked
        if not name or name in self.prompts:
            return self.prompts[name] if name else ""
        if name.replace("-", "_").isidentifier():
            known = ", ".join(self.prompts) or "none"
            raise InvalidInput(
                f"no prompt of this model is called {name!r}; there are: {known}. A text of your "
                "own is taken as it is if it is more than a word, such as 'query: '"
            )
        return name

    def encode(
        self, text: str, what: str = "the text", cut: bool = True, prompt: str | None = None
    ) -> list[int]:
        """A text's token ids, with a prompt as `embed` takes it; `what` is the text's name in an
        error or a warning.

        cut: to `max_tokens`, with a TextCut; without it a longer text raises PromptTooLong.
        """
        ids, tokens = self._read(self.prompt(prompt) + text, what, cut)
        if tokens > self.max_tokens:
            warnings.warn(TextCut(self._cut(what, tokens)), stacklevel=2)
        return ids

    def _read(self, text: str, what: str, cut: bool) -> tuple[list[int], int]:
        """A text's token ids, at most `max_tokens`, and how many there are without the cut."""
        check_text(text, what)
        ids = self._tokenizer.encode(text, special=True)
        tokens = len(ids)
        if tokens > self.max_tokens:
            if not cut:
                raise PromptTooLong(f"{what} has {tokens:,} tokens; {self.max_tokens} at most")
            ids = self._tokenizer.encode(text, special=True, most=self.max_tokens)
        return ids, tokens

    def _cut(self, what: str, tokens: int) -> str:
        return f"{what} is cut to the first {self.max_tokens} of its {tokens:,} tokens"

    def vectors(
        self, token_ids: Sequence[Sequence[int]], dimensions: int | None = None
    ) -> np.ndarray:
        """The same as `embed`, from token ids: 1 to `max_tokens` for each text."""
        size = self.size if dimensions is None else dimensions
        if not 0 < size <= self._whole:
            raise InvalidInput(f"dimensions: 1 to {self._whole}, not {size}")
        columns = self.columns(token_ids)[:, :size]
        lengths = np.linalg.norm(columns, axis=1, keepdims=True)
        for i in np.flatnonzero(~((lengths > 0) & np.isfinite(lengths))):
            raise InvalidBundle(
                f"{self.bundle.path}: text {i} has a vector of length {lengths[i, 0]}; take "
                'precision "fp32"'
            )
        return columns / lengths


def checked_texts(texts: Iterable[str], call: str) -> list[str]:
    """Texts as a list; raises InvalidType for anything but str, naming what was called."""
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        kind = type(texts).__name__
        raise InvalidType(f"{call} takes a list of str, not {kind}: {call}([text])")
    texts = list(texts)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidType(f"text {i} is {type(text).__name__}, not str")
    return texts
