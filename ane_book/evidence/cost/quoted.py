"""What is published of a plan's model on a chip, beside what is predicted of the plan.

The two are of different things: a figure is of somebody's own cut of the model, and a prediction of
this plan's. So the sum is made of their cut too, by what the registry of reference models has of
it (`ane_book.reference.Published`).
"""

from collections.abc import Iterator
from dataclasses import replace

from ane_book.claims import Claim
from ane_book.conversion.plan import Plan, plan
from ane_book.conversion.recipe import make_recipe
from ane_book.evidence.cost.model import Interval, predict, work_of
from ane_book.models import read_config
from ane_book.reference import Published, reference_models

__all__ = ["quoted"]


def quoted(planned: Plan, chip: Claim) -> list[str]:
    """A sentence for each figure that is published of the same model on the same chip."""
    return list(_quoted(planned, chip))


def _quoted(planned: Plan, chip: Claim) -> Iterator[str]:
    for model in reference_models().values():
        found, config = model.published, read_config(model.config)
        if found is None or found.chip != chip.chip or not _same(config, planned.config):
            continue
        said = f"{found.tokens_per_second:g} tokens/s on {found.machine} ({found.source})"
        yield f"{said}; {_why(planned, found, chip)}"


def _same(model, other) -> bool:
    """Whether two configurations are of one model, however its experts are laid out."""
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
    """Tokens a second, predicted of the cut that was measured."""
    recipe = make_recipe(planned.config, quant=found.quant, context=found.slots)
    work = work_of(plan(planned.config, recipe))
    return predict(replace(work, programs=programs), chip).tokens_s


def _programs(count: int) -> str:
    return f"{count:,} program{'s' * (count != 1)}"
