"""What strategies for experts cost on a chip: reading and calls."""

from _command import ane_book as command
import ane_book
from ane_book.evidence import cost
from ane_book.evidence.cost import work_of
from mlprogram.ane.cost import TokenWork, predict
import pytest

MODEL, CHIP = "privacy-filter", "m4-max"


@pytest.fixture(scope="module")
def plans():
    return ane_book.plan(MODEL).strategies


def test_the_work_of_a_call_is_what_the_plan_counts(plans):
    made = plans["dispatch"]
    for tokens in (1, 64):
        asked = work_of(made, tokens)
        assert asked == TokenWork(
            round(made.read_bytes(tokens)), 0, 0, round(made.calls(tokens)), slots=0
        )
    assert work_of(plans["packed"], 1) == work_of(plans["packed"], 64)


def test_the_command_says_what_is_not_measured(plans):
    said = " ".join(command("plan", MODEL, "--chip", CHIP).stdout.split())
    for name, made in plans.items():
        assert f"{name}: {predict(work_of(made), CHIP).ms.text()} ms for a token" in said
    assert said.partition(" device ")[0].endswith("unmeasured")


def test_decode_is_predicted_as_ever():
    """For a model that generates text, the lines of `predict` come first."""
    planned = ane_book.plan("hy-mt", quant="int8")
    *lines, (heading, _) = cost.rows(planned, CHIP)
    assert lines == predict(work_of(planned), CHIP).rows() and heading == "published"
