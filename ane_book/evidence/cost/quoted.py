"""Quote published speeds of a plan's model on a chip, to compare with the plan's prediction.

A published figure is about somebody else's conversion of the model, with its own packages and
quantisation. So their conversion is predicted too, from what the registry of reference models
knows about it (`ane_book.reference.Published`).
"""

from collections.abc import Iterator
from dataclasses import replace

from ane_book.conversion.plan import Plan, plan
from ane_book.conversion.recipe import make_recipe
from ane_book.evidence.cost.work import work_of
from ane_book.models import read_config
from ane_book.reference import Published, reference_models
from mlprogram.ane.claims import Claim
from mlprogram.ane.cost import Interval, predict


def quoted(planned: Plan, chip: Claim) -> list[str]:
    """A sentence for each published figure about the same model on the same chip."""
    return list(_quoted(planned, chip))


def _quoted(planned: Plan, chip: Claim) -> Iterator[str]:
    for model in reference_models().values():
        found, config = model.published, read_config(model.config)
        if found is None or found.chip != chip.chip or not _same(config, planned.config):
            continue
        said = f"{found.tokens_per_second:g} tokens/s on {found.machine} ({found.source})"
        yield f"{said}; {_why(planned, found, chip)}"


def _same(model, other) -> bool:
    """Whether two configurations are equal, except for the strategy for experts."""
    chosen = {"experts"}
    return model.model_dump(exclude=chosen) == other.model_dump(exclude=chosen)


def _why(planned: Plan, found: Published, chip: Claim) -> str:
    own, many = planned.recipe, round(planned.calls())
    this = f"this plan's is quant {own.quant}, {own.context:,} slots, {_programs(many)}"
    if found.programs is None:
        return f"its cut is not known; {this}"
    rate = _sum(planned, found, found.programs, chip)
    stored = f"quant {found.quant}, {found.slots:,} slots, {_programs(found.programs)}"
    return f"its cut was {stored}, of which the same sum is {rate.text()} tokens/s; {this}"


def _sum(planned: Plan, found: Published, programs: int, chip: Claim) -> Interval:
    """The predicted tokens/s of the conversion that was measured."""
    recipe = make_recipe(planned.config, quant=found.quant, context=found.slots)
    work = work_of(plan(planned.config, recipe))
    return predict(replace(work, programs=programs), chip).tokens_s


def _programs(count: int) -> str:
    return f"{count:,} program{'s' * (count != 1)}"
