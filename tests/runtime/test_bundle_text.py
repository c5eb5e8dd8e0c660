"""A stranger's text becomes the tokens that transformers makes of it, but no control token."""

import json

from _plant import copied
from ane_book.errors import InvalidInput
from ane_book.runtime import Session, choose
from ane_serve.generation import Ask, ServedSession
import pytest
from tokenizers import AddedToken, Tokenizer, normalizers
from transformers import PreTrainedTokenizerFast

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|turn|>{{ m.content }}"
    "{% for call in m.tool_calls %}<call>{{ call.function | tojson }}{% endfor %}{% endfor %}"
)
END, TURN, CALL = "<|end|>", "<|turn|>", "<call>"
CONTROL = {256, 257, 258}  # their ids
PLAIN = ["\n\n", "  ", "<b>"]


def added(text: str, special: bool = False, normalized: bool = False) -> AddedToken:
    return AddedToken(text, special=special, normalized=normalized)


ADDED = [added(TURN, special=True), added(CALL), *map(added, PLAIN)]


@pytest.fixture
def opened(tiny_bundle, tmp_path):
    """Open a copy with more tokens, ids from 257 on, and a normalizer."""
    made = tiny_bundle("llama", (("head_dim", 64), ("vocab_size", 263)), head_rows=100)[1]

    def opened(tokens=ADDED, normalizer=None, template: str | None = TEMPLATE) -> Session:
        folder = copied(made, tmp_path)
        file, manifest = folder / "tokenizer.json", folder / "manifest.json"
        tokenizer = Tokenizer.from_file(str(file))
        if normalizer:
            tokenizer.normalizer = normalizer
        for token in tokens:
            tokenizer.add_tokens([token])
        tokenizer.save(str(file))
        facts = json.loads(manifest.read_text())
        facts["tokenizer"]["chat_template"] = template
        facts["files"]["tokenizer.json"] = file.stat().st_size
        manifest.write_text(json.dumps(facts))
        return Session(folder)

    return opened


def said(session: Session, text: str) -> list[int]:
    return session.encode(session.literal([{"role": "user", "content": text}]))


def spelled(session: Session, text: str) -> list[int]:
    """The tokens of the letters, of which this tokenizer makes no longer ones."""
    return [token for letter in text for token in session.tokens(letter)]


@pytest.mark.parametrize("text", ["a\n\nb", "a  b", "x <b>bold", "plain", "\n\n\n  <b>"])
def test_added_tokens_that_are_text_are_those_of_transformers(opened, text):
    session = opened()
    fast = PreTrainedTokenizerFast(tokenizer_file=str(session.bundle.path / "tokenizer.json"))
    messages = [{"role": "user", "content": text}]
    expected = fast.apply_chat_template(messages, chat_template=TEMPLATE, return_dict=False)
    assert said(session, text) == session.encode(messages) == expected


def test_control_tokens_are_text(opened):
    """Special ones and those that the template writes, here and among options."""
    session = opened()
    text = f"{END}{TURN}{CALL}"
    assert said(session, text) == [257, *spelled(session, text)]
    assert said(session, f"{END}<b>")[-1] == 261
    options = choose(session, "Hi", [END, "x"])
    assert [option.tokens for option in options] == [len(END), 1]


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


@pytest.mark.parametrize("place", ["property", "argument"])
def test_control_tokens_in_keys_are_text(opened, place):
    served = ServedSession(opened())

    def ids(key: str) -> list[int]:
        function = {"name": "f", "parameters": {"type": "object", "properties": {key: {}}}}
        call = {"function": {"name": "f", "arguments": json.dumps({key: 1})}}
        asked = {"role": "assistant", "content": "", "tool_calls": [call]}
        tools = [{"type": "function", "function": function}] if place == "property" else []
        prompt = [{"role": "user", "content": "Hi"}] + [asked] * (place == "argument")
        return served.ids(Ask([prompt], {}, tools=tools), prompt)

    found, plain = ids(f"{END}{TURN}{CALL}"), ids("k")
    assert [i for i in found if i in CONTROL] == [i for i in plain if i in CONTROL]
    assert len(found) == len(plain) + len(END + TURN + CALL) - 1


@pytest.mark.parametrize("name", ["{}|turn|", "{}<|turn|", "call{}"])
def test_a_text_and_what_the_template_writes_beside_it_are_no_control_token(opened, name):
    """As `<parameter={{ key }}>` of Qwen's templates, and contents without anything between."""
    template = "<call><{{ messages[0].content }}>{{ messages[1].content }}<|turn|>"
    served = ServedSession(opened(template=template))

    def ids(*texts: str) -> list[int]:
        prompt = [{"role": "user", "content": text} for text in texts]
        return served.ids(Ask([prompt], {}), prompt)

    control = [258, 257]
    for texts in (name.format(""), "x"), ("x", name.format(">")), ("<|tu", "rn|>"), ("a", "tool"):
        assert [i for i in ids(*texts) if i in CONTROL] == control
    letters = spelled(served.session, "<{}>{}".format("x", "<|turn|"))
    assert ids("x", "<|turn|") == [258, *letters, 257]
