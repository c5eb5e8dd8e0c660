"""The cost model: the time of a token from bytes read, cache slots and calls, as an interval.

    t = plain / B + packed * k / B + (cache + adapter) / A + programs * d (+ segments * s)

plain: bytes of weights in fp16 or in 8 bits with scales; packed: bytes of weights in fewer bits or
with palettes, which take k times as long to read. B: the chip's read bandwidth for weights. A: its
bandwidth for the cache, which is read like activations, more slowly; a graph reads all of its
slots, filled or not. (A graph that writes a row by blending the whole cache with a mask is slower
by far; ours write the row.) The slots of an adapter are inputs of each call, so they are taken to
be read at A too; nobody has timed that. d: the overhead of a call of a package. s: that of a
further segment.

Every parameter is a range with its evidence (`chips`). The result is the range from all low ends to
all high ends: it says what is known, not what is likely.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from ane_book.conversion.plan import Plan
from ane_book.conversion.quantize import find_scheme
from ane_book.errors import InvalidInput
from ane_book.models import find
from mlprogram.ane import claims
from mlprogram.ane.claims import Claim
from mlprogram.ane.cost.chips import find_chip, parameter
import numpy as np

if TYPE_CHECKING:
    from mlprogram.ane.placement import Placement

__all__ = [
    "Estimate",
    "Interval",
    "Term",
    "TokenWork",
    "form_of",
    "not_predicted",
    "predict",
    "saving",
    "segments_of",
    "work_of",
]

ROWS, LONGEST = 8, 8192  # rows of a call and its context, of which the parameter "rows" speaks
PER_MS = 1e6  # bytes per millisecond in 1 GB/s


@dataclass(frozen=True)
class Interval:
    """A closed interval."""

    low: float
    high: float

    def __add__(self, other: "Interval") -> "Interval":
        return Interval(self.low + other.low, self.high + other.high)

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def text(self, digits: int = 1) -> str:
        """Both ends with `digits` digits after the point, or one number if they are equal."""
        low, high = f"{self.low:,.{digits}f}", f"{self.high:,.{digits}f}"
        return low if low == high else f"{low} to {high}"


@dataclass(frozen=True)
class TokenWork:
    """The work of one token on the engine.

    plain_bytes, packed_bytes: weights, by how they are stored. cache_bytes: keys and values of all
    slots of the graph, tails and memory. programs: calls of packages. segments: segments on the
    engine beyond the first one of each package (`segments_of`). slots: those in `cache_bytes`, for
    the report. adapter_bytes: inputs for a LoRA adapter, adapter or none.
    """

    plain_bytes: int
    packed_bytes: int
    cache_bytes: int
    programs: int
    segments: int = 0
    slots: int = 0
    adapter_bytes: int = 0

    def __post_init__(self) -> None:
        if self.programs < 1 or min(vars(self).values()) < 0:
            raise InvalidInput(f"a token calls a program or more, and reads no less than 0: {self}")


@dataclass(frozen=True)
class Term:
    """One part of a token's time in ms, and the claims that it is based on."""

    what: str
    ms: Interval
    rests_on: tuple[Claim, ...]

    @property
    def evidence(self) -> str:
        return "; ".join(claim.evidence for claim in self.rests_on)


@dataclass(frozen=True)
class Estimate:
    """The predicted time of a token on a chip."""

    chip: Claim
    terms: tuple[Term, ...]

    @property
    def ms(self) -> Interval:
        return sum((term.ms for term in self.terms), Interval(0.0, 0.0))

    @property
    def tokens_s(self) -> Interval:
        ms = self.ms
        return Interval(1e3 / ms.high, 1e3 / ms.low)

    def facts(self) -> list[tuple[str, str]]:
        """The prediction as rows for `ane-book plan`: heading (only in the first row), text."""
        told = f"{self.tokens_s.text()} tokens/s, {self.ms.text()} ms a token"
        rests = [f"{term.what}: {term.ms.text()} ms ({term.evidence})" for term in self.terms]
        return [
            ("predicted", f"{told} of decode on the engine of an {self.chip.chip}"),
            *((("rests on" if i == 0 else ""), text) for i, text in enumerate(rests)),
            *((what, f"not predicted: {why}") for what, why in not_predicted().items()),
        ]


def not_predicted() -> dict[str, str]:
    """What a prediction leaves out, and why: too little is published to fit it."""
    prompts, load = claims.find("prefill-gpu"), claims.find("first-load")
    least, most = load.bounds
    language = claims.find("first-load-language")
    shortest, longest = language.bounds
    return {
        "prefill": "prompts were published of a few models, each through another interface, and "
        f"beside the GPU: {prompts.statement} ({prompts.evidence})",
        "first load": f"published first loads lie between {least:g} and {most:g} s of Whisper "
        f"models ({load.evidence}), and between {shortest:g} and {longest:g} s of two language "
        f"models ({language.evidence}); each program is compiled for the device's engine "
        "then, and again after an update of the system: load before a user waits",
    }


def predict(asked: TokenWork | Plan, chip: str | Claim) -> Estimate:
    """Predict the time of a token on a chip, from its work or from the plan of a model.

    Raises InvalidInput for an unknown chip, with the known ones, and as `work_of` does.
    """
    chip = find_chip(chip) if isinstance(chip, str) else chip
    work = asked if isinstance(asked, TokenWork) else work_of(asked)
    terms = tuple(_terms(work, chip))
    if isinstance(asked, Plan) and asked.recipe.functions == "one":
        terms = (*terms, _rows(asked, sum((term.ms for term in terms), Interval(0.0, 0.0))))
    return Estimate(chip, terms)


