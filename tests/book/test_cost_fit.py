"""The model against what others measured: the fit, figures that had no part in it, the rest."""

from collections import Counter
from dataclasses import replace
import json
from pathlib import Path
from typing import get_args

from ane_book.errors import InvalidInput
from ane_book_pages import cost_judged, fit
from ane_book_pages.cost_published import Figure, Role, decode_figures, read_rows
from mlprogram.ane.cost import parameter, predict
import pytest

PUBLISHED = Path(__file__).parents[2] / "research" / "measurements" / "published.json"
ROWS = read_rows(PUBLISHED)
FIGURES = decode_figures(ROWS)
JUDGED = fit.judged(FIGURES)
NEW = cost_judged.beside(FIGURES, "new")
MODELS = [each for each in NEW if each.model not in cost_judged.TEST_GRAPHS]


def points(series: str, axis: str) -> list[tuple[float, float]]:
    return [(getattr(figure, axis), figure.ms) for figure in FIGURES if figure.series == series]


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

    def test_a_model_counts_once_however_many_figures_it_has(self):
        """A model's figures ten times over change neither rule."""
        phi = [figure for figure in JUDGED if figure.name == "Phi-4-mini"]
        assert fit.fit([*JUDGED, *9 * phi]).program_ms == pytest.approx(fit.fit(JUDGED).program_ms)
        assert fit.constant([*JUDGED, *9 * phi]) == pytest.approx(fit.constant(JUDGED))

    def test_what_the_seven_models_say(self):
        found = fit.fit(JUDGED)
        assert found.packed == pytest.approx(1.53, abs=0.01)
        assert found.cache_gb_s == pytest.approx(14.0, abs=0.1)
        assert found.program_ms == pytest.approx(0.61, abs=0.01)
        assert fit.constant(JUDGED) == pytest.approx(1.65, abs=0.01)

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

    def test_for_a_model_never_seen_bytes_times_a_constant_are_as_good(self):
        """Three numbers beat one for two models of seven."""
        better = {each.model for each in fit.left_out(JUDGED) if each.fitted < each.constant}
        assert better == {"Phi-4-mini", "Gemma-4-E2B"}

    def test_for_models_that_had_no_part_the_terms_are_better(self):
        fitted, times = fit.fit(JUDGED), fit.constant(JUDGED)
        better = {
            each.model
            for each in MODELS
            if fit.median_error([fitted.ms(f) for f in each.figures], each.figures)
            < fit.median_error([times * fit.bytes_ms(f) for f in each.figures], each.figures)
        }
        assert len(MODELS) == 8
        assert {each.model for each in MODELS} - better == {"GPT-2", "Qwen3-0.6B"}


