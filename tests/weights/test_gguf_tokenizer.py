"""The tokenizer in a GGUF: its tokens, its rules for words, and its errors."""

from itertools import pairwise
import json

from _tiny_gguf import TEXTS, chatml_metadata, write_gguf
from _tiny_weights import tiny_model
from ane_book.errors import InvalidWeights, UnsupportedModel
from ane_book.weights import open_source
from ane_book.weights.gguf_tokenizer import MARK, SPLITS, WHOLE, from_gguf
from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
from tokenizers import Tokenizer, pre_tokenizers
from transformers import GemmaTokenizer, LlamaTokenizer, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter, generate_merges
from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer


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


@pytest.mark.parametrize("text", [*TEXTS, "naïve Ἀθῆναι कि 12"])
@pytest.mark.parametrize(("pre", "kind"), [("qwen2", Qwen2Tokenizer), ("qwen35", Qwen3_5Tokenizer)])
def test_gguf_tokenizer_equals_transformers_qwen(text, pre, kind):
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġa", "12", "ĊĊ"]
    metadata = chatml_metadata(pre) | {
        "tokenizer.ggml.tokens": [*tokens, "<|endoftext|>"],
        "tokenizer.ggml.token_type": [1] * len(tokens) + [3],
        "tokenizer.ggml.merges": ["Ġ a", "1 2", "Ċ Ċ"],
    }
    ours = Tokenizer.from_str(from_gguf(metadata, 300, "here").json)
    vocabulary = {token: i for i, token in enumerate([*tokens, "<|endoftext|>"])}
    theirs = kind(vocabulary, [("Ġ", "a"), ("1", "2"), ("Ċ", "Ċ")])
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
        ("tekken", "HelloWorld's 12/\n", ["Hello", "World", "'s", "Ġ", "1", "2", "/Ċ"]),
        ("qwen35", "कि!", ["à¤ķà¤¿", "!"]),  # a mark stays with its letter,
        ("qwen2", "कि!", ["à¤ķ", "à¤¿!"]),  # and does not here
        ("exaone4", "ab 1234's", ["ab", "Ġ1234", "'s"]),
        ("refact", "ab 123's", ["ab", "Ġ", "1", "2", "3", "'s"]),
        *((pre, "ab 12345's\n\n", ["ab", "Ġ", "123", "45", "'s", "ĊĊ"])
          for pre in ("dbrx", "glm4", "lfm2", "llama3", "smaug-bpe")),
    ],
)
def test_gguf_tokenizer_cuts_words(pre, text, words):
    tokenizer = Tokenizer.from_str(from_gguf(chatml_metadata(pre), 257, "here").json)
    assert [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)] == words


def test_gguf_tokenizer_splits_as_transformers_does_llama_3():
    assert TikTokenConverter(None).pattern == SPLITS["llama3"]


@pytest.mark.parametrize("pre", ["llama-bpe", "dbrx", "tekken", "qwen35"])
def test_gguf_tokenizer_of_a_whole_word(pre):
    """Llama 3's and Tekken's leave a word that is a token whole, and begin with BOS unsaid."""
    metadata = chatml_metadata(pre) | {"tokenizer.ggml.merges": []}
    ids = Tokenizer.from_str(from_gguf(metadata, 257, "here").json).encode("!!").ids
    one, both = (metadata["tokenizer.ggml.tokens"].index(token) for token in ("!", "!!"))
    assert ids == ([1, both] if pre in WHOLE else [one, one])


SPM_WORDS = ("▁a", "▁b", "aa", "aaa", "ab", "ba", "▁ab", "▁aab", "▁▁", "bb", "▁c")
SPM_TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "<|im_end|>",
              *SPM_WORDS, *"▁abc"]  # fmt: skip
SPM_SCORES = [0.0] * 260 + [-float(i) for i, _ in enumerate(SPM_WORDS)] + [-99.0] * 4
SPM = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": SPM_TOKENS,
    "tokenizer.ggml.scores": SPM_SCORES,
    "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, 3] + [1] * (len(SPM_TOKENS) - 260),
}


def joined(text: str, prefix: bool) -> list[int]:
    """SentencePiece by its definition: the best scored pair is joined, the first of equals."""
    scores = dict(zip(SPM_TOKENS[260:], SPM_SCORES[260:], strict=True))
    parts = [*(" " * (prefix and bool(text)) + text).replace(" ", MARK)]
    while pairs := [(scores[a + b], -i) for i, (a, b) in
                    enumerate(pairwise(parts)) if a + b in scores]:  # fmt: skip
        at = -max(pairs)[1]
        parts[at : at + 2] = ["".join(parts[at : at + 2])]
    bytewise = ([p] if p in scores else [f"<0x{b:02X}>" for b in p.encode()] for p in parts)
    return [SPM_TOKENS.index(token) for each in bytewise for token in each]


@given(text=st.text("abc é🙂\t", max_size=16), prefix=st.booleans())
@settings(max_examples=300, deadline=None)
def test_gguf_tokenizer_of_sentencepiece_is_its_definition(text, prefix):
    """And transformers', which has no space of its own before one that is there."""
    metadata = SPM | {"tokenizer.ggml.add_space_prefix": prefix}
    files = from_gguf(metadata, 300, "here")
    ours = Tokenizer.from_str(files.json)
    assert (files.bos_token_id, files.eos_token_ids) == (1, (2,))
    ids = ours.encode(text).ids
    assert ids == [1, *joined(text, prefix)]
    assert ours.decode(ids) == text
    vocabulary = {token: i for i, token in enumerate(SPM_TOKENS)}
    merges = generate_merges(vocabulary, dict(zip(SPM_TOKENS, SPM_SCORES, strict=True)))
    theirs = (LlamaTokenizer if prefix else GemmaTokenizer)(vocabulary, merges)
    if not (prefix and text.startswith(" ")):
        assert theirs.encode(text, add_special_tokens=False) == ids[1:]


def test_gguf_tokenizer_of_sentencepiece_joins_no_control_token():
    """Its letters are tokens, and with them `<s>` could be the best scored pair."""
    changes = {"<0xFD>": "<", "<0xFE>": "s>", "<0xFF>": ">"}
    tokens = [changes.get(token, token) for token in SPM_TOKENS]
    types = [1 if token in changes else own for token, own in
             zip(SPM_TOKENS, SPM["tokenizer.ggml.token_type"], strict=True)]  # fmt: skip
    changed = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    model = json.loads(from_gguf(SPM | changed, 300, "here").json)["model"]
    assert ["<", "s>"] not in model["merges"] and ["▁", "a"] in model["merges"]


@pytest.mark.parametrize(("family", "kept"), [("llama", 1), ("phi3", 0)])
def test_gguf_tokenizer_of_phi_3_swallows_the_white_space_behind_its_markers(family, kept):
    metadata = SPM | {"general.architecture": family, "tokenizer.ggml.add_space_prefix": False}
    ours = Tokenizer.from_str(from_gguf(metadata, 300, "here").json)
    newline, a = SPM_TOKENS.index("<0x0A>"), SPM_TOKENS.index("a")
    assert ours.encode("<|im_end|>\na").ids == [1, 259, *[newline] * kept, a]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model": "bert"}, UnsupportedModel, "kind 'bert'; supported: 'gpt2', .*'llama', Sent"),
        ({"model": "llama"}, InvalidWeights, "no list tokenizer.ggml.scores"),
        ({"model": "llama", "scores": [0.0]}, InvalidWeights, "scores has no number for each"),
        ({"pre": "bloom"}, UnsupportedModel, "'bloom' is not supported; supported: gpt-2"),
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
