"""The model held against published figures: fitted on half of them, judged on the rest.

Three numbers are fitted: how much longer than their bytes packed weights take, the speed of the
cache, and the time of a program. The bandwidth for weights is not: that of each chip was measured
by itself. No prediction is made of the fitted numbers; they say whether one formula holds for
models that have little in common, and how far it is off.

Which half a figure belongs to is decided by the hash of its id, once and for all.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import product
from statistics import median

from ane_book.book.cost_published import Figure
from ane_book.claims import Claim, find
from ane_book.errors import InvalidInput
from ane_book.evidence.cost.chips import find_chip
from ane_book.evidence.cost.model import PER_MS, TokenWork, predict
import numpy as np

__all__ = [
    "Fitted",
    "FittedLine",
    "fit",
    "impossible",
    "judged",
    "least_ms",
    "left_out_errors",
    "line",
    "median_error",
    "split",
    "within",
]

ROUNDS = 80  # of reweighting, after which the sum of absolute errors has settled
FLOOR = 0.02  # a relative error below which reweighting goes no further
LEAST = (1.0, 0.0, 0.0)  # of the three: packed weights are not read faster than their bytes


@dataclass(frozen=True)
class Fitted:
    """packed: times the bytes' time. cache_gb_s: of keys and values. program_ms: beside reading."""

    packed: float
    cache_gb_s: float
    program_ms: float

    def ms(self, figure: Figure) -> float:
        """The time of a token, with a chip's bandwidth at the middle of its range."""
        plain, *others = _parts(figure)
        rates = (self.packed, 1 / (self.cache_gb_s * PER_MS), self.program_ms)
        return plain + sum(part * rate for part, rate in zip(others, rates, strict=True))

    def error(self, figure: Figure) -> float:
        """How far the prediction is off, relative to the published time."""
        return self.ms(figure) / figure.ms - 1


def _asked(figure: Figure) -> tuple[TokenWork, Claim]:
    """What a token takes, and the chip; InvalidInput for a figure of which either is not known."""
    if figure.work is None or figure.chip is None:
        raise InvalidInput(f"{figure.id}: what it asks of which chip is not known")
    return figure.work, find_chip(figure.chip)


def _parts(figure: Figure) -> tuple[float, float, float, float]:
    """ms of plain and of packed bytes at the chip's bandwidth; bytes of the cache; programs."""
    work, chip = _asked(figure)
    middle = sum(chip.bounds) / 2 * PER_MS
    return (
        work.plain_bytes / middle,
        work.packed_bytes / middle,
        work.cache_bytes,
        work.programs,
    )


def judged(figures: Iterable[Figure]) -> list[Figure]:
    """Those that the model is held against: on the engine, and what they ask is known."""
    return [f for f in figures if f.work and f.chip and not f.left_out and not f.cannot_be]


def split(figures: Iterable[Figure]) -> tuple[list[Figure], list[Figure]]:
    """Half of the figures to fit, at most, and the others to judge by."""
    order = sorted(figures, key=lambda figure: sha256(figure.id.encode()).hexdigest())
    half = len(order) // 2
    return order[:half], order[half:]


def fit(figures: Sequence[Figure]) -> Fitted:
    """The three numbers with the least sum of absolute relative errors.

    Least squares, reweighted by what was off; each number at its bound or above, of which all ways
    are tried: there are eight.
    """
    table = np.array([_parts(figure) for figure in figures]) / [[f.ms] for f in figures]
    table[:, 2] /= PER_MS  # so that the columns are of a size
    wanted, columns = 1 - table[:, 0], table[:, 1:]
    weights = np.ones(len(figures))
    for _ in range(ROUNDS):
        found = _bounded(columns, wanted, weights)
        weights = 1 / np.maximum(np.abs(columns @ found - wanted), FLOOR)
    packed, cache, program = found
    return Fitted(float(packed), 1 / float(cache) if cache else float("inf"), float(program))


def _bounded(columns: np.ndarray, wanted: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The least weighted squares with every number at least at its bound."""
    least, best, smallest = np.array(LEAST), np.array(LEAST), np.inf
    root = np.sqrt(weights)
    for bound in product((False, True), repeat=len(least)):
        free = ~np.array(bound)
        found = least.copy()
        rest = (wanted - columns[:, ~free] @ least[~free]) * root
        found[free] = np.linalg.lstsq(columns[:, free] * root[:, None], rest, rcond=None)[0]
        if (found < least - 1e-12).any():
            continue
        error = float((weights * (columns @ found - wanted) ** 2).sum())
        if error < smallest:
            smallest, best = error, found
    return best  # all at their bounds is always a way


def median_error(fitted: Fitted, figures: Iterable[Figure]) -> float:
    """The median of the absolute relative errors."""
    return median(abs(fitted.error(figure)) for figure in figures)


def left_out_errors(figures: Sequence[Figure]) -> dict[str, float]:
    """The harder question: the median error for each model, fitted on all the other models."""
    found = {}
    for model in dict.fromkeys(_family(figure) for figure in figures):
        others = [figure for figure in figures if _family(figure) != model]
        own = [figure for figure in figures if _family(figure) == model]
        found[model] = median_error(fit(others), own)
    return found


def _family(figure: Figure) -> str:
    """The model of a figure, whatever its bits and its graph."""
    return figure.model.split()[0]


@dataclass(frozen=True)
class FittedLine:
    """A straight line through the points of one series: ms = base + slope x."""

    base: float
    slope: float
    points: tuple[tuple[float, float], ...]

    def errors(self) -> list[float]:
        """Relative, in the order of the points."""
        return [(self.base + self.slope * x) / ms - 1 for x, ms in self.points]

    def without(self) -> dict[float, float]:
        """The slope without each point, by its x: where one point alone decides, it shows."""
        return {x: line([p for p in self.points if p != (x, ms)]).slope for x, ms in self.points}


def line(points: Iterable[tuple[float, float]]) -> FittedLine:
    """The line with the least squares of relative errors."""
    points = tuple(points)
    x, ms = np.array(points).T
    base, slope = np.linalg.lstsq(np.stack([1 / ms, x / ms], 1), np.ones(len(ms)), rcond=None)[0]
    return FittedLine(float(base), float(slope), points)


def least_ms(figure: Figure) -> float:
    """Less than this no token can take: its weights' bytes at the most that the chip's engine
    reads, and the least that any source gives for so many calls.
    """
    call = find("call-private" if figure.path == "private" else "call-coreml")
    work, chip = _asked(figure)
    nbytes = work.plain_bytes + work.packed_bytes
    return nbytes / (chip.bounds[1] * PER_MS) + figure.programs * call.bounds[0]


def impossible(figures: Iterable[Figure]) -> list[Figure]:
    """Figures that are faster than the weights can be read and the programs called."""
    known = (figure for figure in figures if figure.work and figure.chip)
    return [figure for figure in known if figure.ms < least_ms(figure)]


def within(figures: Iterable[Figure]) -> list[bool]:
    """For each figure, whether the predicted interval holds it."""
    return [figure.ms in predict(*_asked(figure)).ms for figure in figures]
