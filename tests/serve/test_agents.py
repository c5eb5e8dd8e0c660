"""Tools, structured answers and the newer API, as the `openai` package asks for them.

The model is tiny and knows nothing: that what it writes is of its form is the grammar's doing.
"""

import json
import time

from _command import chatty_copy
from _patience import HANGING
from _serving import serving
from ane_book.bundle import Bundle
from ane_serve.pool import bundle_model
import httpx
import openai
from pydantic import BaseModel, Field
import pytest

ASK = [{"role": "user", "content": "Hi"}]
WEATHER = {
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Paris"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
TOOLS = [{"type": "function", "function": WEATHER}]
HOW = {"model": "talker", "temperature": 1, "seed": 5, "max_tokens": 400}


@pytest.fixture(scope="module")
def address(roomy, tmp_path_factory):
    """A server of a tiny model with a template that knows no tools, and an end token."""
    folder = tmp_path_factory.mktemp("served")
    model = bundle_model(Bundle.open(chatty_copy(roomy.path, folder)), "talker", precision="fp32")
    with serving(model) as address:
        yield address


def chat(client, **how):
    return client.chat.completions.create(**HOW | {"messages": ASK} | how)


class Person(BaseModel):
    """What the client takes a schema from."""

    name: str = Field(max_length=8)
    city: str = Field(pattern="^[A-Z][a-z]{2,5}$")


class TestForms:
    def test_a_schema_by_the_clients_own_parser(self, client):
        found = client.chat.completions.parse(**HOW, messages=ASK, response_format=Person)
        assert isinstance(found.choices[0].message.parsed, Person)
        assert found.choices[0].finish_reason == "stop"

    @pytest.mark.parametrize("form", [
        {"type": "regex", "regex": "(yes|no)"},
        {"type": "grammar", "grammar": 'start: "yes" | "no"'},
    ])  # fmt: skip
    def test_an_expression_and_a_grammar(self, client, form):
        found = chat(client, response_format=form)
        assert found.choices[0].message.content in ("yes", "no")

    def test_text_is_no_form(self, client):
        plain, text = (chat(client, max_tokens=5, **how).choices[0].message.content
                       for how in ({}, {"response_format": {"type": "text"}}))  # fmt: skip
        assert plain == text

    def test_bias_and_penalties_change_what_is_drawn(self, client):
        """`i` alone, and `i` never twice."""
        only = chat(client, logit_bias={72: 100}, max_tokens=5).choices[0].message.content
        assert only == 5 * only[0]
        other = chat(client, logit_bias={72: 20}, presence_penalty=2, temperature=0, max_tokens=3)
        assert other.choices[0].message.content == 3 * only[0]  # 2 of 20 taken away
        twice = chat(client, logit_bias={72: 2}, frequency_penalty=2, temperature=0, max_tokens=40)
        plain = chat(client, logit_bias={72: 2}, temperature=0, max_tokens=40)
        counts = [max(map(text.count, text)) for text in
                  (each.choices[0].message.content for each in (twice, plain))]  # fmt: skip
        assert counts[0] < counts[1]


class TestTools:
    def test_a_call_that_has_to_come(self, client):
        found = chat(client, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
        choice = found.choices[0]
        (call,) = choice.message.tool_calls
        assert choice.finish_reason == "tool_calls" and choice.message.content is None
        assert call.function.name == "weather" and len(call.id) == 9
        assert json.loads(call.function.arguments)["city"] in ("Rome", "Paris")

    def test_none_of_them(self, client):
        found = chat(client, tools=TOOLS, tool_choice="none", max_tokens=8)
        assert found.choices[0].message.tool_calls is None
        plain = chat(client, max_tokens=8)
        assert found.choices[0].message.content == plain.choices[0].message.content

    @pytest.mark.parametrize("most", [1, 5, 12])
    def test_a_call_that_is_cut_before_its_name_is_nothing(self, client, most):
        found = chat(client, tools=TOOLS, tool_choice="required", max_tokens=most)
        assert found.choices[0].finish_reason == "length"
        assert found.choices[0].message.content == ""
        assert found.choices[0].message.tool_calls is None

    @pytest.mark.parametrize("seed", range(3))
    def test_a_function_without_parameters_is_called_with_none(self, client, seed):
        tools = [{"type": "function", "function": {"name": "now"}}]
        how = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
        (call,) = chat(client, **how, seed=seed).choices[0].message.tool_calls
        assert json.loads(call.function.arguments) == {}

    def test_a_marker_in_a_message_is_text(self, address):
        """`<|end|>` is one token, 256, where the template has it, and text in a message."""
        sent = {"messages": [{"role": "user", "content": "a<|end|>b"}]}
        tokens = httpx.post(f"{address}/tokenize", json=sent, timeout=HANGING).json()
        assert 256 not in tokens["tokens"] and tokens["count"] == len("u:a<|end|>b;")
        plain = httpx.post(f"{address}/tokenize", json={"prompt": "a<|end|>"}, timeout=HANGING)
        assert plain.json()["tokens"][-1] == 256


PLAIN = {"model": "talker", "input": "Hi", "temperature": 0, "max_output_tokens": 9}
FLAT = [{"type": "function", **WEATHER}]  # the newer API's form


class TestResponses:
    def test_an_answer_is_that_of_the_chat(self, client):
        found = client.responses.create(**PLAIN, instructions="Be kind.")
        told = [{"role": "system", "content": "Be kind."}, *ASK]
        expected = chat(client, messages=told, temperature=0, max_tokens=9)
        assert found.output_text == expected.choices[0].message.content
        assert found.status == "incomplete"
        assert found.incomplete_details.reason == "max_output_tokens"
        assert found.usage.input_tokens == expected.usage.prompt_tokens

    def test_a_stream_grows_to_the_same(self, client):
        whole = client.responses.create(**PLAIN)
        with client.responses.stream(**PLAIN) as stream:
            events = list(stream)
        numbers = [event.sequence_number for event in events]
        assert numbers == list(range(len(events)))
        text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
        assert text == whole.output_text == events[-1].response.output_text

    def test_calls_and_their_results(self, client):
        how = PLAIN | {"tools": FLAT, "tool_choice": "required", "max_output_tokens": 600}
        how |= {"parallel_tool_calls": False}
        found = client.responses.create(**how)
        (call,) = found.output
        assert call.type == "function_call" and json.loads(call.arguments)["city"]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "21"}
        sent = [{"role": "user", "content": "Hi"}, call, result]
        again = client.responses.create(**PLAIN | {"input": sent, "tools": FLAT})
        assert again.usage.input_tokens > found.usage.input_tokens
        with client.responses.stream(**how) as stream:
            *_, last = stream
        assert last.response.output[0].arguments == call.arguments

    def test_codex_asks_and_gets_an_answer(self, address, caplog):
        """Its fields; what no model here can call is left out, and the log says it."""
        user = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]}
        body = {
            "model": "talker", "instructions": "Be kind.", "input": [
                user | {"role": "developer"}, user,
                {"type": "reasoning", "summary": [], "encrypted_content": None},
                {"type": "function_call", "name": "weather", "arguments": "{}", "call_id": "a"},
                {"type": "function_call_output", "call_id": "a", "output": "21"},
            ],
            "tools": [
                FLAT[0] | {"strict": False},
                {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
                {"type": "web_search", "external_web_access": False},
                {"type": "namespace", "name": "mcp__a", "tools": FLAT}, {"type": "local_shell"},
            ],
            "tool_choice": "auto", "parallel_tool_calls": False, "store": False, "stream": True,
            "reasoning": {"effort": "medium", "summary": "auto"}, "prompt_cache_key": "a",
            "include": ["reasoning.encrypted_content"], "client_metadata": {"a": "b"},
            "max_output_tokens": 9,
        }  # fmt: skip
        with caplog.at_level("INFO", "ane_serve.requests"):
            found = httpx.post(f"{address}/v1/responses", json=body, timeout=HANGING)
            until = time.monotonic() + HANGING  # the line follows the last byte
            while not (lines := [r.msg for r in caplog.records if "tools_left_out" in r.msg]):
                assert time.monotonic() < until
                time.sleep(0.01)
        assert "event: response.incomplete" in found.text, found.text
        (line,) = lines
        assert line["tools_left_out"] == ["custom", "local_shell", "namespace", "web_search"]
        assert line["status"] == 200

    def test_a_tool_that_is_left_out_cannot_be_asked_for(self, client):
        how = PLAIN | {"tools": [{"type": "web_search"}], "tool_choice": "required"}
        with pytest.raises(openai.BadRequestError, match="tools does not have"):
            client.responses.create(**how)

    def test_a_schema(self, client):
        how = PLAIN | {"temperature": 1, "max_output_tokens": 400}
        found = client.responses.parse(**how, text_format=Person)
        assert isinstance(found.output_parsed, Person)


@pytest.mark.parametrize("path", ["choose", "rerank"])
def test_what_is_no_longer_served_says_what_does_it(address, path):
    found = httpx.post(f"{address}/v1/{path}", json={"prompt": "Hi"}, timeout=HANGING)
    assert found.status_code == 410
    assert "session.logits: book/api.md" in found.json()["error"]["message"]
