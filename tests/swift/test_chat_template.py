"""The Swift package lays out conversations as Python does, and refuses them with its words."""

from itertools import islice
import json
from pathlib import Path
import subprocess
import tomllib

from ane_book.bundle.parts import ChatSegments
from ane_book.errors import InvalidInput
from ane_book.text.chat import render
from ane_book.text.process import TextProcess
from ane_book.text.segments import find_segments, join_segments, random_conversations
import pytest

FOLDER = Path(__file__).parents[1] / "text" / "templates"
TEMPLATES = tomllib.loads((FOLDER / "templates.toml").read_text(encoding="utf-8"))
#: Segments with the fields that no template has together, or at all.
OTHERS = [
    {"user": "left", "assistant": "right", "cut": "</s>", "cut_strip": "both", "outside": ["Q"]},
    {"user": "left newlines", "assistant": "both", "cut": "</think>", "cut_strip": "left"},
    {"nonempty": True, "user": "both", "outside": ["e\u0301", "[/INST]"],
     "system": {"before": "", "after": " ", "strip": "right", "empty": "!", "joined": True}},
    {"system": {"before": "a", "after": " ", "last": True, "empty": "", "joined": True}},
]  # fmt: skip


def answers(anebook: list[str], questions: list[tuple[ChatSegments, list[dict]]]) -> list[dict]:
    lines = [
        json.dumps({"segments": segments.model_dump(), "messages": messages})
        for segments, messages in questions
    ]
    command = [*anebook, "template"]
    done = subprocess.run(command, input="\n".join(lines).encode(), capture_output=True, check=True)
    return [json.loads(line) for line in done.stdout.split(b"\n") if line]


def joined(segments: ChatSegments, messages: list[dict]) -> dict:
    try:
        return {"text": join_segments(segments, messages)}
    except InvalidInput as error:
        return {"error": str(error)}


def test_swift_renders_as_the_template(anebook):
    questions, rendered = [], []
    text = TextProcess()
    for name, entry in TEMPLATES.items():
        if "refused" in entry:
            continue
        template = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
        segments = find_segments(template, text, "<s>", "</s>")
        for messages in islice(random_conversations(["x", "</think>"], seed="swift"), 60):
            questions.append((segments, messages))
            expected = joined(segments, messages)
            if "text" in expected:
                jinja = render(template, messages, bos_token="<s>", eos_token="</s>")
                assert expected == {"text": jinja}
            rendered.append(expected)
    assert sum("text" in expected for expected in rendered) > 1500
    assert answers(anebook, questions) == rendered


@pytest.mark.parametrize("fields", OTHERS)
def test_every_field_is_pythons(fields, anebook):
    texts = {"start": "\u0301<", "reply": "r\r", "next": "\nn", "end": "\0>"}
    segments = ChatSegments(**texts, **fields)
    conversations = list(islice(random_conversations(["x", "\u0301", "\r"], seed="fields"), 300))
    conversations += [[], conversations[0] * 2, [{"role": "tool", "content": "a"}]]
    questions = [(segments, messages) for messages in conversations]
    expected = [joined(segments, messages) for messages in conversations]
    assert answers(anebook, questions) == expected
