"""What tests of the server share: tiny models behind it."""

from _command import chatty_copy
from _encoders import tiny_bert, write_encoder
from _serving import serving
import ane_book
from ane_book.bundle import Bundle
from ane_serve.pool import bundle_model
import openai
import pytest


@pytest.fixture(scope="session")
def talker(tiny_bundle, tmp_path_factory):
    """A tiny bundle with a chat template that never ends an answer by itself."""
    bundle = tiny_bundle("llama", kv="state", context=128, prefill=16)[1]
    folder = tmp_path_factory.mktemp("served")
    return Bundle.open(chatty_copy(bundle.path, folder, eos_token_ids=[]))


@pytest.fixture(scope="session")
def roomy(tiny_bundle):
    """A tiny bundle with a context for tools and their calls, and room for more tokens."""
    changes = (("max_position_embeddings", 1024), ("vocab_size", 266))
    return tiny_bundle("llama", changes, kv="state", context=1024, prefill=64)[1]


@pytest.fixture(scope="session")
def encoder(tmp_path_factory):
    """A tiny encoder's bundle."""
    folder = write_encoder(tiny_bert("usual"), tmp_path_factory.mktemp("encoder"))
    return ane_book.convert(str(folder), out=tmp_path_factory.mktemp("bundles") / "encoder")


@pytest.fixture(scope="session")
def models(talker, encoder):
    """The two as a server takes them, in single precision."""
    how = {"precision": "fp32"}
    return bundle_model(talker, "talker", **how), bundle_model(encoder, "encoder", **how)


@pytest.fixture(scope="module")
def address(models):
    with serving(*models) as address:
        yield address


@pytest.fixture(scope="module")
def client(address):
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client
