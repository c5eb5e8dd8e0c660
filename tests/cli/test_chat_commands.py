"""`ane-book chat`: its commands."""

import os
from pathlib import Path
import re
import subprocess

from _command import ane_book, chatty_copy
from _patience import HANGING
from _terminal import Terminal
from ane_book.cli.chat import Conversation
from ane_book.errors import InvalidInput, printable
from ane_book.runtime import Session
import pytest

pytestmark = pytest.mark.skipif(os.name == "nt", reason="terminals and modes are POSIX's")


@pytest.fixture(scope="module")
def chatty(tiny_bundle, tmp_path_factory) -> Path:
    bundle = tiny_bundle("llama", kv="state", context=128)[1].path
    return chatty_copy(bundle, tmp_path_factory.mktemp("chatty"))


def test_a_system_prompt_that_is_no_text_is_told_when_it_is_typed(chatty):
    conversation = Conversation(Session(chatty, "fp32", "mil"), {})
    with pytest.raises(InvalidInput, match="the system prompt is not valid text at character 1"):
        conversation.command("/system a\udcff")
    assert conversation.sampling == {}


def test_a_conversation_with_every_command(chatty):
    lines = [
        "/help", "/system be brief", "//slash", "/reset", "", "Hi", "/stats",
        "/nothing", "x" * 200, "You", "/exit", "never read",
    ]  # fmt: skip
    options = ("--precision", "fp32", "--max-tokens", "3")
    done = ane_book("chat", chatty, *options, input="\n".join(lines))
    assert done.returncode == 0

    session, how = Session(chatty, "fp32", "mil"), {"system": "be brief", "max_tokens": 3}
    hi = [{"role": "user", "content": "Hi"}]
    first = session.generate(hi, **how).text
    slash = session.generate([{"role": "user", "content": "/slash"}], **how).text
    answered = [*hi, {"role": "assistant", "content": first}]
    again = session.generate([*answered, {"role": "user", "content": "You"}], **how).text
    assert done.stdout == f"{slash}\n{first}\n{again}\n"  # answers, and nothing else

    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 2 and "no command '/nothing'; /help lists them" in errors[0]
    assert "context of 128" in errors[1] and "or begin anew with /reset" in errors[1]
    assert "/system      show" in done.stderr
    assert re.search(r"1 answer, \d+ of 128 tokens held", done.stderr)


def test_the_arrow_brings_back_a_line(chatty):
    pytest.importorskip("readline")
    with Terminal("chat", chatty, "--max-tokens", "3") as terminal:
        terminal.until("/quit ends.*> ")
        terminal.type("/stats\n")
        terminal.until("0 answers.*> ")
        terminal.type("\x1b[A\n/quit\n")
        terminal.until("0 answers.*> ")
        terminal.rest()
        assert terminal.process.wait(HANGING) == 0


def test_an_answer_does_not_steer_the_terminal_that_shows_it(tiny_bundle):
    """A random model of bytes says a good many control characters."""
    bundle = tiny_bundle("llama")[1].path
    command = ["run", bundle, "Hi", "--temperature", "5", "--seed", "0", "--max-tokens", "24"]
    exact = ane_book(*command).stdout
    assert len(re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", exact)) > 2
    with Terminal(*command, stderr=subprocess.DEVNULL) as terminal:
        shown = terminal.rest().replace("\r\n", "\n")  # which a terminal makes of \n
        assert terminal.process.wait(HANGING) == 0
    assert shown == printable(exact)
