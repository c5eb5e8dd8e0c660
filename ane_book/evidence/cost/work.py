"""The work of a planned model's token, of which `mlprogram.ane.cost` predicts the time."""

from ane_book.conversion.plan import Plan
from ane_book.conversion.quantize import find_scheme
from ane_book.errors import InvalidInput
from mlprogram.ane.cost import TokenWork
import numpy as np


def work_of(plan: Plan, tokens: int = 1, shares: np.ndarray | None = None) -> TokenWork:
    """The work of a call of `tokens` tokens of a planned model; 1 is decode.

    shares: how often the router chooses each expert, as in `Plan.woken`. Only reading and calls are
    counted, not arithmetic, so for many tokens this is only a part of the time.

    Raises InvalidInput for a model that neither generates text nor has experts, and for a
    quantisation scheme without measurements on the engine.
    """
    mixture = plan.signatures.mixture is not None
    if not plan.head and not mixture:
        raise InvalidInput(
            f"a prediction is of decode, and {plan.config.architecture} generates no text; "
            "leave the chip out"
        )
    recipe, sizes = plan.recipe, {"plain": 0, "packed": 0}
    if recipe.functions == "one" and mixture:
        raise InvalidInput(
            f"a call of {recipe.verify} rows of a mixture of experts is not published; leave the "
            "chip out"
        )
    head = sum(program.bytes for program in plan.head)
    sizes[form_of(recipe.quant)] += round(plan.read_bytes(tokens, shares)) - head
    sizes[form_of(recipe.quant_head)] += head
    cache, slots = 0, 0
    if plan.head:
        cache, slots = plan.kept_bytes(), recipe.context
    calls = round(plan.calls(tokens, shares))
    return TokenWork(
        sizes["plain"],
        sizes["packed"],
        cache,
        calls,
        slots=slots,
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
