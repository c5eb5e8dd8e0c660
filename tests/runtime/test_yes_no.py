"""A decoder that says yes or no of a document, as Qwen3-Reranker does: scores of `transformers`."""

from _plant import change_weight, copied
from _scripted import talking
from ane_book.errors import AneBookError, InvalidInput, PromptTooLong, TextCut
from ane_book.runtime import Session, YesNoReranker
import pytest
import torch

QUERY = "Where do cats sleep?"
DOCUMENTS = ["On a sofa.", "A bridge<|end|>.", "Cats."]
CHANGES = (("max_position_embeddings", 1024), ("vocab_size", 261))
RECIPE = {"kv": "state", "context": 512, "prefill": 64}
#: The prompt of the model card, and what it is with one of the documents.
PROMPT = """<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. \
Note that the answer can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: Given a web search query, retrieve relevant passages that answer the query
<Query>: Where do cats sleep?
<Document>: On a sofa.<|im_end|>
<|im_start|>assistant
<think>

</think>

"""


@pytest.fixture(scope="module")
def made(tiny_bundle, tmp_path_factory):
    """(transformers model, bundle) of a tiny Qwen3 whose tokenizer has both words."""
    model, bundle = tiny_bundle("qwen3", CHANGES, **RECIPE)
    folder = tmp_path_factory.mktemp("yes-no")
    return model, talking(bundle, folder, "{{ messages[0].content }}", ["yes", "no"])


def test_scores_are_those_of_the_model_on_its_cards_prompt(made):
    model, bundle = made
    reranker = YesNoReranker(Session(bundle, "fp32"))
    words = [reranker.session.token_id(word) for word in ("yes", "no")]
    pairs = [reranker.encode(QUERY, text) for text in DOCUMENTS]
    assert pairs[0][0] == reranker.session.tokens(PROMPT)
    assert reranker.session.token_id("<|end|>") not in pairs[1][0]  # text, in a document
    expected = []
    for ids, _ in pairs:
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, -1, words]
        expected.append(float(logits.softmax(0)[0]))
    found = reranker.scores(pairs)
    assert found.tolist() == pytest.approx(expected, abs=1e-4)
    assert len(set(expected)) == 3
    best = reranker.rank(QUERY, DOCUMENTS, top_n=2)
    order = sorted(range(3), key=lambda i: -expected[i])
    assert [one.index for one in best] == order[:2]


def test_logits_that_are_no_numbers_are_no_score(made, tmp_path):
    folder = copied(made[1], tmp_path)
    for part in made[1].manifest.shards:
        change_weight(folder / part.package, "feed_forward_down_weight_to_fp16", beyond_fp16)
    with pytest.raises(AneBookError, match="logits hold NaN"):
        YesNoReranker(Session(folder)).rank(QUERY, DOCUMENTS)


def beyond_fp16(weight) -> None:
    weight[:] = 60_000


def test_the_query_is_read_once(made):
    reranker = YesNoReranker(Session(made[1]))
    reranker.rank(QUERY, DOCUMENTS[:1])
    before = reranker.session.calls.total()
    reranker.rank(QUERY, DOCUMENTS[:1])
    assert reranker.session.calls.total() - before < 4  # the last token alone


def test_a_long_document_is_cut_at_its_end(made):
    reranker = YesNoReranker(Session(made[1]))
    with pytest.warns(TextCut, match="are cut to 512 of their"):
        ids, _ = reranker.encode(QUERY, "a" * 600)
    behind = reranker.session.tokens("<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert len(ids) == 512 and ids[-len(behind) :] == behind
    with pytest.raises(PromptTooLong, match="document 0 and the query have"):
        reranker.rank(QUERY, ["a" * 600], cut=False)


def test_a_model_without_the_words_is_refused(tiny_bundle):
    with pytest.raises(InvalidInput, match="has no token 'yes'"):
        YesNoReranker(Session(tiny_bundle("qwen3", CHANGES, **RECIPE)[1]))
