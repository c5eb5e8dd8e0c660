"""What the page "The cache" says: its sums, and what its sentences conclude from what it prints."""

import re

from _executed import defined, printed, prose, source
from _site import needs_site
import ane_book
from ane_book.runtime import Session
from ane_book_pages import records, sources
from ane_book_pages.decode.published import read_rows
from mlprogram.ane import claims, cost
import numpy as np
import pytest

PAGE = "the-cache"
TEXT = prose(PAGE)
SLOT, WEIGHTS, QWEN_SLOT = 2 * 30 * 3 * 64 * 2, 2 * 134_479_872, 2 * 36 * 8 * 128 * 2
BANDWIDTH = cost.chips()["m5-pro"].value  # GB/s
#: Positions that are free in fp16, least and most, as "What a token costs" has them.
FREE = 1e3 * 10.2 / BANDWIDTH[1], 1e3 * claims.find("arithmetic-m5-pro").value / BANDWIDTH[0]


def numbers(pattern: str) -> list[float]:
    """The numbers in the one line that the page printed like this."""
    (found,) = re.findall(pattern, printed(PAGE))
    return [float(each.replace(",", "")) for each in found]


class TestSaves:
    def test_the_opening_is_the_registrys_and_the_rooflines(self):
        wide, fitted = claims.find("cache-slots").value
        assert f"{fitted:.1f} tokens per second" in TEXT and f"and {wide:.1f} with room" in TEXT
        assert [round(each) for each in FREE] == [67, 171]
        assert "67 positions or more" in TEXT and "67 to 171 rows" in TEXT
        least, most = (1000 / each for each in reversed(FREE))
        assert f"cost {least:.0f} to {most:.0f} times" in TEXT

    def test_rows(self):
        with_cache, without = 40 + 100 - 1, sum(40 + i for i in range(100))
        assert f"{with_cache} rows" in TEXT and f"= {without:,} rows" in TEXT
        assert f"{without // with_cache} times as many" in TEXT

    @needs_site
    def test_a_short_answer_in_fp16_gains_little_and_the_others_much(self):
        found = re.findall(r"(\d+) tokens, +(\d+) bits: +([\d.]+) to +([\d.]+)x", printed(PAGE))
        slower = {(int(n), int(bits)): (float(a), float(b)) for n, bits, a, b in found}
        for (n, bits), printed_ends in slower.items():
            rows = 40 + np.arange(n)
            ends = [np.maximum(1, rows * 16 / bits / free).mean() for free in (171, 67)]
            assert printed_ends == tuple(round(end, 1) for end in ends)
        assert slower.keys() == {(100, 16), (100, 4), (1000, 16), (1000, 4)}
        assert slower[100, 16][1] < 1.5 < 2 < min(slower[1000, 16][0], slower[100, 4][0])

    def test_bytes(self):
        assert f"{SLOT:,} bytes in SmolLM2" in TEXT and f"{SLOT * 9 // 3:,} bytes" in TEXT
        for tokens in (512, 8192):
            megabytes, share = tokens * SLOT / 1e6, tokens * SLOT / WEIGHTS
            assert f"{tokens:,} need {megabytes:.1f} MB" in TEXT.replace("tokens need", "need")
            assert f"{100 * share:.0f} %" in TEXT


@needs_site
class TestMask:
    def test_empty_slots_weigh_nothing_unless_their_scores_outweigh_the_mask(self):
        found = re.findall(r"garbage near +([\d,]+): weight (\d), off by (\S+)", printed(PAGE))
        assert [(size, weight) for size, weight, _ in found] == [
            ("100", "0"), ("100", "0"), ("100,000", "1")]  # fmt: skip
        first, second, last = (float(off) for *_, off in found)
        assert max(first, second) < 1e-12 and last > 1e4

    def test_both_choices_give_the_same_bits(self):
        assert "37 tokens; equal, bit for bit: True" in printed(PAGE)
        assert "the prompt has only 37" in TEXT

    def test_garbage_must_be_finite_and_not_too_large(self):
        found = dict(re.findall(r"^ *(\w+): off by (\S+)$", printed(PAGE), re.M))
        assert found == {"1": "0.0", "1000": "0.0", "10000": "nan", "nan": "nan"}

    def test_keys_break_before_values(self):
        keys, values = numbers(r"keys: ([\d,]+)\nvalues: ([\d,]+)\n")
        assert keys < values == 2**15


