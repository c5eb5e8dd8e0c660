"""Chat templates without Jinja: the texts that a template puts around contents, found and proved.

A phone has no Jinja, and a template is a program. But nearly all of them do the same: they put one
text before the first content, others between contents, and one at the end, which is what
`ane_book.bundle.parts.ChatSegments` holds. `find_segments` renders a conversation whose contents
it can find again and reads these texts off the rendering; then it tries which whitespace contents
lose, what becomes of an empty one, and whether a text that the template itself names changes the
layout. The result counts only if it equals the rendering for 200 random conversations.
"""

from collections.abc import Iterator
from contextlib import suppress
from datetime import date
from itertools import cycle, islice
import json
import random
import re
import time
from typing import get_args

from ane_book.errors import InvalidInput, UnsupportedModel, first_fault
from ane_book.text.chat import Messages
from ane_book.text.layout import DATE, ChatSegments, ChatSystem, Strip
from ane_book.text.process import TextProcess
from pydantic import ValidationError

PROOF = 200  # conversations
SECONDS = 60.0  # for all renderings of a template, which take about one
NAMED = 400  # of the texts that a template names, so many are tried as contents
MAX_OUTSIDE = 16
SHORTEST_OUTSIDE = 4  # characters; a shorter text stands in many a message
STRIPS: tuple[Strip, ...] = get_args(Strip)
# Contents that are found again in a rendering, since no template holds them.
SYSTEM, FIRST, ANSWER, LAST = "Qsystemq", "Qfirstq", "Qanswerq", "Qlastq"
STRFTIME = re.compile(r"""strftime_now\(\s*(?:'([^']*)'|"([^"]*)")\s*\)""")
#: Of the proof of a template that writes the date; the first is that of its search.
DAYS = date(2031, 9, 5), date(2024, 2, 29), date(1999, 12, 31), date(2026, 5, 10)
SPACED = " \n\t\x1c\u00a0x y\u2003\u0085\n "

#: Contents of random conversations, besides the texts that the template names.
CONTENTS = [
    "Hello", "What is 2 + 2?", "", " ", "\n\n  \t", "  two\n\nlines \n", "\r\nnew\r\n",
    "\u00a0\u00e9\u3000", "e\u0301\u2028\U0001f642\U0001f469\u200d\U0001f467", "\x1fa\x1c",
    "\u200b", "\ufeff", "\0", "<|im_end|>\n<|im_start|>system\n", "</s>", "[/INST]", "<<SYS>>",
    "<|eot_id|>", "<end_of_turn>", "<think>\nWell.\n</think>\n\n Yes.\n", "</think>",
    "{{ messages }}", "{% raw %}", "{#", "\\n", "'\"\\", SYSTEM, FIRST * 2, ANSWER, LAST[:-1],
    "Q", "q", "system", "user", "assistant", "None",
]  # fmt: skip


def join_segments(segments: ChatSegments, messages: Messages, today: date | None = None) -> str:
    """Lay out a conversation as the template does that the segments stand for.

    The Swift package has the same function, with the same sentences. today: what a template that
    writes the date writes; by default what the clock says. Raises InvalidInput for a conversation
    that the segments say nothing about.
    """
    segments = _dated(segments, today or date.today())
    system, prompt, turns = segments.system, None, messages
    if messages and messages[0]["role"] == "system":
        prompt, turns = messages[0]["content"], messages[1:]
    roles = [message["role"] for message in turns]
    if len(roles) % 2 == 0 or roles != list(islice(cycle(["user", "assistant"]), len(roles))):
        raise InvalidInput(
            "a conversation is at most one system message, then messages of user and assistant in "
            "turn, the first and the last of them the user's"
        )
    for text in segments.outside:
        if any(text in message["content"] for message in messages):
            raise InvalidInput(f"a message holds {text}, which this model's chat template reads")
    contents = [_content(segments, message) for message in turns]
    if segments.nonempty and not all(contents):
        raise InvalidInput("this model's chat template takes no empty message")
    leads = [segments.start, *islice(cycle([segments.reply, segments.next]), len(turns) - 1)]
    if prompt is not None:
        if system is None:
            raise InvalidInput("this model's chat template takes no system prompt")
        place = -1 if system.last else 0
        leads[0] = segments.start if system.last else ""
        prompt = strip(prompt, system.strip)
        front = system.before + prompt + system.after
        if not prompt and system.empty is not None:
            front = system.empty
        if system.joined:
            contents[place] = (front + turns[place]["content"]).rstrip()
        else:
            contents[place] = front + contents[place]
    pairs = zip(leads, contents, strict=True)
    return "".join(lead + content for lead, content in pairs) + segments.end


def _dated(segments: ChatSegments, today: date) -> ChatSegments:
    """The segments with a date in their texts, where these have a form of one."""
    if not (form := segments.date):
        return segments

    def filled(record: ChatSegments | ChatSystem, *names: str) -> dict:
        texts = {name: getattr(record, name) for name in names}
        day = today.strftime(form)
        return {name: text and text.replace(form, day) for name, text in texts.items()}

    update = filled(segments, "start", "reply", "next", "end")
    if system := segments.system:
        texts = filled(system, "before", "after", "empty")
        update["system"] = system.model_copy(update=texts)
    return segments.model_copy(update=update)


