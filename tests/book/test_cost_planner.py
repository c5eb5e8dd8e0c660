"""The planner of the page, in Chromium: every choice gives what the library gives."""

from itertools import product
import json

from _chromium import PHONE, chromium, needs_chromium
from ane_book.conversion.plan import find_config, plan
from ane_book.conversion.recipe import make_recipe
from ane_book.errors import InvalidInput
from ane_book.evidence.cost import work_of
from ane_book.layout import Recurrent
from ane_book_pages import planner as page_module
from ane_book_pages.planner import LIMITS, planner, planner_data, quants
from mlprogram.ane.cost import chips, predict
import pytest

#: Every choice of model, weights and limit with two contexts: what is asked, and the prediction for
#: each chip.
EVERYTHING = """
  const { data, work, predict } = window.anePlanner, found = [];
  for (const model of Object.keys(data.models))
    for (const quant of Object.keys(data.forms))
      for (const limit of arguments[0])
        for (const context of arguments[1]) {
          const asked = work({ model, quant, limit, context });
          found.push([asked, asked && Object.keys(data.chips).map(c => predict(asked, c))]);
        }
  return JSON.stringify(found);
"""
CONTEXTS = (512, 4096)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    file = tmp_path_factory.mktemp("planner") / "page.html"
    head = '<!doctype html><meta charset="utf-8"><meta name="viewport" content="width=390">'
    file.write_text(f"{head}<article>{planner()}</article>", encoding="utf-8")
    with chromium() as browser:
        browser.get(file.as_uri())
        yield browser


def planned(model: str, quant: str, limit: str, context: int):
    config = find_config(model)
    return plan(config, make_recipe(config, quant=quant, shard_limit=limit, context=context))


def choose(page, **choices: str) -> str:
    """Set fields as a reader does, and read what the page answers."""
    for name, value in choices.items():
        page.execute_script(
            "const field = document.querySelector(`form.ane-planner [name=${arguments[0]}]`);"
            "field.value = arguments[1];"
            "field.dispatchEvent(new Event('input', { bubbles: true }));",
            name,
            value,
        )
    return page.execute_script("return document.querySelector('form.ane-planner output').innerText")


@needs_chromium
class TestInChromium:
    def test_every_choice_is_the_librarys(self, page):
        answers = json.loads(page.execute_script(EVERYTHING, LIMITS, CONTEXTS))
        choices = list(product(planner_data()["models"], quants(), LIMITS, CONTEXTS))
        assert len(answers) == len(choices) > 200
        for choice, (asked, predicted) in zip(choices, answers, strict=True):
            if choice[-1] > find_config(choice[0]).max_position:
                continue  # which the page says
            if asked is None:
                with pytest.raises(InvalidInput, match="one layer has"):
                    planned(*choice)
                continue
            made = planned(*choice)
            assert asked["shards"] == [program.bytes for program in made.shards], choice
            assert asked["head"] == [program.bytes for program in made.head], choice
            assert asked["cache"] == work_of(made).cache_bytes, choice
            for chip, found in zip(chips(), predicted, strict=True):
                estimate = predict(work_of(made), chip)
                ends = [estimate.ms.low, estimate.ms.high]
                assert found["ms"] == pytest.approx(ends, rel=1e-12), (choice, chip)
                speeds = [estimate.tokens_s.low, estimate.tokens_s.high]
                assert found["tokens"] == pytest.approx(speeds, rel=1e-12), (choice, chip)

    def test_it_fits_a_phone_and_needs_nothing_from_elsewhere(self, page):
        choose(page, model="phi-4-mini-instruct", quant="int8", limit="1GB", context="512")
        width = page.execute_script("return document.documentElement.scrollWidth")
        assert width <= PHONE["width"]
        assert page.execute_script("return performance.getEntriesByType('resource').length") == 0
        assert page.get_log("browser") == []


@pytest.mark.parametrize("family", ["llama", "lfm2", "qwen3_5_text"])
def test_what_does_not_grow_with_the_context_is_counted(tiny, family):
    config = find_config(str(tiny(family)[1]))
    made = plan(config, make_recipe(config))
    found = page_module._model(config)
    assert found["slot"] * made.recipe.context + found["kept"] == work_of(made).cache_bytes
    assert (found["kept"] > 0) == (family != "llama")
    assert (made.kept_bytes(Recurrent) > 0) == (family == "qwen3_5_text")


def test_a_layer_that_does_not_fit_has_no_cut(monkeypatch):
    monkeypatch.setattr(page_module, "LIMITS", ("10MB", "250MB"))
    cuts = planner_data()["models"]["hy-mt"]["plans"]["none"]
    assert cuts["10MB"] is None and len(cuts["250MB"]["shards"]) == 16


def test_no_text_ends_the_script_early():
    assert planner().count("</script>") == 2
