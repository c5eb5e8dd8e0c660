"""What strategies for experts cost on a chip: reading and calls, and where they meet."""

from _command import ane_book as command
import ane_book
from ane_book.evidence import cost
from ane_book.evidence.cost.strategies import crossings
from ane_book.evidence.cost.work import work_of
from mlprogram.ane.cost import TokenWork, find_chip, parameter, predict
import numpy as np
import pytest

MODEL, CHIP = "privacy-filter", "m4-max"


@pytest.fixture(scope="module")
def plans():
    return ane_book.plan(MODEL).strategies


def test_the_work_of_a_call_is_what_the_plan_counts(plans):
    made = plans["dispatch"]
    shares = np.full((8, 128), 4 / 128)
    for tokens in (1, 64):
        asked = work_of(made, tokens, shares)
        assert asked == TokenWork(
            round(made.read_bytes(tokens)), 0, 0, round(made.calls(tokens)), slots=0
        )
    assert work_of(plans["packed"], 1) == work_of(plans["packed"], 64)


def test_they_meet_where_both_take_as_long(plans):
    """At the corners of what is known: bandwidth and a call, low and high."""
    apart, whole = plans["dispatch"], plans["packed"]
    first, last = crossings(apart, whole, CHIP)
    assert first == 1 < last

    def difference(tokens: int, rate: float, call: float) -> float:
        calls = apart.calls(tokens) - whole.calls()
        return calls * call - (whole.read_bytes() - apart.read_bytes(tokens)) / (rate * 1e6)

    low, high = find_chip(CHIP).value
    least, most = parameter("program").value
    assert difference(1, high, most) > 0
    assert difference(last, low, least) > 0 > difference(last - 1, low, least)


def test_they_never_meet_where_the_router_always_chooses_the_same(plans):
    shares = np.zeros((8, 128))
    shares[:, :4] = 1
    _, last = crossings(plans["dispatch"], plans["packed"], CHIP, shares)
    assert last is None


def test_packed_weights_are_read_for_longer():
    """A quarter of the bytes, each up to 1.4 times as long: reading less saves less."""
    plans = ane_book.plan(MODEL, quant="lut4").strategies
    half = ane_book.plan(MODEL).strategies
    assert work_of(plans["packed"]).plain_bytes == 0
    meet = [crossings(p["dispatch"], p["packed"], CHIP)[1] for p in (plans, half)]
    assert meet[0] < meet[1]


def test_the_command_says_what_is_not_measured(plans):
    said = " ".join(command("plan", MODEL, "--chip", CHIP).stdout.split())
    for name, made in plans.items():
        assert f"{name}: {predict(work_of(made), CHIP).ms.text()} ms for a token" in said
    first, last = crossings(plans["dispatch"], plans["packed"], CHIP)
    assert f"slower than packed from {first} token a call on, where a call takes most" in said
    assert f"; from {last} tokens a call on, where it takes least" in said
    assert said.partition(" device ")[0].endswith("unmeasured")


def test_decode_is_predicted_as_ever():
    """For a model that generates text, the lines of `predict` come first."""
    planned = ane_book.plan("hy-mt", quant="int8")
    *lines, (heading, _) = cost.facts(planned, CHIP)
    assert lines == predict(work_of(planned), CHIP).facts() and heading == "published"
