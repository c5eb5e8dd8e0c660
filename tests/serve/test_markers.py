"""Markers of calls and of thoughts as special tokens, as added tokens that are not special (so have
Qwen2.5 and Qwen3 theirs), and as plain text, in every form of call.

The model is scripted (`_scripted`), and spells a marker where it is asked to.
"""

import json
import re

from _long import long_but
from _scripted import scripted, talking
from _serving import serving
from _tool_templates import TOOL_TEMPLATES, written
from ane_serve.tools.tools import tool_form
import jsonschema
import pytest

KINDS = ["special", "added", "text"]
CITY = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}},
        "required": ["city"], "additionalProperties": False}  # fmt: skip
NONE = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": schema}}
         for name, schema in (("weather", CITY), ("now", NONE))]  # fmt: skip
NAMED = {"type": "function", "function": {"name": "weather"}}


def markers(family: str) -> list[str]:
    form = tool_form(TOOL_TEMPLATES[family])
    around = form.opening + form.numbered + form.marks + form.closing
    return re.findall(r"<[^<>]+>|\[[A-Z_]+\]", around)


CASES = [(family, kind) for family in TOOL_TEMPLATES if family != "lfm2.5"  # as lfm2
         for kind in (KINDS if markers(family) else ["text"])]  # fmt: skip
#: `test_tools_served.py` has each family's own kind.
QUICK = [case for case in CASES if case[0] == "qwen2.5" or case[1] == "added"]
OF_EACH_KIND = pytest.mark.parametrize(("family", "kind"), long_but(CASES, *QUICK))


def spelled(text: str, most: int) -> str:
    """A text whose first markers are spelled; 0: all."""
    return re.sub(r"(?<=[<[])(?=[|/\w]+[>\]])", "\0", text, count=most)


def call_of(family: str, arguments: dict) -> str:
    return written(tool_form(TOOL_TEMPLATES[family]), ("weather", arguments))


def says(prompt: str) -> str:
    """What a model answers; its prompt begins with its family and the kind of its markers.

    Behind a spelled opening, a marker that is an added token is the only one that the mask leaves.
    """
    (family, kind), asked = prompt.partition("|")[0].split(), prompt.partition("|")[2]
    arguments = {"city": 7, "town": "Rome"} if "Wrong" in asked else {"city": "Rome"}
    call = call_of(family, arguments)
    text = "I look.\n" if "Look" in asked and family != "llama-3.1" else ""
    return text + (spelled(call, kind == "added") if "spelled" in asked else call)


def made(bundle, folder, kind: str, template: str, marks: list[str]):
    special, added = (marks if kind == each else [] for each in ("special", "added"))
    return talking(bundle, folder, template, special, added)


def asked(family: str, kind: str, text: str, choice="auto") -> dict:
    messages = [{"role": "user", "content": text}]
    return {"model": f"{family} {kind}", "messages": messages, "tools": TOOLS, "temperature": 0,
            "tool_choice": choice, "parallel_tool_calls": False, "max_tokens": 300}  # fmt: skip


def said(message) -> tuple:
    """Its text, and the one function that it calls."""
    (call,) = message.tool_calls
    return (message.content or "").strip(), call.function.name, json.loads(call.function.arguments)


@OF_EACH_KIND
def test_calls_with_markers_of_each_kind(client, family, kind):
    ask = client.chat.completions.create
    call, text = ("weather", {"city": "Rome"}), "" if family == "llama-3.1" else "I look."
    for choice in ("required", NAMED):
        assert said(ask(**asked(family, kind, "Call", choice)).choices[0].message) == ("", *call)
    for how in ("Look", "Look spelled"):
        assert said(ask(**asked(family, kind, how)).choices[0].message) == (text, *call)
    with client.chat.completions.stream(**asked(family, kind, "Look")) as stream:
        for _ in stream:
            pass
        assert said(stream.get_final_completion().choices[0].message) == (text, *call)


