"""Texts of strangers that would become a part of a control token beside what a template writes."""

from functools import lru_cache
import re
from typing import Any

#: Texts by which templates tell what is what, and which are in some markers.
STRUCTURE = {"assistant", "content", "function", "name", "system", "tool", "tool_calls", "user"}


def kept_apart(value: Any, markers: tuple[str, ...], cut: str) -> Any:
    """A JSON value with `cut` around each text that is a part of a marker, or has one at an end: a
    template may write the rest beside it, as in `<{{ key }}>`."""
    if isinstance(value, dict):
        pairs = value.items()
        return {kept_apart(k, markers, cut): kept_apart(v, markers, cut) for k, v in pairs}
    if isinstance(value, list | tuple):
        return [kept_apart(each, markers, cut) for each in value]
    if not isinstance(value, str) or not value or value in STRUCTURE:
        return value
    return f"{cut}{value}{cut}" if _joins(value, markers) else value


def _joins(text: str, markers: tuple[str, ...]) -> bool:
    """Whether a text would be a marker with signs, such as brackets, before or behind it, or ends
    or begins as one with a sign does."""
    begins, ends = _parts(markers)
    longest = max(map(len, markers), default=0)
    if any(text[-n:] in begins or text[:n] in ends for n in range(1, min(longest, len(text) + 1))):
        return True
    return len(text) <= longest and any(
        text in marker and re.sub(r"^\W+|\W+$", "", marker) in text for marker in markers
    )


@lru_cache(maxsize=8)
def _parts(markers: tuple[str, ...]) -> tuple[frozenset[str], frozenset[str]]:
    """The beginnings of markers, and the ends, that have a sign."""
    pairs = [(marker[:n], marker[n:]) for marker in markers for n in range(1, len(marker))]
    begins, ends = zip(*pairs, strict=True) if pairs else ((), ())
    signed = re.compile(r"\W").search
    return frozenset(filter(signed, begins)), frozenset(filter(signed, ends))
