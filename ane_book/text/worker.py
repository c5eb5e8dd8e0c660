"""The process behind `ane_book.text.process`, which runs a tokenizer and chat templates.

A line of JSON is a request, `{"call": name, ...arguments}`, and a line of JSON the answer,
`{"value": ...}` or `{"error": sentence}`. The process lives as long as its standard input.

The system sets the limits, since no Python exception reaches that code: processor time by a timer
whose signal ends the process, memory by a limit of the address space.
"""

from collections.abc import Collection
from contextlib import suppress
from datetime import datetime
from itertools import pairwise
import json
import os
from pathlib import Path
import signal
import sys
from typing import Any

from ane_book.errors import InvalidInput
from ane_book.text.token_bytes import token_bytes
from tokenizers import Tokenizer

LONGEST = 1 << 25  # bytes of an answer
LONGEST_ERROR = 500  # characters; a template may raise a book


class Text:
    """The calls that a request may name; each takes JSON values and returns one."""

    def load(self, path: str) -> None:
        tokenizer = Tokenizer.from_buffer(Path(path).read_bytes())  # any name: from_file's is UTF-8
        # Settings of whoever saved it last, for batches in training: they cut or fill a prompt.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer

    def render(self, template: str, messages: list[dict], day: str | None, **options) -> str:
        """day: its beginning is the present. options: of `template.render`."""
        from ane_book.text.template import render  # not before: half the time to start is Jinja's

        now = datetime.fromisoformat(day) if day else None
        text = render(template, messages, now=now, **options)
        if len(text) > LONGEST:
            raise InvalidInput(f"the model's chat template gives {len(text):,} characters")
        return text

    def encode(self, text: str, special: bool, most: int | None) -> list[int]:
        if most is None:
            self._tokenizer.no_truncation()
        else:
            self._tokenizer.enable_truncation(most)
        return self._tokenizer.encode(text, add_special_tokens=special).ids

    def literal(self, value: Any, control: list[int], cut: str) -> Any:
        if isinstance(value, str):
            self._tokenizer.no_truncation()
            return cut.join(self._without(value, frozenset(control)))
        if isinstance(value, dict):
            pairs = value.items()
            return {self.literal(k, control, cut): self.literal(v, control, cut) for k, v in pairs}
        if isinstance(value, list):
            return [self.literal(each, control, cut) for each in value]
        return value

    def _without(self, text: str, control: Collection[int]) -> list[str]:
        """The text in parts, none of which has a control token.

        Ids are what counts, not spellings: a normalizer may make a control token of other letters.
        """
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        found = [i for i, token in enumerate(encoding.ids) if token in control]
        if not found:
            return [text]
        places = encoding.offsets
        cuts = [0, *(_middle(text, *places[i]) for i in found), len(text)]
        parts = (text[start:end] for start, end in pairwise(cuts))
        return [part for whole in parts for part in self._without(whole, control)]

    def locate(self, text: str) -> list[tuple[int, int, int]]:
        self._tokenizer.no_truncation()
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return [(i, *place) for i, place in zip(encoding.ids, encoding.offsets, strict=True)]

    def decode(self, sequences: list[list[int]]) -> list[str]:
        return [self._tokenizer.decode(ids) for ids in sequences]

    def token_bytes(self, tokens: list[int], first: bool) -> list[str]:
        found = (token_bytes(self._tokenizer, token, first) for token in tokens)
        return [each.decode("latin-1") for each in found]  # which is how JSON has bytes

    def token_to_id(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)


def _middle(text: str, start: int, end: int) -> int:
    """The middle of a token's place, without the white space that some tokens take in."""
    end = start + len(text[start:end].rstrip())
    start = end - len(text[start:end].lstrip())
    if end - start < 2:
        raise InvalidInput(
            f"the model's tokenizer reads {text[start:end]!r} as a control token; leave it out"
        )
    return (start + end) // 2


#: How a failure begins, where it is no sentence already.
FAILED = {"load": "not a tokenizer: ", "render": ""}
OTHERWISE = "the model's tokenizer fails: "


def answer(text: Text, line: bytes) -> bytes:
    """Answer one request; only a limit of time or memory leaves it without an answer."""
    request = json.loads(line)
    call = request.pop("call")
    try:
        reply = json.dumps({"value": getattr(text, call)(**request)}).encode()
        if len(reply) <= LONGEST:
            return reply
        error = f"the model's tokenizer gives {len(reply):,} bytes"
    except InvalidInput as refused:
        error = str(refused)
    except BaseException as broken:  # a panic of Rust's is one that is no Exception
        error = f"{FAILED.get(call, OTHERWISE)}{str(broken) or type(broken).__name__}"
    return json.dumps({"error": error[:LONGEST_ERROR]}).encode()


def limit(memory: int) -> None:
    """Keep this process below `memory` bytes, and from leaving a core file when it ends there."""
    try:
        import resource
    except ImportError:  # Windows
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(ValueError, OSError):  # a Mac, or a smaller limit that is there already
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def timer(seconds: float) -> None:
    """End this process after so much more processor time; 0 cancels that."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def main(seconds: float, memory: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that started this one
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nothing else may come between answers
    limit(memory)
    text = Text()
    for line in sys.stdin.buffer:
        timer(seconds)
        reply = answer(text, line)
        timer(0)
        answers.write(reply + b"\n")
        answers.flush()