class TestPrice:
    FITS, IN_USE = defined(PAGE, "fits"), defined(PAGE, "in_use")

    def test_by_hand(self):
        slow, fast = round(1e3 / 3.118, 1), round(1e3 / 13.698, 1)
        us = (slow - fast) / (32_768 - 2304) * 1e3
        said = (f"{fast:.1f} ms per token", f"{slow:.1f} ms with", f"{32_768 - 2304:,} more slots",
                f"cost {slow - fast:.1f} ms, or {us:.1f} µs each", f"{QWEN_SLOT:,} bytes",
                f"read at {QWEN_SLOT / us / 1e3:.0f} GB/s")  # fmt: skip
        assert not [each for each in said if each not in TEXT]
        assert f"come at {BANDWIDTH[0]:.0f} to {BANDWIDTH[1]:.0f} GB/s on this chip" in TEXT
        low, high = cost.parameter("cache").bounds
        assert f"seen at {low:.0f} to {high:.0f} GB/s" in TEXT
        assert low < QWEN_SLOT / us / 1e3 < high < BANDWIDTH[0]

    def test_the_data_are_the_published_rows(self):
        rows = [row for row in read_rows(records.find("measurements/published.json"))
                if row["model"].startswith("Qwen3-4B fp16")]  # fmt: skip
        fits, in_use = {}, {}
        for row in rows:
            if found := re.search(r"in a graph of (\d+) slots; throughput", row["what"]):
                fits[int(found[1])] = row["value"]
            if found := re.search(r"^decode; context/initial KV (\d+); throughput", row["what"]):
                in_use[int(found[1])] = row["value"]
        assert fits == pytest.approx(self.FITS)
        assert {n: rate for n, rate in in_use.items() if n >= 2048} == self.IN_USE

    def test_what_is_in_use_makes_no_difference_and_the_line_meets_it(self):
        ms = [1e3 / rate for rate in self.FITS.values()]
        slope, rest = np.polyfit(list(self.FITS), ms, 1)
        crosses = [1e3 / rate for rate in self.IN_USE.values()]
        assert max(crosses) / min(crosses) < 1.002 and round(max(crosses)) == 321
        assert round(rest + slope * 32_768, -1) == 300 and abs(max(crosses) / 300 - 1) < 0.08
        assert np.abs((rest + slope * np.array(list(self.FITS))) / ms - 1).max() < 0.09
        assert BANDWIDTH[0] < 8.045e3 / rest < BANDWIDTH[1]

    @needs_site
    def test_the_box_has_the_least_and_the_most_between_two_graphs(self):
        least, most = numbers(r"one graph to the\n? next ([\d.]+) to ([\d.]+)")
        assert f"{least:.0f} to {most:.0f} µs each for Qwen3-4B on an M5 Pro" in TEXT


class TestTiers:
    @needs_site
    def test_an_answer_pays_for_the_smallest_cache_that_has_room(self):
        tokens = np.arange(37, 137)  # as the figure's alt text has them
        slots = np.where(tokens <= 64, 64, np.where(tokens <= 128, 128, 512))
        mean, whole = numbers(r"(\d+) slots per token instead of (\d+)")
        assert mean == round(slots.mean()) and whole == 512
        assert "from 37 to 136" in " ".join(source(PAGE).split())

    def test_a_switch_copies_about_a_hundredth_of_the_weights(self):
        assert f"{128 * SLOT / 1e6:.1f} MB" in TEXT and round(100 * 128 * SLOT / WEIGHTS) == 1


class TestExercises:
    @needs_site
    def test_cache_or_weights(self):
        plan = ane_book.plan("qwen2.5-0.5b-instruct")
        config = plan.config
        assert (config.num_layers, config.num_kv_heads, config.head_dim) == (24, 2, 64)
        assert round(plan.weight_bytes / 1e6) == 988 and 3.5 < plan.weight_bytes / WEIGHTS < 4
        assert "Qwen2.5: 12,288 bytes" in printed(PAGE) and "SmolLM2: 23,040" in printed(PAGE)

    def test_a_tail_is_as_many_calls_as_a_session_makes(self, tiny_bundle):
        calls = defined(PAGE, "calls")
        session = Session(tiny_bundle("llama", kv="state")[1], precision="fp32")
        for at in range(session.context):
            for n in range(1, session.context - at + 1):
                made = sum(1 for _ in session._runner.chunks(at, n))
                assert calls(n, at, session.context, T=8) == made, (n, at)

    @needs_site
    def test_forty_calls_instead_of_one(self):
        assert "\n40 1\n" in printed(PAGE)

    @needs_site
    def test_tiers_save_more_than_a_choice_at_the_start_and_the_best_is_smaller(self):
        found = re.findall(r"two \w+: ([\d,]+) and 2,048, ([\d,]+) slots", printed(PAGE))
        tiers, choice = ([float(x.replace(",", "")) for x in each] for each in found)
        assert tiers[0] < choice[0] and tiers[1] < 0.75 * choice[1]
        for (best, _), part in ((tiers, 1 - 3**-0.5), (choice, 2 / 3)):
            assert abs(best - part * 2048) < 64


def test_reports_about_states_disagree():
    known = sources.everything()
    named = re.findall(r"\{claim\}`(state-[\w-]+)`", TEXT)
    assert len(named) == 4 and any(known[name].grade == "conflicting" for name in named)
    assert all(known[name].against for name in ("state-writes", "state-slice", "state-count"))
