"""Encoders of every family, from conversion to vectors: those of `transformers`, and broken ones.

BERT's own tests, and what embedders refuse, are in test_embed.py.
"""

from collections.abc import Callable
import json
from pathlib import Path
import shutil

from _encoders import FAMILIES, dense_layers, pooled, tiny_encoder, write_encoder
import ane_book
from ane_book.conversion.plan import find_config
from ane_book.conversion.quantize import SCHEMES, Encoded, encode
from ane_book.errors import UnsupportedModel
from ane_book.evidence.parity import check_parity
from ane_book.models import read_config
from ane_book.runtime import Embedder
import numpy as np
import pytest
from safetensors.torch import save_file
import torch

MOST = 45  # tokens of a text
LENGTHS = (1, 2, 3, 7, 20, 31, 32, 33, 44, MOST)


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """`made(family, **recipe)` -> (transformers model, bundle), converted once."""
    kept = {}

    def make(family: str, **recipe):
        key = family, *sorted(recipe.items())
        if key not in kept:
            model = tiny_encoder(family)
            place = tmp_path_factory.mktemp(family)
            pooling, dense = FAMILIES[family][2], dense_layers(family)
            folder = write_encoder(model, place / "model", pooling, MOST, dense=dense)
            kept[key] = model, ane_book.convert(str(folder), out=place / "bundle", **recipe)
        return kept[key]

    return make


def texts(lengths=LENGTHS) -> list[list[int]]:
    """Token ids of texts of these lengths."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(4, 257, (n,), generator=generator).tolist() for n in lengths]


def expected(family: str, model, **wrong) -> torch.Tensor:
    """Vectors of `texts()` before they are scaled."""
    found = pooled(model, texts(), FAMILIES[family][2], **wrong)
    for layer in dense_layers(family):
        found = layer(found)
    return found


def cosines(found, expected) -> np.ndarray:
    a, b = (np.asarray(x, np.float64) for x in (found, expected))
    return (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def changed(bundle, folder: Path, change: Callable[[dict], None]) -> Embedder:
    """An embedder of a copy whose manifest is changed."""
    copy = Path(shutil.copytree(bundle.path, folder / "b"))
    fields = json.loads((copy / "manifest.json").read_text())
    change(fields)
    (copy / "manifest.json").write_text(json.dumps(fields))
    return Embedder(copy, "fp32")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("precision", "least"), [("fp32", 0.999999), ("fp16", 0.9998)])
def test_vectors_are_those_of_transformers(made, family, precision, least):
    model, bundle = made(family)
    found = Embedder(bundle, precision).vectors(texts())
    if family == "xlm-roberta" and precision == "fp32":
        least = 0.99999  # rows of positions are rounded once more, after those of types are added
    assert cosines(found, expected(family, model)).min() > least
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_beside_a_text_changes_nothing(made, family):
    embedder, ids = Embedder(made(family)[1], "fp32"), texts()
    alone = np.concatenate([embedder.vectors([row]) for row in ids])
    np.testing.assert_allclose(embedder.vectors(ids[::-1])[::-1], alone, atol=1e-5)


def causal(fields: dict) -> None:
    fields["vectors"]["causal"] = not fields["vectors"]["causal"]


def first_pooled(fields: dict) -> None:
    fields["vectors"]["pooling"] = "cls"


def other_base(fields: dict) -> None:
    fields["host"]["rotary"]["rope"]["theta"] = 10000.0


def wider(fields: dict) -> None:
    fields["host"]["masks"]["mask_local"] += 1


def narrower(fields: dict) -> None:
    fields["host"]["masks"]["mask_local"] -= 1


def exchanged(fields: dict) -> None:
    """Each kind of layer rotates by the other's base."""
    tables = fields["host"]["rotary"]
    tables["rope"], tables["rope_local"] = tables["rope_local"], tables["rope"]


def unscaled(fields: dict) -> None:
    fields["host"]["embedding_scale"] = 1.0


LOCAL = (causal, first_pooled, wider, narrower, exchanged)
BROKEN = {
    "qwen3": (causal, first_pooled, other_base),
    "modernbert": LOCAL,
    "gemma3_text": (*LOCAL, unscaled),
    "xlm-roberta": (causal,),
}


@pytest.mark.parametrize(
    ("family", "change"), [(name, one) for name, all_ in BROKEN.items() for one in all_]
)
def test_a_mistake_of_the_host_shows(made, tmp_path, family, change):
    model, bundle = made(family)
    found = changed(bundle, tmp_path, change).vectors(texts())
    assert cosines(found, expected(family, model)).min() < 0.999


def test_positions_that_are_counted_from_nought_show(made, tmp_path):
    """XLM-RoBERTa's first token has position 2 where the padding's id is 1."""
    model, bundle = made("xlm-roberta")
    copy = Path(shutil.copytree(bundle.path, tmp_path / "b"))
    rows = np.load(copy / "positions.npy")
    table = model.state_dict()["embeddings.position_embeddings.weight"].numpy()
    kinds = model.state_dict()["embeddings.token_type_embeddings.weight"].numpy()
    np.testing.assert_array_equal(rows, (table[2 : 2 + MOST] + kinds[0]).astype(np.float16))
    np.save(copy / "positions.npy", (table[:MOST] + kinds[0]).astype(np.float16))
    found = Embedder(copy, "fp32").vectors(texts())
    assert cosines(found, expected("xlm-roberta", model)).min() < 0.999


def test_padding_that_is_pooled_shows(made):
    model, bundle = made("modernbert")
    found = Embedder(bundle, "fp32").vectors(texts())
    assert cosines(found, expected("modernbert", model, fill=1)).min() < 0.999


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name != "none"])
def test_vectors_of_a_quantised_bundle_are_those_of_the_quantised_weights(made, scheme):
    model, bundle = tiny_encoder("modernbert"), made("modernbert", quant=scheme)[1]
    matrices = [p for n, p in model.named_parameters() if n.startswith("layers.") and p.dim() == 2]
    for matrix in matrices:
        stored = encode(matrix[:, :, None, None], SCHEMES[scheme])
        assert isinstance(stored, Encoded)
        matrix.copy_(stored.weight().view(matrix.shape))
    found = Embedder(bundle, "fp32").vectors(texts())
    assert len(matrices) == 20 and cosines(found, expected("modernbert", model)).min() > 0.99999


@pytest.mark.parametrize("family", ["modernbert", "qwen3"])
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


@pytest.mark.parametrize("family", FAMILIES)
def test_parity_of_every_package(made, family):
    bundle = made(family, shard_limit="0.12MB")[1]
    assert len(bundle.manifest.shards) > 1
    assert check_parity(bundle, source=bundle.path.parent / "model").passed
