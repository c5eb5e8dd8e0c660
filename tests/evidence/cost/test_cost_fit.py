"""The model against what others measured: the fit, the figures that it has not seen, the rest."""

import json
from pathlib import Path

from ane_book.book import fit
from ane_book.book.cost_published import Figure, decode_figures, read_rows
from ane_book.errors import InvalidInput
from ane_book.evidence.cost import predict
import pytest

PUBLISHED = Path(__file__).parents[3] / "research" / "measurements" / "published.json"
FIGURES = decode_figures(read_rows(PUBLISHED))
JUDGED = fit.judged(FIGURES)
FITTED, HELD = fit.split(JUDGED)


def points(series: str, axis: str) -> list[tuple[float, float]]:
    return [(getattr(figure, axis), figure.ms) for figure in FIGURES if figure.series == series]


class TestSplit:
    def test_at_most_half_is_fitted_and_nothing_is_in_both(self):
        assert len(FITTED) <= len(JUDGED) / 2 and len(JUDGED) >= 30
        assert {f.id for f in FITTED}.isdisjoint(f.id for f in HELD)

    def test_the_order_of_the_file_does_not_matter(self):
        assert fit.split(JUDGED[::-1]) == (FITTED, HELD)

    def test_what_is_not_on_the_engine_is_not_judged(self):
        assert not [f for f in JUDGED if f.left_out or f.cannot_be or f.path == "private"]


class TestFit:
    def test_numbers_that_made_the_figures_are_found_again(self):
        made = fit.Fitted(1.7, 21.0, 0.9)
        figures = [Figure(f.id, f.model, f.chip, made.ms(f), f.work, 0, 0, f.path) for f in JUDGED]
        found = fit.fit(figures)
        assert found.packed == pytest.approx(1.7) and found.cache_gb_s == pytest.approx(21)
        assert found.program_ms == pytest.approx(0.9)

    def test_packed_weights_are_never_faster_than_their_bytes(self):
        made = fit.Fitted(0.5, 21.0, 0.9)
        figures = [Figure(f.id, f.model, f.chip, made.ms(f), f.work, 0, 0, f.path) for f in JUDGED]
        assert fit.fit(figures).packed == 1

    def test_what_the_fitted_half_says(self):
        """The packed weights' share by itself is 0.25 / 0.32 of 751K's study: 1.28 times."""
        found = fit.fit(FITTED)
        assert found.packed == pytest.approx(1.29, abs=0.01)
        assert found.cache_gb_s == pytest.approx(18.4, abs=0.1)
        assert found.program_ms == pytest.approx(0.66, abs=0.01)

    def test_the_held_out_half(self):
        found = fit.fit(FITTED)
        assert 0.11 < fit.median_error(found, HELD) < 0.14
        assert 0.17 < fit.median_error(found, FITTED) < 0.2

    def test_a_model_that_was_never_seen_is_harder(self):
        errors = fit.left_out_errors(JUDGED)
        assert set(errors) == {figure.model.split()[0] for figure in JUDGED}
        assert min(errors.values()) > 0.2 and max(errors.values()) > 1

    def test_the_intervals_hold_all_models_but_one(self):
        """Gemma takes longer than any term explains: two figures of the one half, four of the
        other. No range is stretched to hold it."""
        for half, count in ((FITTED, 2), (HELD, 4)):
            outside = [f for f, inside in zip(half, fit.within(half), strict=True) if not inside]
            assert [f.model.split()[0] for f in outside] == ["Gemma-4-E2B"] * count
            assert all(f.ms > predict(f.work, f.chip).ms.high for f in outside)
        assert not any(fit.within(f for f in JUDGED if f.model.startswith("Gemma")))


class TestLater:
    def test_a_graph_that_blends_its_cache_is_beyond_the_formula(self):
        """Looked up after the fit, and missed: the second term is of graphs that write a row."""
        bonsai = [figure for figure in FIGURES if "Bonsai" in figure.model]
        assert len(bonsai) == 4 and all("blends" in figure.left_out for figure in bonsai)
        assert not any(fit.within(bonsai))
        found = fit.fit(FITTED)
        assert all(2 < figure.ms / found.ms(figure) < 6 for figure in bonsai)


class TestSeries:
    """One model on one chip, one thing changed: straight lines, and what their slopes rest on."""

    def test_aions_four_contexts(self):
        line = fit.line(points("aion, slots", "slots"))
        assert len(line.points) == 4 and max(map(abs, line.errors())) < 0.03
        assert line.base == pytest.approx(41.8, abs=0.1)
        assert 1e3 * line.slope == pytest.approx(12.1, abs=0.1)

    def test_phis_shard_counts(self):
        line = fit.line(points("phi-4-mini, shards", "programs"))
        assert [x for x, _ in line.points] == [32, 11, 7, 6, 5, 4]
        assert max(map(abs, line.errors())) < 0.04

    def test_where_one_point_decides(self):
        """Aion's slope hangs on its 2,048 slots, Phi's on no point of these six."""
        aion = fit.line(points("aion, slots", "slots"))
        assert aion.without()[2048] / aion.slope < 0.85
        phi = fit.line(points("phi-4-mini, shards", "programs"))
        assert all(0.95 < slope / phi.slope < 1.15 for slope in phi.without().values())
        few = fit.line([point for point in phi.points if point[0] < 11])
        assert few.slope / phi.slope < 0.85

    def test_the_runs_of_one_cut_differ_more_than_the_line(self):
        """With the best run of 11 shards, and without the 32, the slope is two thirds."""
        phi = fit.line(points("phi-4-mini, shards", "programs"))
        best = min(f.ms for f in FIGURES if f.model.startswith("Phi") and f.programs == 11)
        other = fit.line([(11, best), *[p for p in phi.points if p[0] < 11]])
        assert best == 64.69 and 0.65 < other.slope / phi.slope < 0.75

    def test_a_line_is_found_again(self):
        line = fit.line([(x, 5 + 2 * x) for x in (1, 3, 10)])
        assert (line.base, line.slope) == pytest.approx((5, 2))


class TestImpossible:
    def test_what_is_faster_than_reading_and_calling(self):
        assert {figure.id.split("/")[1] for figure in fit.impossible(FIGURES)} == {
            "qwen2.5-0.5b-seven-kernels-a-layer",
            "zaya1-8b-int8-soft-routing-all-16-experts",
        }
        assert all(figure.cannot_be for figure in fit.impossible(FIGURES))

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
                assert row.get("left_out"), row["id"]

    def test_what_is_no_such_file(self, tmp_path):
        with pytest.raises(InvalidInput, match="no file of published measurements"):
            read_rows(tmp_path / "none.json")
        (tmp_path / "other.json").write_text("[]")
        with pytest.raises(InvalidInput, match=r"other\.json: no file of published measurements"):
            read_rows(tmp_path / "other.json")

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            ({"grade": "rumour"}, "rumour"),
            ({"value": -1}, "-1"),
            ({"source": None}, "NoneType"),
            ({"checked": {"done": False}}, "does not say why"),
            ({"decode": {"slots": 1}, "unit": "ms"}, "it has no 'weight_bytes'"),
            ({"decode": {}, "unit": "bushels"}, "in no 'bushels'"),
        ],
        ids=str,
    )
    def test_a_row_that_is_none(self, tmp_path, change, said):
        """The error says which row, and what of it."""
        good = read_rows(PUBLISHED)[0]
        (tmp_path / "rows.json").write_text(json.dumps({"rows": [good, good | change]}))
        with pytest.raises(InvalidInput, match=rf"rows\.json, row 2: .*{said}"):
            read_rows(tmp_path / "rows.json")
