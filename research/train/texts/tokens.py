"""Texts to tokens with labels, and tokens to rows of a batch.

The tokenizer is BPE over bytes. What may be a span's end is always a token's end: a sign that is
neither letter nor digit stands alone, and of digits two at most make a token.
"""

from random import Random

from ane_book.models.privacy_filter import LABELS
import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from texts.documents import Span, document, joined

PIECES = r" ?\p{L}+| ?\p{N}{1,2}| ?[^\s\p{L}\p{N}]|\s+(?!\S)|\s+"
IGNORED = -100  # cross_entropy's sign for a token that does not count
NUMBER = {label: i for i, label in enumerate(LABELS)}


def train_tokenizer(texts: int, vocabulary: int, seed: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PIECES), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    own = (joined(document(Random(f"words {seed} {i}")))[0] for i in range(texts))
    tokenizer.train_from_iterator(own, trainer)
    return tokenizer


def labels_of(places: list[tuple[int, int]], spans: list[Span]) -> list[int]:
    """The number of each token's label; places: where tokens start and end, in characters."""
    found = [0] * len(places)
    for start, end, kind in spans:
        own = [i for i, (a, b) in enumerate(places) if a < end and b > start]
        parts = "S" if len(own) == 1 else "B" + "I" * (len(own) - 2) + "E"
        for i, part in zip(own, parts, strict=True):
            found[i] = NUMBER[f"{part}-{kind}"]
    return found


class Rows:
    """Batches of rows of T tokens; what a batch holds depends on its number alone."""

    def __init__(self, tokenizer: Tokenizer, rows: int, tokens: int, seed: int):
        self._tokenizer, self._shape, self._seed = tokenizer, (rows, tokens), seed

    def batch(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Ids, labels and mask, int64 (rows, T): the mask is 0 where a row has no token."""
        rng = Random(f"train {self._seed} {number}")
        ids, labels, mask = (np.zeros(self._shape, np.int64) for _ in range(3))
        labels += IGNORED
        for row in range(self._shape[0]):
            own, names = self._row(rng)
            ids[row, : len(own)], labels[row, : len(own)] = own, names
            mask[row, : len(own)] = 1
        return ids, labels, mask

    def _document(self, rng: Random, end: str) -> tuple[list[int], list[int]]:
        text, spans = joined(document(rng))
        coded = self._tokenizer.encode(text + end)
        return coded.ids, labels_of(coded.offsets, spans)

    def _row(self, rng: Random) -> tuple[list[int], list[int]]:
        """Documents one after another; the first may have begun before, the last may go on."""
        T = self._shape[1]
        between = rng.choice(["\n", "\n\n", "\n\n", "\n\n---\n\n", " ", ""])
        alone = rng.random() < 0.15  # a short text, and nothing else
        ids, labels = self._document(rng, "" if alone else between)
        if not alone and len(ids) > 8 and rng.random() < 0.5:
            first = rng.randrange(len(ids) - 4)
            ids, labels = ids[first:], labels[first:]
            labels = _without_a_half(labels, "IE", "ES")
        while len(ids) < T and not alone:
            more, names = self._document(rng, between)
            if len(ids) + len(more) > T and rng.random() < 0.5:
                break
            ids, labels = ids + more, labels + names
        if len(ids) > T:
            ids, labels = ids[:T], _without_a_half(labels[:T][::-1], "BI", "BS")[::-1]
        return ids, labels


def _without_a_half(labels: list[int], inside: str, end: str) -> list[int]:
    """A span that is cut at the first token does not count: neither end nor length is known."""
    found = list(labels)
    for i, number in enumerate(labels):
        part = LABELS[number][0]
        if part not in inside:
            break
        found[i] = IGNORED
        if part in end:
            break
    return found
