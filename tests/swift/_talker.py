"""A tiny bundle, its session in Python, and a Swift server of it: fixtures of these tests."""

import json
from pathlib import Path
import shutil

from _anebook import begun
from _command import chatty_copy
from _patience import HANGING
from ane_book.bundle import Bundle
from ane_book.runtime import Session
from ane_book.text.packed import packed_tokenizer
import httpx
import pytest

SEGMENTS = {
    "start": "u:", "reply": ";a:", "next": ";u:", "end": ";",
    "system": {"before": "s:", "after": ";u:", "strip": "none", "last": False, "joined": False},
    "user": "none", "assistant": "none", "cut_strip": "none", "nonempty": False, "outside": [],
}  # fmt: skip


@pytest.fixture(scope="session")
def talker(tiny_bundle, tmp_path_factory):
    """A tiny bundle with a chat template that never ends an answer by itself."""
    bundle = tiny_bundle("llama", kv="state", context=128, prefill=16)[1]
    return Bundle.open(
        chatty_copy(bundle.path, tmp_path_factory.mktemp("served"), eos_token_ids=[])
    )


@pytest.fixture(scope="session")
def folder(talker, tmp_path_factory):
    """The same with its tokenizer and template as Swift reads them."""
    folder = Path(shutil.copytree(talker.path, tmp_path_factory.mktemp("swift") / "bundle"))
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    packed = packed_tokenizer((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.bin").write_bytes(packed)
    manifest["files"]["tokenizer.bin"] = len(packed)
    manifest["tokenizer"] |= {"packed": "tokenizer.bin", "segments": SEGMENTS}
    path.write_text(json.dumps(manifest))
    return folder


@pytest.fixture(scope="session")
def name(talker):
    return talker.manifest.name


@pytest.fixture(scope="session")
def session(talker):
    return Session(talker)


@pytest.fixture(scope="session")
def address(anebook, folder):
    with begun(anebook, folder) as (_, address):
        yield address


@pytest.fixture(scope="session")
def swift(address):
    with httpx.Client(base_url=address, timeout=HANGING) as client:
        yield client