def strip(text: str, form: Strip) -> str:
    """A text without the whitespace that `form` names."""
    if form == "left newlines":
        return text.lstrip("\n")
    if form in ("both", "left"):
        text = text.lstrip()
    return text.rstrip() if form in ("both", "right") else text


def _content(segments: ChatSegments, message: dict) -> str:
    """What is laid out of the content of a user's or an assistant's message."""
    if message["role"] == "user":
        return strip(message["content"], segments.user)
    content = strip(message["content"], segments.assistant)
    if segments.cut and segments.cut in content:
        content = strip(content.split(segments.cut)[-1], segments.cut_strip)
    return content


def find_segments(
    template: str, text: TextProcess, bos_token: str | None = None, eos_token: str | None = None
) -> ChatSegments:
    """The segments of a chat template, proved on random conversations; it is rendered by `text`.

    Raises UnsupportedModel, with one sentence that says why, for a template that has none: it
    writes the time, or lays out contents in a way that `ChatSegments` has no field for.
    """
    search = _SegmentSearch(template, text, {"bos_token": bos_token, "eos_token": eos_token})
    search.read_texts()
    search.try_whitespace()
    named = _named(template)
    search.try_contents(named)
    search.prove(random_conversations(named))
    try:
        return ChatSegments.model_validate(search.segments.model_dump())
    except ValidationError as error:
        raise UnsupportedModel(f"the chat template: {first_fault(error)}") from None


class _SegmentSearch:
    """The search for the segments of one template; `segments` is what it knows so far."""

    segments: ChatSegments

    def __init__(self, template: str, text: TextProcess, tokens: dict[str, str | None]):
        self.template, self.text, self.tokens = template, text, tokens
        self._deadline, self.today = time.monotonic() + SECONDS, DAYS[0]
        self.date = _date_form(template)

    def render(self, *contents: str, system: str | None = None) -> str:
        """Render contents of user and assistant in turn; raises InvalidInput."""
        return self.render_messages(_conversation(*contents, system=system))

    def render_messages(self, messages: Messages) -> str:
        if time.monotonic() > self._deadline:
            raise UnsupportedModel(f"the chat template takes more than {SECONDS:g} s to try")
        bos, eos = self.tokens["bos_token"], self.tokens["eos_token"]
        return self.text.render(self.template, messages, bos, eos, today=self.today)

    def between(self, rendered: str, contents: list[str]) -> list[str] | None:
        """The texts around contents, the date in its form; None unless each is there once."""
        parts = re.split("|".join(contents), rendered)
        if re.findall("|".join(contents), rendered) != contents:
            return None
        return [self.undated(part) for part in parts]

    def undated(self, text: str) -> str:
        """A text with the form of the date in place of the date of the search."""
        return text.replace(DAYS[0].strftime(self.date), self.date) if self.date else text

    def read_texts(self) -> None:
        """Read the texts between contents off a rendering, without and with a system prompt."""
        contents = [FIRST, ANSWER, LAST]
        try:
            parts = self.between(self.render(*contents), contents)
        except InvalidInput as error:
            raise UnsupportedModel(str(error)) from None
        if parts is None:
            raise UnsupportedModel("the chat template does not lay out every message once")
        start, reply, after_answer, end = parts
        self.segments = ChatSegments.model_construct(
            start=start, reply=reply, next=after_answer, end=end, date=self.date
        )
        try:
            rendered = self.render(*contents, system=SYSTEM)
        except InvalidInput:
            return
        system = None
        if parts := self.between(rendered, [SYSTEM, *contents]):
            system = ChatSystem.model_construct(before=parts[0], after=parts[1])
        elif parts := self.between(rendered, [FIRST, ANSWER, SYSTEM, LAST]):
            before = parts[2].removeprefix(after_answer)
            system = ChatSystem.model_construct(before=before, after=parts[3], last=True)
        self.segments = self.segments.model_copy(update={"system": system})

    def try_whitespace(self) -> None:
        """Find which whitespace contents lose, and what an empty system prompt becomes."""
        last, answer = _conversation(FIRST, ANSWER, SPACED), _conversation(FIRST, SPACED, LAST)
        self.choose([{"user": form} for form in STRIPS], [last])
        self.choose([{"assistant": form} for form in STRIPS], [answer])
        empty = [_conversation(*turns) for turns in ([""], [FIRST, "", LAST], [FIRST, ANSWER, ""])]
        self.choose([{"nonempty": False}, {"nonempty": True}], empty)
        if self.segments.system is None:
            return
        spaced = _conversation(FIRST, system=SPACED)
        self.choose([self.with_system(strip=form) for form in STRIPS], [spaced])
        with suppress(InvalidInput):
            front = self.undated(self.render(FIRST, system="").partition(FIRST)[0])
            if self.segments.system.last:
                front = front.removeprefix(self.segments.start)
            blank = [_conversation(FIRST, system=prompt) for prompt in ("", " \n")]
            self.choose([self.with_system(empty=text) for text in (None, front)], blank)
        both = [_conversation(user, system=SYSTEM) for user in (SPACED, " \n", "")]
        self.choose([self.with_system(joined=joined) for joined in (False, True)], both)

    def with_system(self, **fields: str | bool | None) -> dict:
        """The field `system`, with some of its own set."""
        assert self.segments.system
        return {"system": self.segments.system.model_copy(update=fields)}

    def try_contents(self, named: list[str]) -> None:
        """Find what becomes of contents with texts that the template names: cut, or refused."""
        for text in named:
            forms = [text, f"x{text}", f"{text}x", f"x{text}y{text} \n\nz ", f"x {text}\n\n y\n"]
            cuts: list[dict] = [{"cut": text, "cut_strip": form} for form in STRIPS]
            self.try_forms(forms, [] if self.segments.cut else cuts, text)
        for index, text in enumerate(named):
            self.try_forms([f"{text}x{end}" for end in named[index + 1 : index + 3]], [], text)

    def try_forms(self, forms: list[str], cuts: list[dict], text: str) -> None:
        """Find what becomes of contents of several forms, which all hold `text`."""
        answer = f"x{self.segments.cut or ''}y"
        probes = []
        for form in forms:
            probes += [
                _conversation(FIRST, form, LAST),
                _conversation(form, answer, form),
                _conversation(FIRST, answer, form),
                _conversation(FIRST, system=form),
            ]
        self.choose([{}, *cuts, {"outside": [*self.segments.outside, text]}], probes)

    def choose(self, options: list[dict], probes: list[Messages]) -> None:
        """Set the first of these fields with which the probes are laid out as the template does.

        Where none will do, none is set: the proof shows by an example what differs.
        """
        before = self.segments
        for fields in options:
            self.segments = before.model_copy(update=fields)
            if not any(map(self.differs, probes)):
                return
        self.segments = before

    def differs(self, messages: Messages) -> bool | None:
        """Whether segments and template lay out messages in different ways; None: refused."""
        try:
            joined = join_segments(self.segments, messages, self.today)
        except InvalidInput:
            return None
        try:
            return joined != self.render_messages(messages)
        except InvalidInput:
            return True

    def prove(self, conversations: Iterator[Messages]) -> None:
        """Raise UnsupportedModel unless the layout of `PROOF` conversations is the template's.

        Those that the segments refuse do not count, and may be 9 of 10.
        """
        equal = 0
        for self.today, messages in zip(
            cycle(DAYS), islice(conversations, 10 * PROOF), strict=False
        ):
            if different := self.differs(messages):
                shown = json.dumps([{m["role"]: m["content"]} for m in messages])
                raise UnsupportedModel(
                    "the chat template does more than to put texts between contents, as in the "
                    f"conversation {shown[:200]}{'...' * (len(shown) > 200)}"
                )
            equal += different is False
            if equal == PROOF:
                break
        outside = self.segments.outside
        common = equal < PROOF or any(len(text) < SHORTEST_OUTSIDE for text in outside)
        if common or len(outside) > MAX_OUTSIDE:
            raise UnsupportedModel(
                "the chat template changes its layout by what contents hold, such as "
                f"{', '.join(map(repr, outside[:3]))}"
            )


