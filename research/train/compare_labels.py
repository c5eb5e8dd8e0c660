"""The labels of the trained tagger: `transformers` against the converted package, 1,000 texts.

    python research/train/compare_labels.py

The reference is `transformers` in float32, with the committed weights; both sides' scores go
through the same Viterbi. Where labels differ, `margin` says by how much: the score of the
reference's label less that of the other one, in the reference's own scores.

A router's choice jumps: where the fourth expert and the fifth are as good as equal, the last bit
decides which is taken, and the scores of that token and of those that see it move by more than
rounding does. `tokens_off` counts those that moved by more than a thousandth.
"""

import ane_book
from ane_book.runtime.sampling import log_softmax
from ane_book.runtime.tags.spans import Viterbi
from evaluate import SETS, generated
import numpy as np
from privacy_filter import RESULT, add_to_record
from tokenizers import Tokenizer
import torch

TEXTS = 1000


def labels_of(names: list[str], scores: np.ndarray) -> np.ndarray:
    best = Viterbi(names)
    return np.concatenate([best.push(log_softmax(scores)), best.finish()])


class Reference:
    """`transformers`, float32."""

    def __init__(self):
        from transformers import OpenAIPrivacyFilterForTokenClassification as Model

        model = Model.from_pretrained(RESULT, dtype=torch.float32)
        self._model = model.eval().requires_grad_(False)
        self.tokenizer = Tokenizer.from_file(str(RESULT / "tokenizer.json"))

    def scores(self, ids: np.ndarray) -> np.ndarray:
        return self._model(torch.from_numpy(ids)[None]).logits[0].numpy()


def compare(tagger, reference: Reference, texts: list[str]) -> dict:
    """Tokens and texts whose labels differ, and by what margin."""
    counts = dict.fromkeys(("tokens", "tokens_off", "tokens_apart", "texts_apart"), 0)
    margin = difference = 0.0
    for text in texts:
        ids = np.array(reference.tokenizer.encode(text).ids, np.int64)
        if not len(ids):
            continue
        expected = reference.scores(ids)
        found = np.concatenate(list(tagger.logits(ids)))
        a, b = (labels_of(tagger.labels, scores) for scores in (expected, found))
        apart = np.flatnonzero(a != b)
        counts["tokens"] += len(ids)
        counts["tokens_apart"] += len(apart)
        counts["texts_apart"] += len(apart) > 0
        off = np.abs(expected - found).max(axis=1)
        counts["tokens_off"] += int((off > 1e-3).sum())
        difference = max(difference, float(off.max()))
        margins = np.abs(expected[apart, a[apart]] - expected[apart, b[apart]])
        margin = max(margin, float(margins.max(initial=0)))
    counts = {"texts": len(texts)} | counts
    return counts | {"largest_difference": round(difference, 6), "largest_margin": round(margin, 6)}


def main() -> None:
    each = TEXTS // len(SETS) + 1
    texts = [e.text for how in SETS.values() for e in generated(*how, each)][:TEXTS]
    reference, found = Reference(), {}
    for precision in ("fp32", "fp16"):
        tagger = ane_book.load(str(RESULT), precision=precision)
        found[precision] = compare(tagger, reference, texts)
        print(precision, found[precision])
    add_to_record(labels_against_transformers=found)


if __name__ == "__main__":
    main()
