"""What the page "What a token costs" says: its sums, its chips, and what its sentences conclude."""

from _executed import defined, printed, prose, source
from _site import needs_site
import ane_book
from ane_book.evidence.cost import work_of
from ane_book_pages import records, sources
from mlprogram.ane import cost
import numpy as np
import pytest

PAGE = "what-a-token-costs"
TEXT, KNOWN = prose(PAGE), sources.everything()
P = 134_479_872
PEAKS = defined(PAGE, "TFLOPS")
CHIPS = {name: cost.chips()[name].value for name in PEAKS}  # GB/s
FREE = {name: (1e3 * least / CHIPS[name][1], 1e3 * most / CHIPS[name][0])
        for name, (least, most) in PEAKS.items()}  # fmt: skip
SMALL, LARGE = (ane_book.plan(name, quant="int8", context=512)
                for name in ("smollm2-135m-instruct", "phi-4-mini-instruct"))  # fmt: skip


def says(claim: str) -> str:
    return " ".join(one.says for one in (*KNOWN[claim].support, *KNOWN[claim].against))


class TestByHand:
    def test_the_weights_add_up(self):
        L, C, F, H, K, D, V = 30, 576, 1536, 9, 3, 64, 49_152
        parts = C * (H + 2 * K) * D, H * D * C, 3 * C * F
        rows = *parts, sum(parts), L * sum(parts), V * C, L * sum(parts) + V * C
        assert rows[-1] == P == defined(PAGE, "P")
        assert all(f"{n:,} |" in TEXT for n in rows) and round(2 * P / 1e6) == 269
        assert "269 MB" in TEXT and "134 million" in TEXT

    @needs_site
    def test_the_packages_have_those_bytes_and_ops(self):
        out = printed(PAGE)
        assert " Paris|" in out
        assert "269.0 MB by hand, 269.0 MB on disk" in out
        assert "1,242 ops in layers" in out and "8 ops in head" in out


class TestRoofline:
    def test_the_peaks_are_the_registrys(self):
        short, long = (KNOWN[f"arithmetic-{name}"].value for name in ("m4-short", "m4"))
        assert PEAKS["m4"] == (round(short, 1), long)
        assert PEAKS["m5-pro"] == (10.2, KNOWN["arithmetic-m5-pro"].value)
        assert "10.2 for the general matrix product" in says("arithmetic-m5-pro")
        assert PEAKS["m6"] == KNOWN["arithmetic-m6"].value

    @needs_site
    def test_the_table_has_what_follows(self):
        for low, high in FREE.values():
            assert f"{low:3.0f} to {high:3.0f}\n" in printed(PAGE)

    def test_figure_and_sentences_have_the_same_bounds(self):
        pro, m6 = ([round(end) for end in FREE[name]] for name in ("m5-pro", "m6"))
        drawn = f'("M5 Pro", {pro[0]}, {pro[1]}, "C0"), ("M6", {m6[0]}, {m6[1]}, "C1")'
        assert drawn in source(PAGE)
        alt = " ".join(source(PAGE).split())
        assert f"between {pro[0]} and {pro[1]} FLOPs per byte for the M5 Pro" in alt
        assert f"between {m6[0]} and {m6[1]} for the M6" in alt
        assert f"All three are below {pro[0]}" in TEXT
        assert f"can compute {min(low for low, _ in FREE.values()):.0f} positions or more" in TEXT


class TestRule:
    FP16, BITS3 = defined(PAGE, "fp16"), defined(PAGE, "bits3")
    PER_POSITION = 2 * 27 / 9.9  # FLOPs for each byte

    def test_calls_are_the_published_ones(self):
        assert all(x in says("rows-prompt") for x in ("15.144", "15.039", "938.494", "202.8"))
        assert all(f"{self.BITS3[T]}" in says("rows-eight") for T in (3, 4, 8))
        assert "9.9 GB" in says("rows-prompt") and f"{self.PER_POSITION:.1f} FLOPs" in TEXT

    def test_in_fp16_they_take_equally_long(self):
        assert max(self.FP16) < FREE["m5-pro"][0]
        assert max(self.FP16.values()) / min(self.FP16.values()) < 1.01

    def test_in_three_bits_a_call_of_64_takes_longer_within_the_roofline(self):
        low, high = (end / self.PER_POSITION for end in FREE["m6"])
        small = [self.BITS3[T] for T in (3, 4, 8)]
        assert 8 < low < high < 64 and max(small) / min(small) < 1.05
        assert 64 / high < self.BITS3[64] / self.BITS3[8] < 64 / low
        assert round(64 * self.PER_POSITION) == 349 and "349 FLOPs per byte" in source(PAGE)

    def test_what_footnotes_and_the_phone_say(self):
        assert "32 to 36 ms" in says("verify-free") and "32.3 for one" in says("verify-free")
        assert "4.3 times" in says("cache-slots") and "45, 30 and 21 %" in says("rows-prompt")
        longer = (1e3 * 2048 / 763.970 / 32) / (1e3 / 13.698)  # cadamcat's run G4 A
        assert f"{longer:.2f}" == "1.15"


