"""What a client may get wrong: a status and a sentence for each, in OpenAI's shape, and no crash.

`book/api.md` shows some of them.
"""

import json

from _bad_requests import BODY, CASES, KEY
from _patience import HANGING
from _serving import serving
from ane_serve.api import requests
import httpx
from pydantic import ValidationError
import pytest


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
    response = guarded.request(case.method, case.path, content=case.content, headers=case.headers)
    assert response.status_code == case.status, response.text
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert case.says in error["message"], error
    assert error["param"] == case.param
    assert "\n" not in error["message"] and "/tmp" not in error["message"]
    assert response.headers["x-request-id"]


def test_it_still_answers(guarded):
    body = {"model": "talker", "prompt": "Hi", "max_tokens": 2, "logit_bias": None, "user": "me"}
    response = guarded.post(
        "/v1/completions", json=body, headers={"authorization": f"Bearer {KEY}"}
    )
    assert response.status_code == 200, response.text
    assert json.loads(response.content)["usage"]["completion_tokens"] == 2


def test_there_are_thirty():
    assert len(CASES) >= 30


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
]


@pytest.mark.parametrize(("form", "body"), FAULTS, ids=map(str, range(len(FAULTS))))
def test_a_body_that_is_wrong_all_over_is_given_up_at_once(form, body):
    """An error for each of a million faults took minutes, and nobody else was answered."""
    with pytest.raises(ValidationError) as error:
        form.model_validate(body)
    assert error.value.error_count() < 10