def _rows(plan: Plan, ms: Interval) -> Term:
    """What a call of K rows takes beside one of a single row, which takes `ms`.

    Raises InvalidInput for a call of which nobody published the like.
    """
    rows, K, S = parameter("rows"), plan.recipe.verify, plan.recipe.context
    mixture = find(plan.config.architecture).layout(plan.config) is not None
    if K != ROWS or S > LONGEST or mixture:
        what = "a mixture of experts" if mixture else f"a context of {S:,}"
        raise InvalidInput(
            f"a call of {K} rows over {what} is not published; of {ROWS} rows of a dense model "
            f"over at most {LONGEST:,} there is a prediction, or leave the chip out"
        )
    least, most = rows.bounds
    more = Interval(ms.low * (least - 1), ms.high * (most - 1))
    return Term(f"{K} rows a call instead of one at {_range(rows)}", more, (rows,))


def saving(less: TokenWork | Plan, more: TokenWork | Plan, chip: str | Claim) -> Interval:
    """The share of a token's time that `less` saves beside `more` on a chip: 1 is all of it, and
    below 0 it takes longer.

    Both run on one machine, so each parameter has one value for both, and it may be at one end
    while another is at the other. The share only rises or only falls with each, so its least and
    its most are among these corners. Raises InvalidInput as `predict` does.
    """
    chip = find_chip(chip) if isinstance(chip, str) else chip
    both = [asked if isinstance(asked, TokenWork) else work_of(asked) for asked in (less, more)]
    names = ("packed", "cache", "program", "segment")
    found = []
    for ends in product(chip.bounds, *(parameter(name).bounds for name in names)):
        small, large = (_ms_at(work, *ends) for work in both)
        found.append(1 - small / large)
    return Interval(min(found), max(found))


def _ms_at(
    work: TokenWork, weights: float, packed: float, cache: float, program: float, segment: float
) -> float:
    """Milliseconds of a token where every parameter has one value; rates are in GB/s."""
    read = (work.plain_bytes + work.packed_bytes * packed) / weights
    read += (work.cache_bytes + work.adapter_bytes) / cache
    return read / PER_MS + work.programs * program + work.segments * segment


def _terms(work: TokenWork, chip: Claim) -> Iterator[Term]:
    if work.plain_bytes:
        what = f"weights, {_size(work.plain_bytes)} at {_range(chip)}"
        yield Term(what, _read(work.plain_bytes, chip), (chip,))
    if work.packed_bytes:
        packed = parameter("packed")
        least, most = packed.bounds
        ms = _read(work.packed_bytes, chip)
        what = f"packed weights, {_size(work.packed_bytes)} at {_range(chip)}, {_range(packed)}"
        yield Term(what, Interval(ms.low * least, ms.high * most), (chip, packed))
    if work.cache_bytes:
        cache = parameter("cache")
        what = f"cache of {work.slots:,} slots, {_size(work.cache_bytes)} at {_range(cache)}"
        yield Term(what, _read(work.cache_bytes, cache), (cache,))
    if work.adapter_bytes:
        rate = parameter("cache")
        what = f"inputs for an adapter, {_size(work.adapter_bytes)} at {_range(rate)}"
        yield Term(what, _read(work.adapter_bytes, rate), (rate,))
    for count, name in ((work.programs, "program"), (work.segments, "segment")):
        if count:
            claim = parameter(name)
            what = f"{count} {name}{'s' * (count > 1)} at {_range(claim)}"
            yield Term(what, Interval(*(count * end for end in claim.bounds)), (claim,))


def _read(nbytes: int, rate: Claim) -> Interval:
    """Milliseconds to read `nbytes` at a rate in GB/s."""
    low, high = rate.bounds
    return Interval(nbytes / (high * PER_MS), nbytes / (low * PER_MS))


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e6:,.1f} MB"


def _range(claim: Claim) -> str:
    low, high = claim.bounds
    return f"{low:g} to {high:g} {claim.unit}"


def work_of(plan: Plan, tokens: int = 1, shares: np.ndarray | None = None) -> TokenWork:
    """The work of a call of `tokens` tokens of a planned model; 1 is decode.

    shares: how often the router chooses each expert, as in `Plan.woken`. Only reading and calls are
    counted, not arithmetic, so for many tokens this is only a part of the time.

    Raises InvalidInput for a model that neither generates text nor has experts, and for a
    quantisation scheme without measurements on the engine.
    """
    if not plan.head and find(plan.config.architecture).layout(plan.config) is None:
        raise InvalidInput(
            f"a prediction is of decode, and {plan.config.architecture} generates no text; "
            "leave the chip out"
        )
    recipe, sizes = plan.recipe, {"plain": 0, "packed": 0}
    head = sum(program.bytes for program in plan.head)
    sizes[form_of(recipe.quant)] += round(plan.read_bytes(tokens, shares)) - head
    sizes[form_of(recipe.quant_head)] += head
    cache, slots = 0, 0
    if plan.head:
        kept = plan.tail_bytes() + plan.recurrent_bytes
        cache, slots = plan.cache_bytes + kept, recipe.context
    calls = round(plan.calls(tokens, shares))
    return TokenWork(
        sizes["plain"],
        sizes["packed"],
        cache,
        calls,
        slots=slots,
        adapter_bytes=plan.adapter_bytes,
    )


def segments_of(placements: "Iterable[Placement]") -> int:
    """Count the segments on the engine beyond the first one of each package, in the best reading.

    placements: of the decode function of each package that a token calls. Raises InvalidInput for a
    package that runs on the CPU in every reading, since it has no time on the engine.
    """
    further = 0
    for placement in placements:
        if not placement.best.partitions:
            raise InvalidInput(
                f"{placement.package}, {placement.function}: placement leaves it on the CPU; "
                "`ane-book place` says why"
            )
        further += placement.best.partitions - 1
    return further


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
