"""Calls of tools in every form that templates have, whole and in pieces, as clients get them.

The model is scripted (`_scripted`): what it writes is known, so what the server makes of it is.
"""

import json

from _patience import HANGING
from _scripted import scripted, talking
from _serving import serving
from _tool_templates import SPECIAL, TOOL_TEMPLATES
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
SAID = {  # two calls behind a text, but for Llama, whose answer is one call
    "qwen2.5": "I look.\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome \\"}{\\" \N{SNOWMAN}", "days": 3}'
    '}\n</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "qwen3.5": "I look.\n<tool_call>\n<function=weather>\n<parameter=city>\n"
    'Rome "}{" \N{SNOWMAN}\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n'
    "</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
    "mistral-v0.3": "I look.\n"
    '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Rome \\"}{\\" \N{SNOWMAN}", "days": 3}'
    '}, {"name": "now", "arguments": {}}]',
    "ministral-3": "I look.\n"
    '[TOOL_CALLS]weather[ARGS]{"city": "Rome \\"}{\\" \N{SNOWMAN}", "days": 3}'
    "[TOOL_CALLS]now[ARGS]{}",
    "mistral-small-3.2": "I look.\n"
    '[TOOL_CALLS]weather[CALL_ID]aB3456789[ARGS]{"city": "Rome \\"}{\\" \N{SNOWMAN}", "days": 3}'
    "[TOOL_CALLS]now[ARGS]{}",
    "lfm2": "I look.\n<|tool_call_start|>"
    '[weather(city="Rome \\"}{\\" \N{SNOWMAN}", days=3), now()]<|tool_call_end|>',
    "lfm2.5": "I look.\n<|tool_call_start|>"
    "[weather(city='Rome \"}{\" \N{SNOWMAN}', days=3), now()]<|tool_call_end|>",
    "olmo-3": "I look.\n<function_calls>"
    'weather(city="Rome \\"}{\\" \N{SNOWMAN}", days=3)\nnow()</function_calls>',
    "phi-4-mini": "I look.\n"
    '<|tool_call|>[{"name": "weather", "arguments": {"city": "Rome \\"}{\\" \N{SNOWMAN}", "days": 3'
    '}}, {"name": "now", "arguments": {}}]<|/tool_call|>',
    "granite-3": "I look.\n"
    '<|tool_call|>[{"name": "weather", "arguments": {"city": "Rome \\"}{\\" \N{SNOWMAN}", "days": 3'
    '}}, {"name": "now", "arguments": {}}]',
    "llama-3.1":
    '{"name": "weather", "parameters": {"city": "Rome \\"}{\\" \N{SNOWMAN}", "days": 3}}',
}  # fmt: skip


#: Tokens after which a call is in the middle of its arguments.
CUT = {"ministral-3": 36, "llama-3.1": 50, "qwen2.5": 78, "qwen3.5": 78, "lfm2": 40, "lfm2.5": 40}


def says(prompt: str) -> str:
    """What the models of this file answer: calls, and a text after their results."""
    family = prompt.partition("|")[0]
    return "It is warm." if "21 degrees" in prompt else SAID[family]


@pytest.fixture(scope="module")
def address(tiny_bundle, tmp_path_factory):
    """A server of a scripted model of each form; each template begins with its family's name."""
    changes = (("max_position_embeddings", 1024), ("vocab_size", 261))
    bundle = tiny_bundle("llama", changes, kv="state", context=1024, prefill=64)[1]
    models = []
    for name, template in TOOL_TEMPLATES.items():
        folder = tmp_path_factory.mktemp("scripted")
        made = talking(bundle, folder, f"{name}|{template}", SPECIAL.get(name, []))
        models.append(scripted(made, name, says))
    with serving(*models) as address:
        yield address


@pytest.fixture(params=TOOL_TEMPLATES)
def family(request):
    return request.param


def chat(client, model: str, **how):
    asked = {"model": model, "messages": ASK, "tools": TOOLS, "temperature": 0} | how
    return client.chat.completions.create(**asked)


def expected(family: str) -> list[tuple[str, dict]]:
    return [("weather", ROME), ("now", {})][: 1 if family == "llama-3.1" else 2]


def test_calls_and_the_text_before_them(client, family):
    choice = chat(client, family).choices[0]
    found = [(c.function.name, json.loads(c.function.arguments)) for c in choice.message.tool_calls]
    assert found == expected(family) and choice.finish_reason == "tool_calls"
    assert choice.message.content == (None if family == "llama-3.1" else "I look.")


def test_arguments_come_in_pieces(client, family):
    """The first delta of a call has id and name; the next ones bring its arguments."""
    whole = chat(client, family).choices[0].message.tool_calls
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
    said = "".join(c.delta.content or "" for c in chunks)
    assert said.strip() == ("" if family == "llama-3.1" else "I look.")


def test_the_clients_own_helper_puts_a_stream_together(client, family):
    with client.chat.completions.stream(model=family, messages=ASK, tools=TOOLS) as stream:
        for _ in stream:
            pass
        calls = stream.get_final_completion().choices[0].message.tool_calls
    found = [(call.function.name, json.loads(call.function.arguments)) for call in calls]
    assert found == expected(family)


def test_one_call_where_no_more_are_wanted(client, family):
    """The script has two calls; the grammar ends the answer after the first."""
    found = chat(client, family, parallel_tool_calls=False).choices[0].message.tool_calls
    assert [call.function.name for call in found] == ["weather"]


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


def test_a_call_that_is_cut_ends_by_length(client, family):
    """As OpenAI has it: the arguments so far, which are no JSON, and the reason says so."""
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


def test_a_call_that_was_cut_goes_back(client, family):
    """With a result that says so: most templates show the text, others need whole arguments."""
    how = {"max_tokens": CUT.get(family, 60), "parallel_tool_calls": False}
    message = chat(client, family, **how).choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "21 degrees"}
    asked = {"messages": [*ASK, message, result]}
    if family in ("qwen3.5", "lfm2.5", "olmo-3"):
        with pytest.raises(openai.BadRequestError, match=r"messages.1.tool_calls.0: its arguments"):
            chat(client, family, **asked)
    else:
        assert chat(client, family, **asked).choices[0].message.content == "It is warm."


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


@pytest.fixture(scope="module")
def client(address):
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client
