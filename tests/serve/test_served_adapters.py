"""Adapters behind one server: requests of different ones never mix, whoever asked before."""

from concurrent.futures import ThreadPoolExecutor
import random

from _adapters import write_adapter
from _command import chatty_copy, refused
from _serving import serving
from ane_book.bundle import Bundle
from ane_book.errors import InvalidInput
from ane_book.runtime import Session
from ane_serve.pool import Pool, adapted_models, bundle_model
import openai
import pytest

NAMES = ("base", "base:red", "base:blue")
#: Longer than a prefill call of 16 tokens, so that the cache of the request before could serve.
WORDS = ["What is the colour of the sky today?", "What is the colour of the sea today?"]


@pytest.fixture(scope="module")
def slotted(tiny_bundle, tmp_path_factory):
    """A bundle that talks and has slots, and the folders of two adapters by name."""
    model, bundle = tiny_bundle("llama", kv="state", context=128, prefill=16, lora_slots=4)
    folder = tmp_path_factory.mktemp("adapters")
    folders = {
        name: write_adapter(model, folder / name, seed, alpha=24.0)
        for seed, name in enumerate(("red", "blue"))
    }
    copy = chatty_copy(bundle.path, folder / "served", eos_token_ids=[])
    return Bundle.open(copy), folders


@pytest.fixture(scope="module")
def served(slotted):
    bundle, folders = slotted
    base = bundle_model(bundle, "base", precision="fp32")
    return [base, *adapted_models([base], folders)]


@pytest.fixture(scope="module")
def address(served):
    with serving(*served, waiting=1000) as address:
        yield address


@pytest.fixture(scope="module")
def expected(slotted):
    """What each model answers to each question, from sessions that nobody else has used."""
    bundle, folders = slotted
    answers = {}
    for name in NAMES:
        session = Session(bundle, precision="fp32")
        session.use(folders.get(name.partition(":")[2]))
        for words in WORDS:
            ids = session.encode([{"role": "user", "content": words}])
            answers[name, words] = session.generate(ids, max_tokens=6).text
    for words in WORDS:
        assert len({answers[name, words] for name in NAMES}) == len(NAMES)
    return answers


def ask(client, name: str, words: str):
    return client.chat.completions.create(
        model=name, messages=[{"role": "user", "content": words}], max_tokens=6, temperature=0
    )


@pytest.mark.parametrize("requests", [30, pytest.param(1000, marks=pytest.mark.long)])
def test_requests_of_two_adapters_and_none_never_mix(requests, client, expected):
    """In alternation, then in any order by four clients at once."""
    turns = [(NAMES[1 + i % 2], WORDS[i // 2 % 2]) for i in range(requests // 2)]
    draw = random.Random(requests)
    mixed = [(draw.choice(NAMES), draw.choice(WORDS)) for _ in range(requests - len(turns))]
    found = [ask(client, *each) for each in turns]
    with ThreadPoolExecutor(4) as clients:
        found += clients.map(lambda each: ask(client, *each), mixed)
    assert len(found) == requests
    for (name, words), answer in zip(turns + mixed, found, strict=True):
        assert answer.choices[0].message.content == expected[name, words]
        assert answer.model == name


def test_the_cache_is_kept_for_the_same_adapter_alone(client, expected):
    """A question again has its first 16 tokens or more cached; by another adapter none."""
    cached = []
    for name in ("base:red", "base:red", "base:blue", "base:blue", "base", "base:blue", "base"):
        answer = ask(client, name, WORDS[0])
        assert answer.choices[0].message.content == expected[name, WORDS[0]]
        cached.append(answer.usage.prompt_tokens_details.cached_tokens)
    assert cached[1] == cached[3] >= 16 and cached[2:7:2][0] == 0
    assert cached[2] == cached[4] == cached[5] == cached[6] == 0


def test_models_have_names_and_fingerprints_of_their_own(client, served):
    assert [model.id for model in client.models.list()] == list(NAMES)
    prints = {ask(client, name, WORDS[0]).system_fingerprint for name in NAMES}
    assert len(prints) == 3
    assert all(client.models.retrieve(name).loaded for name in NAMES)
    with pytest.raises(openai.NotFoundError, match="'base:green' does not exist"):
        ask(client, "base:green", WORDS[0])
    assert served[1].bytes == served[0].bytes


def test_one_session_serves_them_all(served):
    pool = Pool(served, memory=served[0].bytes)
    slots = []
    for model in served:
        with pool.borrowed(model) as slot:
            slots.append(slot)
    assert len({id(slot) for slot in slots}) == 1 and pool.loaded() == list(NAMES)


def test_what_is_refused(slotted, served, talker, tmp_path):
    bundle, folders = slotted
    plain = bundle_model(talker, "talker")
    with pytest.raises(InvalidInput, match="takes one model .* it is none"):
        adapted_models([plain], folders)
    with pytest.raises(InvalidInput, match="it is base, other"):
        adapted_models([served[0], bundle_model(bundle, "other")], folders)
    for given, says in {
        "red": "--adapter red: write NAME=FOLDER",
        "a:b=x": "write NAME=FOLDER",
        f"red={tmp_path}": "adapter_config.json is missing",
    }.items():
        assert says in refused("serve", f"base={bundle.path}", "--port", "0", "--adapter", given)
    both = "--adapter", f"red={folders['red']}", "--stdin"
    assert "--adapter goes with neither" in refused("serve", f"base={bundle.path}", *both)
