"""The model against what others measured: the fit, figures that had no part in it, the rest."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

from ane_book_pages import cost_judged, fit
from ane_book_pages.cost_published import Figure, Role, decode_figures, read_rows
from mlprogram.ane.cost import predict
import pytest

PUBLISHED = Path(__file__).parents[2] / "research" / "measurements" / "published.json"
ROWS = read_rows(PUBLISHED)
FIGURES = decode_figures(ROWS)
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
            for each in cost_judged.beside(FIGURES, role)
            for figure in each.figures
        }
        for figure in FIGURES:
            if figure.id not in counted:
                assert not cost_judged.predictable(figure) or "same cut" in figure.left_out

    def test_an_end_of_a_range_holds_the_figures_that_it_rests_on(self):
        """But for single products through private interfaces, whose call is shorter."""
        for each in cost_judged.beside(FIGURES, "range"):
            ends = [figure for figure in each.figures if figure.role == "range"]
            if {figure.path for figure in ends} == {"private"}:
                assert not any(fit.within(ends)) and each.missed == "faster"
            else:
                assert all(fit.within(ends)), each.model

    def test_a_side_is_said(self):
        one = next(figure for figure in JUDGED if figure.name == "Hy-MT")
        around = [replace(one, ms=one.ms * times) for times in (0.1, 1, 10)]
        (each,) = cost_judged.beside(around, "fit")
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
