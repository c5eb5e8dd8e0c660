"""A few cases of `make sweep`, and that it would notice what it looks for."""

from dataclasses import replace

import _against
from _against import EXACT, compare, judge
from _cases import FAMILIES, SHARED, draw
import numpy as np
import pytest

ROUND = SHARED * len(FAMILIES)


def case(family: str, **wanted):
    """The first case of a family, in seed 0, with such fields of `Case`."""
    first = FAMILIES.index(family) * SHARED
    drawn = (draw(0, first + lap * ROUND + i) for lap in range(9) for i in range(SHARED))
    return next(c for c in drawn if all(getattr(c, k) == v for k, v in wanted.items()))


def short(found):
    return replace(found, runs=found.runs[:3])


@pytest.mark.long
@pytest.mark.parametrize("family", ["hunyuan_v1_dense", "phi3"])
def test_odd_checkpoints_are_right(tmp_path, family):
    found = judge(short(case(family, scaling="longrope", refused=None)), tmp_path)
    assert len(found) == 3 and {own["outcome"] for own in found} <= {"right", "tie"}, found


def test_a_model_that_is_read_wrongly_is_a_miss(tmp_path, monkeypatch):
    """The reference has another rotary base, as if the library had overlooked config.json's."""
    read = _against.read

    def other(asked, folder):
        model = read(asked, folder)
        model.model.rotary_emb.inv_freq *= 0.9
        return model

    monkeypatch.setattr(_against, "read", other)
    found = judge(short(case("llama", scaling="none", refused=None)), tmp_path)
    assert "miss" in {own["outcome"] for own in found}


def test_what_ought_to_be_refused_and_is_not_is_a_miss(tmp_path):
    refused = next(c for i in range(ROUND * 3) if (c := draw(0, i)).refused)
    (found,) = judge(refused, tmp_path / "a")
    assert found["outcome"] == "refused"
    (found,) = judge(replace(refused, refused="no such word"), tmp_path / "b")
    assert found["outcome"] == "miss"
    assert found["message"].startswith(("Unsupported", "InvalidInput"))


def test_a_token_of_a_near_tie_is_no_miss():
    expected = np.array([[1.0, 0.99999, -1.0]])
    tie = compare(np.array([[0.99999, 1.0, -1.0]]), expected, "fp32")
    assert (tie["outcome"], tie["ties"]) == ("tie", 1)
    assert compare(np.array([1]), expected, "fp32")["outcome"] == "tie"
    assert compare(np.array([2]), expected, "fp32")["outcome"] == "miss"
    off = compare(expected + np.array([0.0, 0.0, 3 * EXACT]), expected, "fp32")
    assert off["outcome"] == "miss" and off["error"] == pytest.approx(3 * EXACT)
    assert compare(expected * np.nan, expected, "fp32")["outcome"] == "miss"
    assert compare(expected * [[1, 1, -1]], expected, "fp16")["outcome"] == "miss"
