"""Tools as templates read them, and calls as models write them."""

import ast
from hashlib import sha256
import json

from _smollm2_tokenizer import smollm2, tokenizer
from _templates import template
from _tool_templates import TOOL_TEMPLATES, written
from ane_book.errors import InvalidInput
from ane_book.runtime.grammar import GrammarTokens
from ane_book.text.template import render
from ane_serve.tools.tools import Calling, ToolForm, cut_call, tool_form
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
#: The forms by their families, and that of a template which knows no tools.
FORMS = {name: tool_form(text) for name, text in TOOL_TEMPLATES.items()} | {
    "none": tool_form(template("smollm2"))
}


def read(form: ToolForm, text: str, tools=TOOLS, step: int = 10_000) -> list[dict]:
    """The calls in what follows the first opening, read `step` characters at a time."""
    reader, found = form.reader(tools), []
    for at in range(0, len(text), step):
        for part in reader.add(text[at : at + step]):
            if part.name:
                found.append({"name": part.name, "arguments": ""})
            found[part.index]["arguments"] += part.arguments
    return found


def _short(message: dict) -> str:
    """The id of a message's call in nine characters."""
    return sha256(message["tool_calls"][0]["id"].encode()).hexdigest()[:9]


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    file = tmp_path_factory.mktemp("tokens") / "tokenizer.json"
    file.write_text(smollm2().json, encoding="utf-8")
    return GrammarTokens(file, 49_152, [2])


def taken(tokens, grammar: str, text: str, end: str = "") -> bool:
    """Whether a grammar takes a text as a whole answer, or as one that begins within a thought."""
    mask, logits = tokens.mask("grammar", grammar, end), np.zeros(49_152, np.float32)
    for token in [*tokenizer().encode(text).ids, 2]:
        if np.isneginf(mask.apply(logits)[token]):
            return False
        mask.take(token)
    return True


@pytest.mark.parametrize("name", TOOL_TEMPLATES)
def test_a_template_that_knows_tools_shows_them(name):
    """Tools, a call and its result, from a client whose ids are OpenAI's, are in the prompt."""
    form = FORMS[name]
    asked = json.loads(json.dumps(ASKED).replace("abcdefghi", "call_0123456789abcdef"))
    shown = render(TOOL_TEMPLATES[name], form.messages(asked, TOOLS), tools=TOOLS)
    assert form.read and "The weather of a city." in shown and "21 degrees" in shown
    call = written(form, ("weather", {"city": "Rome"})).replace("aB3456789", _short(asked[1]))
    call = call.replace('"Rome"', "'Rome'") if name == "lfm2.5" else call
    assert (call in shown) or (form.listed and call[:-2] in shown)  # an id may follow
    assert read(form, shown.partition(form.opening)[2] if form.opening else call) == [
        {"name": "weather", "arguments": '{"city": "Rome"}'}
    ]


@pytest.mark.parametrize("name", ["qwen2.5", "qwen3"])
def test_the_families_own_templates_have_these_forms(name):
    """The files of templates/ that have their part on tools."""
    assert tool_form(template(name)) == FORMS["qwen2.5"]


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
    form = FORMS[name]
    call = written(form, ("weather", {"city": "Rome"}))
    auto, must = form.grammar(TOOLS, Calling()), form.grammar(TOOLS, Calling(must=True))
    assert taken(tokens, auto, call) and taken(tokens, must, call)
    assert taken(tokens, auto, "It rains.") and not taken(tokens, must, "It rains.")
    wrong = [call.replace("weather", "whether"), call.replace("city", "town")]
    if form.written != "xml":  # where a text stands as it is
        wrong.append(call.replace('"Rome"', "7"))
    for each in wrong:
        assert not taken(tokens, must, each) and not taken(tokens, auto, each)