def _conversation(*contents: str, system: str | None = None) -> Messages:
    turns = zip(cycle(["user", "assistant"]), contents, strict=False)
    first = [] if system is None else [("system", system)]
    return [{"role": role, "content": content} for role, content in [*first, *turns]]


def _date_form(template: str) -> str | None:
    """The form in which a template writes the date; None: it does not."""
    forms = {first or second for first, second in STRFTIME.findall(template)}
    calls = len(re.findall(r"strftime_now\s*\(", template))
    if not calls:
        return None
    if len(forms) > 1 or calls != len(STRFTIME.findall(template)):
        raise UnsupportedModel("the chat template writes the date (strftime_now) in several forms")
    (form,) = forms
    if not re.search(DATE, form):
        raise UnsupportedModel(f"the chat template writes the date as {form!r}")
    return form


def _named(template: str) -> list[str]:
    """The texts that a template may look for in a content: all that stands between quotes."""
    parts = (part.replace("\\n", "\n") for part in re.split("['\"]", template)[1:-1])
    return list(islice(dict.fromkeys(part for part in parts if 0 < len(part) < 100), NAMED))


def random_conversations(named: list[str], seed: str = "segments") -> Iterator[Messages]:
    """Conversations without end, of 1 to 9 messages besides a system prompt in half of them.

    named: texts that contents hold, besides those of `CONTENTS`.
    """
    rng = random.Random(seed)

    def content() -> str:
        texts = (rng.choice(named if named and rng.random() < 0.3 else CONTENTS) for _ in range(4))
        return rng.choice(["", "", " ", "\n", "x"]).join(islice(texts, rng.choice([1, 1, 2, 4])))

    while True:
        turns = [content() for _ in range(rng.choice([1, 3, 5, 7, 9]))]
        yield _conversation(*turns, system=content() if rng.random() < 0.5 else None)
