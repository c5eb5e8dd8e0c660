"""A session's cache as a file: mlx-lm goes on from ours, and ours from its own."""

from _tiny import prompt, tiny_model, write_checkpoint
import ane_book
from ane_book.runtime import Session
import pytest

mx = pytest.importorskip("mlx.core")
cache_of = pytest.importorskip("mlx_lm.models.cache")
load_model = pytest.importorskip("mlx_lm.utils").load_model

TOKENS = 24  # of an answer

#: How bundles keep the same cache.
RECIPES = {
    "state": {"kv": "state"},
    "host, packages": {"kv": "host", "shard_limit": 250_000},
    "apple, state, tiers": {"kv": "state", "form": "apple", "tiers": (16, 32)},
    "apple, host, verify": {"kv": "host", "form": "apple", "verify": 4},
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tiny_model("llama"), tmp_path_factory.mktemp("checkpoint") / "model")


@pytest.fixture(scope="module", params=RECIPES)
def bundle(request, checkpoint, tmp_path_factory):
    out = tmp_path_factory.mktemp("bundle") / "bundle"
    recipe = {"context": 96, "prefill": 8} | RECIPES[request.param]
    return ane_book.convert(str(checkpoint), out, **recipe)


@pytest.fixture(scope="module")
def theirs(checkpoint):
    return load_model(checkpoint)[0]


def continued(model, cache, token: int) -> list[int]:
    """What mlx-lm answers after a cache and one more token."""
    answer = [token]
    for _ in range(TOKENS):
        logits = model(mx.array([answer[-1:]]), cache=cache)[0, -1]
        answer.append(int(mx.argmax(logits)))
    return answer[1:]


@pytest.mark.parametrize("form", ["mlx", "mlx-swift"])
@pytest.mark.parametrize("tokens", [1, 21])
def test_an_answer_is_the_same_whoever_read_the_prompt(tokens, form, bundle, theirs, tmp_path):
    ids, file = prompt(tokens + 1), tmp_path / "ours.safetensors"
    session = Session(bundle, "fp32", "mil")
    expected = session.generate(ids, max_tokens=TOKENS).token_ids
    session.rewind(tokens)
    session.save_cache(file, form)
    assert file.stat().st_mode & 0o777 == 0o600

    again = Session(bundle, "fp32", "mil")
    again.load_cache(file)
    assert again.generate(ids, max_tokens=TOKENS, reuse_cache=True).token_ids == expected
    assert again.calls.total() == TOKENS * len(bundle.manifest.packages)  # nothing was read again

    if form == "mlx":
        own = cache_of.load_prompt_cache(str(file))
        assert continued(theirs, own, ids[-1]) == expected
        own = cache_of.make_prompt_cache(theirs)
        theirs(mx.array([ids[:-1]]), cache=own)
        cache_of.save_prompt_cache(str(tmp_path / "theirs.safetensors"), own)
        again.load_cache(tmp_path / "theirs.safetensors", tokens=ids[:-1])
        assert again.generate(ids, max_tokens=TOKENS, reuse_cache=True).token_ids == expected
