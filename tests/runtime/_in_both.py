"""A tiny model of every architecture by both runtimes in single precision: tokens, or numbers."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from _encoders import (
    FAMILIES,
    dense_layers,
    tiny_bert,
    tiny_encoder,
    write_encoder,
)
from _taggers import tiny_tagger, write_tagger
from _tiny import TINY, prompt, tiny_model, write_checkpoint
from _zaya import tiny_zaya
from ane_book import convert
from ane_book.runtime import Embedder, Session, Tagger
import numpy as np

#: kind -> names of tiny models. A mixture's experts are a package each, or in banks of one.
ARCHITECTURES = {
    "decoder": [*TINY, "zaya"],
    "embedder": ["bert", *FAMILIES],
    "tagger": ["dispatch", "packed"],
}


def _write(kind: str, name: str, folder: Path) -> tuple[Path, dict]:
    """A checkpoint, and what its conversion takes."""
    if kind == "decoder":
        model = tiny_zaya("usual") if name == "zaya" else tiny_model(name)
        return write_checkpoint(model, folder), {"context": 32, "prefill": 8}
    if kind == "tagger":
        return write_tagger(tiny_tagger("usual"), folder), {"context": 64, "experts": name}
    if name == "bert":
        return write_encoder(tiny_bert("usual"), folder), {}
    pooling, dense = FAMILIES[name][2], dense_layers(name)
    return write_encoder(tiny_encoder(name), folder, pooling, 45, dense=dense), {}


def _run(kind: str, bundle, backend: str) -> np.ndarray:
    ids = prompt(11)
    if kind == "decoder":
        return np.array(Session(bundle, "fp32", backend).generate(ids, max_tokens=16).token_ids)
    if kind == "tagger":
        return np.concatenate(list(Tagger(bundle, "fp32", backend).logits(np.array(ids))))
    ids = [[4 + i % 90 for i in ids[:length]] for length in (1, 7, 11)]
    return np.asarray(Embedder(bundle, "fp32", backend).vectors(ids))


def compared(kind: str, name: str) -> dict:
    """How many numbers came out, and of tokens how many are equal, of others the largest difference
    over the largest number."""
    with TemporaryDirectory() as folder, patch.dict(os.environ, ANE_BOOK_CACHE=f"{folder}/cache"):
        checkpoint, recipe = _write(kind, name, Path(folder) / "model")
        bundle = convert(str(checkpoint), out=Path(folder) / "bundle", **recipe)
        here, there = (_run(kind, bundle, backend) for backend in ("mil", "coreai"))
    if kind == "decoder":
        return {"tokens": len(here), "equal": int((here == there).sum())}
    gap = np.abs(there - here).max() / np.abs(here).max()
    return {"numbers": here.size, "difference": float(gap)}
