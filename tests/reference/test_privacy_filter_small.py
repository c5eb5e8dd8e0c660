"""The Privacy Filter that this project trained: there without a network, and as its record says."""

import json
from pathlib import Path

from _command import ane_book as command
import ane_book
from ane_book.conversion import kept
from ane_book.reference import MODELS, find_reference
from ane_book.runtime import Tagger
from compare_labels import Reference, compare
from evaluate import spans_of
import pytest
from scores import Example, read_examples, score

NAME = "privacy-filter-small"
FOLDER = MODELS / NAME
HELD_OUT = Path(__file__).parents[2] / "research" / "train" / "held_out.jsonl"


@pytest.fixture(scope="module")
def tagger() -> Tagger:
    return ane_book.load(NAME, precision="fp32")


class TestModel:
    def test_its_labels_are_those_of_transformers(self, tagger):
        """On 25 texts; research/train/compare_labels.py does it on 1,000."""
        texts = [example.text for example in read_examples(HELD_OUT)[:25]]
        found = compare(tagger, Reference(), texts)
        assert found["tokens"] > 1000 and found["tokens_apart"] == 0
        assert found["tokens_off"] < 0.01 * found["tokens"]  # two experts as good as equal

    def test_no_bundle_is_taken_by_its_name_alone(self, tagger):
        """Its weights come with the library, whose next version may have others."""
        assert ane_book.convert(NAME).path == tagger.bundle.path and kept(NAME) is None

    def test_is_what_its_record_says(self):
        record = json.loads((FOLDER / "record.json").read_text())
        assert record["parameters"] == find_reference(NAME).parameters
        assert record["bytes"] == (FOLDER / "model.safetensors").stat().st_size < 10_000_000
        schedule = record["settings"]["schedule"]
        assert record["curve"][-1]["step"] == schedule["steps"] + sum(schedule["more"])
        for layer in record["shares_of_experts"]:
            assert len(layer) == 16 and sum(layer) == pytest.approx(1, abs=1e-3)
            assert min(layer) > 0.01  # every expert is used: an equal share is 0.0625

    def test_is_what_redact_takes_without_a_network(self):
        done = command("redact", "-", input="x")
        assert done.returncode == 0, done.stderr
        assert done.stdout == "x"


class TestQuality:
    """On held_out.jsonl: templates and people that no training saw."""

    def test_of_texts_that_it_never_saw(self, tagger):
        examples = read_examples(HELD_OUT)[:80]
        found = score((spans_of(tagger, example.text) for example in examples), examples)
        assert found["all"]["true"] > 200
        assert found["private_email"]["f1"] > 0.7 and found["all"]["f1"] > 0.6


class TestScores:
    def test_a_span_is_right_where_label_and_both_ends_are(self):
        true = [(0, 3, "secret"), (5, 9, "secret"), (10, 12, "private_url")]
        found = [(0, 3, "secret"), (5, 8, "secret"), (10, 12, "secret")]
        rows = score([found], [Example("x" * 12, true)])
        assert rows["secret"] == {
            "precision": 0.3333, "recall": 0.5, "f1": 0.4, "true": 2, "found": 3,
        }  # fmt: skip
        assert rows["private_url"]["precision"] is None and rows["private_url"]["recall"] == 0
        assert rows["all"]["f1"] == 0.3333
