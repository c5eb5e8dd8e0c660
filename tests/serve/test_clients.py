"""What clients send is answered in the shape that they read, and the page names them.

A body is written by us, after the client's public source: the fields, their order of magnitude and
their nulls are the client's, the words are ours.
"""

import json
from pathlib import Path

from _patience import HANGING
from _scripted import scripted, talking
from _serving import serving
from _tool_templates import TOOL_TEMPLATES
import httpx
from openai.types.chat import ChatCompletion, ChatCompletionChunk
import pytest

PAGE = Path(__file__).parents[2] / "book" / "serving.md"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
          "additionalProperties": False}  # fmt: skip
FUNCTION = {"name": "weather", "description": "The weather of a city.", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": FUNCTION}]
STRICT = [{"type": "function", "function": FUNCTION | {"strict": False}}]
ASK = {"role": "user", "content": "Is it warm in Rome?"}
PARTS = {"role": "user", "content": [
    {"type": "text", "text": "Is it warm "}, {"type": "text", "text": "in Rome?"}]}  # fmt: skip
SYSTEM = {"role": "system", "content": "Be brief."}
CALL = {"id": "call_8Z2kQ0aTn1bRcD3e", "type": "function",
        "function": {"name": "weather", "arguments": '{"city":"Rome"}'}}  # fmt: skip
RESULT = {"role": "tool", "tool_call_id": CALL["id"], "content": "21 degrees"}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
FORM = {"type": "json_schema", "json_schema": {"name": "output", "schema": SCHEMA}}


def called(**more) -> dict:
    """The message of an earlier answer that called a tool."""
    return {"role": "assistant", "tool_calls": [CALL], **more}


def github(repository: str, commit: str, path: str) -> str:
    return f"https://github.com/{repository}/blob/{commit[:7]}/{path}"


#: By client: where its source says what it sends, and bodies, each without its model.
CLIENTS: dict[str, tuple[str, list[dict]]] = {
    "LangChain, ChatOpenAI": (
        github("langchain-ai/langchain", "00539b501c219f80df69d799e92b102566a125e5",
               "libs/partners/openai/langchain_openai/chat_models/base.py"),
        [
            {"messages": [SYSTEM, ASK], "stream": False, "max_completion_tokens": 200},
            {"messages": [PARTS], **USAGE},
            {"messages": [ASK], "tools": TOOLS, "tool_choice": "auto",
             "parallel_tool_calls": False, "stream": False},
            {"messages": [ASK, called(content=None), RESULT], "tools": TOOLS, **USAGE},
            {"messages": [ASK], "response_format": FORM, "stream": False},
        ],
    ),
    "LlamaIndex, OpenAILike": (
        github("run-llama/llama_index", "020535abd483bd1d8463c7bfd49ff9899571bfc3",
               "llama-index-integrations/llms/llama-index-llms-openai/llama_index/llms/openai/"
               "base.py"),
        [
            {"messages": [SYSTEM, ASK], "stream": False, "temperature": 0.1, "max_tokens": 200},
            {"messages": [ASK], "stream": True, "temperature": 0.1, "tools": STRICT,
             "tool_choice": "auto", "parallel_tool_calls": False},
            {"messages": [ASK, called(content=None) | {"tool_calls": [CALL | {"index": 0}]},
                          RESULT | {"name": "weather"}],
             "stream": False, "temperature": 0.1, "tools": STRICT, "tool_choice": "auto"},
            {"messages": [ASK], "stream": False, "temperature": 0.1, "tools": STRICT,
             "tool_choice": {"type": "function", "function": {"name": "weather"}}},
        ],
    ),
    "OpenAI Agents SDK": (
        github("openai/openai-agents-python", "b33cf47390735c432df466f30256c3cc679deaa5",
               "src/agents/models/openai_chatcompletions.py"),
        [
            {"messages": [SYSTEM, ASK], "tools": [
                {"type": "function", "function": FUNCTION | {"strict": True}}], **USAGE},
            {"messages": [SYSTEM, ASK, called(content=None), RESULT], "stream": False,
             "tools": [{"type": "function", "function": FUNCTION | {"strict": True}}],
             "parallel_tool_calls": True},
            {"messages": [SYSTEM, ASK], "stream": False, "tool_choice": "required",
             "tools": [{"type": "function", "function": FUNCTION | {"strict": True}}]},
            {"messages": [SYSTEM, ASK], "stream": False, "response_format": {
                "type": "json_schema", "json_schema": {
                    "name": "final_output", "strict": True, "schema": SCHEMA}}},
        ],
    ),
    "Continue": (
        github("continuedev/continue", "023111db46abd5620dc79ad62350ccb0002a53ff",
               "packages/openai-adapters/src/apis/OpenAI.ts"),
        [
            {"messages": [SYSTEM, PARTS], "max_tokens": 200, "stop": ["```"], **USAGE},
            {"messages": [ASK, called(content=" "), RESULT], "max_tokens": 200, "tools": STRICT,
             **USAGE},
        ],
    ),
    "Cline": (
        github("cline/cline", "0162b82878a6d755b471ebaae554372ae25da419",
               "src/core/api/providers/openai.ts"),
        [
            {"messages": [SYSTEM, PARTS], "temperature": 0, "tools": TOOLS, **USAGE},
            {"messages": [{"role": "developer", "content": "Be brief."}, ASK], **USAGE},
            {"messages": [SYSTEM, PARTS, called(), RESULT, PARTS], "temperature": 0,
             "tools": TOOLS, **USAGE},
        ],
    ),
    "Zed": (
        github("zed-industries/zed", "014676e49857c2b2fec5b57883880c1db05f1ca7",
               "crates/open_ai/src/open_ai.rs"),
        [
            {"messages": [SYSTEM, PARTS], "max_completion_tokens": 200, "temperature": 1.0,
             "prompt_cache_key": "thread", **USAGE},
            {"messages": [ASK, called(content=None), RESULT], "tools": [
                {"type": "function", "function": FUNCTION | {"description": None}}],
             "tool_choice": "auto", "parallel_tool_calls": False, **USAGE},
            {"messages": [ASK, called(content=[]), RESULT], "tools": TOOLS, **USAGE},
        ],
    ),
    "llm": (
        github("simonw/llm", "009d9d37f0b58e84c0f770a344c44d7cc62e125e",
               "llm/default_plugins/openai_models.py"),
        [
            {"messages": [SYSTEM, ASK], **USAGE},
            {"messages": [ASK, called(), RESULT], "stream": False, "tools": [
                {"type": "function", "function": FUNCTION | {"description": None}}]},
            {"messages": [ASK], "response_format": FORM, **USAGE},
            {"messages": [ASK], "response_format": {"type": "json_object"}, "stream": False},
        ],
    ),
    "aichat": (
        github("sigoden/aichat", "eb0fbdd320b7c3da77c2e72beb8f55df67851f9c",
               "src/client/openai.rs"),
        [
            {"messages": [SYSTEM, ASK], "temperature": 0.5, "top_p": 0.9, "stream": True},
            {"messages": [ASK, called(content=""), RESULT], "max_tokens": 200, "tools": TOOLS},
            {"messages": [ASK, called(content=None), RESULT], "tools": TOOLS, "stream": True},
        ],
    ),
}  # fmt: skip


BODIES = [
    pytest.param(body, id=f"{name}-{i}")
    for name, (_, bodies) in CLIENTS.items()
    for i, body in enumerate(bodies)
]


def says(prompt: str) -> str:
    """A call of the one tool, or an object, or a text, by what is asked for."""
    if "21 degrees" in prompt or "weather" not in prompt:
        return '{"city": "Rome"}'
    return '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


@pytest.fixture(scope="module")
def address(roomy, tmp_path_factory):
    made = talking(roomy, tmp_path_factory.mktemp("clients"), TOOL_TEMPLATES["qwen2.5"], [])
    with serving(scripted(made, "model", says)) as address:
        yield address


@pytest.mark.parametrize("body", BODIES)
def test_a_clients_body_is_answered(address, body):
    path = f"{address}/v1/chat/completions"
    found = httpx.post(path, json={"model": "model", **body}, timeout=HANGING)
    assert found.status_code == 200, found.text
    if body.get("stream"):
        call, text = streamed(found.text, "stream_options" in body)
    else:
        choice = ChatCompletion.model_validate(found.json()).choices[0]
        calls = choice.message.tool_calls or []
        call = calls[0].function.arguments if calls else None
        text = choice.message.content
    if body.get("tools") and not any(m["role"] == "tool" for m in body["messages"]):
        assert "city" in json.loads(call)
    else:
        assert json.loads(text) == {"city": "Rome"} and call is None


def streamed(events: str, usage: bool) -> tuple[str | None, str]:
    """The arguments of a call and the text that a stream has; checks its events."""
    *data, end = [line[6:] for line in events.splitlines() if line.startswith("data: ")]
    chunks = [ChatCompletionChunk.model_validate_json(each) for each in data]
    assert end == "[DONE]" and bool(chunks[-1].usage) == usage
    others = [json.loads(each).get("usage", "none") for each in data[: -1 if usage else None]]
    assert set(others) == {None if usage else "none"}
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert choices[-1].finish_reason in ("stop", "tool_calls")
    deltas = [d for c in choices for d in c.delta.tool_calls or ()]
    arguments = "".join(d.function.arguments for d in deltas)
    return arguments or None, "".join(c.delta.content or "" for c in choices)


def test_the_page_names_the_clients_and_their_sources():
    page = PAGE.read_text(encoding="utf-8")
    links = {f"[{name}]({source})" for name, (source, _) in CLIENTS.items()}
    assert {link for link in links if link not in page} == set()