@OF_EACH_KIND
@pytest.mark.parametrize("how", ["Wrong", "Wrong spelled"])
def test_a_call_that_leaves_its_schema_is_held_to_it(client, family, kind, how):
    choice = client.chat.completions.create(**asked(family, kind, how)).choices[0]
    text, name, arguments = said(choice.message)
    assert choice.finish_reason == "tool_calls" and name == "weather" and not text
    jsonschema.validate(arguments, CITY)


TAGS = {"<think>": "</think>", "[THINK]": "[/THINK]"}
THOUGHT = 'A <tool_call>, or {"city": 1}? No.'
THINKERS = [f"{kind} {begin} {place}" for kind in KINDS for begin in TAGS
            for place in ("prompt", "answer")]  # fmt: skip
WAYS = [(name, how) for name in THINKERS
        for how in ("thinks", "thinks spelled")[: 2 - name.startswith("text")]]  # fmt: skip
USUAL = [way for way in WAYS if "<think>" in way[0]] + [("special [THINK] answer", "thinks")]


def thinks(prompt: str) -> str:
    """A thought, which its prompt or the answer itself opens, and what was asked for behind it. A
    marker in the thought is never a special token, since such a one is no text."""
    kind, begin, _ = prompt.partition("|")[0].split()
    start = "" if prompt.endswith(begin) else begin
    answer = {"Call": call_of("qwen2.5", {"city": "Rome"}), "JSON": '{"city": "Rome"}'}
    said = next((answer[word] for word in answer if word in prompt), "Rome.")
    named = spelled(THOUGHT, 0) if kind == "special" else THOUGHT
    thought = f"{start}{named}{TAGS[begin]}"
    return (spelled(thought, 0) if "spelled" in prompt else thought) + f"\n\n{said}"


@pytest.fixture(scope="module")
def address(roomy, tmp_path_factory):
    """A server of models, whose names say of what kind their markers or their tags are: of each
    family, and such that think."""
    models = []
    for family, kind in CASES:
        folder, template = tmp_path_factory.mktemp("markers"), TOOL_TEMPLATES[family]
        talks = made(roomy, folder, kind, f"{family} {kind}|{template}", markers(family))
        models.append(scripted(talks, f"{family} {kind}", says))
    for name in THINKERS:
        kind, begin, place = name.split()
        template = f"{name}|{TOOL_TEMPLATES['qwen2.5']}{begin if place == 'prompt' else ''}"
        marks = [begin, TAGS[begin], *markers("qwen2.5")]
        folder = tmp_path_factory.mktemp("thinking")
        models.append(scripted(made(roomy, folder, kind, template, marks), name, thinks))
    with serving(*models) as address:
        yield address


def thought(client, name: str, text: str, **how):
    """A message, which is the same whole and in pieces."""
    ask = {"model": name, "messages": [{"role": "user", "content": text}], "temperature": 0,
           "max_tokens": 300} | how  # fmt: skip
    found = client.chat.completions.create(**ask).choices[0].message
    assert getattr(found, "reasoning_content", "") == (THOUGHT if "thinks" in text else "")
    chunks = [each.choices[0].delta for each in client.chat.completions.create(**ask, stream=True)]
    for part in ("content", "reasoning_content"):
        pieces = "".join(getattr(delta, part, None) or "" for delta in chunks)
        assert pieces.strip() == (getattr(found, part, None) or "")
    return found


@pytest.mark.parametrize(("name", "how"), long_but(WAYS, *USUAL))
def test_a_thought_ends_and_is_apart(client, name, how):
    """And where it names a marker, only what comes behind it is a call."""
    assert thought(client, name, how).content == "Rome."
    found = thought(client, name, f"Call {how}", tools=TOOLS)
    assert said(found) == ("", "weather", {"city": "Rome"})


IN_PROMPTS = [way for way in WAYS if "prompt" in way[0]]


@pytest.mark.parametrize(("name", "how"), long_but(IN_PROMPTS, *USUAL))
def test_a_form_is_kept_behind_a_thought(client, name, how):
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    found = thought(client, name, f"JSON {how}", response_format=form)
    assert found.content == '{"city": "Rome"}'
