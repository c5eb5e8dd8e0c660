"""Values of a source found again in a package: the same numbers, in whatever layout.

A converter reorders axes, drops those of size 1, splits heads and joins ops, and it renames all
values. What stays are the numbers. So a source's value is matched by its numbers: to the first
value of the package that has them, as they stand or with its axes in another order.

Two values agree if no element is farther off than a share of the largest magnitude. Values
of -9,000 and below are masks: converters write them as what half precision holds, so that one is
as good as another.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations
from math import inf, prod

import numpy as np

MASKED = -9e3
LARGEST = 65504.0  # of half precision
MOST_AXES = 5  # of which all orders are tried
SAMPLE = 97  # elements that are compared before all are


@dataclass(frozen=True, eq=False)
class PackageValue:
    """A value of a package's run, and the MIL op that made it ("" of an input).

    operands: the names of the values that the op reads. constants: those of its constants in less
    than single precision.
    """

    name: str
    op: str
    array: np.ndarray
    operands: tuple[str, ...] = ()
    constants: tuple[str, ...] = ()

    @cached_property
    def summary(self) -> "Summary":
        return summarise(self.array)

    def __str__(self) -> str:
        return f"{self.op or 'input'} {self.name!r} {self.array.shape}"


@dataclass(frozen=True)
class ValueMatch:
    """A source's value and the package's value that has its numbers.

    aligned: the package's numbers in the source's shape. layout: "" as they stand; else how the
    package's axes were put in order. error: the largest difference over the largest magnitude.
    """

    source: str
    package: PackageValue
    aligned: np.ndarray
    layout: str
    error: float


@dataclass(frozen=True)
class Summary:
    """Numbers about an array that no order of its elements changes."""

    scale: float
    numbers: tuple[float, float, float, float]

    def near(self, other: "Summary", tolerance: float) -> bool:
        """False only if the arrays cannot agree."""
        room = tolerance * max(self.scale, other.scale) + 1e-30
        pairs = zip(self.numbers, other.numbers, strict=True)
        return all(abs(a - b) <= room for a, b in pairs)


def _clean(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """float64 without infinity and NaN, zero where masked; and where it is masked."""
    wide = np.array(array, np.float64)
    wide[np.isnan(wide)] = inf
    masked = wide <= MASKED
    wide[masked] = 0
    return np.minimum(wide, LARGEST), masked


def summarise(array: np.ndarray) -> Summary:
    wide, _ = _clean(array)
    if not wide.size:
        return Summary(0.0, (0.0, 0.0, 0.0, 0.0))
    rms = float(np.sqrt((wide**2).mean()))
    extent = (float(wide.min()), float(wide.max()), float(wide.mean()), rms)
    return Summary(float(np.abs(wide).max()), extent)


def gap(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest difference over the largest magnitude; of integers, infinite unless equal."""
    if ours.size != theirs.size:
        return inf
    if not ours.size:
        return 0.0
    if theirs.dtype.kind in "iub":
        return 0.0 if np.array_equal(np.ravel(ours), np.ravel(theirs)) else inf
    a, masked_a = _clean(ours.reshape(-1))
    b, masked_b = _clean(theirs.reshape(-1))
    if not np.array_equal(masked_a, masked_b):
        return inf
    apart, scale = float(np.abs(a - b).max()), float(np.abs(b).max())
    return apart / scale if scale else (0.0 if not apart else inf)


def align(
    source: np.ndarray, package: np.ndarray, tolerance: float, reorder: bool = True
) -> tuple[np.ndarray, str, float] | None:
    """The package's numbers in the source's shape, how they were ordered, and their error.

    None if they are not the source's in any order of axes. reorder: whether other orders than the
    one at hand are tried.
    """
    if source.size != package.size:
        return None
    for aligned, layout in _ordered(source, package, reorder):
        if layout and source.size > SAMPLE:
            places = np.linspace(0, source.size - 1, SAMPLE).astype(int)
            scale = max(1e-30, float(np.abs(_clean(source)[0]).max()))
            a, b = _clean(aligned.flat[places])[0], _clean(source.flat[places])[0]
            if np.abs(a - b).max() > tolerance * scale:
                continue
        error = gap(aligned, source)
        if error <= tolerance:
            return aligned.reshape(source.shape), layout, error
    return None


def _ordered(
    source: np.ndarray, package: np.ndarray, reorder: bool
) -> Iterator[tuple[np.ndarray, str]]:
    """The package's array in the source's shape, by every order of axes; as it stands first."""
    yield package.reshape(source.shape), ""
    mine = [size for size in package.shape if size != 1]
    theirs = [size for size in source.shape if size != 1]
    if not reorder:
        return
    if len(mine) <= MOST_AXES:
        squeezed = package.reshape(mine)
        for order in permutations(range(len(mine))):
            if list(order) != sorted(order):
                yield squeezed.transpose(order).reshape(source.shape), f"its axes by {order}"
    if len(theirs) <= MOST_AXES and len(theirs) != len(mine):
        for order in permutations(range(len(theirs))):
            if list(order) != sorted(order):
                shape = [theirs[axis] for axis in order]
                back = package.reshape(shape).transpose(np.argsort(order))
                yield back.reshape(source.shape), f"as {tuple(shape)}, its axes by {order}"


def nearest(package: np.ndarray, source: np.ndarray) -> np.ndarray:
    """A package's numbers in a source's shape, in the order of axes that is nearest to it."""
    mine, theirs = ([size for size in array.shape if size != 1] for array in (package, source))
    places = np.linspace(0, source.size - 1, min(SAMPLE, source.size)).astype(int)
    wanted = _clean(source.flat[places])[0]

    def distance(array: np.ndarray) -> float:
        return float(np.abs(_clean(array.flat[places])[0] - wanted).sum())

    found = min((array for array, _ in _ordered(source, package, mine != theirs)), key=distance)
    return np.asarray(found, source.dtype)


class ValueIndex:
    """The values of a package's run, to be found by their numbers."""

    def __init__(self, values: Iterable[PackageValue], tolerance: float):
        self.tolerance = tolerance
        self.values = list(values)
        self.by_size: dict[int, list[PackageValue]] = defaultdict(list)
        for value in self.values:
            self.by_size[value.array.size].append(value)

    def find(
        self,
        name: str,
        array: np.ndarray,
        among: Callable[[PackageValue], bool] = lambda value: True,
        tolerance: float | None = None,
    ) -> ValueMatch | None:
        """The first value with these numbers; as they stand rather than reordered."""
        summary, room = summarise(array), self.tolerance if tolerance is None else tolerance
        near = [
            value
            for value in self.by_size[array.size]
            if summary.near(value.summary, room) and among(value)
        ]
        for reorder in (False, True):
            for value in near:
                if found := align(array, value.array, room, reorder):
                    return ValueMatch(name, value, *found)
        return None


def informative(array: np.ndarray) -> bool:
    """Whether equal numbers mean something: a few different ones of floating point."""
    return array.dtype.kind == "f" and array.size >= 3 and prod(array.shape) > 0 and bool(
        np.ptp(_clean(array)[0]) > 0
    )
