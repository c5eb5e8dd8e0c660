"""A stranger's text becomes the tokens that transformers makes of it, but no control token."""

from _control_tokens import (
    CALL,
    END,
    TEMPLATE,
    TURN,
    added,
    opener,
    spelled,
)
from ane_book.errors import InvalidInput
from ane_book.runtime import Session
import pytest
from tokenizers import AddedToken, normalizers
from transformers import PreTrainedTokenizerFast


@pytest.fixture
def opened(tiny_bundle, tmp_path):
    return opener(tiny_bundle, tmp_path)


def said(session: Session, text: str) -> list[int]:
    return session.encode(session.literal([{"role": "user", "content": text}]))


def test_a_session_is_printed_with_what_it_is(tiny_bundle):
    bundle = tiny_bundle("llama", kv="state")[1]
    assert repr(Session(bundle, "fp32", "mil")) == (
        f"<Session {bundle.manifest.name}: context 32, tokens of a call: decode 1, prefill 8; "
        f"backend mil, {bundle.path}>"
    )


@pytest.mark.parametrize("text", ["a\n\nb", "a  b", "x <b>bold", "plain", "\n\n\n  <b>"])
def test_added_tokens_that_are_text_are_those_of_transformers(opened, text):
    session = opened()
    fast = PreTrainedTokenizerFast(tokenizer_file=str(session.bundle.path / "tokenizer.json"))
    messages = [{"role": "user", "content": text}]
    expected = fast.apply_chat_template(messages, chat_template=TEMPLATE, return_dict=False)
    assert said(session, text) == session.encode(messages) == expected


def test_control_tokens_are_text(opened):
    """Special ones and those that the template writes."""
    session = opened()
    text = f"{END}{TURN}{CALL}"
    assert said(session, text) == [257, *spelled(session, text)]
    assert said(session, f"{END}<b>")[-1] == 261


def test_what_the_template_does_not_write_is_text(opened):
    session = opened(template="{{ messages[0].content }}")
    assert said(session, CALL + TURN) == [258, *spelled(session, TURN)]


@pytest.mark.parametrize(
    ("normalizer", "text"),
    [
        (normalizers.NFKC(), "\uff1c\uff5cturn\uff5c\uff1e"),
        (normalizers.Lowercase(), "<|TURN|>"),
        (normalizers.Replace("\u200b", ""), "<|tu\u200brn|>"),
        (normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]), "<|t\u00fcrn|>"),
        (normalizers.Prepend("_"), "a_<|turn|><|turn|>"),
    ],
)
def test_no_spelling_becomes_a_control_token(opened, normalizer, text):
    token = added(TURN, special=True, normalized=True)
    session = opened([token], normalizer, "{{ messages[0].content }}")
    assert 257 in session.encode([{"role": "user", "content": text}])
    assert 257 not in said(session, text)


def test_white_space_that_a_control_token_takes_in(opened):
    token = AddedToken(TURN, special=True, normalized=False, lstrip=True, rstrip=True)
    text = f"a{' ' * 5000}{TURN}{' ' * 5000}b"
    session = opened([token])
    assert said(session, text) == [257, *spelled(session, text)]


def test_a_letter_that_becomes_a_control_token_is_refused(opened):
    session = opened([added(TURN, True, True)], normalizers.Replace("\u2020", TURN))
    with pytest.raises(InvalidInput, match="reads '\u2020' as a control token"):
        said(session, "a\u2020b")
