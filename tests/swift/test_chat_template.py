"""The Swift package lays out conversations as Python does, and refuses them with its words."""

from datetime import date, timedelta
from itertools import islice
import json
from pathlib import Path
import subprocess
import tomllib

from ane_book.errors import InvalidInput
from ane_book.text.layout import ChatSegments
from ane_book.text.process import TextProcess
from ane_book.text.template import render
import pytest
from swift_tables.segments import find_segments, join_segments, random_conversations

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


def answers(
    test_host: list[str],
    questions: list[tuple[ChatSegments, list[dict]]],
    today: date | None = None,
) -> list[dict]:
    day = {"today": [today.year, today.month, today.day]} if today else {}
    lines = [
        json.dumps({"segments": segments.model_dump(), "messages": messages, **day})
        for segments, messages in questions
    ]
    command = [*test_host, "template"]
    done = subprocess.run(command, input="\n".join(lines).encode(), capture_output=True, check=True)
    return [json.loads(line) for line in done.stdout.split(b"\n") if line]


def joined(segments: ChatSegments, messages: list[dict], today: date | None = None) -> dict:
    try:
        return {"text": join_segments(segments, messages, today)}
    except InvalidInput as error:
        return {"error": str(error)}


def test_swift_renders_as_the_template(test_host):
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
    assert answers(test_host, questions) == rendered


def test_the_date_is_written_as_pythons(test_host):
    """Each month and each day of a week, in every form that segments may have."""
    form = "%a %A, %d.%m. %b %B %Y %y \u0301"
    texts = {"start": f"x{form}", "reply": f"{form}{form}", "next": "%d", "end": form}
    system = {"before": form, "after": "", "empty": f"e{form}"}
    segments = ChatSegments(**texts, system=system, date=form)
    conversations = list(islice(random_conversations([form], seed="dates"), 20))
    days = [date(2023, 1, 1) + timedelta(days=32 * i) for i in range(24)]
    for today in [*days, date(1999, 12, 31), date(2000, 2, 29)]:
        expected = [joined(segments, messages, today) for messages in conversations]
        questions = [(segments, messages) for messages in conversations]
        assert answers(test_host, questions, today) == expected
    template = (FOLDER / "llama-3.2.jinja").read_text(encoding="utf-8")
    llama = find_segments(template, TextProcess(), "<s>", "</s>")
    assert llama.date == "%d %b %Y"
    assert answers(test_host, [(llama, conversations[0])]) == [joined(llama, conversations[0])]


@pytest.mark.parametrize("fields", OTHERS)
def test_every_field_is_pythons(fields, test_host):
    texts = {"start": "\u0301<", "reply": "r\r", "next": "\nn", "end": "\0>"}
    segments = ChatSegments(**texts, **fields)
    conversations = list(islice(random_conversations(["x", "\u0301", "\r"], seed="fields"), 300))
    conversations += [[], conversations[0] * 2, [{"role": "tool", "content": "a"}]]
    questions = [(segments, messages) for messages in conversations]
    expected = [joined(segments, messages) for messages in conversations]
    assert answers(test_host, questions) == expected
