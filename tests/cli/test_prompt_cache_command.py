"""`ane-book prefill`, and `run` and `chat` with `--prompt-cache`."""

from dataclasses import replace
import os
from pathlib import Path
import sys

from _command import ane_book, refused
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


@pytest.mark.parametrize("form", ["mlx", "mlx-swift"])
def test_a_prompt_is_read_for_others(chatty, tmp_path, form):
    file = tmp_path / "a file"
    words = ("--out", file, "--form", form, "--precision", "fp32", "--system", "be brief")
    done = ane_book("prefill", chatty, "-", *words, input="Hello")
    assert done.returncode == 0, done.stderr
    one = session(chatty)
    ids = one.encode("Hello", "be brief")
    read, size, goes_on = done.stdout.splitlines()
    assert read == f"{len(ids) - 1} tokens read; the last of the prompt, {ids[-1]}, is left to read"
    assert size == f"{file.stat().st_size:,} bytes: {file}"
    assert f"--prompt-cache '{file}'" in goes_on and form.removesuffix("-swift") in goes_on
    one.load_cache(file)
    assert one._tokens == ids[:-1]
    asked = ("run", chatty, "Hello", "--system", "be brief", *EXACT)
    assert ane_book(*asked, "--prompt-cache", file).stdout == ane_book(*asked).stdout


def test_llama_cpps_form_takes_ane_serve(chatty, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ane_serve", None)
    said = refused("prefill", chatty, "Hello", "--out", tmp_path / "x", "--form", "llama.cpp")
    assert "ane-serve cannot be used" in said and not (tmp_path / "x").exists()
