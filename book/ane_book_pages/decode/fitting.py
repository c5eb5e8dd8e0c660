"""Fit the cost model's terms to published figures, and compare the fit with a simpler rule.

Three numbers are fitted: how many times as long as their bytes packed weights take, the bandwidth
of the cache, and what one more program adds. The bandwidth for weights is not fitted: each chip's
was measured separately. The simpler rule has one number: a token takes so many times the time of
its bytes. The fitted numbers are not used for predictions.

A model with many figures would outweigh the others, so each model counts once: in the fit, where
its figures share one weight, and in the test, which leaves out a model with all its figures.

Taught in the chapter "How fast will it be?".
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from ane_book.errors import InvalidInput
from ane_book_pages.decode.published import Figure
from mlprogram.ane.claims import Claim, find
from mlprogram.ane.cost.chips import find_chip
from mlprogram.ane.cost.model import PER_MS, TokenWork, predict
import numpy as np


@dataclass(frozen=True)
class Fitted:
    """packed: factor on the time of packed weights. cache_gb_s: bandwidth of keys and values.
    program_ms: what one more program adds."""

    packed: float
    cache_gb_s: float
    program_ms: float

    def ms(self, figure: Figure) -> float:
        """The predicted time of a token, with the bandwidth at the middle of its range."""
        plain, packed, cache, programs = columns(figure)
        rest = packed * self.packed + cache / self.cache_gb_s + programs * self.program_ms
        return float(plain + rest)


@dataclass(frozen=True)
class LeftOutModel:
    """The median errors for a model of which a fit has seen nothing, of its `count` figures."""

    model: str
    count: int
    fitted: float
    constant: float


def asked(figure: Figure) -> tuple[TokenWork, Claim]:
    """The work of a token, and the chip; raises InvalidInput if either is unknown."""
    if figure.work is None or figure.chip is None:
        raise InvalidInput(f"{figure.id}: what it asks of which chip is not known")
    return figure.work, find_chip(figure.chip)


def columns(figure: Figure) -> np.ndarray:
    """ms of plain and of packed bytes at the chip's bandwidth; ms of the cache at 1 GB/s; programs.

    The bandwidth is the middle of the chip's range.
    """
    work, chip = asked(figure)
    middle = sum(chip.bounds) / 2 * PER_MS
    plain, packed = work.plain_bytes / middle, work.packed_bytes / middle
    return np.array([plain, packed, work.cache_bytes / PER_MS, work.programs])


def judged(figures: Iterable[Figure]) -> list[Figure]:
    """The figures that the numbers are fitted to: on the engine, with known work."""
    known = (f for f in figures if f.work and f.chip and f.role == "fit")
    return [f for f in known if not f.left_out and not f.cannot_be]


def by_model(figures: Iterable[Figure]) -> dict[str, list[Figure]]:
    """The figures of each model, in their order."""
    found: dict[str, list[Figure]] = {}
    for figure in figures:
        found.setdefault(figure.name, []).append(figure)
    return found


def fit(figures: Sequence[Figure]) -> Fitted:
    """Fit the three numbers: the least squares of relative errors, each model weighing the same."""
    ms = np.array([figure.ms for figure in figures])
    table = np.array([columns(figure) for figure in figures]) / ms[:, None]
    packed, cache, program = _least_squares(table[:, 1:], 1 - table[:, 0], figures)
    return Fitted(float(packed), float(1 / cache), float(program))


def constant(figures: Sequence[Figure]) -> float:
    """The simpler rule's number, by the same least squares: times the time of the bytes."""
    times = np.array([[bytes_ms(figure) / figure.ms] for figure in figures])
    return float(_least_squares(times, np.ones(len(times)), figures)[0])


def bytes_ms(figure: Figure) -> float:
    """The time of a token by the bytes of its weights alone."""
    return float(columns(figure)[:2].sum())


def _least_squares(table: np.ndarray, wanted: np.ndarray, figures: Sequence[Figure]) -> np.ndarray:
    counts = {name: len(group) for name, group in by_model(figures).items()}
    root = np.array([counts[figure.name] for figure in figures]) ** -0.5
    return np.linalg.lstsq(table * root[:, None], wanted * root, rcond=None)[0]


def median_error(times: Sequence[float], figures: Sequence[Figure]) -> float:
    """The median of the absolute relative errors of predicted times in ms."""
    both = zip(times, figures, strict=True)
    return median(abs(time / figure.ms - 1) for time, figure in both)


def left_out(figures: Sequence[Figure]) -> list[LeftOutModel]:
    """Leave each model out in turn: the errors of both rules for it, fitted to all others."""
    found = []
    for name, own in by_model(figures).items():
        others = [figure for figure in figures if figure.name != name]
        fitted, times = fit(others), constant(others)
        by_fit = median_error([fitted.ms(f) for f in own], own)
        by_bytes = median_error([times * bytes_ms(f) for f in own], own)
        found.append(LeftOutModel(name, len(own), by_fit, by_bytes))
    return found


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
    work, chip = asked(figure)
    nbytes = work.plain_bytes + work.packed_bytes
    return nbytes / (chip.bounds[1] * PER_MS) + figure.programs * call.bounds[0]


def impossible(figures: Iterable[Figure]) -> list[Figure]:
    """The figures that are below `least_ms`; those that a bound itself rests on are not asked."""
    known = (f for f in figures if f.work and f.chip and f.role != "range")
    return [figure for figure in known if figure.ms < least_ms(figure)]


def within(figures: Iterable[Figure]) -> list[bool]:
    """For each figure, whether it lies in the predicted interval."""
    return [figure.ms in predict(*asked(figure)).ms for figure in figures]
