"""A plan says what is published of its model on the chip, and how the two compare."""

import re

from ane_book.conversion.plan import plan
from ane_book.conversion.recipe import make_recipe
from ane_book.evidence import cost
from ane_book.models import read_config
from ane_book.reference import reference_models
from mlprogram.ane.cost import find_chip
import pytest

QUOTED = {name: model for name, model in reference_models().items() if model.published}


def planned(name: str, **changes):
    model = reference_models()[name]
    config = read_config(model.config | changes)
    return plan(config, make_recipe(config, quant=model.recipe.quant))


@pytest.mark.parametrize("name", QUOTED)
def test_a_figure_stands_beside_the_prediction_of_its_chip(name):
    found = QUOTED[name].published
    chip = find_chip(found.chip)
    own = planned(name)
    lines = dict(cost.rows(own, found.chip, why=True))
    said = lines["published"]
    assert said == cost.published(own, chip)[0]
    assert said.startswith(f"{found.tokens_per_second:g} tokens/s on {found.machine} (")
    assert said.endswith(f"512 slots, {len(own.programs)} programs")
    if found.programs:
        assert f"{found.slots:,} slots, {found.programs} programs" in said
        low, high = map(float, re.search(r"the same sum is (\S+) to (\S+) tokens/s", said).groups())
        assert low <= found.tokens_per_second <= high


def test_a_family_that_is_not_installed_is_not_asked_for(monkeypatch):
    """`published` looks through all models, and those of ane-families are refused without it."""
    own, chip, asked = planned("hy-mt"), find_chip("m4-max"), []
    monkeypatch.setattr(cost, "read_config", lambda c: asked.append(c) or read_config(c))
    assert cost.published(own, chip)
    assert {each["model_type"] for each in asked} == {"hunyuan_v1_dense", "phi3", "zaya"}
