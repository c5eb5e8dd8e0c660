"""What a token of a planned model takes on a Neural Engine, without a Mac.

    estimate = mlprogram.ane.cost.predict(work_of(ane_book.plan("hy-mt", quant="int8")), "m4-max")

`mlprogram.ane.cost` has the formula and its parameters; here are the bytes, slots and calls of a
plan, and the figures that others published of its model.

Taught in the chapters "Experts" and "How fast will it be?".
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ane_book.conversion.plan import Plan, plan
from ane_book.conversion.plan.report import listed
from ane_book.conversion.quantize.schemes import find_scheme
from ane_book.conversion.recipe import make_recipe
from ane_book.errors import InvalidInput
from ane_book.models import read_config
from ane_book.reference import Published, reference_models
from mlprogram.ane.claims import Claim
from mlprogram.ane.cost import TokenWork, find_chip, predict
from mlprogram.ane.cost.model import not_predicted

__all__ = ["form_of", "published", "rows", "to_json", "work_of"]


def work_of(plan: Plan, tokens: int = 1) -> TokenWork:
    """The work of a call of `tokens` tokens of a planned model; 1 is decode.

    Only reading and calls are counted, not arithmetic, so for many tokens this is only a part of
    the time.

    Raises InvalidInput for a model that neither generates text nor has experts, and for a
    quantisation scheme without measurements on the engine.
    """
    mixture, recipe = plan.signatures.mixture is not None, plan.recipe
    if not plan.head and not mixture:
        raise InvalidInput(
            f"a prediction is of decode, and {plan.config.architecture} generates no text; "
            "leave the chip out"
        )
    if recipe.functions == "one" and mixture:
        raise InvalidInput(
            f"a call of {recipe.verify} rows of a mixture of experts is not published; leave the "
            "chip out"
        )
    sizes = {"plain": 0, "packed": 0}
    head = sum(program.bytes for program in plan.head)
    sizes[form_of(recipe.quant)] += round(plan.read_bytes(tokens)) - head
    sizes[form_of(recipe.quant_head)] += head
    return TokenWork(
        sizes["plain"],
        sizes["packed"],
        cache_bytes=plan.kept_bytes() if plan.head else 0,
        programs=round(plan.calls(tokens)),
        slots=recipe.context if plan.head else 0,
        adapter_bytes=plan.adapter_bytes,
        rows=(recipe.verify or 1) if recipe.functions == "one" else 1,
    )


def form_of(quant: str) -> str:
    """Whether a scheme's weights count as "plain" or "packed".

    Raises InvalidInput for a scheme without measurements on the engine.
    """
    scheme = find_scheme(quant)
    if scheme.block:
        raise InvalidInput(
            f"quant {quant!r} has scales along the input channels, which mostly run on the CPU or "
            "GPU: there is nothing to predict from; take another, or leave the chip out"
        )
    whole = scheme.form == "plain" or (scheme.form, scheme.bits) == ("linear", 8)
    return "plain" if whole else "packed"


def rows(planned: Plan, chip: str, why: bool = False) -> list[tuple[str, str]]:
    """The prediction for a plan as rows: heading (only in the first row of a part), text. why: with
    the evidence.

    Raises InvalidInput as `predict` does.
    """
    work = work_of(planned)  # raises if there is nothing to predict
    return [
        *(predict(work, chip).rows(why) if planned.head else ()),
        *(("published", text) for text in published(planned, find_chip(chip), why)),
        *listed("by tier", _tiers(planned, chip)),
        *listed("on the engine", _strategies(planned, find_chip(chip))),
    ]


def to_json(planned: Plan, chip: str) -> dict[str, Any]:
    """The prediction in plain JSON values: ranges as both ends, and each tier's rate by slots."""
    estimate = predict(work_of(planned), chip)
    rates = {S: predict(work_of(tier), chip).tokens_s for S, tier in planned.tiers.items()}
    rate, ms = estimate.tokens_s, estimate.ms
    return {
        "predicted": {
            "chip": estimate.chip.chip,
            "tokens_s": [rate.low, rate.high],
            "ms": [ms.low, ms.high],
            "tiers": {S: {"tokens_s": [tier.low, tier.high]} for S, tier in rates.items()},
            "not_predicted": not_predicted(),
        },
        "published": published(planned, estimate.chip),
    }


def _tiers(planned: Plan, chip: str) -> Iterator[str]:
    """A sentence with the time of a token for each cache tier."""
    for slots, tier in planned.tiers.items() if planned.recipe.tiers else ():
        found = predict(work_of(tier), chip)
        yield f"{slots:,} slots: {found.tokens_s.text()} tokens/s, {found.ms.text()} ms a token"


def _strategies(planned: Plan, chip: Claim) -> Iterator[str]:
    """A sentence for each strategy for experts. What the arithmetic of many tokens adds nobody has
    measured, so these are the bytes and calls, in which the strategies differ."""
    plans = planned.strategies
    few = min(planned.recipe.prefill, planned.recipe.context)
    for name, other in plans.items():
        works = (replace(work_of(other, n), cache_bytes=0, adapter_bytes=0) for n in (1, few))
        one, several = (predict(work, chip).ms.text() for work in works)
        yield f"{name}: {one} ms for a token, {several} ms for {few} at once"
    if plans:
        yield (
            f"weights and calls on the engine of an {chip.chip}; cache and arithmetic come on top, "
            "and no strategy was measured there by this project: unmeasured"
        )


def published(planned: Plan, chip: Claim, why: bool = True) -> list[str]:
    """A sentence for each published figure about the same model on the same chip; why: with its
    source.

    Such a figure is about somebody else's conversion, with its own packages and quantisation. So
    that one is predicted too, from what the registry of reference models knows about it.
    """
    found, rest = [], {"experts"}  # whatever the strategy for experts
    own = planned.config.model_dump(exclude=rest)
    for model in reference_models().values():
        figure = model.published
        if figure is None or figure.chip != chip.chip:
            continue
        if read_config(model.config).model_dump(exclude=rest) != own:
            continue
        said, cut = f"{figure.tokens_per_second:g} tokens/s on {figure.machine}", ", of another cut"
        found.append(said + (f" ({figure.source}); {_why(planned, figure, chip)}" if why else cut))
    return found


def _why(planned: Plan, figure: Published, chip: Claim) -> str:
    """How the conversion that was measured and this plan differ, and the prediction of that one."""
    own = planned.recipe
    this = f"this plan's is {_cut(own.quant, own.context, round(planned.calls()))}"
    if figure.programs is None:
        return f"its cut is not known; {this}"
    recipe = make_recipe(planned.config, quant=figure.quant, context=figure.slots)
    work = replace(work_of(plan(planned.config, recipe)), programs=figure.programs)
    rate = predict(work, chip).tokens_s.text()
    stored = _cut(figure.quant, figure.slots, figure.programs)
    return f"its cut was {stored}, of which the same sum is {rate} tokens/s; {this}"


def _cut(quant: str, slots: int, programs: int) -> str:
    return f"quant {quant}, {slots:,} slots, {programs:,} program{'s' * (programs != 1)}"
