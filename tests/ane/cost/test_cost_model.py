"""The time of a token: the formula, its data, and what a plan asks of an engine."""

import dataclasses
import json
import tomllib

from _command import ane_book as command
from _command import refused
import ane_book
from ane_book.conversion.plan import find_config, plan
from ane_book.conversion.recipe import make_recipe
from ane_book.errors import InvalidInput
from ane_book.evidence.cost import work_of
from ane_book_pages import planner
from mlprogram.ane import claims, cost
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
import numpy as np
import pytest

QWEN = "qwen2.5-0.5b-instruct"


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


def work(model: str = QWEN, **recipe) -> TokenWork:
    config = find_config(model)
    return work_of(plan(config, make_recipe(config, **recipe)))


class TestWork:
    """What a plan asks: the very bytes that it announces."""

    def test_of_half_precision(self):
        planned = plan(find_config(QWEN), make_recipe())
        found = work_of(planned)
        assert (found.plain_bytes, found.packed_bytes) == (planned.weight_bytes, 0)
        assert (found.cache_bytes, found.slots) == (planned.cache_bytes, 512)
        assert found.programs == len(planned.programs)

    def test_of_a_head_in_another_form(self):
        planned = plan(find_config(QWEN), make_recipe(quant="lut4", quant_head="int8"))
        found = work_of(planned)
        assert found.packed_bytes == sum(program.bytes for program in planned.shards)
        assert found.plain_bytes == sum(program.bytes for program in planned.head)

    @pytest.mark.parametrize("quant", ["int4-channel", "lut8"])
    def test_what_takes_longer_than_its_bytes_is_packed(self, quant):
        found = work(quant=quant)
        assert found.packed_bytes > found.plain_bytes == 0

    def test_the_cache_grows_with_the_context(self):
        assert work(context=2048).cache_bytes == 4 * work().cache_bytes

    def test_inputs_for_an_adapter_are_read_as_the_cache_is(self):
        least, most = parameter("cache").bounds
        plain, slotted = predict(work(), "m4"), predict(work(lora_slots=16), "m4")
        more = work(lora_slots=16).adapter_bytes / 1e6
        assert more > 1 and work().adapter_bytes == 0
        assert slotted.ms.low - plain.ms.low == pytest.approx(more / most)
        assert slotted.ms.high - plain.ms.high == pytest.approx(more / least)
        (term,) = (term for term in slotted.terms if "adapter" in term.what)
        assert f"{more:,.1f} MB" in term.what and term.rests_on == (parameter("cache"),)
        share = saving(work(), work(lora_slots=16), "m4")
        assert 0 < share.low < share.high < 0.1

    def test_a_plan_says_it_all(self):
        planned = ane_book.plan(QWEN, quant="int8", context=1024)
        assert planned == plan(find_config(QWEN), make_recipe(quant="int8", context=1024))

    @pytest.mark.parametrize("wrong", [{"programs": 0}, {"cache_bytes": -1}, {"segments": -1}])
    def test_less_than_nothing(self, wrong):
        with pytest.raises(InvalidInput, match="a token calls a program or more"):
            TokenWork(
                **{"plain_bytes": 1, "packed_bytes": 0, "cache_bytes": 0, "programs": 1} | wrong
            )

    def test_what_cannot_be_predicted(self):
        with pytest.raises(InvalidInput, match="'int4' has scales along the input channels"):
            work(quant="int4")
        with pytest.raises(InvalidInput, match="bert generates no text; leave the chip out"):
            work("all-minilm-l6-v2")


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

    def test_the_ends_by_hand(self):
        """The cache read slowest and all else cheapest saves most; the reverse, least."""
        (slow, fast), (cheap, dear) = find_chip("m4").bounds, ends("program")
        (least, most), (drag, quick) = ends("packed"), ends("cache")
        low_s, high_s = ends("segment")
        found = saving(self.SMALL, self.LARGE, "m4")
        fixed = (300 + 100 * least) / fast + 3 * cheap + 2 * low_s
        assert found.high == pytest.approx((300 / drag) / (fixed + 400 / drag))
        fixed = (300 + 100 * most) / slow + 3 * dear + 2 * high_s
        assert found.low == pytest.approx((300 / quick) / (fixed + 400 / quick))

    def test_the_same_work_saves_nothing(self):
        assert saving(self.LARGE, self.LARGE, "m4") == Interval(0.0, 0.0)

    def test_it_is_wider_than_the_difference_of_the_ranges(self):
        small, large = (predict(work, "m4").ms for work in (self.SMALL, self.LARGE))
        found = saving(self.SMALL, self.LARGE, "m4")
        assert found.low < 1 - small.low / large.low < found.high
        assert found.low < 1 - small.high / large.high < found.high


