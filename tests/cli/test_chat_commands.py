"""`ane-book chat`: its commands, conversations in files, and lines that are remembered."""

import json
import os
from pathlib import Path
import re
import stat
import subprocess
import sys

from _command import ane_book, chatty_copy
from _patience import HANGING
from _terminal import Terminal
from ane_book.cli.chat import Conversation
from ane_book.cli.conversation import Saved, SavedMessage, read_conversation, write_conversation
from ane_book.errors import InvalidInput, printable
from ane_book.runtime import Session
import pytest

pytestmark = pytest.mark.skipif(os.name == "nt", reason="terminals and modes are POSIX's")

TURNS = [SavedMessage(role="user", content="a"), SavedMessage(role="assistant", content="b\x1b")]
SAVED = Saved(model="m", system="s", messages=TURNS)


def changed(**fields) -> bytes:
    return json.dumps(SAVED.model_dump() | fields).encode()


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
        "/help", "/system be brief", "/max 3", "/temperature", "/temperature hot",
        "/temperature -1", "Hi", f"/save {talk}", f"/save {other}", "/save", "/reset", "//slash",
        "/load", "/max 1e9", f"/load {talk}", f"/load {other}", "/stats", "/nothing", "You",
        "/exit", "never read",
    ]  # fmt: skip
    done = ane_book("chat", chatty, "--precision", "fp32", input="\n".join(lines))
    assert done.returncode == 0

    session, how = Session(chatty, "fp32", "mil"), {"system": "be brief", "max_tokens": 3}
    hi = [{"role": "user", "content": "Hi"}]
    first = session.generate(hi, **how).text
    slash = session.generate([{"role": "user", "content": "/slash"}], **how).text
    answered = [*hi, {"role": "assistant", "content": first}]
    again = session.generate([*answered, {"role": "user", "content": "You"}], **how).text
    assert done.stdout == f"{first}\n{slash}\n{again}\n"  # answers, and nothing else

    saved = read_conversation(talk)
    assert saved.system == "be brief"
    assert [message.model_dump() for message in saved.messages] == answered
    assert other.read_text() == "mine"
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    for error, words in zip(errors, (
        "temperature is a number of at least 0, such as 0.7, not 'hot'",
        "temperature must be greater than or equal to 0", "it stays as it is: give another name",
        "which file? Such as: /save talk.json", "which file? Such as: /load talk.json",
        "max_tokens is a whole number of at least 1, such as 100, not '1e9'",
        "not a conversation that /save",
        "no command '/nothing'; /help lists them",
    ), strict=True):  # fmt: skip
        assert words in error
    for told in ("/system      show", "temperature 0.0", "saved 1 answer to", "loaded 1 answer"):
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
            b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"format": "ane-book chat 2"}',
            changed(more=1), changed(system=3),
            changed(messages=[{"role": "user", "content": "no answer"}]),
            changed(messages=[{"role": "system", "content": "a role too many"}]),
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
        half = Saved.model_construct(format=SAVED.format, model="m", system="\udcff", messages=[])
        with pytest.raises(InvalidInput, match="cannot be written"):
            write_conversation(tmp_path / "talk.json", half)
        assert [*tmp_path.iterdir()] == []


class TestHistory:
    """Lines of a terminal; what reads them is a process, since readline is one for each."""

    READ = "from ane_book.cli.history import LineEditor as L; l = L(['/help'], {}); print({})"

    def typed(self, keys: str, environment: dict, lines: int = 1, kept: bool = True) -> str:
        """What a terminal shows of a process that reads lines, after keys that are typed."""
        reads = ", ".join(["repr(l.read('> '))"] * lines)
        code = self.READ.format(kept, reads)
        settings = {name: value for name, value in os.environ.items()
                    if name not in ("HOME", "XDG_STATE_HOME")}  # fmt: skip
        settings |= {"TERM": "dumb"} | environment
        with Terminal(command=[sys.executable, "-c", code], env=settings) as terminal:
            before = terminal.until("(.*)> ")[1]
            terminal.type(keys)
            shown = before + terminal.rest()
            assert terminal.process.wait(HANGING) == 0, shown
        return shown

    def test_the_arrow_brings_back_what_another_conversation_was_told(self, tmp_path):
        place = {"XDG_STATE_HOME": str(tmp_path / "state")}
        assert "'first' 'second'" in self.typed("first\nsecond\n", place, 2)
        file = tmp_path / "state" / "ane-book" / "chat-history"
        assert file.read_text().split() == ["first", "second"]
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        assert "'first'" in self.typed("\x1b[A\x1b[A\n", place)
        assert file.read_text().split() == ["first", "second", "first"]

    def test_not_kept_where_that_is_not_wanted(self, tmp_path):
        self.typed("first\n", {"XDG_STATE_HOME": str(tmp_path)}, kept=False)
        assert not [*tmp_path.iterdir()]

    def test_a_tab_completes_commands(self, tmp_path):
        assert "'/help" in self.typed("/h\t\n", {"XDG_STATE_HOME": str(tmp_path)})

    @pytest.mark.parametrize("place", ["folder", "file", "relative"])
    def test_where_it_cannot_be_kept_talk_goes_on(self, tmp_path, place):
        settings = {"XDG_STATE_HOME": str(tmp_path)}
        if place == "folder":
            (tmp_path / "ane-book" / "chat-history").mkdir(parents=True)
        elif place == "file":
            (tmp_path / "ane-book").write_text("")
        else:
            settings = {"XDG_STATE_HOME": "", "HOME": "nowhere"}
        shown = self.typed("one\ntwo\n", settings, 2)
        assert "'one' 'two'" in shown
        assert shown.count("warning: what is typed is not kept") == (place != "relative")


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
