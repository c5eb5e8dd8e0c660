"""Anthropic's API, as its own client asks for it, and as agents do (`_message_agents`).

What models say is their script's (`_scripted`), but for `talker`, which knows nothing.
"""

import json
from pathlib import Path
import re

from _long import long_but
from _message_agents import AGENTS
from _messages import ASK, BOTH, HELLO, MESSAGES, create
from _patience import HANGING
from _scripted import scripted, talking
from _serving import serving
from _tool_templates import TOOL_TEMPLATES, written
from ane_book.runtime import Session
from ane_serve.api.messages import OfferedTool
from ane_serve.tools.loose import loosened
from ane_serve.tools.tools import Calling, tool_form
import anthropic
from anthropic.types import RawMessageStreamEvent
import httpx
import llguidance
from pydantic import TypeAdapter
import pytest

TOLD = [{"role": "system", "content": "Be kind."}, *ASK]
QWEN = TOOL_TEMPLATES["qwen2.5"]
TURNS = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
OFF = "enable_thinking is defined and enable_thinking is false"
TEMPLATES = {
    "agent": QWEN,
    "thinker": TURNS + "{% if " + OFF + " %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}",
    "plain": TURNS,
}


def call(*calls: tuple[str, dict]) -> str:
    return written(tool_form(QWEN), *calls).replace(r"\u2603", "\N{SNOWMAN}")


def says(prompt: str) -> str:
    """What scripted models answer: the next turn of a task, or by what is asked for."""
    if (task := re.search(r"Task (\d):", prompt)) is not None:
        return step(int(task[1]), re.findall("<tool_response>(.*?)</tool_response>", prompt, re.S))
    if prompt.endswith("<think>\n"):
        return "Let me see.\n</think>\n\nHello."
    if "title." in prompt:
        return '{"title": "Red"}'
    if "<tool_response>" in prompt:
        return call(("attempt_completion", {"result": "Done."})) if "attempt_" in prompt else "Red."
    for name, key in (("Read", "file_path"), ("read_file", "path"), ("read", "filePath")):
        if f'"name": "{name}"' in prompt:
            said = "" if name == "read_file" else "I read it.\n"  # Cline requires a call
            return said + call((name, {key: "/work/a.txt"}))
    return "Hello."


@pytest.fixture(scope="module")
def address(models, tiny_bundle, tmp_path_factory):
    changes = (("max_position_embeddings", 6144), ("vocab_size", 266))
    wide = tiny_bundle("llama", changes, kv="state", context=6144, prefill=512)[1]
    others = [scripted(talking(wide, tmp_path_factory.mktemp(name), template, []), name, says)
              for name, template in TEMPLATES.items()]  # fmt: skip
    with serving(*models, *others) as address:
        yield address


@pytest.fixture(scope="module")
def client(address):
    with anthropic.Anthropic(base_url=address, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def session(talker):
    return Session(talker, precision="fp32")


@BOTH
class TestText:
    def test_an_answer_is_the_sessions(self, client, session, stream):
        expected = session.generate(TOLD, max_tokens=9)
        found = create(client, stream, **HELLO | {"max_tokens": 9})
        assert [(block.type, block.text) for block in found.content] == [("text", expected.text)]
        assert (found.role, found.model) == ("assistant", "talker")
        assert (found.stop_reason, found.stop_sequence) == ("max_tokens", None)
        usage = found.usage
        assert usage.input_tokens + usage.cache_read_input_tokens == expected.prompt_tokens
        assert usage.output_tokens == 9

    def test_a_stop_sequence_is_named(self, client, stream):
        found = create(client, stream, model="plain", stop_sequences=["never", "o.", "ll"])
        assert found.content[0].text == "He"
        assert (found.stop_reason, found.stop_sequence) == ("stop_sequence", "ll")

    def test_the_end_of_the_context_and_of_a_turn(self, client, stream):
        found = create(client, stream, **HELLO)
        assert found.stop_reason == "model_context_window_exceeded"
        found = create(client, stream, model="plain")
        assert (found.stop_reason, found.content[0].text) == ("end_turn", "Hello.")

    def test_what_was_read_before_is_counted_apart(self, client, stream):
        asked = HELLO | {"max_tokens": 2, "system": "Be kind, and patient, and brief."}
        usages = [create(client, stream, **asked).usage for _ in range(2)]
        counted = client.messages.count_tokens(
            **{name: asked[name] for name in ("model", "system", "messages")}
        )
        for usage in usages:
            assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
        assert usages[1].cache_read_input_tokens >= 16  # a call of the prefill

    def test_thoughts_are_blocks(self, client, stream):
        thought, said = create(client, stream, model="thinker").content
        assert (thought.type, thought.thinking.strip()) == ("thinking", "Let me see.")
        assert said.text == "Hello." and thought.signature == ""
        again = [*ASK, {"role": "assistant", "content": [thought, said]}, *ASK]
        assert create(client, stream, model="thinker", messages=again).content[1].text == "Hello."
        none = create(client, stream, model="thinker", thinking={"type": "disabled"})
        assert [block.type for block in none.content] == ["text"]

    def test_wishes_are_left_out_where_there_is_no_switch(self, client, stream):
        how = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2048}
        found = create(client, stream, model="plain", output_config={"effort": "max"}, **how)
        assert found.content[0].text == "Hello."


