"""Tools as templates read them, and calls as models write them."""

import json

from _smollm2_tokenizer import smollm2, tokenizer
from _templates import template
from ane_book.runtime.grammar import GrammarTokens
from ane_book.text.template import render
from ane_book.text.tools import Calling, ToolForm, tool_form
import numpy as np
import pytest

TOOLS = [
    {"type": "function", "function": {
        "name": "weather", "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
                       "required": ["city"], "additionalProperties": False}}},
    {"type": "function", "function": {"name": "now", "description": "The time."}},
]  # fmt: skip
ASKED = [
    {"role": "user", "content": "What is the weather in Rome?"},
    {"role": "assistant", "content": "", "tool_calls": [
        {"id": "abcdefghi", "type": "function",
         "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}]},
    {"role": "tool", "tool_call_id": "abcdefghi", "content": "21 degrees"},
]  # fmt: skip
#: The forms, by a template's own words; the file of Qwen2.5 alone has its part on tools.
FORMS = {
    "hermes": tool_form(template("qwen2.5")),
    "list": tool_form("{% for tool in tools %}{% endfor %}[TOOL_CALLS]"),
    "llama": tool_form("{% if tools %}{% endif %}" '{"name": name, "parameters": arguments}'),
    "none": tool_form(template("smollm2")),
}


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    file = tmp_path_factory.mktemp("tokens") / "tokenizer.json"
    file.write_text(smollm2().json, encoding="utf-8")
    return GrammarTokens(file, 49_152, [2])


def taken(tokens, grammar: str, text: str) -> bool:
    """Whether a grammar takes a text as a whole answer."""
    mask, logits = tokens.mask("grammar", grammar), np.zeros(49_152, np.float32)
    for token in [*tokenizer().encode(text).ids, 2]:
        if np.isneginf(mask.apply(logits)[token]):
            return False
        mask.take(token)
    return True


def test_a_template_that_knows_tools_shows_them():
    text, form = template("qwen2.5"), FORMS["hermes"]
    shown = render(text, form.messages(ASKED, TOOLS), tools=TOOLS)
    assert form.read and "The weather of a city." in shown and "21 degrees" in shown
    written = '{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    assert form.opening + written in shown
    assert form.calls(written) == [{"name": "weather", "arguments": '{"city": "Rome"}'}]


@pytest.mark.parametrize("name", ["smollm2", "chatml", "gemma-3", "olmo-2"])
def test_a_template_that_knows_no_tools_has_them_in_the_text(name):
    form = tool_form(template(name))
    assert not form.read
    asked = form.messages(ASKED, TOOLS)
    shown = render(template(name), asked, bos_token="", eos_token="")
    assert "The weather of a city." in shown and "21 degrees" in shown
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>' in shown
    kept = form.messages([{"role": "system", "content": "Be kind."}, *ASKED], TOOLS)
    assert kept[0]["content"].startswith("Be kind.\n\n") and len(kept) == 4


@pytest.mark.parametrize("name", FORMS)
def test_a_grammar_takes_calls_of_what_is_offered(tokens, name):
    form: ToolForm = FORMS[name]
    body = f'{{"name": "weather", "{form.arguments}": {{"city": "Rome"}}}}'
    call = form.opening + (f"[{body}]" if form.listed else body) + form.closing
    auto, must = form.grammar(TOOLS, Calling()), form.grammar(TOOLS, Calling(must=True))
    assert taken(tokens, auto, call) and taken(tokens, must, call)
    assert taken(tokens, auto, "It rains.") and not taken(tokens, must, "It rains.")
    for wrong in (call.replace("weather", "whether"), call.replace('"Rome"', "7"),
                  call.replace("city", "town")):  # fmt: skip
        assert not taken(tokens, must, wrong) and not taken(tokens, auto, wrong)
    assert form.calls(call.removeprefix(form.opening)) == [
        {"name": "weather", "arguments": '{"city": "Rome"}'}
    ]


def test_several_calls_come_where_they_may(tokens):
    form = tool_form("")
    one = f'{form.opening}{{"name": "now", "arguments": {{}}}}{form.closing}'
    two = f"{one}\n{one}"
    assert taken(tokens, form.grammar(TOOLS, Calling(must=True)), two)
    assert not taken(tokens, form.grammar(TOOLS, Calling(must=True, several=False)), two)
    assert form.calls(two.removeprefix(form.opening)) == 2 * [{"name": "now", "arguments": "{}"}]


@pytest.mark.parametrize("cut", ['{"name": "now", "argu', '{"name": "now"}\n</tool_call>', "7", ""])
def test_half_a_call_is_none(cut):
    assert not tool_form("").calls(cut)


def test_a_schema_with_definitions_keeps_them(tokens):
    parameters = {"$defs": {"city": {"enum": ["Rome", "Paris"]}}, "type": "object",
                  "properties": {"city": {"$ref": "#/$defs/city"}}, "required": ["city"],
                  "additionalProperties": False}  # fmt: skip
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    grammar = tool_form("").grammar(tools, Calling(must=True))
    call = '<tool_call>\n{{"name": "f", "arguments": {{"city": "{}"}}}}\n</tool_call>'
    assert taken(tokens, grammar, call.format("Rome"))
    assert not taken(tokens, grammar, call.format("Bonn"))


def test_a_name_does_not_leave_its_place(tokens):
    """What a client names a function is text in the grammar, and nothing else."""
    tools = [{"type": "function", "function": {"name": 'a"\nstart: /.*/\n'}}]
    grammar = tool_form("").grammar(tools, Calling(must=True))
    assert not taken(tokens, grammar, "anything")
    assert json.dumps('{"name": "a\\"\\nstart: /.*/\\n", "arguments": ') in grammar
