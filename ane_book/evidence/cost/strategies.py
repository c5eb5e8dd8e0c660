"""Compare the strategies for experts on a chip: the time of each, and where dispatch gets slower.

The time to read weights and to call packages is predicted, for one token and for several in a call.
Nobody has measured what the arithmetic of many tokens adds for experts, so no strategy's time is
complete; the comparison rests on bytes and calls, in which the strategies differ.

Taught in the chapter "Experts".
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import product

from ane_book.conversion.plan import Plan
from ane_book.evidence.cost.quoted import quoted
from ane_book.evidence.cost.work import form_of, work_of
from mlprogram.ane.claims import Claim
from mlprogram.ane.cost.chips import find_chip, parameter
from mlprogram.ane.cost.model import PER_MS, TokenWork, predict
import numpy as np

#: The most tokens of a call that `crossings` considers.
MOST = 1 << 12


def crossings(
    apart: Plan, whole: Plan, chip: str | Claim, shares: np.ndarray | None = None
) -> tuple[int | None, int | None]:
    """The number of tokens in a call from which on `apart` (dispatch) is slower than `whole`.

    Returns the earliest and the latest such number over all values of the bandwidth and of a
    call's overhead within their ranges, the same for both strategies. None: not up to MOST tokens.
    shares: as in `Plan.woken`.
    """
    chip = find_chip(chip) if isinstance(chip, str) else chip
    packed = parameter("packed").bounds if form_of(whole.recipe.quant) == "packed" else (1.0, 1.0)
    rates = [times / (rate * PER_MS) for times in packed for rate in chip.bounds]  # ms a byte

    def slower(tokens: int, rate: float, call: float) -> bool:
        more = apart.calls(tokens, shares) - whole.calls(tokens)
        fewer = whole.read_bytes(tokens) - apart.read_bytes(tokens, shares)
        return more * call > fewer * rate

    found = [
        bisect_left(range(1, MOST + 1), True, key=lambda tokens: slower(tokens, rate, call)) + 1
        for rate, call in product(rates, parameter("program").bounds)
    ]
    first, last = (tokens if tokens <= MOST else None for tokens in (min(found), max(found)))
    return first, last


def facts(planned: Plan, chip: str) -> list[tuple[str, str]]:
    """The prediction for a plan as rows: heading (only in the first row of a part), text.

    Raises InvalidInput as `predict` does.
    """
    work = work_of(planned)  # raises if there is nothing to predict
    lines = predict(work, chip).facts() if planned.head else []
    lines += [("published", text) for text in quoted(planned, find_chip(chip))]
    told = list(_strategies(planned, find_chip(chip)))
    lines += [("by tier" if i == 0 else "", text) for i, text in enumerate(_tiers(planned, chip))]
    return lines + [("on the engine" if i == 0 else "", text) for i, text in enumerate(told)]


def _tiers(planned: Plan, chip: str) -> Iterator[str]:
    """A sentence with the time of a token for each cache tier."""
    for slots, tier in planned.tiers.items() if planned.recipe.tiers else ():
        found = predict(work_of(tier), chip)
        yield f"{slots:,} slots: {found.tokens_s.text()} tokens/s, {found.ms.text()} ms a token"


def _strategies(planned: Plan, chip: Claim) -> Iterator[str]:
    plans = planned.strategies
    few = min(planned.recipe.prefill, planned.recipe.context)
    for name, other in plans.items():
        one, several = (predict(_without_cache(other, n), chip).ms.text() for n in (1, few))
        yield f"{name}: {one} ms for a token, {several} ms for {few} at once"
    if {"dispatch", "packed"} <= plans.keys():
        first, last = crossings(plans["dispatch"], plans["packed"], chip)
        yield f"experts apart are slower than packed {_said(first, last)}"
    if plans:
        yield (
            f"weights and calls on the engine of an {chip.chip}; cache and arithmetic come on top, "
            "and no strategy was measured there by this project: unmeasured"
        )


def _without_cache(plan: Plan, tokens: int) -> TokenWork:
    work = work_of(plan, tokens)
    return TokenWork(work.plain_bytes, work.packed_bytes, 0, work.programs)


def _said(first: int | None, last: int | None) -> str:
    if first is None:
        return f"for no call of up to {MOST:,} tokens"
    early = f"from {_tokens(first)} on, where a call takes most"
    if last is None:
        return f"{early}; never, where it takes least"
    return f"{early}; from {_tokens(last)} on, where it takes least" if first != last else early


def _tokens(count: int) -> str:
    return f"{count:,} token{'s' * (count > 1)} a call"
