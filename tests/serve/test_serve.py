"""The server as the `openai` package sees it, over a real socket."""

import base64

from _patience import HANGING
from ane_book.runtime import Embedder, Session
import httpx
import numpy as np
import openai
import pytest

HELLO = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def session(talker):
    return Session(talker, precision="fp32")


class TestChat:
    def test_an_answer_is_the_sessions(self, client, session):
        expected = session.generate(HELLO, max_tokens=9)
        found = client.chat.completions.create(
            model="talker", messages=HELLO, max_tokens=9, temperature=0
        )
        choice = found.choices[0]
        assert (choice.message.role, choice.message.content) == ("assistant", expected.text)
        assert choice.finish_reason == "length"
        usage = found.usage
        assert (usage.prompt_tokens, usage.completion_tokens) == (expected.prompt_tokens, 9)
        assert isinstance(found.decode_tps + found.prefill_tps + found.elapsed_s, float)

    def test_a_stream_joins_to_the_answer(self, client, session):
        expected = session.generate(HELLO, max_tokens=9)
        stream = client.chat.completions.create(
            model="talker", messages=HELLO, max_tokens=9, temperature=0, stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        *chunks, last = stream
        assert chunks[0].choices[0].delta.role == "assistant"
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == expected.text
        assert chunks[-1].choices[0].finish_reason == "length"
        assert last.choices == [] and last.usage.completion_tokens == 9
        assert isinstance(last.decode_tps, float)

    def test_answers_differ_by_seed_and_repeat_with_it(self, client, session):
        ask = {"model": "talker", "messages": HELLO, "max_tokens": 9, "seed": 3, "n": 2}
        first, again = (client.chat.completions.create(**ask) for _ in range(2))
        texts = [choice.message.content for choice in first.choices]
        assert texts == [choice.message.content for choice in again.choices]
        sampling = {"max_tokens": 9, "temperature": 1.0}
        assert texts == [session.generate(HELLO, seed=s, **sampling).text for s in (3, 4)]
        assert texts[0] != texts[1]


class TestCompletions:
    def test_a_text_goes_on_without_the_template(self, client, session):
        ids = session.encode("Once", plain=True)
        expected = session.generate(ids, max_tokens=16)
        found = client.completions.create(model="talker", prompt="Once", temperature=0)
        assert found.choices[0].text == expected.text
        assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (len(ids), 16)
        assert not hasattr(found, "gen_tokens")

    def test_several_prompts_and_token_ids(self, client, session):
        ids = [session.encode(text, plain=True) for text in ("Once", "Twice")]
        texts = [session.generate(each, max_tokens=4).text for each in ids]
        ask = {"model": "talker", "max_tokens": 4, "temperature": 0}
        for prompt in (["Once", "Twice"], ids):
            found = client.completions.create(prompt=prompt, **ask)
            assert [(c.index, c.text) for c in found.choices] == list(enumerate(texts))
        assert client.completions.create(prompt=ids[1], **ask).choices[0].text == texts[1]

    def test_the_source_asks_without_a_model(self, address, session):
        body = {"prompt": "What is 2+2?", "max_tokens": 7, "system": "Be brief."}
        found = httpx.post(f"{address}/v1/completions", json=body, timeout=HANGING).json()
        expected = session.generate("What is 2+2?", system="Be brief.", max_tokens=7)
        assert found["text"] == expected.text == found["choices"][0]["text"]
        assert (found["prompt_tokens"], found["gen_tokens"]) == (expected.prompt_tokens, 7)
        assert all(
            isinstance(found[name], float) for name in ("prefill_tps", "decode_tps", "elapsed_s")
        )


@pytest.fixture(scope="module")
def expected(session):
    """Tokens of a greedy answer to HELLO, and (V,) log-probabilities for each."""
    ids = session.encode(HELLO)
    tokens = session.generate(ids, max_tokens=5).token_ids
    session.reset()
    logits = session.logits([*ids, *tokens])[len(ids) - 1 : -1].astype(np.float64)
    return tokens, logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


class TestLogprobs:
    """Of each token its log-probability, and those of the likeliest, as the logits have them."""

    @pytest.mark.parametrize("stream", [False, True])
    def test_of_a_chat(self, client, session, expected, stream):
        tokens, logprobs = expected
        found = client.chat.completions.create(
            model="talker", messages=HELLO, max_tokens=5, temperature=0, logprobs=True,
            top_logprobs=3, stream=stream,
        )  # fmt: skip
        choices = [chunk.choices[0] for chunk in found] if stream else found.choices
        said = [each for choice in choices if choice.logprobs for each in choice.logprobs.content]
        assert [each.token for each in said] == session.words(tokens)
        for each, token, row in zip(said, tokens, logprobs, strict=True):
            assert each.logprob == pytest.approx(row[token], abs=1e-3)
            top = [one.logprob for one in each.top_logprobs]
            assert top == pytest.approx(np.sort(row)[::-1][:3].tolist(), abs=1e-3)
            assert top[0] == each.logprob

    def test_of_a_completion(self, client, session, expected):
        tokens, logprobs = expected
        ids = session.encode(HELLO)
        found = client.completions.create(
            model="talker", prompt=ids, max_tokens=5, temperature=0, logprobs=2
        ).choices[0]
        assert len(found.logprobs.tokens) == len(tokens)
        rows = [row[token] for token, row in zip(tokens, logprobs, strict=True)]
        assert found.logprobs.token_logprobs == pytest.approx(rows, abs=1e-3)
        assert all(1 <= len(top) <= 2 for top in found.logprobs.top_logprobs)

    def test_are_none_unless_asked(self, client):
        found = client.chat.completions.create(model="talker", messages=HELLO, max_tokens=2)
        assert found.choices[0].logprobs is None


class TestEmbeddings:
    TEXTS = ("A cat.", "A kitten.", "")

    def test_vectors_are_the_embedders(self, client, encoder):
        expected = Embedder(encoder, precision="fp32").embed(self.TEXTS)
        ask = {"model": "encoder", "input": list(self.TEXTS)}
        for form in ("float", "base64", openai.NOT_GIVEN):  # the package asks for base64 by itself
            found = client.embeddings.create(**ask, encoding_format=form)
            rows = [each.embedding for each in found.data]
            if form == "base64":
                rows = [np.frombuffer(base64.b64decode(row), "<f4") for row in rows]
            np.testing.assert_array_equal(np.array(rows, np.float32), expected)
            assert found.usage.prompt_tokens > 0

    def test_fewer_dimensions_behind_a_prompt(self, client, encoder):
        expected = Embedder(encoder, "fp32").embed(self.TEXTS, prompt="to: ", dimensions=7)
        ask = {"model": "encoder", "input": list(self.TEXTS), "extra_body": {"prompt": "to: "}}
        found = client.embeddings.create(**ask, dimensions=7)
        rows = [each.embedding for each in found.data]
        np.testing.assert_array_equal(np.array(rows, np.float32), expected)

    def test_one_text(self, client):
        assert len(client.embeddings.create(model="encoder", input="A cat.").data) == 1


def test_models_and_health(client, address):
    assert [model.id for model in client.models.list()] == ["talker", "encoder"]
    assert client.models.retrieve("talker").context == 128
    health = httpx.get(f"{address}/health", timeout=HANGING).json()
    assert health["status"] == "ok" and health["models"] == ["talker", "encoder"]
    assert "ane_book_requests_total" in httpx.get(f"{address}/metrics", timeout=HANGING).text


def test_errors_are_openais(client):
    """What else is wrong is in `test_bad_input.py`."""
    with pytest.raises(openai.NotFoundError, match="'gpt-9' does not exist") as caught:
        client.chat.completions.create(model="gpt-9", messages=HELLO)
    assert caught.value.type == "invalid_request_error"
