"""What tests of the command share: a tiny bundle, and one that talks."""

from pathlib import Path

from _command import chatty_copy
import pytest


@pytest.fixture(scope="session")
def bundle(tiny_bundle) -> Path:
    return tiny_bundle("llama", kv="state")[1].path


@pytest.fixture
def chatty(bundle, tmp_path) -> Path:
    """The same bundle with a chat template."""
    return chatty_copy(bundle, tmp_path)
