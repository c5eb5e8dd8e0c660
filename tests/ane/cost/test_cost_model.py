"""The time of a token: the formula and its data."""

import dataclasses

from mlprogram.ane import claims
from mlprogram.ane.cost import (
    Interval,
    TokenWork,
    chips,
    find_chip,
    parameter,
    predict,
    saving,
)
from mlprogram.ane.cost.chips import BORROWED, DATA
from mlprogram.errors import InvalidInput
import numpy as np
import pytest


def ends(name: str) -> tuple[float, float]:
    return parameter(name).value


class TestFormula:
    """Each term by itself, by hand; then their sum."""

    LOW, HIGH = find_chip("m4-max").value

    def only(self, **more) -> Interval:
        """What this much more adds to a token of a single call."""
        least = {"plain_bytes": 0, "packed_bytes": 0, "cache_bytes": 0, "programs": 1}
        with_it = predict(TokenWork(**least | more), "m4-max").ms
        without = predict(TokenWork(**least), "m4-max").ms
        return Interval(with_it.low - without.low, with_it.high - without.high)

    def test_weights_are_read_at_the_chips_bandwidth(self):
        found = self.only(plain_bytes=1_000_000_000)
        assert (found.low, found.high) == pytest.approx((1e3 / self.HIGH, 1e3 / self.LOW))

    def test_packed_weights_take_longer_than_their_bytes(self):
        least, most = ends("packed")
        found = self.only(packed_bytes=1_000_000_000)
        assert found.low == pytest.approx(least * 1e3 / self.HIGH)
        assert found.high == pytest.approx(most * 1e3 / self.LOW)

    def test_the_cache_is_read_as_activations_are(self):
        slow, fast = ends("cache")
        found = self.only(cache_bytes=100_000_000)
        assert (found.low, found.high) == pytest.approx((100 / fast, 100 / slow))

    @pytest.mark.parametrize(("name", "field"), [("program", "programs"), ("segment", "segments")])
    def test_every_call_and_every_stretch_costs(self, name, field):
        low, high = ends(name)
        found = self.only(**{field: 7 + (field == "programs")})
        assert (found.low, found.high) == pytest.approx((7 * low, 7 * high))

    def test_the_sum_and_its_speed(self):
        estimate = predict(TokenWork(10**9, 10**8, 10**7, 5, segments=2, slots=512), "m4-max")
        assert len(estimate.terms) == 5
        assert estimate.ms.low == pytest.approx(sum(term.ms.low for term in estimate.terms))
        assert estimate.ms.high == pytest.approx(sum(term.ms.high for term in estimate.terms))
        speed = estimate.tokens_s
        assert speed.low == pytest.approx(1e3 / estimate.ms.high) and speed.low < speed.high
        assert speed.high == pytest.approx(1e3 / estimate.ms.low)

    def test_no_term_is_a_bare_number(self):
        estimate = predict(TokenWork(10**9, 10**9, 10**8, 4, segments=1), "m4-max")
        for term in estimate.terms:
            assert term.ms.low < term.ms.high
            assert term.rests_on and term.evidence.startswith(claims.GRADES)


