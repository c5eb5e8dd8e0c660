"""A reranker behind /v1/rerank: the scores of `Reranker`, in the form of Cohere, Jina and vLLM."""

import re

from _command import ane_book as command
from _encoders import tiny_reranker, write_reranker
from _patience import HANGING
from _scripted import talking
from _serving import serving
import ane_book
from ane_book.runtime import Reranker, Session, YesNoReranker
from ane_serve.pool import bundle_model
import httpx
import pytest

QUERY, DOCUMENTS = "Where do cats sleep?", ["A bridge.", "On a sofa.", "", "Cats."]


@pytest.fixture(scope="module")
def reranker(tmp_path_factory):
    place = tmp_path_factory.mktemp("reranker")
    folder = write_reranker(tiny_reranker("modernbert"), place / "m", "modernbert")
    return ane_book.convert(str(folder), out=place / "b", context=64)


@pytest.fixture(scope="module")
def ask(reranker, encoder):
    models = bundle_model(encoder, "encoder"), bundle_model(reranker, "ranker", precision="fp32")
    with serving(*models) as address:
        yield lambda **body: httpx.post(f"{address}/v1/rerank", json=body, timeout=HANGING)


def test_results_are_the_rerankers(ask, reranker):
    expected = Reranker(reranker, "fp32").rank(QUERY, DOCUMENTS)
    answer = ask(model="ranker", query=QUERY, documents=DOCUMENTS).json()
    assert answer["model"] == "ranker" and answer["id"].startswith("rerank-")
    assert answer["results"] == [
        {"index": one.index, "relevance_score": one.relevance_score} for one in expected
    ]
    pairs = [Reranker(reranker).encode(QUERY, text) for text in DOCUMENTS]
    assert answer["usage"]["total_tokens"] == sum(len(ids) for ids, _ in pairs)


def test_the_best_with_their_texts(ask, reranker):
    best = Reranker(reranker, "fp32").rank(QUERY, DOCUMENTS, top_n=2)
    objects = [{"text": text} for text in DOCUMENTS]
    answer = ask(query=QUERY, documents=objects, top_n=2, return_documents=True).json()
    assert answer["results"] == [
        {
            "index": one.index,
            "relevance_score": one.relevance_score,
            "document": {"text": DOCUMENTS[one.index]},
        }
        for one in best
    ]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"model": "encoder"}, 400, "encoder makes vectors; this path is for one that scores docu"),
        ({"model": "other"}, 404, "'other' does not exist; here ranker scores documents"),
        ({"documents": []}, 400, "documents has to be a list of at most 2048 texts"),
        ({"documents": ["a", {"title": "b"}]}, 400, "documents has to be a list"),
        ({"documents": ["a" * 100]}, 400, "document 0 and the query have .* tokens; 64 at most"),
        ({"top_n": 0}, 400, "top_n has to be"),
        ({"query": None}, 400, "query is missing"),
    ],
    ids=str,
)
def test_what_will_not_do(ask, body, status, message):
    answer = ask(**{"query": QUERY, "documents": DOCUMENTS} | body)
    assert answer.status_code == status
    assert re.search(message, answer.json()["error"]["message"])


def test_a_decoder_that_says_yes_or_no_is_one(tiny_bundle, tmp_path):
    recipe = {"kv": "state", "context": 512, "prefill": 64}
    made = tiny_bundle("qwen3", (("max_position_embeddings", 1024), ("vocab_size", 261)), **recipe)
    bundle = talking(made[1], tmp_path, "{{ messages[0].content }}", ["yes", "no"])
    expected = YesNoReranker(Session(bundle, "fp32")).rank(QUERY, DOCUMENTS)
    body = {"query": QUERY, "documents": DOCUMENTS, "model": "judge"}
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "temperature": 0}
    with serving(bundle_model(bundle, "judge", precision="fp32")) as address:
        path = f"{address}/v1/chat/completions"
        said = httpx.post(path, json=chat, timeout=HANGING).json()["choices"]
        found = httpx.post(f"{address}/v1/rerank", json=body, timeout=HANGING).json()["results"]
        again = httpx.post(path, json=chat, timeout=HANGING).json()["choices"]
        unnamed = httpx.post(f"{address}/v1/rerank", json=body | {"model": None}, timeout=HANGING)
    assert [one["index"] for one in found] == [one.index for one in expected]
    scores = [one.relevance_score for one in expected]
    assert [one["relevance_score"] for one in found] == pytest.approx(scores, abs=1e-6)
    assert said == again and unnamed.status_code == 404
    done = command("rerank", QUERY, *DOCUMENTS, "--model", bundle.path, "--precision", "fp32")
    assert done.stdout.splitlines()[0].endswith(DOCUMENTS[expected[0].index])