def test_a_seedless_draw_heeds_top_k_and_top_p(client, session):
    """Of the likeliest alone it is the greedy answer, however hot."""
    expected = session.generate(TOLD, max_tokens=9).text
    for how in ({"top_k": 1}, {"top_p": 0.0}):
        found = create(client, **HELLO | {"temperature": 1, "max_tokens": 9, **how})
        assert found.content[0].text == expected


class TestPrompts:
    """A conversation is read as a chat's: both APIs count the same tokens."""

    CASES = (
        ({"system": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}]},
         [{"role": "system", "content": "A\nB"}]),
        ({"messages": [*ASK, *ASK]}, [{"role": "user", "content": "Hello\nHello"}]),
        ({"messages": [{"role": "system", "content": "A"}, *ASK]},
         [{"role": "system", "content": "A"}, *ASK]),
        ({"messages": [*ASK, {"role": "system", "content": "A"}]},
         [{"role": "user", "content": "Hello\nA"}]),
        ({"messages": [*ASK, {"role": "assistant", "content": [
            {"type": "text", "text": "A"},
            {"type": "tool_use", "id": "a", "name": "f", "input": {"x": [1]}},
            {"type": "tool_use", "id": "b", "name": "g", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "B", "is_error": True},
                {"type": "tool_result", "tool_use_id": "b"},
                {"type": "text", "text": "C"}]}]},
         [*ASK, {"role": "assistant", "content": "A", "tool_calls": [
             {"id": "a", "function": {"name": "f", "arguments": '{"x": [1]}'}},
             {"id": "b", "function": {"name": "g", "arguments": "{}"}}]},
          {"role": "tool", "tool_call_id": "a", "content": "B"},
          {"role": "tool", "tool_call_id": "b", "content": ""},
          {"role": "user", "content": "C"}]),
    )  # fmt: skip

    @pytest.mark.parametrize(("asked", "chat"), CASES, ids=range(len(CASES)))
    def test_is_that_of_a_chat(self, address, client, asked, chat):
        found = client.messages.count_tokens(**{"model": "agent", "messages": ASK} | asked)
        messages = chat if len(chat) > 1 or "messages" in asked else [*chat, *ASK]
        body = {"model": "agent", "messages": messages}
        expected = httpx.post(f"{address}/tokenize", json=body, timeout=HANGING).json()
        assert found.input_tokens == expected["count"]


# --- tools

PATH = {"path": {"type": "string"}}
SCHEMAS = {"ls": {}, "read": PATH, "write": PATH | {"text": {"type": "string"}}, "rm": PATH}
TOOLS = [{"name": name, "input_schema": {"type": "object", "properties": properties,
                                         "required": [*properties], "additionalProperties": False}}
         for name, properties in SCHEMAS.items()]  # fmt: skip
READ_BOTH = [("read", {"path": "a"}), ("read", {"path": "b"})]
SNOW = 'A "\N{SNOWMAN}"\\\n'

#: What is asked; the calls of each turn, by the results so far; what the agent says at last, and
#: what the folder has then, if that changes.
TASKS = [
    ("Say hello.", [], "Hello.", {}),
    ("List the files.", [lambda r: [("ls", {})]], "a b", {}),
    ("What is in a?", [lambda r: READ_BOTH[:1]], "red", {}),
    ("Copy a to c.", [lambda r: READ_BOTH[:1], lambda r: [("write", {"path": "c", "text": r[-1]})]],
     "Done.", {"c": "red"}),
    ("Join a and b.", [
        lambda r: READ_BOTH,
        lambda r: [("write", {"path": "a", "text": "".join(r)}), ("rm", {"path": "b"})]],
     "Done.", {"a": "redblue", "b": None}),
    ("Empty b.", [lambda r: [("write", {"path": "b", "text": ""})]], "Done.", {"b": ""}),
    ("What is in z?", [lambda r: [("read", {"path": "z"})]], "no such file", {}),
    ("Draw a snowman.", [lambda r: [("write", {"path": "s", "text": SNOW})]], "Done.", {"s": SNOW}),
    ("Remove what is blue.", [lambda r: [("ls", {})], lambda r: READ_BOTH,
                              lambda r: [("rm", {"path": "ab"[r[1:].index("blue")]})]],
     "Done.", {"b": None}),
    ("Write a file of its name.", [
        *(lambda r, name=name: [("write", {"path": name, "text": name})] for name in "xyz"),
        lambda r: [("ls", {})]], "a b x y z", {"x": "x", "y": "y", "z": "z"}),
]  # fmt: skip


