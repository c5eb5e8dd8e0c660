"""The difference of one value of two programs, as numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf, log10, nan, sqrt
from typing import Any

from mlprogram.analysis.aliases import uses
from mlprogram.package.function import Operation
import numpy as np


@dataclass(frozen=True)
class Gap:
    """The difference of one value of A from B's.

    name, op: the value in A, and the type of its op ("" if it is not from a program). shape: A's;
    other_shape: B's. error: the largest difference over the largest magnitude of B's value;
    infinite if only one side is finite or the shapes differ. max_abs, max_relative: over elements,
    the latter where B is not zero. cosine: of the two as vectors. snr: B's power over that of the
    difference, in dB; psnr: B's largest magnitude squared over that. worst: the position of the
    largest difference, and both elements there. inputs: the error of each of the op's inputs that
    was compared.
    """

    name: str
    op: str
    shape: tuple[int, ...]
    other_shape: tuple[int, ...]
    error: float
    max_abs: float = nan
    max_relative: float = nan
    cosine: float = nan
    snr: float = nan
    psnr: float = nan
    worst: tuple[int, ...] = ()
    elements: tuple[float, float] = (nan, nan)
    inputs: dict[str, float] = field(default_factory=dict)

    def cells(self) -> tuple[str, ...]:
        """The statistics as text: error, max abs, max relative, cosine, SNR, PSNR."""
        if self.shape != self.other_shape and np.isnan(self.max_abs):
            return (f"shape {self.shape}, B has {self.other_shape}", "", "", "", "", "")
        return (
            percent(self.error),
            f"{self.max_abs:.2g}",
            f"{self.max_relative:.2g}",
            f"{self.cosine:.6f}",
            f"{self.snr:.1f} dB",
            f"{self.psnr:.1f} dB",
        )


def percent(share: float) -> str:
    """A share as text, such as "0.031 %"."""
    if share == inf:
        return "infinite"
    return f"{100 * share:.3g} %" if share < 9.995 else f"{share:.3g} times"


def compare_value(
    name: str,
    operation: Operation | None,
    value: np.ndarray,
    reference: np.ndarray,
    errors: Mapping[str, float],
) -> Gap:
    """A value of A and B's. errors: of the values before it, by name."""
    op, read = (operation.type, uses(operation)) if operation else ("", ())
    known = {source: errors[source] for source in read if source in errors}
    gap = Gap(name, op, value.shape, reference.shape, inf, inputs=known)
    if _squeezed(value) != _squeezed(reference):
        return gap
    if not value.size:
        return replace(gap, error=0.0)
    a, b = value.astype(np.float64), reference.reshape(value.shape).astype(np.float64)
    return replace(gap, **_statistics(a, b))


def _squeezed(array: np.ndarray) -> list[int]:
    return [size for size in array.shape if size != 1]


def _statistics(a: np.ndarray, b: np.ndarray) -> dict[str, Any]:
    """Everything of `Gap` that is a number; a, b: float64 of one shape, not empty."""
    with np.errstate(invalid="ignore"):
        apart = np.asarray(np.abs(a - b))  # of rank 0, numpy gives a number
    apart[(a == b) | (np.isnan(a) & np.isnan(b))] = 0  # infinities agree
    apart[np.isnan(apart)] = inf  # one side has a number
    worst = tuple(int(i) for i in np.unravel_index(apart.argmax(), apart.shape))
    finite = np.isfinite(a) & np.isfinite(b)
    x, y, noise = a[finite], b[finite], apart[finite]
    scale = float(np.abs(y).max(initial=0)) or float(np.abs(x).max(initial=0))
    max_abs, power, lost = float(apart.max()), float((y**2).sum()), float((noise**2).sum())
    length = sqrt(float((x**2).sum()) * power)
    return {
        "error": max_abs / scale if max_abs and scale else max_abs,
        "max_abs": max_abs,
        "max_relative": float((noise[y != 0] / np.abs(y[y != 0])).max(initial=0)),
        "cosine": float((x * y).sum()) / length if length else float(power == lost),
        "snr": _decibels(power, lost),
        "psnr": _decibels(scale**2 * x.size, lost),
        "worst": worst,
        "elements": (float(a[worst]), float(b[worst])),
    }


def _decibels(signal: float, noise: float) -> float:
    if not noise:
        return inf
    return 10 * log10(signal / noise) if signal else -inf