class TestCommand:
    def test_a_chip_adds_its_prediction(self):
        without = command("plan", QWEN, "--quant", "int8")
        done = command("plan", QWEN, "--quant", "int8", "--chip", "M4 Max")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(without.stdout.rstrip("\n"))
        estimate = predict(work(quant="int8"), "m4-max")
        added = " ".join(done.stdout[len(without.stdout.rstrip("\n")) :].split())  # as one line
        assert f"{estimate.tokens_s.text()} tokens/s, {estimate.ms.text()} ms a token" in added
        for term in estimate.terms:
            assert f"{term.what}: {term.ms.text()} ms ({term.evidence})" in added

    def test_the_context_is_in_the_plan_and_in_the_prediction(self):
        done = command("plan", QWEN, "--context", "2048", "--chip", "m4-max")
        assert "for a context of 2048" in done.stdout and "cache of 2,048 slots" in done.stdout

    def test_a_chip_that_is_not_known(self):
        message = refused("plan", QWEN, "--chip", "m9")
        assert "chip 'm9'; known are m1," in message and "m4-max" in message

    def test_a_model_without_decode(self):
        assert "generates no text" in refused("plan", "all-minilm-l6-v2", "--chip", "m4")


def test_the_wheel_carries_the_data():
    declared = tomllib.loads((DATA.parents[3] / "pyproject.toml").read_text())["tool"]
    files = declared["setuptools"]["package-data"]
    assert files[cost.__name__] == ["data/*.toml"]
    assert files[planner.__name__] == [f"{planner.SCRIPT.stem}.*"] == [f"{planner.STYLE.stem}.*"]


class TestBorrowedChips:
    @pytest.mark.parametrize("name", BORROWED)
    def test_the_range_holds_its_relatives_and_says_whose_it_is(self, name):
        chip, relatives = find_chip(name), [find_chip(key) for key in BORROWED[name]]
        for relative in relatives:
            assert chip.bounds[0] <= relative.bounds[0] <= relative.bounds[1] <= chip.bounds[1]
            assert relative.chip in chip.condition
        assert name not in chips() and not any(key in BORROWED for key in BORROWED[name])

    def test_the_plan_says_so(self):
        told = " ".join(command("plan", QWEN, "--chip", "m2-pro").stdout.split())
        assert "on the engine of an M2 Pro" in told
        assert "borrowed from the M2 and the M2 Max, since nobody has published its own" in told

    def test_what_is_not_predicted_is_refused_by_name(self):
        told = " ".join(command("plan", QWEN, "--chip", "m4").stdout.split())
        assert "prefill not predicted: prompts were published of a few models" in told
        assert "published first loads lie between 23 and 521 s of Whisper models (" in told
        assert "), and between 15 and 900 s of two language models (" in told
        found = json.loads(command("plan", QWEN, "--chip", "m4", "--json").stdout)
        assert found["predicted"]["not_predicted"].keys() == {"prefill", "first load"}

    def test_a_phone_is_refused_by_name(self):
        with pytest.raises(InvalidInput, match=r"'A17 Pro': of no phone's .* without --chip"):
            find_chip("A17 Pro")
