"""What a client may get wrong: a status and a sentence for each, in OpenAI's shape, and no crash.

`book/api.md` shows some of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
import json

from _patience import HANGING
from _serving import serving
from ane_serve.api import requests
from ane_serve.api.messages import Messages
import httpx
from pydantic import ValidationError
import pytest

KEY = "sesame"
BODY = 1 << 20  # bytes that the server under test takes
JSON = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Case:
    """A request, and the status, words and field of its refusal."""

    what: str
    content: bytes
    status: int
    says: str
    param: str | None = None
    path: str = CHAT
    method: str = "POST"
    headers: dict[str, str] | None = None


def asks(path: str, **asked) -> Callable[..., Case]:
    """What makes a case of a right request, and of the fields that are wrong in it."""

    def case(what: str, says: str, param: str | None, status: int = 400, **fields) -> Case:
        return Case(what, json.dumps(asked | fields).encode(), status, says, param, path)

    return case


chat = asks(CHAT, model="talker", messages=[{"role": "user", "content": "Hi"}], max_tokens=2)
text = asks("/v1/completions", model="talker", prompt="Hi", max_tokens=2)
vectors = asks("/v1/embeddings", model="encoder", input="Hi")
answer = asks("/v1/responses", model="talker", input="Hi", max_output_tokens=2)


def message(**fields) -> dict:
    return {"messages": [{"role": "user", "content": "Hi"} | fields]}


def nested(depth: int) -> dict:
    """Two objects for each level."""
    return {"type": "object", "properties": {"a": nested(depth - 1)}} if depth else {}


CASES = [
    Case("no JSON", b"{'model': 1}", 400, "the body is not JSON"),
    Case("half of it", b'{"model": "talker", "messages": [', 400, "the body is not JSON"),
    Case("no UTF-8", b'{"model": "\xff\xfe"}', 400, "parsing the body"),
    Case("a list", b"[1, 2]", 400, "a JSON object"),
    Case("nothing", b"", 400, "a JSON object"),
    Case("null", b"null", 400, "a JSON object"),
    Case("deep brackets", b"[" * 200_000, 400, "parsing the body"),
    Case("a number of 5,000 digits", b'{"max_tokens": ' + b"9" * 5000 + b"}", 400, "the body"),
    Case("10 MB", b'{"prompt": "' + b"x" * 10_000_000 + b'"}', 413, "at most 1,048,576 bytes"),
    Case("a form", b"model=talker", 415, "application/json",
         headers=JSON | {"content-type": "application/x-www-form-urlencoded"}),
    Case("no key", b"{}", 401, "API key", headers={"content-type": "application/json"}),
    Case("a wrong key", b"{}", 401, "API key", headers=JSON | {"authorization": "Bearer sesam"}),
    Case("no such path", b"{}", 404, "/v1/images", path="/v1/images"),
    Case("GET for POST", b"", 405, "GET /v1/chat/completions", method="GET"),
    Case("no such model to look at", b"", 404, "'x' does not exist", path="/v1/models/x",
         method="GET", param="model"),
    chat("an unknown model", "'gpt-9' does not exist", "model", 404, model="gpt-9"),
    chat("a path for a model", "'../../etc' does not exist", "model", 404, model="../../etc"),
    chat("an encoder to chat with", "makes vectors", "model", model="encoder"),
    chat("a model that is a number", "model has to be", "model", model=3),
    chat("no messages", "messages has to have at least 1 item", "messages", messages=[]),
    chat("a message without a role", "role is missing", "messages.0.role",
         messages=[{"content": "Hi"}]),
    chat("a role of its own", "has to be 'system'", "messages.0.role", **message(role="poet")),
    chat("a picture", "has to be a text", "messages.0.content",
         **message(content=[{"type": "image_url", "image_url": {"url": "http://x"}}])),
    chat("a prompt beyond the context", "must fit the context of 128 tokens", None,
         **message(content="x" * 200)),
    chat("half a surrogate", "not valid text", None, **message(content="a\ud83d")),
    chat("a temperature below 0", "temperature has to be", "temperature", temperature=-1),
    chat("a temperature of NaN", "temperature has to be", "temperature",
         temperature=float("nan")),
    chat("a temperature that is text", "temperature has to be", "temperature", temperature="hot"),
    chat("no tokens", "max_tokens has to be", "max_tokens", max_tokens=0),
    chat("half a token", "max_tokens has to be", "max_tokens", max_tokens=1.5),
    chat("a thousand answers", "n has to be", "n", n=1000),
    chat("a tool without a function", "tools.0.function is missing", "tools.0.function",
         tools=[{"type": "function"}]),
    chat("a tool that is no function", "has to be 'function'", "tools.0.type",
         tools=[{"type": "web_search"}]),
    chat("a tool with a name of code", "should match pattern", "tools.0.function.name",
         tools=[{"type": "function", "function": {"name": "rm -rf"}}]),
    chat("a tool that is not there", "tools does not have", "tool_choice",
         tool_choice={"type": "function", "function": {"name": "f"}}),
    chat("a result of no call", "tool_call_id goes with the role tool", "messages.0",
         **message(role="tool")),
    chat("arguments that are no text", "has to be a valid string",
         "messages.0.tool_calls.0.function.arguments", **message(role="assistant", tool_calls=[
             {"id": "a", "function": {"name": "f", "arguments": {}}}])),
    chat("an effort of its own", "has to be 'none'", "reasoning_effort", reasoning_effort="much"),
    chat("an effort without a switch", "no switch for 'high'", None, reasoning_effort="high"),
    chat("a tool of 300 brackets within each other", "nested more than 100 deep", None,
         tools=[{"type": "function", "function": {"name": "f", "parameters": nested(150)}}]),
    answer("as many in what an answer repeats", "nested more than 100 deep", None,
           text=nested(150)),
    answer("an answer before it", "previous_response_id is not served here",
           "previous_response_id", previous_response_id="resp_1"),
    answer("a tool without a name", "tools.0.function.name is missing", "tools.0.function.name",
           tools=[{"type": "function"}]),
    answer("an item of its own", "is of type 'image'", "input.0", input=[{"type": "image"}]),
    answer("a picture in an item", "has to be text", "input.0",
           input=[{"role": "user", "content": [{"type": "input_image"}]}]),
    answer("an unknown field beside items", "Unrecognized request argument", "colour",
           colour="red"),
    chat("a schema without a schema", "response_format.json_schema is missing",
         "response_format.json_schema", response_format={"type": "json_schema"}),
    chat("a form of a model that never ends", "ends an answer", None,
         response_format={"type": "json_object"}),
    chat("two forms", "two forms", "response_format", response_format={"type": "json_object"},
         tools=[{"type": "function", "function": {"name": "f"}}]),
    chat("a bias beyond the vocabulary", "token id 9999 is outside", None,
         logit_bias={"9999": 1}),
    chat("a bias before the vocabulary", "token id -1 is outside", None, logit_bias={"-1": 1}),
    text("the same of a completion", "token id -999 is outside", None, logit_bias={"-999": 1}),
    chat("a bias of a word", "has to be a valid integer", "logit_bias.a.[key]",
         logit_bias={"a": 1}),
    chat("two biases of a token", "has to be a valid integer, in digits", "logit_bias. 5.[key]",
         logit_bias={"5": 1, " 5": -1}),
    chat("a bias of no plain number", "has to be a valid integer, in digits",
         "logit_bias.1_0.[key]", logit_bias={"1_0": 1}),
    chat("a penalty of 3", "presence_penalty has to be", "presence_penalty", presence_penalty=3),
    chat("an unknown field", "Unrecognized request argument supplied: colour", "colour",
         colour="red"),
    chat("a template", "Unrecognized request argument supplied: chat_template", "chat_template",
         chat_template="{{ 9 ** 9 }}"),
    chat("the likeliest of no logprobs", "goes with logprobs", "top_logprobs", top_logprobs=3),
    text("no prompt", "prompt has to be a text, a list of texts", "prompt", prompt=[]),
    text("an empty prompt", "the prompt is empty", None, prompt=""),
    text("tokens beyond the vocabulary", "token id 9999 is outside", None, prompt=[1, 9999]),
    text("negative tokens", "token id -1 is outside", None, prompt=[-1]),
    text("texts and tokens", "prompt has to be a text", "prompt", prompt=["a", 1]),
    text("stop that is a number", "stop has to be", "stop", stop=7),
    text("best of three", "best_of is not served here", "best_of", best_of=3),
    vectors("a talker for vectors", "generates text", "model", model="talker"),
    vectors("no texts", "input has to be", "input", input=[]),
    vectors("an unknown form", "encoding_format has to be", "encoding_format",
            encoding_format="int8"),
    vectors("more dimensions", "64 numbers, and no more", "dimensions", dimensions=65),
    vectors("an unknown prompt", "is called 'query'; there are: none", None, prompt="query"),
    vectors("a text that is too long", "40 at most", None, input="x" * 100),
    vectors("tokens beyond the vocabulary", "token id 9999 is outside", None, input=[9999]),
]  # fmt: skip


@pytest.fixture(scope="module")
def guarded(models):
    with (
        serving(*models, key=KEY, body=BODY) as address,
        # Models open at their first request.
        httpx.Client(base_url=address, timeout=HANGING) as client,
    ):
        yield client


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_is_refused(guarded, case):
    how = {"content": case.content, "headers": case.headers or JSON}
    response = guarded.request(case.method, case.path, **how)
    assert response.status_code == case.status, response.text
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert case.says in error["message"], error
    assert error["param"] == case.param
    assert "\n" not in error["message"] and "/tmp" not in error["message"]
    assert response.headers["x-request-id"]


def test_it_still_answers(guarded):
    body = {"model": "talker", "prompt": "Hi", "max_tokens": 2, "logit_bias": None, "user": "me"}
    response = guarded.post("/v1/completions", json=body, headers=JSON)
    assert response.status_code == 200, response.text
    assert json.loads(response.content)["usage"]["completion_tokens"] == 2


MANY = 10_000
UNKNOWN = {f"k{i}": i for i in range(MANY)}
SAID = {"role": "user", "content": "Hi"}
FAULTS = [
    (requests.Chat, {"messages": [SAID], **UNKNOWN}),
    (requests.Chat, {"messages": [SAID | UNKNOWN]}),
    (requests.Chat, {"messages": [1] * MANY}),
    (requests.Chat, {"messages": [{}] * MANY}),
    (requests.Chat, {"messages": [SAID | {"content": [{}] * MANY}]}),
    (requests.Chat, {"messages": [SAID | {"content": [{"type": "text", "text": ""} | UNKNOWN]}]}),
    (requests.Chat, {"messages": [SAID], "stop": [1] * MANY}),
    *((requests.Completion, {"prompt": [wrong] * MANY}) for wrong in (1.5, "", [], [1.5])),
    (requests.Completion, {"prompt": [[1.5] * MANY]}),
    (requests.EmbeddingRequest, {"input": [1.5] * MANY}),
    (requests.LineRequest, {"tokens": [1.5] * MANY}),
    (requests.LineRequest, {"tokens": [1], "stop": [1] * MANY}),
    *(
        (Messages, {"messages": [SAID], "max_tokens": 1} | wrong)
        for wrong in (
            UNKNOWN,
            {"messages": [1] * MANY},
            {"messages": [SAID | {"content": [{}] * MANY}]},
            {"system": [1] * MANY},
            {"tools": [{}] * MANY},
            {"stop_sequences": [1] * MANY},
        )
    ),
]


@pytest.mark.parametrize(("form", "body"), FAULTS, ids=map(str, range(len(FAULTS))))
def test_a_body_that_is_wrong_all_over_is_given_up_at_once(form, body):
    """An error for each of a million faults took minutes, and nobody else was answered."""
    with pytest.raises(ValidationError) as error:
        form.model_validate(body)
    assert error.value.error_count() < 10