@pytest.mark.parametrize("name", [name for name in FORMS if name != "llama-3.1"])
def test_several_calls_come_where_they_may(tokens, name):
    form = FORMS[name]
    two = written(form, ("now", {}), ("weather", {"city": "Rome"}))
    assert taken(tokens, form.grammar(TOOLS, Calling(must=True)), two)
    assert taken(tokens, form.grammar(TOOLS, Calling()), "Both. " + two)
    assert not taken(tokens, form.grammar(TOOLS, Calling(must=True, several=False)), two)


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
@pytest.mark.parametrize("name", FORMS)
def test_calls_are_read_in_pieces(name, step):
    """Braces, quotes and ends of tags within a text end nothing."""
    form = FORMS[name]
    city = 'a}"\\ {[</param\n</parameter\n\N{SNOWMAN}'
    calls = [("weather", {"city": city}), ("now", {}), ("weather", {"city": ""})]
    calls = calls[:1] if name == "llama-3.1" else calls
    text = written(form, *calls).removeprefix(form.opening)
    found = read(form, text, step=step)
    assert [(call["name"], json.loads(call["arguments"])) for call in found] == calls
    assert found == read(form, text)


@pytest.mark.parametrize("name", FORMS)
def test_a_call_is_whole_wherever_its_last_piece_begins(name):
    form = FORMS[name]
    text = written(form, ("book", {"seats": 2, "place": {"x": 1}})).removeprefix(form.opening)
    number = {"type": "object", "properties": {"seats": {"type": "integer"}, "place": {}}}
    tools = [{"type": "function", "function": {"name": "book", "parameters": number}}]
    for end in range(len(text)):
        reader = form.reader(tools)
        parts = [*reader.add(text[:end]), *reader.add(text[end:])]
        said = "".join(part.arguments for part in parts)
        assert reader.whole and json.loads(said) == {"seats": 2, "place": {"x": 1}}


@pytest.mark.parametrize("name", FORMS)
def test_an_answer_that_is_cut_has_the_beginning_of_its_call(name):
    """At every character: no name before it is whole, and arguments that only grow."""
    form = FORMS[name]
    text = written(form, ("weather", {"city": "Rome"})).removeprefix(form.opening)
    (whole,) = read(form, text)
    seen = set()
    for end in range(len(text)):
        reader = form.reader(TOOLS)
        parts = list(reader.add(text[:end]))
        said = "".join(part.arguments for part in parts)
        assert whole["arguments"].startswith(said)
        assert [part.name for part in parts if part.name] in ([], ["weather"])
        assert reader.whole == (not parts or said == whole["arguments"])
        seen.add(said)
    assert "" in seen and len(seen) > 4


