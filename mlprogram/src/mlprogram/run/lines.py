"""Numbers in nested tuples and lists that lie on a straight line: two places give all others.

A table of calls that is recorded for two sizes holds offsets, counts and strides. Where each of
them is the same, or grows in proportion, that gives the table for every size between.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np


class Row:
    """rows: numbers at the first and at the last of the places."""

    def __init__(self, places: Sequence[int], rows: Sequence[Sequence[int]]):
        self._first, last = (np.array(row, np.int64) for row in (rows[0], rows[-1]))
        self._origin, run = places[0], max(places[-1] - places[0], 1)
        self._slope = (last - self._first) // run
        self._is_level = not self._slope.any()

    def at(self, place: int) -> np.ndarray:
        """The numbers, int64 (n,), which are not to be written to."""
        if self._is_level:
            return self._first
        return self._first + self._slope * (place - self._origin)


class Line:
    """structures: one at the first and at the last of the places, whose members but for numbers
    are equal. One that is the same at both is not taken apart."""

    def __init__(self, places: Sequence[int], structures: Sequence[Any]):
        self._last = places[0], structures[0]
        self._is_level = structures[0] == structures[-1]
        if not self._is_level:
            numbers: list[list[int]] = [[], []]
            self._form, _ = map(_form, (structures[0], structures[-1]), numbers)
            self._row = Row(places, numbers)

    def at(self, place: int) -> Any:
        """The structure, which is not to be written to; its lists may be tuples."""
        last = self._last
        if last[0] != place and not self._is_level:
            last = self._last = place, _filled(self._form, iter(self._row.at(place).tolist()))
        return last[1]


def is_straight(places: Sequence[int], structures: Sequence[Any]) -> bool:
    """Whether a structure at some places has equal members but for numbers in proportion."""
    rows: list[list[int]] = [[] for _ in places]
    forms = [_form(structure, row) for structure, row in zip(structures, rows, strict=True)]
    if any(form != forms[0] for form in forms):
        return False
    first, *others = (np.array(row, np.int64) for row in rows)
    if not others:
        return True
    run = places[-1] - places[0]
    rise = others[-1] - first
    return all(
        np.array_equal((found - first) * run, rise * (place - places[0]))
        for place, found in zip(places[1:], others, strict=True)
    ) and not (rise % run).any()


def _form(structure: Any, numbers: list[int]) -> Any:
    """The structure without its numbers, which go to a list."""
    if type(structure) is int:
        numbers.append(structure)
        return ...
    if isinstance(structure, tuple | list):
        return tuple([_form(item, numbers) for item in structure])
    return structure


def _filled(form: Any, numbers: Iterator[int]) -> Any:
    if form is ...:
        return next(numbers)
    return tuple([_filled(f, numbers) for f in form]) if isinstance(form, tuple) else form