def step(task: int, results: list[str]) -> str:
    """The next turn: calls, or the answer, which is the last result but for what was done."""
    done = 0
    for calls in TASKS[task][1]:
        if done == len(results):
            return ("Next.\n" if done else "") + call(*calls(results))
        done += len(calls(results[:done]))
    last = results[-1] if results else "Hello."
    return "Done." if last == "ok" else last


def worked(folder: Path, name: str, given: dict) -> str:
    """What a tool of the agent does; raises OSError."""
    if name == "ls":
        return " ".join(sorted(path.name for path in folder.iterdir()))
    file = folder / given["path"]
    if name == "read":
        return file.read_text(encoding="utf-8")
    if name == "rm":
        file.unlink()
    else:
        file.write_text(given["text"], encoding="utf-8")
    return "ok"


@pytest.mark.parametrize("stream", long_but([False, True], True), ids=["whole", "stream"])
@pytest.mark.parametrize("task", range(len(TASKS)), ids=[task[0] for task in TASKS])
def test_an_agent_does_its_task(client, tmp_path, task, stream):
    """The agent does what it is asked for and sends back what it got, until it is told the end."""
    asked, turns, end, changed = TASKS[task]
    files = {"a": "red", "b": "blue"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    messages = [{"role": "user", "content": f"Task {task}: {asked}"}]
    for _ in range(len(turns) + 1):
        found = create(client, stream, model="agent", messages=messages, tools=TOOLS)
        results = []
        for block in found.content:
            if block.type == "tool_use":
                try:
                    done = {"content": worked(tmp_path, block.name, block.input)}
                except OSError:
                    done = {"content": "no such file", "is_error": True}
                results.append({"type": "tool_result", "tool_use_id": block.id, **done})
        assert found.stop_reason == ("tool_use" if results else "end_turn")
        if not results:
            break
        messages += [{"role": "assistant", "content": found.content},
                     {"role": "user", "content": results}]  # fmt: skip
    assert len(messages) == 1 + 2 * len(turns) and found.content[0].text == end
    left = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert left == {name: text for name, text in (files | changed).items() if text is not None}


def test_a_stream_of_calls_has_the_clients_events(client):
    asked = {"model": "agent", "max_tokens": 400, "tools": TOOLS}
    messages = [{"role": "user", "content": "Task 4: Join a and b."}]
    with client.messages.create(**asked, messages=messages, stream=True) as stream:
        events = list(stream)
    kinds = [event.type for event in events]
    assert kinds[0] == "message_start" and kinds[-2:] == ["message_delta", "message_stop"]
    starts = [event for event in events if event.type == "content_block_start"]
    assert [(s.index, s.content_block.name, s.content_block.input) for s in starts] == [
        (0, "read", {}), (1, "read", {})]  # fmt: skip
    for start, (_, given) in zip(starts, READ_BOTH, strict=True):
        pieces = [e.delta.partial_json for e in events
                  if e.type == "content_block_delta" and e.index == start.index]  # fmt: skip
        assert json.loads("".join(pieces)) == given and len(pieces) > 3


CHOICES = [
    ({"type": "auto"}, ["text"]),
    ({"type": "any"}, ["tool_use"]),
    ({"type": "tool", "name": "ls"}, ["tool_use"]),
    ({"type": "none"}, ["text"]),
    ({"type": "any", "disable_parallel_tool_use": True}, ["tool_use"]),
]


@pytest.mark.parametrize(("choice", "kinds"), CHOICES, ids=[str(choice) for choice, _ in CHOICES])
def test_a_choice_of_tools_is_kept(client, choice, kinds):
    """The script says hello, or at `Task 4` calls twice: the form takes what is not in it."""
    found = create(client, model="agent", tools=TOOLS[:1], tool_choice=choice)
    assert {block.type for block in found.content} == set(kinds)
    if "disable_parallel_tool_use" in choice:
        two = [{"role": "user", "content": "Task 4: Join a and b."}]
        found = create(client, model="agent", tools=TOOLS, tool_choice=choice, messages=two)
        assert [block.input for block in found.content] == [{"path": "a"}]


@BOTH
def test_a_call_that_is_cut_has_what_is_whole(client, stream):
    messages = [{"role": "user", "content": "Task 7: Draw a snowman."}]
    asked = {"model": "agent", "tools": TOOLS, "messages": messages, "max_tokens": 66}
    found = create(client, stream, **asked)
    assert found.stop_reason == "max_tokens"
    (block,) = found.content
    assert (block.name, block.input) == ("write", {"path": "s"})


# --- agents

OFFERED = {tool["name"]: tool for _, bodies in AGENTS.values() for body in bodies
           for tool in body.get("tools", ())}  # fmt: skip


@pytest.mark.parametrize("family", TOOL_TEMPLATES)
def test_what_agents_offer_is_held_to_in_every_form(family):
    form, vocabulary = tool_form(TOOL_TEMPLATES[family]), llguidance.LLTokenizer("byte")
    for tool in OFFERED.values():
        grammar = form.grammar([loosened(OfferedTool(**tool).tool())], Calling())
        assert llguidance.LLMatcher(vocabulary, grammar).get_error() == "", tool["name"]


def test_a_strict_tool_is_held_to_all_of_its_schema_or_refused(client):
    asked = {"model": "agent", "tools": [OFFERED["AskUserQuestion"] | {"strict": True}]}
    with pytest.raises(anthropic.BadRequestError, match="propertyNames"):
        create(client, **asked)


def test_a_schema_that_is_loosened():
    text, many = {"type": "string", "format": "date", "pattern": "2.*"}, {"minimum": 1}
    properties = {"format": text, "n": {"oneOf": [many | {"multipleOf": 2}, {"$ref": "#/$defs/a"}]},
                  "list": {"type": "array", "items": text, "uniqueItems": True}}  # fmt: skip
    schema = {"type": "object", "properties": properties, "$defs": {"a": text}, "minProperties": 1}
    bare = {"type": "string"}
    assert loosened({"function": {"parameters": schema}})["function"]["parameters"] == {
        "type": "object",
        "properties": {"format": bare, "n": {"anyOf": [many, {"$ref": "#/$defs/a"}]},
                       "list": {"type": "array", "items": bare}},
        "$defs": {"a": bare},
    }  # fmt: skip


REQUESTS = [pytest.param(body, id=f"{name}-{i}") for name, (_, bodies) in AGENTS.items()
            for i, body in enumerate(bodies)]  # fmt: skip
EVENT = TypeAdapter(RawMessageStreamEvent)


@pytest.mark.parametrize("body", REQUESTS)
def test_an_agents_request_is_answered(address, body):
    """With a query and headers that agents send; `Read` and its like are called, or what they gave
    is told."""
    headers = {"x-api-key": "none", "anthropic-version": "2023-06-01", "anthropic-beta": "a,b"}
    how = {"headers": headers, "params": {"beta": "true"}, "timeout": HANGING}
    found = httpx.post(address + MESSAGES, json={"model": "agent", **body}, **how)
    assert found.status_code == 200, found.text
    if body.get("stream"):
        lines = [line[6:] for line in found.text.splitlines() if line.startswith("data: ")]
        events = [json.loads(line) for line in lines]
        names = [line[7:] for line in found.text.splitlines() if line.startswith("event: ")]
        assert names == [event["type"] for event in events]
        for event in events:
            assert event["type"] == "ping" or EVENT.validate_python(event)
        reason = events[-2]["delta"]["stop_reason"]
        said = "".join(e["delta"].get("text", "") for e in events if "index" in e and "delta" in e)
    else:
        message = anthropic.types.Message.model_validate(found.json())
        reason, said = message.stop_reason, message.content[0].text
    got = any(block["type"] == "tool_result" for message in body["messages"]
              for block in message["content"] if isinstance(block, dict))  # fmt: skip
    calls = "tools" in body and (not got or body.get("tool_choice") == {"type": "any"})
    assert reason == ("tool_use" if calls else "end_turn")
    if "tools" not in body:
        assert json.loads(said) == {"title": "Red"}
    assert said == "Red." or calls or not got
    count = {name: body[name] for name in ("messages", "system", "tools") if name in body}
    path = f"{address}{MESSAGES}/count_tokens"
    counted = httpx.post(path, json={"model": "agent", **count}, **how).json()
    assert counted.keys() == {"input_tokens"} and counted["input_tokens"] > 20