SEARCH = {
    "type": "object",
    "$defs": {"kind": {"enum": ["new", "old"]}, "place": {"type": "object", "properties": {
        "x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}},
    "properties": {
        "words": {"type": "string", "minLength": 2, "maxLength": 12, "pattern": "^[a-z/ ]+$"},
        "kind": {"$ref": "#/$defs/kind"},
        "near": {"$ref": "#/$defs/place"},
        "most": {"type": "integer", "minimum": 1},
        "safe": {"type": "boolean"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["words", "kind"],
}  # fmt: skip
SEARCHES = [{"type": "function", "function": {"name": "search", "parameters": SEARCH}}]


class TestArgumentsBetweenTags:
    @pytest.mark.parametrize("arguments", [
        {"words": "a/b c", "kind": "new"},
        {"words": "cats", "kind": "old", "near": {"x": 1}, "most": 3, "safe": True, "note": "no"},
        {"words": "cats", "kind": "old", "note": "nullable"},
        {"words": "cats", "kind": "old", "note": None},
    ])  # fmt: skip
    @pytest.mark.parametrize("step", [1, 1000])
    def test_every_kind_of_value(self, tokens, arguments, step):
        form = FORMS["qwen3.5"]
        text = written(form, ("search", arguments))
        assert taken(tokens, form.grammar(SEARCHES, Calling(must=True)), text)
        (call,) = read(form, text, SEARCHES, step)
        assert json.loads(call["arguments"]) == arguments

    @pytest.mark.parametrize("arguments", [
        {"words": "cats"},
        {"words": "c", "kind": "new"},
        {"words": "cats and so on", "kind": "new"},
        {"words": "CATS", "kind": "new"},
        {"words": "cats", "kind": "other"},
        {"words": "cats", "kind": "new", "most": 0},
        {"words": "cats", "kind": "new", "safe": "yes"},
    ])  # fmt: skip
    def test_what_the_schema_excludes(self, tokens, arguments):
        form = FORMS["qwen3.5"]
        text = written(form, ("search", arguments))
        assert not taken(tokens, form.grammar(SEARCHES, Calling(must=True)), text)


class TestArgumentsLikePythons:
    @pytest.mark.parametrize(("said", "arguments"), [
        ('words="a/b c", kind=\'new\'', {"words": "a/b c", "kind": "new"}),
        ('words="cats", kind="old", near={"x": 1}, most=3, safe=True, note=None',
         {"words": "cats", "kind": "old", "near": {"x": 1}, "most": 3, "safe": True, "note": None}),
        ('words="cats", kind="old", safe=false, note="no)"',
         {"words": "cats", "kind": "old", "safe": False, "note": "no)"}),
    ])  # fmt: skip
    @pytest.mark.parametrize("step", [1, 1000])
    def test_every_kind_of_value(self, tokens, said, arguments, step):
        form = FORMS["lfm2"]
        text = f"<|tool_call_start|>[search({said})]<|tool_call_end|>"
        assert taken(tokens, form.grammar(SEARCHES, Calling(must=True)), text)
        (call,) = read(form, text.removeprefix(form.opening), SEARCHES, step)
        assert json.loads(call["arguments"]) == arguments

    @pytest.mark.parametrize("step", [1, 1000])
    def test_a_text_between_single_quotes(self, tokens, step):
        """Backslashes before both kinds of quotes, as Python has them."""
        form, said = FORMS["olmo-3"], r"""'it\'s "so", \n\\ {[)] \" ☃'"""
        said = said.replace(r"\N{SNOWMAN}", "\N{SNOWMAN}")
        text = f"<function_calls>weather(city={said})\nnow()</function_calls>"
        assert taken(tokens, form.grammar(TOOLS, Calling(must=True)), text)
        first, second = read(form, text.removeprefix(form.opening), step=step)
        assert json.loads(first["arguments"]) == {"city": ast.literal_eval(said)}
        assert second == {"name": "now", "arguments": "{}"}

    @pytest.mark.parametrize("said", [
        'words="cats"',
        'kind="new", words="cats"',
        'words="CATS", kind="new"',
        "words='cats', kind=\"new\"",  # what a pattern holds stands between double ones
        'words="cats", kind="other"',
        'words="cats", kind="new", most=0',
        'words="cats", kind="new", most=True',
        'words="cats", kind="new", safe=None',
        'words="cats", kind="new", other=1',
        'words="cats" kind="new"',
        ', words="cats", kind="new"',
    ])  # fmt: skip
    def test_what_the_schema_excludes(self, tokens, said):
        grammar = FORMS["lfm2"].grammar(SEARCHES, Calling(must=True))
        text = f"<|tool_call_start|>[search({said})]<|tool_call_end|>"
        assert not taken(tokens, grammar, text)

    def test_arguments_may_all_be_left_out(self, tokens):
        schema = {"properties": {key: {"type": "integer"} for key in "abc"}}
        tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
        grammar = FORMS["lfm2"].grammar(tools, Calling(must=True))
        for said in ("", "a=1", "b=2", "a=1, c=3", "a=1, b=2, c=3"):
            assert taken(tokens, grammar, f"<|tool_call_start|>[f({said})]<|tool_call_end|>")


NO_SCHEMA = "f: parameters are no JSON schema"
ROUNDED = "f: enum 9007199254740993 cannot be held to"


@pytest.mark.parametrize(("name", "schema", "says"), [
    ("qwen2.5", {"type": "array"}, "f: parameters have to be of the type object"),
    ("qwen2.5", {"properties": {"a": {"enum": [2**53 + 1]}}}, ROUNDED),
    ("qwen3.5", {"properties": {"a": {"enum": [2**53 + 1]}}}, ROUNDED),
    ("qwen3.5", {"properties": {"a": {"type": "string", "format": "date"}}}, "f.a: format cannot"),
    ("qwen3.5", {"properties": {}, "oneOf": []}, "f: oneOf cannot"),
    ("qwen3.5", {"properties": {"a>b": {}}}, "cannot be named 'a>b'"),
    ("qwen3.5", {"properties": 5}, NO_SCHEMA),
    ("qwen3.5", {"properties": {"a": {"anyOf": 5}}}, NO_SCHEMA),
    ("qwen3.5", {"properties": {"a": {"type": "string"}}, "required": 5}, NO_SCHEMA),
    ("qwen3.5", {"properties": {"a": {"$ref": "#/$defs/b"}},
                 "$defs": {"b": {"anyOf": [{"$ref": "#/$defs/b"}]}}}, NO_SCHEMA),
    ("qwen3.5", {"properties": {"a": {"anyOf": [{"type": "string", "pattern": "a"}]}}},
     "pattern cannot"),
    ("lfm2", {"properties": {"a": {"enum": [2**53 + 1]}}}, ROUNDED),
    ("lfm2", {"properties": {"a b": {}}}, "cannot be named 'a b'"),
    ("lfm2", {"properties": {}, "oneOf": []}, "f: oneOf cannot"),
    ("lfm2", {"properties": 5}, NO_SCHEMA),
])  # fmt: skip
def test_what_cannot_be_held_to_is_refused_by_name(name, schema, says):
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    with pytest.raises(InvalidInput, match=says):
        FORMS[name].grammar(tools, Calling())


@pytest.mark.parametrize("name", ["lfm2", "phi-4-mini", "none"])
def test_a_template_without_a_place_for_calls_has_them_in_the_text(name):
    """So that no turn is lost; markers of a client's are cut there, those of the form are not."""
    form = FORMS[name]
    asked = json.loads(json.dumps(ASKED).replace("Rome", "<|im_end|>"))

    def literal(value):
        return json.loads(json.dumps(value).replace("<|im_end|>", "<||im_end|>"))

    told = form.messages(asked, TOOLS, literal)
    call = written(form, ("weather", {"city": "<||im_end|>"}))
    said = [m["content"] for m in told if m["role"] == "assistant"]
    assert said == [call]
    assert not any("tool_calls" in message for message in told)


@pytest.mark.parametrize("name", FORMS)
def test_a_call_that_was_cut_stays_the_text_that_it_is(name):
    """Where the template takes a text: three of ours go through a call's arguments by name."""
    form, asked = FORMS[name], json.loads(json.dumps(ASKED))
    asked[1]["tool_calls"][0]["function"]["arguments"] = '{"city": "Ro'
    assert cut_call(asked) == "messages.1.tool_calls.0" and cut_call(ASKED) is None
    told = form.messages(asked, TOOLS)
    text = template("smollm2") if name == "none" else TOOL_TEMPLATES[name]
    if name in ("qwen3.5", "lfm2.5", "olmo-3"):
        with pytest.raises(InvalidInput, match="refuses these messages"):
            render(text, told, tools=TOOLS)
    else:
        shown = render(text, told, tools=TOOLS, bos_token="", eos_token="")
        assert '{"city": "Ro' in shown.replace('\\"', '"')


def test_white_space_before_a_call_that_is_a_whole_answer(tokens):
    """It is read as a call, so it is held to one."""
    form = FORMS["llama-3.1"]
    grammar, call = form.grammar(TOOLS, Calling()), written(form, ("weather", {"city": "Rome"}))
    assert taken(tokens, grammar, f"\n {call}") and taken(tokens, grammar, f"\n So: {call}")
    assert not taken(tokens, grammar, "\n " + call.replace("city", "town"))


def test_an_answer_that_begins_within_a_thought_ends_it_first(tokens):
    form = FORMS["qwen3.5"]
    call = written(form, ("now", {}))
    must, auto = form.grammar(TOOLS, Calling(must=True)), form.grammar(TOOLS, Calling())
    for grammar in (must, auto):
        assert taken(tokens, grammar, "Which? Now.\n</think>\n\n" + call, end="</think>")
        assert not taken(tokens, grammar, call, end="</think>")
    assert taken(tokens, auto, "Hm.</think>\n\nIt is late.", end="</think>")


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
