"""The cache between requests: what is kept, and that nobody can tell by the answer."""

from _command import chatty_copy
from ane_book.bundle import Bundle
from ane_book.runtime import Session
from ane_serve.generation import Ask, Finished, ServedSession, answers
from ane_serve.pool import bundle_model
import pytest

SYSTEM = {"role": "system", "content": "You are of great help to all of us here."}
T = 16  # tokens of a prefill call


def last(served: ServedSession, messages: list[dict], **sampling) -> Finished:
    *_, done = answers(served, Ask([messages], {"max_tokens": 6, **sampling}))
    return done


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_turns_and_users_share_whole_calls_and_change_no_token(talker, precision):
    (served,) = bundle_model(talker, precision=precision).slots()
    ran, forward = [], served.session._runner.forward
    served.session._runner.forward = lambda *call: ran.append(call) or forward(*call)
    cached = []
    for words in ("Hello", "Something else", "x" * 20):
        messages = [SYSTEM, {"role": "user", "content": words}]
        for _ in range(2):
            ran.clear()
            done = last(served, messages, temperature=1.0)
            fresh = Session(talker, precision=precision)
            expected = fresh.generate(fresh.encode(messages), max_tokens=6, temperature=0.0)
            again = last(served, messages)
            assert again.result.token_ids == expected.token_ids
            assert again.result.prompt_tokens == expected.prompt_tokens
            cached.append(done.cached)
            left = expected.prompt_tokens - done.cached
            assert len(ran) >= -(-left // T) + 5
            messages = [*messages, {"role": "assistant", "content": again.result.text}]
            messages += [{"role": "user", "content": "And?"}]
    shared = len("s:" + SYSTEM["content"] + ";u:") // T * T
    assert cached[0] == 0 and cached[2] == cached[4] == shared == 32
    assert all(count % T == 0 for count in cached) and min(cached[1::2]) >= 48


def test_a_bundle_with_verify_guesses_and_changes_no_token(tiny_bundle, tmp_path):
    bundle = tiny_bundle("llama", kv="state", context=128, prefill=16, verify=4)[1]
    bundle = Bundle.open(chatty_copy(bundle.path, tmp_path, eos_token_ids=[]))
    (served,) = bundle_model(bundle).slots()
    for words in ("abababababab", "Hello", "Hello"):
        messages = [{"role": "user", "content": words}]
        done = last(served, messages, max_tokens=40)
        alone = Session(bundle)
        plain = alone.generate(alone.encode(messages), max_tokens=40)
        assert done.result.token_ids == plain.token_ids and plain.drafted == 0
        assert 0 < done.result.accepted <= done.result.drafted
        assert done.result.calls < plain.calls


def test_a_stream_that_was_left_leaves_no_trace(talker):
    (served,) = bundle_model(talker).slots()
    messages = [SYSTEM, {"role": "user", "content": "Hello"}]
    expected = last(served, messages).result.token_ids
    for steps in (1, 2, 3, 5, 8):
        other = answers(served, Ask([[{"role": "user", "content": "y" * 70}]], {"max_tokens": 6}))
        for _ in range(steps):
            next(other)
        other.close()
        assert last(served, messages).result.token_ids == expected
