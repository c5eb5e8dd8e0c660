"""Calls of tools in every form that templates have, whole and in pieces, as clients get them.

The model is scripted (`_scripted`): what it writes is known, so what the server makes of it is.
"""

import json

from _long import long_but
from _patience import HANGING
from _scripted import scripted, talking
from _serving import serving
from _tool_templates import SPECIAL, TOOL_TEMPLATES, written
from ane_serve.tools.tools import tool_form
import httpx
import openai
import pytest

ASK = [{"role": "user", "content": "Hi"}]
TOOLS = [
    {"type": "function", "function": {
        "name": "weather", "parameters": {
            "type": "object", "additionalProperties": False, "required": ["city"],
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}},
    {"type": "function", "function": {"name": "now"}},
]  # fmt: skip
ROME = {"city": 'Rome "}{" \N{SNOWMAN}', "days": 3}
CALLS = [("weather", ROME), ("now", {})]  # of Llama, whose answer is one call, the first
#: Tokens after which a call is in the middle of its arguments.
CUT = {"ministral-3": 36, "llama-3.1": 50, "qwen2.5": 78, "qwen3.5": 78, "lfm2": 40, "lfm2.5": 40}
#: What is the same of all forms: quick for three that are read in ways of their own.
ONE_OF_A_KIND = pytest.mark.parametrize(
    "family", long_but(TOOL_TEMPLATES, "qwen2.5", "qwen3.5", "llama-3.1")
)


def expected(family: str) -> list[tuple[str, dict]]:
    return CALLS[:1] if family == "llama-3.1" else CALLS


def said(family: str) -> str:
    """Two calls behind a text, or Llama's one; the snowman as it is, and of two ids the first."""
    calls = written(tool_form(TOOL_TEMPLATES[family]), *expected(family))
    calls = calls.replace(r"\u2603", "\N{SNOWMAN}").replace("now[CALL_ID]aB3456789", "now")
    if family == "lfm2.5":
        calls = calls.replace(json.dumps(ROME["city"], ensure_ascii=False), f"'{ROME['city']}'")
    return calls if family == "llama-3.1" else f"I look.\n{calls}"


def says(prompt: str) -> str:
    """What the models of this file answer: calls, and a text after their results."""
    return "It is warm." if "21 degrees" in prompt else said(prompt.partition("|")[0])


@pytest.fixture(scope="module")
def address(roomy, tmp_path_factory):
    """A server of a scripted model of each form; each template begins with its family's name."""
    models = []
    for name, template in TOOL_TEMPLATES.items():
        folder = tmp_path_factory.mktemp("scripted")
        made = talking(roomy, folder, f"{name}|{template}", SPECIAL.get(name, []))
        models.append(scripted(made, name, says))
    with serving(*models) as address:
        yield address


def chat(client, model: str, **how):
    asked = {"model": model, "messages": ASK, "tools": TOOLS, "temperature": 0} | how
    return client.chat.completions.create(**asked)


@pytest.mark.parametrize("family", TOOL_TEMPLATES)
def test_calls_and_the_text_before_them_whole_and_in_pieces(client, family):
    """The first delta of a call has id and name; the next ones bring its arguments."""
    choice = chat(client, family).choices[0]
    whole, text = choice.message.tool_calls, choice.message.content
    found = [(call.function.name, json.loads(call.function.arguments)) for call in whole]
    assert found == expected(family) and choice.finish_reason == "tool_calls"
    assert text == (None if family == "llama-3.1" else "I look.")

    chunks = [chunk.choices[0] for chunk in chat(client, family, stream=True)]
    deltas = [delta for c in chunks for delta in c.delta.tool_calls or ()]
    assert chunks[-1].finish_reason == "tool_calls"
    for i, call in enumerate(whole):
        first, *rest = [delta for delta in deltas if delta.index == i]
        assert first.id and first.type == "function" and first.function.name == call.function.name
        assert first.function.arguments == ""
        assert all(d.id is None and d.function.name is None for d in rest)
        assert "".join(d.function.arguments for d in rest) == call.function.arguments
    assert sum(delta.index == 0 for delta in deltas) > 10  # not all at once
    assert len({delta.id for delta in deltas if delta.id}) == len(whole)
    assert "".join(c.delta.content or "" for c in chunks).strip() == (text or "")


@ONE_OF_A_KIND
def test_one_call_where_no_more_are_wanted(client, family):
    """The script has two calls; the grammar ends the answer after the first."""
    found = chat(client, family, parallel_tool_calls=False).choices[0].message.tool_calls
    assert [call.function.name for call in found] == ["weather"]


@ONE_OF_A_KIND
def test_the_turn_after_a_call(client, family):
    """The message as the client got it goes back with the results; some clients send a text null,
    others an empty one."""
    message = chat(client, family).choices[0].message
    for content in (message.content, "", None):
        given = message.model_dump() | {"content": content}
        results = [{"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}
                   for call in message.tool_calls]  # fmt: skip
        again = chat(client, family, messages=[*ASK, given, *results])
        assert again.choices[0].message.content == "It is warm."
        assert again.choices[0].finish_reason == "stop"


@ONE_OF_A_KIND
def test_a_call_that_is_cut_ends_by_length_and_may_go_back(client, family):
    """As OpenAI has it: the arguments so far, which are no JSON, and the reason says so. With a
    result that says so most templates show the text, others need whole arguments."""
    how = {"max_tokens": CUT.get(family, 60), "parallel_tool_calls": False}
    choice = chat(client, family, **how).choices[0]
    (call,) = choice.message.tool_calls
    assert choice.finish_reason == "length"
    assert json.dumps(ROME, ensure_ascii=False).startswith(call.function.arguments)
    with pytest.raises(ValueError, match="line 1"):
        json.loads(call.function.arguments)
    chunks = [chunk.choices[0] for chunk in chat(client, family, **how, stream=True)]
    pieces = [d.function.arguments for c in chunks for d in c.delta.tool_calls or ()]
    assert "".join(pieces) == call.function.arguments
    assert chunks[-1].finish_reason == "length"

    result = {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}
    asked = {"messages": [*ASK, choice.message, result]}
    if family in ("qwen3.5", "lfm2.5", "olmo-3"):
        with pytest.raises(openai.BadRequestError, match=r"messages.1.tool_calls.0: its arguments"):
            chat(client, family, **asked)
    else:
        assert chat(client, family, **asked).choices[0].message.content == "It is warm."


@ONE_OF_A_KIND
def test_the_newer_api_streams_them_too(client, family):
    flat = [{"type": "function", **tool["function"]} for tool in TOOLS]
    how = {"model": family, "input": "Hi", "tools": flat, "temperature": 0}
    with client.responses.stream(**how) as stream:
        events = list(stream)
    items = events[-1].response.output
    calls = [item for item in items if item.type == "function_call"]
    assert [(c.name, json.loads(c.arguments)) for c in calls] == expected(family)
    for call in calls:
        pieces = [e.delta for e in events if e.type == "response.function_call_arguments.delta"
                  and e.item_id == call.id]  # fmt: skip
        assert "".join(pieces) == call.arguments and len(pieces) >= min(2, len(call.arguments) // 9)
        done = [e for e in events if e.type == "response.function_call_arguments.done"
                and e.item_id == call.id]  # fmt: skip
        assert [e.arguments for e in done] == [call.arguments]
    whole = client.responses.create(**how).output
    assert [(c.name, c.arguments) for c in whole if c.type == "function_call"] == [
        (c.name, c.arguments) for c in calls
    ]
    assert [item.type for item in items] == [item.type for item in whole]
    assert all(item.status == "completed" for item in items)
    cut = client.responses.create(**how | {"max_output_tokens": 50})
    assert cut.status == "incomplete"


def test_a_schema_that_no_call_can_keep_is_refused(address):
    text = {"type": "string", "format": "date"}
    function = {"name": "f", "parameters": {"type": "object", "properties": {"day": text}}}
    body = {"model": "qwen3.5", "messages": ASK, "tools": [
        {"type": "function", "function": function}]}  # fmt: skip
    found = httpx.post(f"{address}/v1/chat/completions", json=body, timeout=HANGING)
    assert found.status_code == 400
    assert "f.day: format cannot be held to" in found.json()["error"]["message"]
