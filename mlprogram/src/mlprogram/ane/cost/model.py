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

from mlprogram.ane import claims
from mlprogram.ane.claims import Claim
from mlprogram.ane.cost.chips import find_chip, parameter
from mlprogram.errors import InvalidInput

if TYPE_CHECKING:
    from mlprogram.ane.placement import Placement


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
    the report. adapter_bytes: inputs for a LoRA adapter, adapter or none. rows: of a call, where
    all calls are of one size.
    """

    plain_bytes: int
    packed_bytes: int
    cache_bytes: int
    programs: int
    segments: int = 0
    slots: int = 0
    adapter_bytes: int = 0
    rows: int = 1

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

    def rows(self, why: bool = False) -> list[tuple[str, str]]:
        """The prediction as rows for a table: heading (only in the first row), text.

        why: with its parts, their sources, and the reasons for what is not predicted.
        """
        told = f"{self.tokens_s.text()} tokens/s, {self.ms.text()} ms a token"
        lent = f", {self.chip.condition}" if self.chip.condition else ""
        rows = [("predicted", f"{told} of decode on the engine of an {self.chip.chip}{lent}")]
        left = not_predicted()
        if not why:
            return [*rows, ("", f"not predicted: {', '.join(left)}")]
        rests = [f"{term.what}: {term.ms.text()} ms ({term.evidence})" for term in self.terms]
        rows += [("rests on" if i == 0 else "", text) for i, text in enumerate(rests)]
        return [*rows, *((what, f"not predicted: {reason}") for what, reason in left.items())]


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


def predict(work: TokenWork, chip: str | Claim) -> Estimate:
    """Predict the time of a token on a chip.

    Raises InvalidInput for an unknown chip, with the known ones, and for calls of several rows of
    which nobody published the like.
    """
    chip = find_chip(chip) if isinstance(chip, str) else chip
    terms = tuple(_terms(work, chip))
    if work.rows > 1:
        terms = (*terms, _rows(work, sum((term.ms for term in terms), Interval(0.0, 0.0))))
    return Estimate(chip, terms)


def _rows(work: TokenWork, ms: Interval) -> Term:
    """What a call of K rows takes beside one of a single row, which takes `ms`."""
    rows, K, S = parameter("rows"), work.rows, work.slots
    if K != ROWS or S > LONGEST:
        raise InvalidInput(
            f"a call of {K} rows over a context of {S:,} is not published; of {ROWS} rows of a "
            f"dense model over at most {LONGEST:,} there is a prediction, or leave the chip out"
        )
    least, most = rows.bounds
    more = Interval(ms.low * (least - 1), ms.high * (most - 1))
    return Term(f"{K} rows a call instead of one at {_range(rows)}", more, (rows,))


def saving(less: TokenWork, more: TokenWork, chip: str | Claim) -> Interval:
    """The share of a token's time that `less` saves beside `more` on a chip: 1 is all of it, and
    below 0 it takes longer.

    Both run on one machine, so each parameter has one value for both, and it may be at one end
    while another is at the other. The share only rises or only falls with each, so its least and
    its most are among these corners. Raises InvalidInput as `predict` does.
    """
    chip = find_chip(chip) if isinstance(chip, str) else chip
    names = ("packed", "cache", "program", "segment")
    found = []
    for ends in product(chip.bounds, *(parameter(name).bounds for name in names)):
        small, large = (_ms_at(work, *ends) for work in (less, more))
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
                "`mlprogram place` says why"
            )
        further += placement.best.partitions - 1
    return further