class TestBeside:
    """Published figures beside the predicted ranges, counted by model."""

    def test_what_had_no_part_in_fit_or_range(self):
        held = {each.model: each.held for each in MODELS}
        assert Counter(held.values()) == {"all": 3, "some": 3, "none": 2}
        assert held["Qwen3-0.6B"] == held["Ternary-Bonsai-1.7B"] == "none"
        assert self.counted(MODELS) == (12, 23)
        assert self.counted([each for each in NEW if each not in MODELS]) == (16, 19)

    @staticmethod
    def counted(chosen):
        return sum(each.inside for each in chosen), sum(len(each.figures) for each in chosen)

    def test_through_core_ml_no_model_has_all_its_figures_inside(self):
        coreml = [each for each in MODELS if each.figures[0].path == "coreml"]
        assert self.counted(coreml) == (9, 18)
        assert all(each.held != "all" for each in coreml)
        of = {row["id"]: row["source"]["repository"] for row in ROWS}
        told = {(of[f.id], f.chip) for each in coreml for f in each.figures}
        assert told == {("john-rocky/CoreML-LLM", "m4-max")}

    def test_the_small_models_head_is_the_largest_part(self):
        """Of three whose head is on the host, the one outside has the head that weighs most."""
        heads = {
            "Qwen3-0.6B": 151_936 * 1024,
            "Qwen3-8B": 151_936 * 4096,
            "TinyLlama": 32_000 * 2048,
        }
        share = {}
        for name, numbers in heads.items():
            (each,) = (each for each in MODELS if each.model.startswith(name))
            rest = each.figures[0].work.plain_bytes
            share[each.held] = max(share.get(each.held, 0), 2 * numbers / rest)
        assert share["none"] > 3 * share["all"]

    def test_a_figure_of_the_runs_that_made_a_range_is_no_evidence(self):
        new = {figure.id for each in NEW for figure in each.figures}
        same_runs = [f for f in FIGURES if f.role == "new" and f.work and f.id not in new]
        assert Counter((f.name, f.chip) for f in same_runs if cost_judged.predictable(f)) == {
            ("convolutions", "m5-max"): 8,
            ("convolutions", "m6"): 8,
            ("products", "m5-pro"): 6,
        }

    def test_whatever_is_missed_is_slower(self):
        assert {each.missed for each in NEW if each.missed} == {"slower"}

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

    def test_gemma_takes_longer_than_any_term_explains(self):
        fitted = {each.model: each for each in cost_judged.beside(FIGURES, "fit")}
        assert {name for name, each in fitted.items() if each.held != "all"} == {"Gemma-4-E2B"}
        gemma = fitted["Gemma-4-E2B"]
        assert (gemma.held, gemma.missed, len(gemma.figures)) == ("none", "slower", 6)

    def test_a_range_of_bytes_alone_that_is_as_wide_holds_fewer(self):
        figures = [figure for each in MODELS for figure in each.figures]
        assert sum(cost_judged.by_bytes(figures)) == 5 < 12
        assert 2.5 < cost_judged.width(figures) < 2.7

    def test_a_side_is_said(self):
        one = next(figure for figure in JUDGED if figure.name == "Hy-MT")
        around = [replace(one, ms=one.ms * times) for times in (0.1, 1, 10)]
        (each,) = cost_judged.beside(around, "fit")
        assert (each.inside, each.held, each.missed) == (1, "some", "both")

    def test_the_engines_rates_of_activations(self):
        """Eleven machines' rooflines beside the range of the cache: those before the M4 Pro are
        below it, and so is the M4."""
        rates = {
            (row["chip"], row["os"]): row["value"] for row in ROWS if "relu over" in row["model"]
        }
        low, high = parameter("cache").bounds
        inside = {chip for (chip, _), rate in rates.items() if low <= rate <= high}
        assert len(rates) == 11
        assert inside == {"M4 Pro", "M4 Max", "M5", "M5 Pro", "M6"}

    def test_a_text_more_of_a_batch_costs_its_cache(self):
        """32 texts a call of the eight layers took 37.8 ms (ANEForge's record of the batches)."""
        one = next(f for f in FIGURES if f.name == "decoder-8-layers" and f.chip == "m5-pro")
        each = (37.799 - one.ms) / 31
        assert f"{each:.2f} {37.799 / one.ms:.1f}" == "0.94 4.3"
        assert each in predict(replace(one.work, plain_bytes=0), one.chip).terms[0].ms

    def test_a_little_below_the_floor_proves_nothing(self):
        """So are four of the sweep that the M5 Pro's rate and a private call's price come from."""
        below = {f: f.ms / fit.least_ms(f) for f in FIGURES if f.work and f.chip}
        below = {f: part for f, part in below.items() if part < 1}
        sweep = [part for f, part in below.items() if f.role == "range"]
        others = sorted(part for f, part in below.items() if f.role != "range")
        assert len(sweep) == 4 and 0.86 < min(sweep) < 0.88
        assert len(others) == 3 and others[1] < 2 / 3 and min(sweep) < others[2]


class TestLater:
    def test_a_graph_that_blends_its_cache_is_beyond_the_formula(self):
        """Looked up after the fit, and missed: the second term is of graphs that write a row."""
        bonsai = [figure for figure in FIGURES if "Bonsai" in figure.model]
        assert len(bonsai) == 5 and all("blends" in figure.left_out for figure in bonsai)
        assert not any(fit.within(bonsai))
        found = fit.fit(JUDGED)
        assert all(1.9 < figure.ms / found.ms(figure) < 5 for figure in bonsai)


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
                assert row.get("left_out") or row["decode"]["role"] in ("range", "new"), row["id"]

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
            ({"decode": {"weight_bytes": 1}, "unit": "bushels"}, "in no 'bushels'"),
            ({"decode": {"weight_bytes": None}, "unit": "GB/s"}, "in no 'GB/s'"),
            ({"decode": {"role": "oracle"}, "unit": "ms"}, "'oracle' is no role"),
        ],
        ids=str,
    )
    def test_a_row_that_is_none(self, tmp_path, change, said):
        """The error says which row, and what of it."""
        good = read_rows(PUBLISHED)[0]
        (tmp_path / "rows.json").write_text(json.dumps({"rows": [good, good | change]}))
        with pytest.raises(InvalidInput, match=rf"rows\.json, row 2: .*{said}"):
            read_rows(tmp_path / "rows.json")
