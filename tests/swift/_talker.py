"""A tiny bundle, its session in Python, and a Swift server of it: fixtures of these tests."""

from _anebook import begun
from _command import chatty_copy
from _patience import HANGING
from ane_book.bundle import Bundle
from ane_book.runtime import Session
import httpx
import pytest
from swift_tables import add_tables


@pytest.fixture(scope="session")
def talker(tiny_bundle, tmp_path_factory):
    """A tiny bundle for both, with a chat template that never ends an answer by itself."""
    bundle = tiny_bundle("llama", kv="state", context=128, prefill=16)[1]
    folder = chatty_copy(bundle.path, tmp_path_factory.mktemp("served"), eos_token_ids=[])
    return add_tables(Bundle.open(folder))


@pytest.fixture(scope="session")
def folder(talker):
    return talker.path


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
