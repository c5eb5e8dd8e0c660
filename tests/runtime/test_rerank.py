"""Rerankers, from conversion to scores: the numbers of `transformers`, the command, refusals."""

from functools import cache
import json

from _command import ane_book as command
from _command import refused
from _encoders import RERANKERS, expected_logits, tiny_reranker, write_reranker
from _long import long_but
from _plant import copied
import ane_book
from ane_book.errors import InvalidInput, PromptTooLong, TextCut, UnsupportedModel
from ane_book.evidence.parity import check_parity
from ane_book.runtime import Embedder, Reranker
import numpy as np
import pytest

QUERY = "Where do cats sleep?"
DOCUMENTS = ["On a sofa.", "", "x", "The bridge is closed today.", "sofa cats " * 2]
LOGITS = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """`made(family)` -> (transformers model, bundle), converted once; its scores are logits."""

    @cache
    def make(family: str, sigmoid: bool = False):
        model, place = tiny_reranker(family), tmp_path_factory.mktemp(family)
        folder = write_reranker(model, place / "model", family, **({} if sigmoid else LOGITS))
        return model, ane_book.convert(str(folder), out=place / "bundle", context=57)

    return make


@pytest.mark.parametrize("family", RERANKERS)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_scores_are_those_of_transformers(made, family, precision):
    # The host's rows of positions are rounded once more, after those of types are added.
    most = 2e-2 if precision == "fp16" else 2e-5 if family == "modernbert" else 3e-3
    model, bundle = made(family)
    reranker = Reranker(bundle, precision)
    pairs = [reranker.encode(QUERY, text) for text in DOCUMENTS]
    expected = expected_logits(model, pairs).numpy()
    assert np.ptp(expected) > 0.1 * abs(expected).max() > 0.01  # documents that differ
    np.testing.assert_allclose(reranker.scores(pairs), expected, atol=most * abs(expected).max())


@pytest.mark.parametrize("family", long_but(RERANKERS, "modernbert"))
def test_parity(made, family):
    bundle = made(family)[1]
    assert check_parity(bundle, source=bundle.path.parent / "model").passed


def test_settings_of_another_model_are_named_by_parity(made, tmp_path):
    """No number of the bundle's golden results depends on them."""
    folder = copied(made("modernbert", sigmoid=True)[1], tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["vectors"]["score"] = "identity"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    found = check_parity(folder)
    assert not found.passed
    assert found.reason == "manifest.json: vectors: score is identity, expected sigmoid"


def test_a_sigmoid_follows_where_nothing_else_is_said(made):
    model, bundle = made("modernbert", sigmoid=True)
    reranker = Reranker(bundle, "fp32")
    logits = expected_logits(model, [reranker.encode(QUERY, text) for text in DOCUMENTS])
    found = reranker.rank(QUERY, DOCUMENTS)
    expected = sorted(logits.sigmoid().tolist(), reverse=True)
    assert [one.relevance_score for one in found] == pytest.approx(expected, abs=1e-5)
    assert [one.index for one in found] == logits.argsort(descending=True).tolist()
    assert reranker.rank(QUERY, DOCUMENTS, top_n=2) == found[:2]
    assert reranker.rank(QUERY, []) == []


def test_types_of_tokens_count(made):
    """A reranker that takes the document for a part of the query has other scores."""
    model, bundle = made("bert")
    reranker = Reranker(bundle, "fp32")
    pairs = [reranker.encode(QUERY, text) for text in DOCUMENTS]
    assert {kind for _, types in pairs for kind in types} == {0, 1}
    expected = expected_logits(model, pairs).numpy()
    untyped = reranker.scores([(ids, [0] * len(ids)) for ids, _ in pairs])
    assert abs(untyped - expected).max() > 0.02 * abs(expected).max()


def test_a_long_pair_is_cut_with_a_warning_or_refused(made):
    reranker, long = Reranker(made("bert")[1]), "sofa" * 30
    told = "document 1 and the query are cut to 57 of their 143 tokens; so are 1 more of 3 docu"
    with pytest.warns(TextCut, match=told):
        reranker.rank(QUERY, ["a", long, long])
    with pytest.warns(TextCut, match="the document and the query are cut to 57 of their 124"):
        ids, types = reranker.encode("q", long)
    assert len(ids) == 57 and types.count(0) == 3  # the longer text is cut
    with pytest.raises(PromptTooLong, match="document 0 and the query have 143 tokens; 57 at mo"):
        reranker.rank(QUERY, [long], cut=False)


@pytest.mark.parametrize(
    ("query", "documents", "top_n", "message"),
    [
        (3, ["a"], None, "the query is int, not str"),
        ("a", "b", None, "rank takes a list of str, not str"),
        ("a", ["b", None], None, "text 1 is NoneType"),
        ("a", ["b"], 0, "top_n must be 1 or more, not 0"),
        ("a\ud83d", ["b"], None, "the query is not valid text"),
    ],
)
def test_what_will_not_do(made, query, documents, top_n, message):
    with pytest.raises(InvalidInput, match=message):
        Reranker(made("bert")[1]).rank(query, documents, top_n)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id2label": {"0": "a", "1": "b", "2": "c"}}, "classifier with 3 labels is no reranker"),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.activation.Softmax"},
         "activation_fn = 'torch.nn.modules.activation.Softmax' is not .*: Identity, Sigmoid"),
        ({"classifier_pooling": "max"}, "classifier_pooling = 'max' .* supported: cls, mean"),
        ({"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]},
         "reranking is not supported for llama models; supported: bert, modernbert, roberta, xlm"),
    ],
)  # fmt: skip
def test_a_configuration_that_will_not_do(tmp_path, changes, message):
    folder = write_reranker(tiny_reranker("modernbert"), tmp_path / "m", "modernbert", **changes)
    with pytest.raises(UnsupportedModel, match=message):
        ane_book.convert(str(folder), out=tmp_path / "b")


def test_another_kind_of_bundle_is_told_its_command(made):
    bundle = made("bert")[1]
    with pytest.raises(InvalidInput, match=r"scores documents for a query: `ane-book rerank"):
        Embedder(bundle)
    assert isinstance(ane_book.load(bundle.path), Reranker)


def test_the_command_ranks(made):
    bundle = made("bert")[1]
    found = Reranker(bundle, "fp32").rank(QUERY, ["Hi", "a sofa", "é"])
    options = "--model", bundle.path, "--precision", "fp32"
    done = command("rerank", *options, QUERY, "Hi", "-", input="a sofa\né\n")
    texts = ["Hi", "a sofa", "é"]
    expected = [f"{one.relevance_score:8.4f}  {texts[one.index]}" for one in found]
    assert done.stdout.splitlines() == expected
    done = command("rerank", *options, "--json", "--top-n", "1", QUERY, *texts)
    best = {"index": found[0].index, "relevance_score": found[0].relevance_score}
    assert json.loads(done.stdout) == [best | {"document": texts[best["index"]]}]
    assert "ane-book embed" in refused("rerank", "--model", "all-minilm-l6-v2", QUERY, "a")
