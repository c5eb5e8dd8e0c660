"""`swift-tables` adds what Swift reads of tokenizer and template, whole or not at all."""

import json
import subprocess
import sys

from _anebook import PIPE
from _command import chatty_copy
from _full_disk import room_for
from ane_book.bundle import Bundle
from ane_book.errors import OutOfSpace, UnsupportedModel
from ane_book.text.process import TextProcess
from mlprogram.files import regular_files
import pytest
from swift_tables import add_tables
from swift_tables.packed import packed_tokenizer
from swift_tables.segments import find_segments, join_segments

TURNS = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."},
         {"role": "user", "content": "So?"}]  # fmt: skip


@pytest.fixture
def chatty(tiny_bundle, tmp_path):
    """A bundle with a chat template, and without tables, which other tests add to theirs."""
    return Bundle.open(chatty_copy(tiny_bundle("llama", prefill=24)[1].path, tmp_path))


def test_the_command_adds_both_under_a_new_seal(chatty):
    before, command = chatty.evidence, [sys.executable, "-m", "swift_tables", chatty.path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{chatty.path}\n" and done.stderr == ""
    found = Bundle.open(chatty.path)
    found.verify()
    assert found.evidence == before.model_copy(update={"bundle": found.manifest.seal})
    assert found.manifest.seal != chatty.manifest.seal
    says = found.manifest.tokenizer
    own = packed_tokenizer((found.path / says.file).read_text("utf-8"))
    assert (found.path / says.packed).read_bytes() == own
    assert says.segments == find_segments(says.chat_template, TextProcess())
    rendered = TextProcess().render(says.chat_template, TURNS)
    assert join_segments(says.segments, TURNS) == rendered
    assert add_tables(found) is found


def test_a_template_without_texts_is_told(chatty):
    path = chatty.path / "manifest.json"
    fields = json.loads(path.read_text())
    fields["tokenizer"]["chat_template"] = "{{ messages | length }}"
    path.write_text(json.dumps(fields))
    command = [sys.executable, "-m", "swift_tables", chatty.path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "does not lay out every message once; so an app" in done.stderr
    says = Bundle.open(chatty.path).manifest.tokenizer
    assert says.packed and says.segments is None and says.refused["segments"] in done.stderr


def test_a_tokenizer_without_tables_leaves_the_bundle_as_it_was(chatty):
    file = chatty.path / "tokenizer.json"
    file.write_text(file.read_text().replace('"BPE"', '"BPD"', 1))
    before = regular_files(chatty.path), (chatty.path / "manifest.json").read_bytes()
    with pytest.raises(UnsupportedModel, match="BPD' has no place in tokenizer.bin"):
        add_tables(chatty)
    assert (regular_files(chatty.path), (chatty.path / "manifest.json").read_bytes()) == before


def test_on_a_full_disk(chatty, monkeypatch):
    before = (chatty.path / "manifest.json").read_bytes()
    with room_for(100), pytest.raises(OutOfSpace, match=r"/tokenizer.bin: No space left"):
        add_tables(chatty)
    monkeypatch.setattr("swift_tables.packed_tokenizer", lambda _: b"")
    with room_for(100), pytest.raises(OutOfSpace, match=r"/manifest.json: No space left"):
        add_tables(chatty)
    assert (chatty.path / "manifest.json").read_bytes() == before


def test_swift_says_what_to_run(anebook, chatty):
    command = [*anebook, "run", chatty.path, "Hi", "--executor", PIPE]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "has no tokenizer.bin: run `swift-tables" in done.stderr
