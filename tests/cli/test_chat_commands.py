"""`ane-book chat`: its commands, and conversations in files."""

import json
import os
from pathlib import Path
import re
import stat
import subprocess

from _command import ane_book, chatty_copy
from _patience import HANGING
from _terminal import Terminal
from ane_book.cli.chat import Conversation
from ane_book.cli.conversation import read_conversation, write_conversation
from ane_book.errors import InvalidInput, printable
from ane_book.runtime import Session
import pytest

pytestmark = pytest.mark.skipif(os.name == "nt", reason="terminals and modes are POSIX's")

SAVED = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b\x1b"},
]


def changed(**fields) -> bytes:
    return json.dumps([SAVED[0] | fields, *SAVED[1:]]).encode()


@pytest.fixture(scope="module")
def chatty(tiny_bundle, tmp_path_factory) -> Path:
    bundle = tiny_bundle("llama", kv="state", context=128)[1].path
    return chatty_copy(bundle, tmp_path_factory.mktemp("chatty"))


def test_a_system_prompt_that_is_no_text_is_told_when_it_is_typed(chatty):
    conversation = Conversation(Session(chatty, "fp32", "mil"), {})
    with pytest.raises(InvalidInput, match="the system prompt is not valid text at character 1"):
        conversation.command("/system a\udcff")
    assert conversation.sampling == {}


def test_a_conversation_with_every_command(chatty, tmp_path):
    talk, other = tmp_path / "talk.json", tmp_path / "other.txt"
    other.write_text("mine")
    lines = [
        "/help", "/system be brief", "Hi", f"/save {talk}", f"/save {other}", "/save", "/reset",
        "//slash", "/load", f"/load {talk}", f"/load {other}", "/stats", "/nothing", "You",
        "/exit", "never read",
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
    assert done.stdout == f"{first}\n{slash}\n{again}\n"  # answers, and nothing else

    assert read_conversation(talk) == [{"role": "system", "content": "be brief"}, *answered]
    assert other.read_text() == "mine"
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    for error, words in zip(errors, (
        "it stays as it is: give another name",
        "which file? Such as: /save talk.json", "which file? Such as: /load talk.json",
        "not a conversation that /save",
        "no command '/nothing'; /help lists them",
    ), strict=True):  # fmt: skip
        assert words in error
    for told in ("/system      show", "saved 1 answer to", "loaded 1 answer"):
        assert told in done.stderr
    assert re.search(r"1 answer, \d+ of 128 tokens held", done.stderr)


class TestFile:
    def test_what_is_written_is_read_and_only_the_owner_s(self, tmp_path):
        path = tmp_path / "talk.json"
        write_conversation(path, SAVED)
        write_conversation(path, SAVED)  # in the place of an older one
        assert read_conversation(path) == SAVED
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert [*tmp_path.iterdir()] == [path]

    @pytest.mark.parametrize(
        "content",
        [
            b"", b"{", b"{}", b"[1]", b"\xff", b"[" * 100_000, b'{"format": "ane-book chat 1"}',
            changed(more=1), changed(content=3), changed(role="tool"),
        ],
    )  # fmt: skip
    def test_what_is_none_is_told_in_one_line(self, tmp_path, content):
        path = tmp_path / "talk.json"
        path.write_bytes(content)
        with pytest.raises(InvalidInput, match="not a conversation that /save wrote") as error:
            read_conversation(path)
        assert "\n" not in str(error.value)
        with pytest.raises(InvalidInput, match="it stays as it is"):
            write_conversation(path, SAVED)
        assert path.read_bytes() == content

    def test_folders_pipes_and_places_that_are_not_there(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        names = [tmp_path / each for each in ("pipe", "none/talk.json", "a\0b", "x" * 5000)]
        for path in (tmp_path, *names):
            with pytest.raises(InvalidInput):
                read_conversation(path)
            with pytest.raises(InvalidInput):
                write_conversation(path, SAVED)
        assert [path.name for path in tmp_path.iterdir()] == ["pipe"]

    def test_half_a_character_is_told_and_nothing_is_written(self, tmp_path):
        half = [{"role": "system", "content": "\udcff"}]
        with pytest.raises(InvalidInput, match="cannot be written"):
            write_conversation(tmp_path / "talk.json", half)
        assert [*tmp_path.iterdir()] == []


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
