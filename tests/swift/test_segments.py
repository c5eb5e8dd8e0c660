"""Chat templates as texts around contents: equal to Jinja's rendering, or refused with a reason."""

from datetime import date, datetime, time, timedelta
from itertools import islice
import re
import sys

from _templates import EXPRESSED, FOLDER, TEMPLATES, template
from ane_book.errors import InvalidInput, UnsupportedModel
from ane_book.text import process
from ane_book.text.layout import ChatSegments
from ane_book.text.process import TextProcess
from ane_book.text.template import render
import pytest
from swift_tables import segments
from swift_tables.segments import find_segments, join_segments, random_conversations

BOS, EOS = "<s>", "</s>"
WITHOUT_SYSTEM = ("gemma-2", "mistral-v0.1", "orion", "phi-3-medium")  # half of all have one
EACH = "{% for m in messages %}"
CHATML = EACH + "<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


@pytest.fixture(scope="module")
def text() -> TextProcess:
    return TextProcess()


def rendered(jinja: str, messages: list[dict], today: date | None = None) -> str | None:
    now = today and datetime.combine(today, time(23, 59))
    try:
        return render(jinja, messages, bos_token=BOS, eos_token=EOS, now=now)
    except InvalidInput:
        return None


def joined(found: ChatSegments, messages: list[dict], today: date | None = None) -> str | None:
    try:
        return join_segments(found, messages, today)
    except InvalidInput:
        return None


def turns(*contents: str, system: str | None = None) -> list[dict]:
    first = [] if system is None else [{"role": "system", "content": system}]
    roles = ("user", "assistant")
    return [*first, *({"role": roles[i % 2], "content": c} for i, c in enumerate(contents))]


@pytest.mark.parametrize("name", EXPRESSED)
def test_segments_are_the_template(name, text):
    """On other conversations than those of the proof, and where the template refuses they do."""
    jinja = template(name)
    found = find_segments(jinja, text, BOS, EOS)
    compared = 0
    for messages in islice(random_conversations(["x", "</think>", "<b>"], seed="other"), 400):
        laid_out = joined(found, messages)
        compared += laid_out is not None
        assert laid_out in (None, rendered(jinja, messages))
    assert compared > (190 if name in WITHOUT_SYSTEM else 380)
    assert ChatSegments.model_validate_json(found.model_dump_json()) == found


@pytest.mark.parametrize(
    ("name", "form"),
    [("llama-3.2", "%d %b %Y"), ("granite-3.3", "%B %d, %Y"), ("smollm3", "%d %B %Y")],
)
def test_the_date_is_that_of_the_day(name, form, text):
    """On 200 conversations, each on a day of its own; and on the one on which it is run."""
    jinja = template(name)
    found, compared = find_segments(jinja, text, BOS, EOS), 0
    assert found.date == form
    texts = ["x", form, date(2026, 1, 14).strftime(form)]
    conversations = random_conversations(texts, seed="dates")
    for days, messages in enumerate(islice(conversations, 200)):
        today = date(2026, 1, 1) + timedelta(days=13 * days)
        laid_out = joined(found, messages, today)
        compared += laid_out is not None
        assert laid_out in (None, rendered(jinja, messages, today))
    assert compared == 200
    assert joined(found, turns("Hi")) in {rendered(jinja, turns("Hi")) for _ in range(2)}


