"""What clients send is answered in the shape that they read, and the page's table says so."""

import json
from pathlib import Path

from _clients import CLIENTS, table
from _patience import HANGING
from _scripted import scripted, talking
from _serving import serving
from _tool_templates import TOOL_TEMPLATES
import httpx
from openai.types.chat import ChatCompletion, ChatCompletionChunk
import pytest

PAGE = Path(__file__).parents[2] / "book" / "api.md"
BODIES = [
    pytest.param(path, body, id=f"{name}-{i}")
    for name, (_, path, bodies) in CLIENTS.items()
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


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_a_clients_body_is_answered(address, path, body):
    found = httpx.post(f"{address}{path}", json={"model": "model", **body}, timeout=HANGING)
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
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert choices[-1].finish_reason in ("stop", "tool_calls")
    deltas = [d for c in choices for d in c.delta.tool_calls or ()]
    arguments = "".join(d.function.arguments for d in deltas)
    return arguments or None, "".join(c.delta.content or "" for c in choices)


def test_the_pages_table_is_that_of_the_tests():
    assert table() in PAGE.read_text(encoding="utf-8"), f"write this into {PAGE}:\n{table()}"