class TestChips:
    def test_every_chip_has_a_range_with_a_source(self):
        assert len(chips()) >= 15
        for key, chip in chips().items():
            low, high = chip.value
            assert 0 < low < high and chip.unit == "GB/s" and chip.support
            assert key == chip.chip.lower().replace(" ", "-")
            assert f"{low:.1f} to {high:.1f}" in chip.statement

    def test_every_parameter_is_a_range_with_a_source(self):
        for name in claims.load(DATA / "parameters.toml"):
            low, high = ends(name)
            assert f"{low:g}" in parameter(name).statement.replace(".0", "")
            assert low < high

    @pytest.mark.parametrize("file", ["chips.toml", "parameters.toml"])
    def test_a_range_is_as_wide_as_its_own_evidence(self, file):
        """The registry refuses a source outside of its range; here each end rests on a source."""
        for name, claim in claims.load(DATA / file).items():
            given = [number for source in claim.support for number in source.values]
            assert all(source.values for source in claim.support), name
            low, high = claim.bounds
            assert low <= min(given) <= low * 1.01, name
            assert max(given) <= high <= max(given) * 1.02, name

    def test_a_program_costs_what_one_more_adds(self):
        """Measured in a running model, a program more lies wholly in the range of the term."""
        low, high = parameter("program").bounds
        assert all(low <= end <= high for end in claims.find("layer-programs").bounds)
        assert "adds" in parameter("program").statement

    @pytest.mark.parametrize("claim", [parameter("rows"), claims.find("rows-eight")])
    def test_what_eight_rows_cost_lies_within_its_range(self, claim):
        """Each time that a source gives for eight rows, over each that it gives for fewer."""
        published = [
            (91.5, 95.3),
            (91.5, 94.5),
            (30.15, 29.9),
            (30.15, 31.9),
            (32, 32.3),
            (36, 32.3),
        ]
        told = " ".join(source.says for source in claim.support)
        assert all(f"{eight:g}" in told and f"{few:g}" in told for eight, few in published)
        low, high = claim.bounds
        assert all(low <= eight / few <= high for eight, few in published)

    @pytest.mark.parametrize("written", ["m4-max", "M4 Max", " M4-MAX", "Apple M4 Max"])
    def test_as_people_write_it(self, written):
        assert find_chip(written).chip == "M4 Max"

    def test_one_that_is_not_known(self):
        with pytest.raises(InvalidInput, match=r"chip 'a19-pro'.*; known are m1, .*m4-max.* m6;"):
            find_chip("a19-pro")


@pytest.mark.parametrize("wrong", [{"programs": 0}, {"cache_bytes": -1}, {"segments": -1}])
def test_less_than_nothing(wrong):
    least = {"plain_bytes": 1, "packed_bytes": 0, "cache_bytes": 0, "programs": 1}
    with pytest.raises(InvalidInput, match="a token calls a program or more"):
        TokenWork(**least | wrong)


class TestSaving:
    """A share of a token's time: both sides of it have the same value of every parameter."""

    LARGE = TokenWork(3 * 10**8, 10**8, 4 * 10**8, 3, segments=2)
    SMALL = dataclasses.replace(LARGE, cache_bytes=10**8)

    def test_every_machine_within_the_ranges_lies_within_it(self):
        names = ("packed", "cache", "program", "segment")
        bounds = [find_chip("m4").bounds, *(parameter(name).bounds for name in names)]
        low, high = np.array(bounds).T
        found, rng = saving(self.SMALL, self.LARGE, "m4"), np.random.default_rng(0)
        for rate, k, cache, call, stretch in rng.uniform(low, high, (500, 5)):
            fixed = (300 + 100 * k) / rate + 3 * call + 2 * stretch
            assert 1 - (fixed + 100 / cache) / (fixed + 400 / cache) in found

    def test_the_same_work_saves_nothing(self):
        assert saving(self.LARGE, self.LARGE, "m4") == Interval(0.0, 0.0)


class TestBorrowedChips:
    @pytest.mark.parametrize("name", BORROWED)
    def test_the_range_holds_its_relatives_and_says_whose_it_is(self, name):
        chip, relatives = find_chip(name), [find_chip(key) for key in BORROWED[name]]
        for relative in relatives:
            assert chip.bounds[0] <= relative.bounds[0] <= relative.bounds[1] <= chip.bounds[1]
            assert relative.chip in chip.condition
        assert name not in chips() and not any(key in BORROWED for key in BORROWED[name])

    def test_a_phone_is_refused_by_name(self):
        with pytest.raises(InvalidInput, match=r"'A17 Pro': of no phone's .* without --chip"):
            find_chip("A17 Pro")