@pytest.mark.parametrize("name", sorted(TEMPLATES.keys() - set(EXPRESSED)))
def test_a_template_that_does_more_is_refused(name, text):
    with pytest.raises(UnsupportedModel, match=TEMPLATES[name]["refused"]) as error:
        find_segments(template(name), text, BOS, EOS)
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize(
    ("jinja", "reason"),
    [
        ("{% for %}", "not valid Jinja"),
        ("{{ raise_exception('not for chats') }}", "not for chats"),
        (EACH + "{{ m.content | upper }}{% endfor %}", "does not lay out every message once"),
        (EACH + "{{ m.content }}{{ m.content }}{% endfor %}", "every message once"),
        ("{{ messages[-1].content }}", "every message once"),
        (CHATML + "{{ strftime_now('%H:%M') }}", "writes the date as '%H:%M'"),
        (CHATML + "{{ strftime_now('%d') }}{{ strftime_now('%m') }}", "in several forms"),
        (CHATML + "{% set f = '%d' %}{{ strftime_now(f) }}", "in several forms"),
        (CHATML + "{{ strftime_now('%d %m %Y') | upper }} 05 09 2031", "does more"),
        (EACH + "{{ loop.index }}{{ m.content }}{% endfor %}", "does more .* conversation"),
        (EACH + "{{ m.content }}{{ range(9) | random }}{% endfor %}", "does more"),
        (EACH + "{{ m.content | replace('W', 'w') }}{% endfor %}", "contents hold, such as 'W'"),
        (EACH + "{{ m.content }}{% endfor %}{{ 1 / (messages | length - 5) }}", "does more"),
        (CHATML + "{{ 'x' * 70000 }}", "end: .* at most 65536"),
        (CHATML + "{{ '\\ud800' }}", "end: .* valid string"),
        (CHATML + "{% if 'a' in messages[0].content or 'e' in messages[0].content or ' ' in "
         "messages[0].content or 'x' in messages[0].content %}!{% endif %}", "contents hold"),
    ],
)  # fmt: skip
def test_other_templates_are_refused(jinja, reason, text):
    with pytest.raises(UnsupportedModel, match=reason) as error:
        find_segments(jinja, text)
    assert len(str(error.value)) < 400


def test_a_text_that_the_template_looks_for_is_refused_in_contents(text):
    jinja = EACH + "{% if 'SECRET' in m.content %}!{% endif %}{{ m.content }}{% endfor %}"
    found = find_segments(jinja, text)
    assert found.outside == ["SECRET"]
    with pytest.raises(InvalidInput, match="a message holds SECRET, which"):
        join_segments(found, turns("a SECRET"))


def test_a_template_runs_within_limits(monkeypatch):
    monkeypatch.setattr(process, "SECONDS", 0.5)
    text = TextProcess()
    if sys.platform != "win32":
        with pytest.raises(UnsupportedModel, match="0.5 s of processor time"):
            find_segments("{{ 9 ** (9 ** 9) }}", text)
    monkeypatch.setattr(segments, "SECONDS", 0.0)
    with pytest.raises(UnsupportedModel, match="takes more than 0 s"):
        find_segments(CHATML, text)


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "a conversation is at most one system message"),
        (turns(system="Be brief"), "a conversation is"),
        (turns("a", "b"), "a conversation is"),
        ([*turns("a"), *turns("b")], "a conversation is"),
        (turns("a", system="b")[::-1], "a conversation is"),
        ([{"role": "tool", "content": "a"}], "a conversation is"),
        (turns("a", system="b"), "takes no system prompt"),
        (turns(" "), "takes no empty message"),
    ],
)
def test_join_refuses_what_segments_do_not_say(messages, reason):
    some = ChatSegments(start="", reply="", next="", end="", user="both", nonempty=True)
    with pytest.raises(InvalidInput, match=reason):
        join_segments(some, messages)


def test_whitespace_is_what_the_swift_package_has_a_list_of():
    swift = FOLDER.parents[2] / "swift" / "Sources" / "AneBook" / "ChatTemplate.swift"
    [listed] = re.findall(r"let whitespace[^\n]*\[(.*?)\]", swift.read_text(), re.S)
    bounds = re.findall(r"0x([0-9A-F]+)(?:\.\.\.0x([0-9A-F]+))?", listed)
    points = {i for a, b in bounds for i in range(int(a, 16), int(b or a, 16) + 1)}
    assert points == {i for i in range(0x110000) if chr(i).isspace()}
