"""The model against what others measured: the fit, figures that had no part in it, the rest."""

from dataclasses import replace
from pathlib import Path
import re
from typing import get_args

from _executed import defined, printed, prose
from _site import needs_site
import ane_book
from ane_book_pages.decode import fitting as fit
from ane_book_pages.decode import ranges
from ane_book_pages.decode.published import Figure, Role, figures_of, read_rows
from mlprogram.ane.cost import TokenWork, chips, predict
import pytest

PUBLISHED = Path(__file__).parents[2] / "research" / "measurements" / "published.json"
ROWS = read_rows(PUBLISHED)
FIGURES = figures_of(ROWS)
JUDGED = fit.judged(FIGURES)


def as_made(made: fit.Fitted) -> list[Figure]:
    """The judged figures with the times that these numbers give."""
    return [replace(figure, ms=made.ms(figure)) for figure in JUDGED]


class TestFit:
    def test_it_sees_models_on_the_engine_of_known_bytes(self):
        assert len(JUDGED) >= 30 and len(fit.by_model(JUDGED)) == 7
        assert not [f for f in JUDGED if f.left_out or f.cannot_be or f.path == "private"]
        assert {f.role for f in JUDGED} == {"fit"}

    def test_numbers_that_made_the_figures_are_found_again(self):
        found = fit.fit(as_made(fit.Fitted(1.7, 21.0, 0.9)))
        assert found.packed == pytest.approx(1.7) and found.cache_gb_s == pytest.approx(21)
        assert found.program_ms == pytest.approx(0.9)

    def test_the_constant_that_made_the_figures_is_found_again(self):
        figures = [replace(figure, ms=1.3 * fit.bytes_ms(figure)) for figure in JUDGED]
        assert fit.constant(figures) == pytest.approx(1.3)

    def test_a_model_left_out_is_in_neither_fit(self):
        """Its own times changed, the errors for the others' fits follow, and only its own."""
        before = {each.model: each for each in fit.left_out(JUDGED)}
        odd = [replace(f, ms=2 * f.ms) if f.name == "Hy-MT" else f for f in JUDGED]
        after = {each.model: each for each in fit.left_out(odd)}
        hymt = next(figure for figure in JUDGED if figure.name == "Hy-MT")
        others = [figure for figure in JUDGED if figure.name != "Hy-MT"]
        expected = abs(fit.fit(others).ms(hymt) / (2 * hymt.ms) - 1)
        assert after["Hy-MT"].fitted == pytest.approx(expected)
        assert after["Phi-4-mini"] != before["Phi-4-mini"]


class TestBeside:
    """Published figures beside the predicted ranges, counted by model."""

    def test_none_is_left_out_for_being_outside(self):
        """Each published figure of decode is fitted, in a range, new, or has no range beside it."""
        counted = {
            figure.id
            for role in get_args(Role)
            for each in ranges.beside(FIGURES, role)
            for figure in each.figures
        }
        for figure in FIGURES:
            if figure.id not in counted:
                assert not ranges.predictable(figure) or "same cut" in figure.left_out

    def test_an_end_of_a_range_holds_the_figures_that_it_rests_on(self):
        """But for single products through private interfaces, whose call is shorter."""
        for each in ranges.beside(FIGURES, "range"):
            ends = [figure for figure in each.figures if figure.role == "range"]
            if {figure.path for figure in ends} == {"private"}:
                assert not any(fit.within(ends)) and each.missed == "faster"
            else:
                assert all(fit.within(ends)), each.model

    def test_a_side_is_said(self):
        one = next(figure for figure in JUDGED if figure.name == "Hy-MT")
        around = [replace(one, ms=one.ms * times) for times in (0.1, 1, 10)]
        (each,) = ranges.beside(around, "fit")
        assert (each.inside, each.held, each.missed) == (1, "some", "both")


class TestSeries:
    """One model on one chip, one thing changed: straight lines, and what their slopes rest on."""

    def test_a_line_is_found_again(self):
        line = fit.line([(x, 5 + 2 * x) for x in (1, 3, 10)])
        assert (line.base, line.slope) == pytest.approx((5, 2))


class TestImpossible:
    def test_no_judged_figure_is(self):
        assert fit.impossible(JUDGED) == []
        for figure in JUDGED:
            assert fit.least_ms(figure) <= predict(figure.work, figure.chip).ms.low * (1 + 1e-9)


