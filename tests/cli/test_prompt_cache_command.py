"""`ane-book prefill`, and `run` and `chat` with `--prompt-cache`."""

from dataclasses import replace
import os
from pathlib import Path
import sys

from _command import ane_book, refused
from ane_book.cli.chat import Conversation
from ane_book.runtime import Session
import pytest

EXACT = ("--precision", "fp32", "--max-tokens", "6")


def session(bundle: Path) -> Session:
    return Session(bundle, "fp32", "mil")


def test_an_answer_goes_on_from_the_file_and_writes_it_again(chatty, tmp_path):
    file = tmp_path / "cache.safetensors"
    plain = ane_book("run", chatty, "Hello", *EXACT).stdout
    for _ in range(2):  # it is made, then gone on from
        done = ane_book("run", chatty, "Hello", *EXACT, "--prompt-cache", file)
        assert (done.returncode, done.stdout) == (0, plain)
        if os.name == "posix":
            assert file.stat().st_mode & 0o777 == 0o600
    one = session(chatty)
    one.load_cache(file)
    assert one._tokens[: len(one.encode("Hello"))] == one.encode("Hello")

    # What the file holds is what answers: with other values there is another answer.
    held = one.prompt_cache()
    layers = [replace(own, arrays=own.arrays | {"values": -own.arrays["values"]})
              for own in held.layers]  # fmt: skip
    one.continue_from(replace(held, layers=layers))
    one.save_cache(file)
    assert ane_book("run", chatty, "Hello", *EXACT, "--prompt-cache", file).stdout != plain


def test_a_file_that_does_not_fit_stays_as_it_is(chatty, tiny_bundle, tmp_path):
    file = tmp_path / "cache.safetensors"
    other = tiny_bundle("qwen2")[1].path
    assert ane_book("run", other, "Hello", *EXACT, "--prompt-cache", file).returncode == 0
    content = file.read_bytes()
    for command in (("run", chatty, "Hello"), ("chat", chatty)):
        said = refused(*command, *EXACT, "--prompt-cache", file)
        assert str(file) in said and "of other weights" in said
    file.write_bytes(content[:-1])
    assert str(file) in refused("run", other, "Hello", *EXACT, "--prompt-cache", file)
    assert file.read_bytes() == content[:-1]
    said = refused("run", chatty, "Hello", *EXACT, "--prompt-cache", tmp_path / "no" / "file")
    assert "there is no folder" in said


def test_a_conversation_is_kept(chatty, tmp_path):
    file = tmp_path / "cache.safetensors"
    said = ane_book("chat", chatty, *EXACT, input="Hi\nYou\n").stdout
    kept = ane_book("chat", chatty, *EXACT, "--prompt-cache", file, input="Hi\nYou\n")
    assert (kept.returncode, kept.stdout) == (0, said)
    one = session(chatty)
    one.load_cache(file)
    assert one.position > len(one.encode("Hi"))
    (tmp_path / "none").unlink(missing_ok=True)
    assert ane_book("chat", chatty, "--prompt-cache", tmp_path / "none", input="").returncode == 0
    assert not (tmp_path / "none").exists()  # nothing was said


def test_a_conversation_goes_on_the_next_day(chatty, tmp_path):
    file, talk = tmp_path / "cache.safetensors", ("chat", chatty, *EXACT)
    brief = ("--system", "be brief")
    whole = ane_book(*talk, *brief, input="Hi\nYou\nAnd\n").stdout
    days = ((brief, "Hi\n"), ((), ""), ((), "You\nAnd\n"))
    done = [ane_book(*talk, *given, "--prompt-cache", file, input=lines) for given, lines in days]
    assert "".join(each.stdout for each in done) == whole
    assert ane_book(*talk, input="You\nAnd\n").stdout not in whole  # the past matters
    one = session(chatty)
    messages = one.load_cache(file)
    assert [own["content"] for own in messages][:2] == ["be brief", "Hi"]
    told = [each.stderr.splitlines()[0] if each.stderr else "" for each in done]
    assert "goes on" not in told[0] and told[1] == told[2]
    assert told[1].startswith("goes on after 2 messages, ") and told[1].endswith(f": {file}")


def test_an_answer_that_breaks_off_is_not_kept(chatty, tmp_path, monkeypatch):
    file, one = tmp_path / "cache.safetensors", session(chatty)
    monkeypatch.setattr("ane_book.cli.chat.typed_lines", lambda: iter(["Hi", "You"]))

    def shown(text):
        if len(talk.messages) == 2:
            raise MemoryError
        return text

    monkeypatch.setattr("ane_book.cli.chat.shown", shown)
    talk = Conversation(one, {"max_tokens": 6})
    with pytest.raises(MemoryError):
        talk.run_from(file)
    other = session(chatty)
    assert other.load_cache(file) == talk.messages and len(talk.messages) == 2
    assert other.position == talk.held


@pytest.mark.parametrize("form", ["mlx", "mlx-swift"])
def test_a_prompt_is_read_for_others(chatty, tmp_path, form):
    file = tmp_path / "a file.safetensors"
    words = ("--out", file, "--for", form, "--precision", "fp32", "--system", "be brief")
    done = ane_book("prefill", chatty, "-", *words, input="Hello")
    assert done.returncode == 0, done.stderr
    one = session(chatty)
    ids = one.encode("Hello", "be brief")
    read, size, goes_on = done.stdout.splitlines()
    left = f"the last one is left to whoever writes: token id {ids[-1]}"
    assert read == f"{len(ids) - 1} tokens read; {left}"
    assert size == f"{file.stat().st_size:,} bytes: {file}"
    assert f"--prompt-cache '{file}'" in goes_on and form.removesuffix("-swift") in goes_on
    one.load_cache(file)
    assert one._tokens == ids[:-1]
    asked = ("run", chatty, "Hello", "--system", "be brief", *EXACT)
    done = ane_book(*asked, "--prompt-cache", file)
    assert done.stdout == ane_book(*asked).stdout
    assert f"{len(ids) - 1} of {len(ids)} tokens came from {file}" in done.stderr


@pytest.mark.parametrize(("name", "says"), [
    ("x.bin", "mlx-lm opens only names that end in .safetensors"),
    ("no/x.safetensors", "there is no folder"),
])  # fmt: skip
def test_a_place_that_cannot_be_is_refused_before_the_prompt_is_read(chatty, tmp_path, name, says):
    said = refused("prefill", chatty, "Hello" * 999, "--out", tmp_path / name)
    assert says in said and str(tmp_path / name) in said


def test_llama_cpps_form_takes_ane_serve(chatty, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ane_serve", None)
    said = refused("prefill", chatty, "Hello", "--out", tmp_path / "x", "--for", "llama.cpp")
    assert "ane-serve cannot be used" in said and not (tmp_path / "x").exists()
