"""Encoders of every family, from conversion to vectors: those of `transformers`.

BERT's own tests, and what embedders refuse, are in test_embed.py.
"""

from functools import cache
import json
from pathlib import Path
import shutil

from _encoders import FAMILIES, dense_layers, pooled, tiny_encoder, write_encoder
from _long import long_but
import ane_book
from ane_book.conversion.plan import find_config
from ane_book.conversion.quantize.encoded import Encoded, encode
from ane_book.conversion.quantize.schemes import SCHEMES
from ane_book.errors import UnsupportedModel
from ane_book.evidence.parity import check_parity
from ane_book.models import read_config
from ane_book.runtime import Embedder
import numpy as np
import pytest
from safetensors.torch import save_file
import torch

MOST = 45  # tokens of a text
LENGTHS = (1, 2, 3, 7, 20, 31, 32, 33, 44, MOST)  # of texts that share calls


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """`made(family, **recipe)` -> (transformers model, bundle), converted once."""

    @cache
    def make(family: str, **recipe):
        model, place = tiny_encoder(family), tmp_path_factory.mktemp(family)
        pooling, dense = FAMILIES[family][2], dense_layers(family)
        folder = write_encoder(model, place / "model", pooling, MOST, dense=dense)
        return model, ane_book.convert(str(folder), out=place / "bundle", **recipe)

    return make


def texts() -> list[list[int]]:
    """Token ids of texts of these lengths."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(4, 257, (n,), generator=generator).tolist() for n in LENGTHS]


def expected(family: str, model) -> torch.Tensor:
    """Vectors of `texts()` before they are scaled."""
    found = pooled(model, texts(), FAMILIES[family][2])
    for layer in dense_layers(family):
        found = layer(found)
    return found


def cosines(found, expected) -> np.ndarray:
    a, b = (np.asarray(x, np.float64) for x in (found, expected))
    return (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


@pytest.mark.parametrize(
    "family", long_but(FAMILIES, *(family for family in FAMILIES if family != "xlm-roberta"))
)
@pytest.mark.parametrize(
    ("precision", "least"),
    [("fp32", 0.999999), pytest.param("fp16", 0.9998, marks=pytest.mark.long)],
)
def test_vectors_are_those_of_transformers(made, family, precision, least):
    model, bundle = made(family)
    found = Embedder(bundle, precision).vectors(texts())
    if family == "xlm-roberta" and precision == "fp32":
        least = 0.99999  # rows of positions are rounded once more, after those of types are added
    assert cosines(found, expected(family, model)).min() > least
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize("scheme", long_but((n for n in SCHEMES if n != "none"), "lut4"))
def test_vectors_of_a_quantised_bundle_are_those_of_the_quantised_weights(made, scheme):
    model, bundle = tiny_encoder("modernbert"), made("modernbert", quant=scheme)[1]
    matrices = [p for n, p in model.named_parameters() if n.startswith("layers.") and p.dim() == 2]
    for matrix in matrices:
        stored = encode(matrix[:, :, None, None], SCHEMES[scheme])
        assert isinstance(stored, Encoded)
        matrix.copy_(stored.weight().view(matrix.shape))
    found = Embedder(bundle, "fp32").vectors(texts())
    assert len(matrices) == 20 and cosines(found, expected("modernbert", model)).min() > 0.99999


@pytest.mark.parametrize("family", long_but(["modernbert", "qwen3"], "modernbert"))
def test_a_checkpoint_of_another_class_is_the_same_model(made, tmp_path, family):
    """Prefixes of names differ by the class that saved them, and heads are not read."""
    model, bundle = made(family)
    folder = Path(shutil.copytree(bundle.path.parent / "model", tmp_path / "m"))
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    unread = "decoder.bias" if family == "modernbert" else "lm_head.weight"
    save_file(tensors | {unread: torch.zeros(257)}, folder / "model.safetensors")
    again = ane_book.convert(str(folder), out=tmp_path / "b")
    found, expected = (Embedder(one, "fp32").vectors(texts()) for one in (again, bundle))
    np.testing.assert_array_equal(found, expected)


def test_a_model_is_for_vectors_where_its_folder_says_so(made):
    """A plan of the folder alone, without weights; and what has no such form is named."""
    folder = made("qwen3")[1].path.parent / "model"
    assert find_config(str(folder)).architecture == "qwen3-embedding"
    fields = json.loads((folder / "config.json").read_text())
    assert read_config(fields).architecture == "qwen3"
    with pytest.raises(UnsupportedModel, match="embedding is not supported for llama .*: bert,"):
        read_config(fields | {"model_type": "llama", "sentence_transformers": {"pooling": "mean"}})
    with pytest.raises(UnsupportedModel, match="BertForSequenceClassification .* session.logits:"):
        read_config({"model_type": "bert", "architectures": ["BertForSequenceClassification"]})


@pytest.mark.parametrize("family", long_but(FAMILIES, "gemma3_text"))
def test_parity_of_every_package(made, family):
    bundle = made(family, shard_limit="0.12MB")[1]
    assert len(bundle.manifest.shards) > 1
    assert check_parity(bundle, source=bundle.path.parent / "model").passed
