"""The tokenizer in a GGUF: its tokens, its rules for words, and its errors."""

from _tiny_gguf import TEXTS, chatml_metadata, write_gguf
from _tiny_weights import tiny_model
from ane_book.errors import InvalidWeights, UnsupportedModel
from ane_book.weights import open_source
from ane_book.weights.tokenizer import from_gguf
import pytest
from tokenizers import Tokenizer, pre_tokenizers
from transformers import Qwen2Tokenizer


def test_gguf_tokenizer_special_tokens(tmp_path):
    metadata = chatml_metadata(eot_token_id=2)
    path = write_gguf(tmp_path / "m.gguf", tiny_model("llama"), metadata=metadata)
    files = open_source(path).tokenizer()
    assert files.eos_token_ids == (0, 2)
    assert (files.bos_token_id, files.bos_token, files.eos_token) == (
        1,
        "<|im_start|>",
        "<|endoftext|>",
    )
    tokenizer = Tokenizer.from_str(files.json)
    ids = tokenizer.encode("<|im_start|>!!<think><|im_end|>").ids
    assert ids == [1, metadata["tokenizer.ggml.tokens"].index("!!"), 3, 2]
    assert tokenizer.decode(ids) == "!!<think>"  # what the user defined is text, control is not


@pytest.mark.parametrize("text", TEXTS)
def test_gguf_tokenizer_equals_transformers_qwen2(text):
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġa", "12", "ĊĊ"]
    metadata = chatml_metadata("qwen2") | {
        "tokenizer.ggml.tokens": [*tokens, "<|endoftext|>"],
        "tokenizer.ggml.token_type": [1] * len(tokens) + [3],
        "tokenizer.ggml.merges": ["Ġ a", "1 2", "Ċ Ċ"],
    }
    ours = Tokenizer.from_str(from_gguf(metadata, 300, "here").json)
    vocabulary = {token: i for i, token in enumerate([*tokens, "<|endoftext|>"])}
    theirs = Qwen2Tokenizer(vocabulary, [("Ġ", "a"), ("1", "2"), ("Ċ", "Ċ")])
    assert ours.encode(text).ids == theirs(text)["input_ids"]


@pytest.mark.parametrize(("end", "stops"), [("<|im_end|>", (0, 2)), ("", (0,))])
def test_gguf_tokenizer_ends_an_answer_where_its_template_does(end, stops):
    """Base models that were converted for chat do not declare <|im_end|>."""
    metadata = chatml_metadata() | {"tokenizer.chat_template": "{{ messages }}" + end}
    assert from_gguf(metadata, 257, "here").eos_token_ids == stops


def test_gguf_tokenizer_adds_the_first_token_when_trained_with_it(tmp_path):
    metadata = chatml_metadata(add_bos_token=True)
    tokenizer = Tokenizer.from_str(from_gguf(metadata, 257, "here").json)
    assert tokenizer.encode("!").ids[0] == 1
    assert 1 not in tokenizer.encode("!", add_special_tokens=False).ids


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("gpt-2", "ab 1234's", ["ab", "Ġ1234", "'s"]),
        ("smollm", "ab 123's", ["ab", "Ġ", "1", "2", "3", "'s"]),
        ("qwen2", "ab 12's\n\n", ["ab", "Ġ", "1", "2", "'s", "ĊĊ"]),
        ("llama-bpe", "ab 12345's\n\n", ["ab", "Ġ", "123", "45", "'s", "ĊĊ"]),
        ("gpt-4o", "HelloWorld's 12345 ://\n", ["Hello", "World's", "Ġ", "123", "45", "Ġ://Ċ"]),
        ("hunyuan-dense", "ab,cd 12345!\n你a", ["ab", ",cd", "Ġ", "123", "45", "!Ċ", "ä½ł", "a"]),
    ],
)
def test_gguf_tokenizer_cuts_words(pre, text, words):
    tokenizer = Tokenizer.from_str(from_gguf(chatml_metadata(pre), 257, "here").json)
    assert [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)] == words


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model": "llama"}, UnsupportedModel, "tokenizer of kind 'llama'"),
        ({"pre": "tekken"}, UnsupportedModel, "'tekken' is not supported; supported: gpt-2"),
        ({"pre": "default"}, UnsupportedModel, "pre is default, .* --pre-tokenizer NAME OLD NEW"),
        ({"pre": None}, UnsupportedModel, "pre is missing, so the file does not say"),
        ({"pre": ["qwen2"]}, UnsupportedModel, r"\['qwen2'\] is not supported"),
        ({"tokens": None}, InvalidWeights, "no list tokenizer.ggml.tokens"),
        ({"merges": ["a b c"]}, InvalidWeights, "merges are damaged"),
        ({"merges": ["zz yy"]}, InvalidWeights, "merges are damaged"),
        ({"merges": [1]}, InvalidWeights, "merges are damaged"),
        ({"tokens": ["a", "a"]}, InvalidWeights, r"2 tokens \(1 distinct\)"),
        ({"tokens": [f"t{i}" for i in range(300)]}, InvalidWeights, "300 tokens"),
        ({"eos_token_id": 999}, InvalidWeights, "eos_token_id 999 is not a token"),
    ],
)
def test_gguf_tokenizer_that_will_not_do(tmp_path, changes, error, message):
    metadata = chatml_metadata() | {f"tokenizer.ggml.{k}": v for k, v in changes.items()}
    path = write_gguf(tmp_path / "m.gguf", tiny_model("llama"), metadata=metadata)
    with pytest.raises(error, match=message) as caught:
        open_source(path).tokenizer()
    assert str(path) in str(caught.value)
