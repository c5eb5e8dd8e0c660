"""Models that think before they answer: how much, and answers that keep a form behind the thought.

The model is scripted (`_scripted`); its template opens a thought in the prompt, as Qwen3.5's does,
and closes it there where the client asks for none.
"""

import json

from _scripted import scripted, talking
from _serving import serving
from ane_book.errors import InvalidInput
from ane_book.runtime import Session
import openai
import pytest

ASK = [{"role": "user", "content": "Hi"}]
TURNS = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
TEMPLATES = {
    "switched": TURNS
    + "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% else %}<think>\n{% endif %}",
    "graded": TURNS + "{% set reasoning_effort = reasoning_effort if reasoning_effort is defined "
    "else 'medium' %}effort {{ reasoning_effort }};",
    "always": TURNS + "<think>\n",
    "never": TURNS,
}
CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}},
        "required": ["city"], "additionalProperties": False}  # fmt: skip
THOUGHT = 'Is it {"city": 1}? No.'


def says(prompt: str) -> str:
    """An answer to one of its prompts, with the thought that it begins within."""
    thought = f"{THOUGHT}\n</think>\n\n" if prompt.rstrip().endswith("<think>") else ""
    return thought + (prompt if "effort" in prompt else '{"city": "Rome"}')


@pytest.fixture(scope="module")
def bundles(roomy, tmp_path_factory):
    return {name: talking(roomy, tmp_path_factory.mktemp("thinking"), template, [])
            for name, template in TEMPLATES.items()}  # fmt: skip


@pytest.fixture(scope="module")
def address(bundles):
    with serving(*(scripted(bundle, name, says) for name, bundle in bundles.items())) as address:
        yield address


def chat(client, model: str, **how):
    asked = {"model": model, "messages": ASK, "temperature": 0} | how
    return client.chat.completions.create(**asked).choices[0].message


FORMS = [
    {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}},
    {"type": "json_object"},
    {"type": "regex", "regex": r"\{.*\}"},
    {"type": "grammar", "grammar": 'start: "{" REST\nREST: /[^}]*}/'},
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form["type"])
@pytest.mark.parametrize("effort", ["high", "none"])
def test_a_form_is_kept_behind_the_thought(client, form, effort):
    """The thought is free: it has a text that is no beginning of the form."""
    found = chat(client, "switched", response_format=form, reasoning_effort=effort)
    assert json.loads(found.content) == {"city": "Rome"}
    thought = THOUGHT if effort == "high" else None
    assert getattr(found, "reasoning_content", None) == thought


def test_the_form_is_held_to(client):
    """The script's city is none of these, so the mask takes it."""
    schema = CITY | {"properties": {"city": {"enum": ["Oslo"]}}}
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema}}
    found = chat(client, "always", response_format=form)
    assert json.loads(found.content) == {"city": "Oslo"} and found.reasoning_content == THOUGHT


def test_a_session_keeps_it_too(bundles):
    """Its text has the thought, since nothing splits it."""
    session = Session(bundles["switched"], precision="fp32")
    how = {"json_schema": json.dumps(CITY), "max_tokens": 400, "temperature": 1.0, "seed": 3}
    bare = session.generate("Hi", reasoning_effort="none", **how).text
    assert json.loads(bare)["city"] in ("Rome", "Oslo")
    ended = session.encode("Hi") + session.tokens("So.\n</think>\n\n")
    assert json.loads(session.generate(ended, **how).text)["city"] in ("Rome", "Oslo")
    thought, ended, said = session.generate("Hi", **how).text.partition("</think>")
    assert not thought.startswith("{")
    assert not ended or json.loads(said)["city"] in ("Rome", "Oslo")


def test_a_template_that_knows_the_effort_is_told_it(client):
    assert "effort medium;" in chat(client, "graded").content
    assert "effort low;" in chat(client, "graded", reasoning_effort="low").content


def test_the_newer_api_asks_by_another_name(client):
    how = {"model": "switched", "input": "Hi", "temperature": 0}
    kinds = [
        [item.type for item in client.responses.create(**how, reasoning=reasoning).output]
        for reasoning in ({"effort": "medium", "summary": "auto"}, {"effort": "minimal"}, {})
    ]
    assert kinds == [["reasoning", "message"], ["message"], ["reasoning", "message"]]


@pytest.mark.parametrize("thinks", [True, False])
def test_clients_of_vllm_say_it_to_the_template(client, thinks):
    body = {"enable_thinking": thinks}
    found = chat(client, "switched", extra_body={"chat_template_kwargs": body})
    assert hasattr(found, "reasoning_content") == thinks
    with pytest.raises(openai.BadRequestError, match="supplied: chat_template_kwargs.messages"):
        chat(client, "switched", extra_body={"chat_template_kwargs": body | {"messages": []}})


def test_where_there_is_no_switch(client, bundles):
    """To think of nothing is what a model without thoughts does; what it cannot do is refused."""
    assert chat(client, "never", reasoning_effort="none").content == '{"city": "Rome"}'
    for model, effort in (("never", "high"), ("always", "none"), ("always", "low")):
        with pytest.raises(openai.BadRequestError, match="no switch for"):
            chat(client, model, reasoning_effort=effort)
    with pytest.raises(openai.BadRequestError, match="reasoning_effort has to be 'none'"):
        chat(client, "switched", reasoning_effort="much")
    session = Session(bundles["always"])
    with pytest.raises(InvalidInput, match="token ids go as they are"):
        session.generate([1, 2], reasoning_effort="none")
