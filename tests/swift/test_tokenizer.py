"""The tokenizer in Swift gives the ids, texts and streams of `tokenizers`, for each family."""

import base64
from functools import cache
import json
import os
import random
import subprocess

from _families import MAKERS, family, texts
from _long import long_but
from ane_book.errors import UnsupportedModel
from ane_book.runtime.answer import TextStream
import pytest
from swift_tables.packed import packed_tokenizer
from tokenizers import Tokenizer

FEW = 300
#: Of each family; TOKENIZER_TEXTS=10000 takes half an hour.
MANY = int(os.environ.get("TOKENIZER_TEXTS", "1000"))
COUNTS = long_but((FEW, MANY), FEW)
STOPS = ((), ("nn", "the"), ("\ufffd", "。 ", "ab"), ("",))


@cache
def reference(name: str) -> Tokenizer:
    tokenizer = Tokenizer.from_str(family(name))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


@cache
def packed_family(name: str) -> bytes:
    return packed_tokenizer(family(name))


@pytest.fixture
def ask(test_host, tmp_path):
    """Answers of the Swift host for a family's tokenizer to a list of requests."""

    def answers(name: str, requests: list[dict]) -> list[dict]:
        packed = tmp_path / "tokenizer.bin"
        packed.write_bytes(packed_family(name))
        lines = "".join(json.dumps(request) + "\n" for request in requests)
        done = subprocess.run(
            [*test_host, "tokens", str(packed)],
            input=lines,
            capture_output=True,
            encoding="utf-8",
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        replies = [json.loads(line) for line in done.stdout.split("\n")[:-1]]
        assert len(replies) == len(requests)
        return replies

    return answers


def compare(questions: list, replies: list, expected: list) -> None:
    wrong = [row for row in zip(questions, replies, expected, strict=True) if row[1] != row[2]]
    assert not wrong, f"{len(wrong)} of {len(questions)}, such as\n" + "\n".join(
        f"  {question!r}\n    {reply}\n    {right}" for question, reply, right in wrong[:3]
    )


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", MAKERS)
def test_ids_and_texts(ask, name, count):
    """Ids, with special tokens and without, and the texts that they become again."""
    right, samples = reference(name), texts(count, seed=count)
    for special in (False, True):
        ids = [e.ids for e in right.encode_batch(samples, add_special_tokens=special)]
        replies = ask(name, [{"text": text, "special": special} for text in samples])
        compare(samples, [reply["ids"] for reply in replies], ids)
    replies = ask(name, [{"ids": one} for one in ids])
    compare(ids, [reply["text"] for reply in replies], right.decode_batch(ids))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", MAKERS)
def test_streams(ask, name, count):
    """Of the ids of texts, and of ids at random, which are broken text."""
    right, draw, samples = reference(name), random.Random(3), texts(count, seed=count + 1)
    size = right.get_vocab_size()
    streams = [e.ids for e in right.encode_batch(samples)]
    for _ in samples:
        low = draw.choice([0, 0, size - 20])  # bytes, added tokens and ids that are none
        count = draw.choice([size, 300, 30])
        streams.append([low + draw.randrange(count) for _ in range(draw.randrange(20))])
    stops = [STOPS[i % len(STOPS)] for i in range(len(streams))]
    expected = []
    for ids, stop in zip(streams, stops, strict=True):
        stream = TextStream(right, stop)
        parts = [*map(stream.add, ids), stream.finish()]
        expected.append({"parts": parts, "stopped": stream.stopped})
    requests = [{"stream": i, "stop": stop} for i, stop in zip(streams, stops, strict=True)]
    compare(requests, ask(name, requests), expected)
    replies = ask(name, [{"ids": one} for one in streams])
    compare(streams, [reply["text"] for reply in replies], right.decode_batch(streams))


@pytest.mark.long
@pytest.mark.parametrize("name", ["smollm2", "minilm"])
def test_every_character_there_is(ask, name):
    """Each between letters and alone between spaces, so that all tables and classes have a say."""
    characters = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    rows = [characters[i : i + 512] for i in range(0, len(characters), 512)]
    samples = ["".join(f"a{c}b {c} {c}'1{c}" for c in row) for row in rows]
    ids = [e.ids for e in reference(name).encode_batch(samples, add_special_tokens=False)]
    replies = ask(name, [{"text": text} for text in samples])
    compare(range(len(rows)), [reply["ids"] for reply in replies], ids)


@pytest.mark.parametrize("name", ["smollm2", "qwen2", "gemma", "minilm"])
def test_broken_utf8_counts_as_replacement_characters(ask, name):
    draw = random.Random(5)
    samples = [draw.randbytes(draw.randrange(30)) for _ in range(FEW)]
    samples += [text.encode()[draw.randrange(3) : -1] for text in texts(FEW, seed=6)]
    requests = [{"bytes": base64.b64encode(sample).decode()} for sample in samples]
    decoded = [sample.decode(errors="replace") for sample in samples]
    ids = [e.ids for e in reference(name).encode_batch(decoded, add_special_tokens=False)]
    compare(samples, [reply["ids"] for reply in ask(name, requests)], ids)


@pytest.mark.parametrize("name", ["privacy-filter-small", "o200k", "hunyuan"])
def test_places_of_tokens(ask, name):
    samples = texts(FEW, seed=8)
    expected = [
        [[i, *place] for i, place in zip(e.ids, e.offsets, strict=True)]
        for e in reference(name).encode_batch(samples, add_special_tokens=False)
    ]
    replies = ask(name, [{"locate": text} for text in samples])
    compare(samples, [reply["ids"] for reply in replies], expected)


@pytest.mark.parametrize("name", ["smollm2", "gemma", "minilm"])
def test_long_runs_take_no_more_time_than_other_texts(ask, name):
    samples = [
        unit * (200_000 // len(unit)) for unit in ("a", " ", "é", "ab", "\n", "A", "1", "👍")
    ]
    ids = [e.ids for e in reference(name).encode_batch(samples, add_special_tokens=False)]
    replies = ask(name, [{"text": text} for text in samples])
    compare([s[:9] for s in samples], [reply["ids"] for reply in replies], ids)


REFUSED = [
    (("model", "type"), "Unigram", "Unigram"),
    (("model", "dropout"), 0.1, "dropout 0.1"),
    (("model", "end_of_word_suffix"), "</w>", "end_of_word_suffix '</w>'"),
    (("model", "novelty"), 1, "model.BPE.novelty 1"),
    (("model", "unk_token"), "nobody", "nobody"),
    (("normalizer",), {"type": "NFKC"}, "NFKC"),
    (("decoder",), {"type": "CTC"}, "CTC"),
    (("decoder",), None, "decoder"),
    (("post_processor",), {"type": "Novel"}, "Novel"),
    (("pre_tokenizer",), {"type": "CharDelimiterSplit", "delimiter": "-"}, "CharDelimiterSplit"),
    (("pre_tokenizer", "pretokenizers", 0, "pattern", "Regex"), "(a+)+b", "(a+)+b"),
    (("pre_tokenizer", "pretokenizers", 0, "behavior"), "MergedWithNext", "MergedWithNext"),
    (("pre_tokenizer", "pretokenizers", 1, "add_prefix_space"), True, "add_prefix_space True"),
    (("added_tokens", 0, "single_word"), True, "single_word"),
    (("added_tokens", 0, "id"), 77, "added_tokens"),
    (("novelty",), 1, "file.novelty 1"),
    (("model", "vocab"), [1], "damaged"),
    (("model", "merges"), [["a"]], "damaged"),
]


@pytest.mark.parametrize(("place", "value", "sentence"), REFUSED)
def test_what_is_of_no_family_is_refused_by_its_name(place, value, sentence):
    file = json.loads(family("o200k"))
    part = file
    for step in place[:-1]:
        part = part[step]
    part[place[-1]] = value
    with pytest.raises(UnsupportedModel, match="tokenizer.json") as refused:
        packed_tokenizer(json.dumps(file))
    assert sentence in str(refused.value)


def test_what_is_no_json_is_refused():
    for text in ("", "[]", "null", '{"model": 3}', "{" * 9):
        with pytest.raises(UnsupportedModel):
            packed_tokenizer(text)


def test_a_damaged_file_ends_with_a_sentence(test_host, tmp_path):
    packed = tmp_path / "tokenizer.bin"
    packed.write_bytes(packed_family("zaya-small")[:-100])
    done = subprocess.run(
        [*test_host, "tokens", str(packed)], input="", capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "tokenizer.bin is damaged" in done.stderr