class TestPage:
    """What sentences of "How fast will it be?" say of these figures."""

    def test_hymt_by_hand_is_the_prediction(self):
        made = ane_book.plan("hy-mt", quant="int8", context=512)
        told = next(f for f in JUDGED if f.name == "Hy-MT")
        counted = (told.work.plain_bytes, told.work.cache_bytes, told.programs)
        assert counted == (made.weight_bytes, made.cache_bytes, 9) and len(made.programs) == 3
        estimate = predict(told.work, "m4-max")
        *_, calls = terms = [term.ms for term in estimate.terms]
        by_hand = ["14.3 to 15.1", "0.8 to 2.6", "0.9 to 24.3", "16.0 to 42.0"]
        assert [ms.text() for ms in (*terms, estimate.ms)] == by_hand
        assert estimate.tokens_s.text(0) == "24 to 62" and told.ms in estimate.ms
        assert calls.high - calls.low > 0.85 * (estimate.ms.high - estimate.ms.low)

    def test_a_phone_at_a_fifth_may_save_a_call_or_most_of_its_slots(self):
        page, slots = prose("how-fast"), 2048 * 131_072
        told = re.search(r"bound it to (\d+) tokens [^.]* writes (\d+)\.", page)
        assert told and 5 * int(told[2]) == int(told[1])
        works = [TokenWork(10**9, 0, *each) for each in ((slots, 9), (slots, 8), (slots // 4, 8))]
        nine, eight, few = (predict(work, "m4-max").ms for work in works)
        saved = f"{nine.low - eight.low:.1f} to {nine.high - eight.high:.1f} ms"
        assert f"Each program less should save {saved}" in page
        assert eight.low - few.low > 3  # "several milliseconds"

    def test_quoted_speeds_are_of_the_fit_and_inside(self):
        by_id = {f.id: f for f in FIGURES}
        quoted = [by_id[f"m4-max/{name}-throughput"] for name in defined("how-fast", "QUOTED")]
        ranged = [f for f in quoted if ranges.predictable(f)]
        assert ranged and all(f in JUDGED for f in ranged) and all(fit.within(ranged))
        aion = [f.ms for f in quoted if f.name == "Aion"]
        assert 0.6 < min(aion) / max(aion) < 0.7

    def test_an_op_of_gemma_would_cost_hundreds_of_small_convolutions(self):
        gemma = next(f for f in JUDGED if f.name == "Gemma-4-E2B" and abs(f.ms - 30.23) < 0.006)
        ops = 1058 + 914 + 825 + 841  # docs/MAC_BENCH_2026-04-19.md of CoreML-LLM
        assert (gemma.ms - fit.fit(JUDGED).ms(gemma)) * 1e6 / ops > 200 * 13  # ns

    def test_rates_of_chips_and_of_palettes_are_as_told(self):
        rates = {name: chip.value for name, chip in chips().items()}
        assert all(rates[f"{new}-max"][0] > 1.7 * rates[new][1] for new in ("m3", "m4", "m5"))
        assert all(rates[f"{old}-ultra"][1] < 1.1 * rates[old][0] for old in ("m1", "m2"))
        ms = {(f.name, f.chip): f.ms for f in FIGURES}
        six = [ms["llama_lm_head_lut6", chip] / 396.06 / (ms["llama_lm_head", chip] / 1050.67)
               for name, chip in ms if name == "llama_lm_head_lut6"]  # fmt: skip
        assert len(six) == 13 and 1 < max(six) < 1.335
        palettes = {f.work.packed_bytes or "int8": f.ms for f in FIGURES if f.role == "new"
                    and (f.name, f.chip) == ("convolutions", "m5-max")}  # fmt: skip
        assert all(0.97 < each / palettes["int8"] < 1.03 for each in palettes.values())

    def test_who_wins_and_what_is_missed(self):
        wins = {each.model for each in fit.left_out(JUDGED) if each.fitted < each.constant}
        assert wins == {"Phi-4-mini", "Gemma-4-E2B"}
        new = [each for each in ranges.beside(FIGURES, "new")
               if each.model not in ranges.TEST_GRAPHS]  # fmt: skip
        assert {each.missed for each in new} == {"", "slower"}
        seen = {each.model: each for each in ranges.beside(FIGURES, "fit")}["Gemma-4-E2B"]
        assert (seen.inside, len(seen.figures)) == (0, 6)
        what = {row["id"]: row["what"] for row in ROWS}
        for each in new:
            told = [what[f.id] for f in each.figures]
            inside = dict(zip(told, fit.within(each.figures), strict=True))
            if each.model == "Qwen3-VL-2B":
                missed = {told.split(", ")[1] for told, held in inside.items() if not held}
                assert missed == {"fp16", "4-bit linear"}
            if each.model.startswith("Qwen3.5"):
                assert all(("as a state" in told) == held for told, held in inside.items())

    def test_three_published_times_are_below_their_floor(self):
        first, second, _ = (f.ms / fit.least_ms(f) for f in fit.impossible(FIGURES))
        assert first < 2 / 3 and 0.9 < second < 1

    @needs_site
    def test_what_a_call_costs_should_be_measured_next(self):
        assert re.search(r"int8 +program .*\nlut4 +program \d+%, packed", printed("how-fast"))


class TestFile:
    def test_every_row_says_what_it_rests_on(self):
        rows = read_rows(PUBLISHED)
        assert len(rows) >= 366 and len({row["id"] for row in rows}) == len(rows)
        for row in rows:
            assert row["source"]["repository"] and row["what"], row["id"]
            checked = row["checked"]
            assert checked["date"] and checked["done"] is not bool(checked.get("why_not"))

    def test_what_is_not_used_says_why(self):
        """A row with a speed or a time of decode is judged, or says what keeps it out."""
        judged = {figure.id for figure in JUDGED}
        for row in read_rows(PUBLISHED):
            if "decode" in row and row["id"] not in judged:
                assert row.get("left_out") or row["decode"]["role"] in ("range", "new"), row["id"]
