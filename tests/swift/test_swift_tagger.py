"""Labels of texts in Swift, held to Python's: the same spans, places and probabilities."""

from pathlib import Path
import random
import subprocess

from _families import texts as odd_texts
from _taggers import TEXT
import ane_book
from ane_book.bundle import Bundle
from ane_book.runtime import Tagger
import pytest
from scores import read_examples
from swift_tables import add_tables
from test_swift_session import EXECUTOR, swift

HELD_OUT = Path(__file__).parents[2] / "research" / "train" / "held_out.jsonl"
#: What no text of the held-out ones has: nothing, no letter, marks, scripts without spaces.
ODD = [
    "", " ", "\n", "x", "\u0301", "\x1c\x1d Ann \x1e", "Ann" + "\u0301" * 40 + " Lee",
    "안나 이는 서울에 산다.", "山田太郎さんは東京に住んでいます。電話は03-1234-5678です。",
    "สมชาย ใจดี โทร 081-234-5678", "👩‍👩‍👧 ann@example.org 🇵🇱", "a" * 3000, "é" * 1500 + " Ann Lee",
]  # fmt: skip


def same(test_host: list[str], bundle: Bundle, texts: list[str]) -> int:
    """Hold the spans of texts to Python's; returns how many there are."""
    tagging, count = Tagger(bundle, backend="mil"), 0
    every = [tagging.redact(text) for text in texts]  # first: the executor opens the plans it keeps
    with swift(test_host, bundle) as ask:
        for text, expected in zip(texts, every, strict=True):
            answer = ask(texts=[text])
            assert "error" not in answer, answer
            assert answer["text"] == expected.text
            assert len(answer["spans"]) == len(expected.spans)
            for row, span in zip(answer["spans"], expected.spans, strict=True):
                places = span.label, span.start, span.end, span.byte_start, span.byte_end
                keys = "label", "start", "end", "byte_start", "byte_end"
                assert tuple(row[key] for key in keys) == places, text
                assert row["text"] == text[span.start : span.end]
                assert row["score"] == pytest.approx(span.score, abs=1e-5)
            count += len(expected.spans)
    return count


@pytest.fixture(scope="module")
def small() -> Bundle:
    return ane_book.load("privacy-filter-small", backend="mil").bundle


def test_the_trained_filter(test_host, small):
    examples = [example.text for example in read_examples(HELD_OUT)]
    draw = random.Random(4)
    long = [" ".join(draw.sample(examples, 12)) for _ in range(2)]  # of several windows
    assert same(test_host, small, [*examples[:40], *long, *ODD, *odd_texts(40, seed=9)]) > 200


@pytest.mark.long
def test_the_trained_filter_on_many_texts(test_host, small):
    examples = [example.text for example in read_examples(HELD_OUT)]
    assert same(test_host, small, [*examples[40:], "\n".join(examples)]) > 1000


@pytest.mark.parametrize("recipe", [{}, {"experts": "dispatch"}], ids=["packed", "dispatch"])
def test_random_filters_whose_labels_are_many(test_host, tagger, recipe):
    """Spans that begin and end within words, over windows of 64 tokens; experts as programs too."""
    draw = random.Random(5)
    samples = [TEXT, TEXT * 4, *ODD[:-2]]
    samples += ["".join(draw.choices("abé 漢🙂.\n", k=n)) for n in (1, 5, 63, 64, 65, 200)]
    if not recipe:
        samples += odd_texts(60, seed=3)
    for size in ("usual", "narrow") if recipe else ("usual", "odd", "narrow"):
        assert same(test_host, tagger(size, **recipe)[1], samples) > 100, size


def test_the_command_and_what_it_refuses(anebook, test_host, small, tagger, tiny_bundle):
    text = "Write to ann@example.org, or call +48 600 100 200."
    expected = ane_book.load("privacy-filter-small", backend="mil").redact(text)
    add_tables(small)
    command = [*anebook, "redact", str(small.path), text, "--executor", EXECUTOR]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == expected.text + "\n" and "<PRIVATE_EMAIL>" in expected.text
    assert done.stderr.startswith(f"{len(expected.spans)} spans, ")
    other = tiny_bundle("llama", kv="state")[1].path
    command = [*anebook, "redact", str(other), text, "--executor", EXECUTOR]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "gives no labels of tokens" in done.stderr
    with swift(test_host, tagger("usual", context=20)[1]) as ask:
        assert "convert the model with a context of 40" in ask(texts=["x" * 30])["error"]
        assert ask(texts=["x" * 20])["text"]