class TestToken:
    ESTIMATE = cost.predict(work_of(SMALL), "m4")

    def test_the_table_is_the_librarys_sum(self):
        weights, slots, calls = self.ESTIMATE.terms
        for term in (weights, slots, calls):
            assert f"| {term.ms.text()} |" in TEXT
        assert f"**{self.ESTIMATE.ms.text()}**" in TEXT
        assert f"{self.ESTIMATE.tokens_s.text(0)} tokens per second" in TEXT
        assert f"{SMALL.weight_bytes / 1e6:.1f} MB" == "135.0 MB" and len(SMALL.programs) == 2
        assert SMALL.cache_bytes == 512 * 2 * 11_520 and 11_520 == 2 * 30 * 3 * 64
        assert [cost.parameter(name).bounds for name in ("cache", "program")] == [
            (13, 40), (0.1, 2.7)]  # fmt: skip
        assert 0.01 < 1250 * 13e-6 < 0.02  # ms of ops
        assert 470 < 1e3 / weights.ms.high < 1e3 / weights.ms.low < 510  # "about 500"

    @needs_site
    def test_the_page_prints_it(self):
        assert self.ESTIMATE.ms.text() in printed(PAGE)

    @pytest.mark.parametrize("chip", PEAKS)
    def test_calls_are_most_of_the_small_models_time_and_bytes_of_the_large_ones(self, chip):
        small, large = (cost.predict(work_of(plan), chip) for plan in (SMALL, LARGE))
        assert small.terms[-1].ms.high > 0.5 * small.ms.high
        assert all(getattr(large.terms[0].ms, end) > 0.5 * getattr(large.ms, end)
                   for end in ("low", "high"))  # fmt: skip
        assert round(LARGE.weight_bytes / SMALL.weight_bytes) == 28

    @needs_site
    def test_bytes_pay_at_the_low_end_and_calls_at_the_high_one(self):
        gains = {}
        for line in printed(PAGE).splitlines():
            if " end, " in line:
                end, change, gain = line[:4].strip(), line[10:24].strip(), line[24:]
                gains.setdefault(end, {})[change] = float(gain.strip(" x"))
        best = {end: max(found, key=found.get) for end, found in gains.items()}
        assert best == {"low": "4 bits", "high": "a call fewer"}
        ends = [f"({', '.join(format(getattr(t.ms, e), '.2f') for t in self.ESTIMATE.terms[:2])}"
                for e in ("low", "high")]  # fmt: skip
        assert all(f'"{e}", {end[1:]}' in source(PAGE) for e, end in zip(gains, ends, strict=True))


@needs_site
def test_exercises():
    assert "Qwen2.5-0.5B: 28%\nSmolLM2: 21%" in printed(PAGE)


def test_an_operation_has_a_price_on_the_executor():
    """On that page: three prices, of a byte, an op and a call, fitted to twelve small models."""
    calls = dict(records.read("measurements/terms.json")["calls"])
    calls.pop("SmolLM2-135M")
    counts = np.array([[c["bytes"], c["operations"], 2] for c in calls.values()])
    seconds = np.array([c["seconds"] for c in calls.values()])
    prices, *_ = np.linalg.lstsq(counts / seconds[:, None], np.ones(len(seconds)))
    assert len(seconds) == 12 and np.abs(counts @ prices / seconds - 1).max() < 0.25
    assert f"some {prices[1] * 1e6:.1f} µs" in prose("testing")
