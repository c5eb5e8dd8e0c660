"""Fit the cost model to half of the published figures, and test it on the other half.

Three numbers are fitted: how many times as long as their bytes packed weights take, the bandwidth
of the cache, and the overhead of a package. The bandwidth for weights is not fitted: each chip's
was measured separately. The fitted numbers are not used for predictions; they show whether one
formula holds for very different models, and how large its error is.

The hash of a figure's id decides which half it belongs to.
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
FLOOR = 0.02  # relative errors below this count as this in the weights
LEAST = (1.0, 0.0, 0.0)  # lower bounds of the three numbers: packed weights take at least 1


@dataclass(frozen=True)
class Fitted:
    """packed: factor on the time of packed weights. cache_gb_s: bandwidth of keys and values.
    program_ms: overhead of a package."""

    packed: float
    cache_gb_s: float
    program_ms: float

    def ms(self, figure: Figure) -> float:
        """The predicted time of a token, with the bandwidth at the middle of its range."""
        plain, *others = _parts(figure)
        rates = (self.packed, 1 / (self.cache_gb_s * PER_MS), self.program_ms)
        return plain + sum(part * rate for part, rate in zip(others, rates, strict=True))

    def error(self, figure: Figure) -> float:
        """The error of the prediction, relative to the published time."""
        return self.ms(figure) / figure.ms - 1


def _asked(figure: Figure) -> tuple[TokenWork, Claim]:
    """The work of a token, and the chip; raises InvalidInput if either is unknown."""
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
    """The figures that the model is compared with: on the engine, with known work."""
    return [f for f in figures if f.work and f.chip and not f.left_out and not f.cannot_be]


def split(figures: Iterable[Figure]) -> tuple[list[Figure], list[Figure]]:
    """Divide the figures into those to fit, at most half, and those to test on."""
    order = sorted(figures, key=lambda figure: sha256(figure.id.encode()).hexdigest())
    half = len(order) // 2
    return order[:half], order[half:]


def fit(figures: Sequence[Figure]) -> Fitted:
    """Fit the three numbers for the least sum of absolute relative errors.

    By iteratively reweighted least squares. Each number is at its lower bound or free; all eight
    combinations are tried.
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
    """Leave-one-out test: the median error for each model, fitted on all other models."""
    found = {}
    for model in dict.fromkeys(_family(figure) for figure in figures):
        others = [figure for figure in figures if _family(figure) != model]
        own = [figure for figure in figures if _family(figure) == model]
        found[model] = median_error(fit(others), own)
    return found


def _family(figure: Figure) -> str:
    """The name of a figure's model, without bits and graph."""
    return figure.model.split()[0]


@dataclass(frozen=True)
class FittedLine:
    """A straight line through the points of one series: ms = base + slope x."""

    base: float
    slope: float
    points: tuple[tuple[float, float], ...]

    def errors(self) -> list[float]:
        """The relative errors, in the order of the points."""
        return [(self.base + self.slope * x) / ms - 1 for x, ms in self.points]

    def without(self) -> dict[float, float]:
        """The slope without each point, by its x: it shows whether one point alone decides."""
        return {x: line([p for p in self.points if p != (x, ms)]).slope for x, ms in self.points}


def line(points: Iterable[tuple[float, float]]) -> FittedLine:
    """Fit a line by least squares of relative errors."""
    points = tuple(points)
    x, ms = np.array(points).T
    base, slope = np.linalg.lstsq(np.stack([1 / ms, x / ms], 1), np.ones(len(ms)), rcond=None)[0]
    return FittedLine(float(base), float(slope), points)


def least_ms(figure: Figure) -> float:
    """A lower bound on the time of a token: its weights at the chip's highest bandwidth, and the
    least overhead of any source for its calls.
    """
    call = find("call-private" if figure.path == "private" else "call-coreml")
    work, chip = _asked(figure)
    nbytes = work.plain_bytes + work.packed_bytes
    return nbytes / (chip.bounds[1] * PER_MS) + figure.programs * call.bounds[0]


def impossible(figures: Iterable[Figure]) -> list[Figure]:
    """The figures that are below `least_ms`."""
    known = (figure for figure in figures if figure.work and figure.chip)
    return [figure for figure in known if figure.ms < least_ms(figure)]


def within(figures: Iterable[Figure]) -> list[bool]:
    """For each figure, whether it lies in the predicted interval."""
    return [figure.ms in predict(*_asked(figure)).ms for figure in figures]
