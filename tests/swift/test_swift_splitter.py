"""The words that Swift splits texts into are those of the regular expressions, pattern by pattern.

A vocabulary is made of all words into which `tokenizers` splits the texts, and a word that is in
the vocabulary is one token (`ignore_merges`). So tokens are words: where Swift ends a word at
another place, its tokens are others, in other places, whatever the family's own vocabulary hides.
"""

from itertools import product
import json
import os
import random
import subprocess

import pytest
from swift_tables.packed import packed_tokenizer
from swift_tables.shapes import SPLITS
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

RANDOM = int(os.environ.get("SPLITTER_TEXTS", "2500"))
#: Of every class that a pattern names some characters, with those at the ends of its ranges.
CLASSES = [
    "aszZSDd", "ſKtrevmlTREVML", "éßĲΩжЩ", "ǅǈᾈ", "ʰˮـ", "ªºאعकกあア中", "一龥龦㐀",
    "\u3040ゟ゠ヿㄅ",
    "\u0301\u0323\u20dd\u0903\u200d", "019", "٣५９", "Ⅷⅻ〇", "½²①", "'’ʼ", "!/:@[`{~", ".,-_()#",
    "«»„“…‽—_", "$+<=>^|", "€±♥🙂🏽", " ", "  ", "\n", "\r", "\r\n", "\t\x0b\x0c",
    "\x1c\x1d\x1e\x1f", "\x85\u00a0\u2003\u2028\u2029\u3000", "\u200b\u00ad\ufeff", "\0\x7f\u0080",
    "\ue000\ufffd\U0010ffff", "\u0378",
]  # fmt: skip
PIECES = [
    "'s", "'S", "'ſ", "'re", "'LL", "'d", "n't", " 12", "1234", "  \n", "\n\n ", " a", "//", "__",
]  # fmt: skip


def samples(seed: int) -> list[str]:
    """All texts of three classes, and random ones of up to 24 pieces, some the same in a row."""
    draw = random.Random(seed)
    found = ["".join(map(draw.choice, three)) for three in product(CLASSES[::2], repeat=3)]
    found += ["".join(map(draw.choice, three)) for three in product(CLASSES[1::2], repeat=3)]
    for _ in range(RANDOM):
        few = draw.sample(CLASSES, draw.randrange(1, 6))
        parts = []
        for _ in range(draw.randrange(1, 24)):
            part = draw.choice(PIECES) if draw.random() < 0.2 else draw.choice(draw.choice(few))
            parts.append(part * draw.choice([1, 1, 1, 2, 3, 7]))
        found.append("".join(parts))
    return found


def splitter(pattern: str, behavior: str = "isolated"):
    removed = behavior == "removed"
    split = pre_tokenizers.Split(Regex(pattern), behavior, invert=removed)
    return pre_tokenizers.Sequence([split, BYTES])


THREE = "digits1-3", "cjk", "deepseek"
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
PRE_TOKENIZERS = {
    **{name: splitter(pattern) for name, pattern in SPLITS.items()},
    **{f"{name}, gaps lost": splitter(SPLITS[name], "removed") for name in ("cl100k", "cjk")},
    "gpt2 of ByteLevel": pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    "digits": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=False), BYTES]),
    "each digit": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTES]),
    "deepseek, all three": pre_tokenizers.Sequence(
        [*(pre_tokenizers.Split(Regex(SPLITS[name]), "isolated") for name in THREE), BYTES]
    ),
}  # fmt: skip


def tokens_of(test_host: list[str], packed: bytes, requests: list[dict], folder) -> list:
    (path := folder / "tokenizer.bin").write_bytes(packed)
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run(
        [*test_host, "tokens", str(path)],
        input=lines,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    return [json.loads(line)["ids"] for line in done.stdout.split("\n")[:-1]]


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_words_are_those_of_the_pattern(test_host, tmp_path, name):
    texts = samples(seed=len(name))
    words = [PRE_TOKENIZERS[name].pre_tokenize_str(text) for text in texts]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    vocabulary = sorted({*alphabet, *(word for row in words for word, _ in row)})
    assert len(vocabulary) > 400
    ids = {word: i for i, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = PRE_TOKENIZERS[name]
    tokenizer.decoder = decoders.ByteLevel()
    packed = packed_tokenizer(tokenizer.to_str())
    found = tokens_of(test_host, packed, [{"locate": text} for text in texts], tmp_path)
    for text, row, own in zip(texts, words, found, strict=True):
        assert own == [[ids[word], *place] for word, place in row], text


def test_words_are_those_of_bert(test_host, tmp_path):
    splitting, texts = pre_tokenizers.BertPreTokenizer(), samples(seed=3)
    words = [[word for word, _ in splitting.pre_tokenize_str(text)] for text in texts]
    vocabulary = ["[UNK]", *sorted({word for row in words for word in row})]
    ids = {word: i for i, word in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=1000))
    tokenizer.pre_tokenizer, tokenizer.decoder = splitting, decoders.WordPiece()
    packed = packed_tokenizer(tokenizer.to_str())
    found = tokens_of(test_host, packed, [{"text": text} for text in texts], tmp_path)
    for text, row, own in zip(texts, words, found, strict=True):
        assert own == [ids[word] for word in row], text
