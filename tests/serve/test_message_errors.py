"""What /v1/messages refuses, and how it fails, in the errors of Anthropic's client."""

import json

from _gates import Held, out_of_time
from _messages import ASK, BOTH, HELLO, MESSAGES, create
from _serving import serving
from ane_serve.keys import Key
from ane_serve.pool import bundle_model
import anthropic
import pytest


@pytest.fixture(scope="module")
def client(address):
    with anthropic.Anthropic(base_url=address, api_key="none", max_retries=0) as client:
        yield client


def block(**fields) -> dict:
    return {"messages": [{"role": "user", "content": [fields]}]}


def answered(**fields) -> dict:
    return {"messages": [*ASK, {"role": "assistant", "content": [fields]}, *ASK]}


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
REFUSALS = [
    (block(**IMAGE), "messages.0.content.0 is of type 'image', which is not served here; text"),
    (block(type="tool_result", tool_use_id="a", content=[IMAGE]), "content.0 is of type 'image'"),
    (block(type="document", source={"type": "file", "file_id": "f"}), "is of type 'document'"),
    (block(type="container_upload", file_id="f"), "is of type 'container_upload'"),
    (block(type="search_result", content=[]), "is of type 'search_result'"),
    (answered(type="thinking", thinking="A", signature="sig"), "has a signature, which is not"),
    (answered(type="redacted_thinking", data="A"), "is of type 'redacted_thinking'"),
    (answered(type="server_tool_use", id="a", name="b", input={}), "type 'server_tool_use'"),
    (answered(type="tool_use", id="a", name="b", input="c"), "tool_use.input has to be an object"),
    (answered(type="tool_use", id="a", input={}), "tool_use.name is missing"),
    (block(type="tool_use", id="a", name="b", input={}), "role user, which says no tool_use"),
    (block(type="text", text=3), "messages.0.content has to be a text, or a list"),
    (block(text="A"), "messages.0.content.0 is of type None"),
    ({"messages": [{"role": "poet", "content": "A"}]}, "has to be 'user', 'assistant' or 'system'"),
    ({"messages": []}, "messages has to have at least 1 item"),
    ({"messages": [*ASK, {"role": "assistant", "content": "A"}]}, "no prefill"),
    ({"messages": [{"role": "user", "content": "x" * 200}]}, "must fit the context of 128 tokens"),
    ({"max_tokens": None}, "max_tokens is missing"),
    ({"max_tokens": 0}, "max_tokens has to be"),
    ({"temperature": 1.5}, "temperature has to be less than or equal to 1"),
    ({"top_k": -1}, "top_k has to be"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "'web_search_20250305'"),
    ({"tools": [{"name": "f"}]}, "tools.0.input_schema is missing"),
    ({"tools": [{"name": "f", "input_schema": {}, "defer_loading": True}]}, "has defer_loading"),
    ({"tool_choice": {"type": "tool", "name": "f"}}, "a tool that tools does not have"),
    ({"mcp_servers": [{"type": "url"}]}, "mcp_servers is not served here"),
    ({"container": "c"}, "container is not served here"),
    ({"service_tier": "priority"}, "service_tier is not served here"),
    ({"context_management": {"edits": [{"type": "compact_20260112"}]}}, "clear_thinking alone"),
    ({"thinking": {"type": "much"}}, "thinking.type has to be 'enabled'"),
    ({"colour": "red"}, "Unrecognized request argument supplied: colour"),
]


@pytest.mark.parametrize(("change", "says"), REFUSALS, ids=[says for _, says in REFUSALS])
def test_a_refusal_names_what_is_wrong(client, change, says):
    body = {"model": "talker", "messages": ASK, "max_tokens": 2} | change
    with pytest.raises(anthropic.BadRequestError) as raised:
        client.post(MESSAGES, body=body, cast_to=object)
    error = raised.value
    assert error.type == "invalid_request_error" and error.request_id
    assert says in error.body["error"]["message"]
    assert error.body.keys() == {"type", "error"} and error.body["type"] == "error"


class TestErrors:
    def test_what_is_not_there(self, client):
        for ask in (
            lambda: create(client, model="claude"),
            client.messages.batches.list,
            lambda: client.messages.batches.create(requests=[]),
            lambda: client.messages.batches.results("msgbatch_1"),
        ):
            with pytest.raises(anthropic.NotFoundError, match=r"does not exist|not served") as it:
                ask()
            assert it.value.type == "not_found_error"

    def test_keys_their_limits_and_sizes(self, models):
        keys = [Key("a", "sesame"), Key("b", "barley", minute=1)]
        with serving(*models, keys=keys, body=4096) as address:

            def ask(length=1, **how):
                with anthropic.Anthropic(base_url=address, max_retries=0, **how) as client:
                    messages = [{"role": "user", "content": length * "x"}]
                    create(client, model="talker", messages=messages, max_tokens=1)

            ask(api_key="sesame")
            ask(auth_token="sesame")
            for how in ({"api_key": "sesam"}, {"auth_token": "sesam"}):
                with pytest.raises(anthropic.AuthenticationError) as raised:
                    ask(**how)
                assert raised.value.type == "authentication_error"
            with pytest.raises(anthropic.ContentTooLargeError, match="at most 4,096 bytes") as it:
                ask(5000, api_key="sesame")
            assert it.value.type == "request_too_large"
            ask(api_key="barley")
            with pytest.raises(anthropic.RateLimitError) as limited:
                ask(api_key="barley")
            assert limited.value.type == "rate_limit_error"
            assert int(limited.value.response.headers["retry-after"]) > 0

    def test_a_busy_server_is_overloaded(self, models):
        with (
            serving(*models, waiting=0) as address,
            anthropic.Anthropic(base_url=address, api_key="none", max_retries=0) as client,
            pytest.raises(anthropic.OverloadedError, match="as many as may") as raised,
        ):
            create(client, **HELLO)
        assert raised.value.type == "overloaded_error"

    @BOTH
    def test_a_failure_is_told_in_the_middle_of_a_stream_too(self, talker, stream):
        body = HELLO | {"max_tokens": 64, "stream": stream}
        found, seconds = out_of_time(Held(bundle_model(talker, "talker")), MESSAGES, body)
        *_, last = found.text.strip().split("\n")
        error = json.loads(last.removeprefix("data: "))
        assert error["error"]["type"] == "timeout_error"
        assert f"within {seconds} s" in error["error"]["message"]
        assert found.status_code == (200 if stream else 504)
        assert "event: error" in found.text or not stream
