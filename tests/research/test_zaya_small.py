"""zaya-small: the weights in the package, held to their record and to `transformers`."""

import json
from math import exp

import ane_book
from parity import greedy, reference_greedy
import pytest
import torch
from torch.nn.functional import cross_entropy
from zaya import RESULT
from zaya_record import HELD_OUT_TEXT, conditions, load, nats, windows

#: Of the texts of this test: between that of the model and those of broken routers (record.json).
PERPLEXITY = 30.0
SPARED = {"without the balancing biases"}  # they change the route of few tokens
PROMPTS = (
    "Story: the brave fox and the lamp\n\nOnce upon a time, in a forest, there was a brave fox.",
    "Question: What is the moon?\nAnswer:",
    "Sum: Anna has 7 boats and finds 5 more. How many now?\nAnswer: 12, because",
)


@pytest.fixture(scope="module")
def trained():
    """The model in `transformers`, from the weights in the package, and its tokenizer."""
    return load(RESULT)


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    return ane_book.convert(
        "zaya-small", out=tmp_path_factory.mktemp("zaya") / "bundle", context=320
    )


@pytest.fixture(scope="module")
def unseen(trained):
    """The tokens of some texts that were not learnt."""
    texts = [json.loads(line) for line in HELD_OUT_TEXT.read_text("utf-8").splitlines()]
    return windows(trained[1], [t["text"] for t in texts if t["kind"] != "repository"][::6])


class TestModel:
    @pytest.mark.long
    def test_greedy_tokens_are_those_of_transformers(self, trained, converted):
        model, tokenizer = trained
        session = ane_book.Session(converted, precision="fp32")
        for prompt in PROMPTS:
            ids = tokenizer.encode(prompt).ids
            assert session.encode(prompt) == ids
            with torch.inference_mode():
                expected = reference_greedy(model, ids, 64)
            assert greedy(session, ids, 64) == expected, prompt

    @pytest.mark.long
    def test_the_package_predicts_text_that_was_not_learnt(self, trained, converted, unseen):
        """And no model does whose router is broken, in any of the ways of the record."""
        session, surprise, tokens = ane_book.Session(converted), 0.0, 0
        for row in unseen:
            session.reset()
            logits = torch.from_numpy(session.logits(row[:-1]))
            surprise += float(cross_entropy(logits, torch.tensor(row[1:]), reduction="sum"))
            tokens += len(row) - 1
        assert exp(surprise / tokens) < PERPLEXITY
        for name, condition in conditions(trained[0]).items():
            with condition():
                broken = exp(nats(trained[0], unseen) / tokens)
            assert name in SPARED or broken > PERPLEXITY, (name, broken)
