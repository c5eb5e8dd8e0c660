"""What the grammars of answers and of calls of tools have in common."""

from collections.abc import Iterator, Mapping
from decimal import Decimal
import json
from math import lcm
from typing import Any

from ane_book.errors import InvalidInput

#: Of a JSON schema's grammar: the white space between parts, which a small model else never ends.
SPACED = {"whitespace_pattern": r"[ \t\r\n]{0,64}"}
OF_NUMBERS = {
    "const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
}  # fmt: skip
#: The largest common multiple, but for zeros at its end: for 100 times it llguidance takes minutes.
MULTIPLE = 9999
OF_SCHEMAS = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}


def check_numbers(place: str, schema: Any) -> None:
    """Raise InvalidInput for a number that llguidance would round, since it reads doubles; a const
    of -2**63 even crashes it, with the process. The largest integer of 64 bits is kept. So are
    multiples refused that take llguidance minutes and gigabytes."""
    common = 1
    for keyword, number in _numbers(schema):
        if abs(number) >= 1 << 53 and number != (1 << 63) - 1:
            raise InvalidInput(
                f"{place}: {keyword} {number!r:.40} cannot be held to, since numbers from 2**53 on "
                "are rounded; leave it out, or ask for a string"
            )
        if keyword == "multipleOf":
            digits = Decimal(repr(float(number))).normalize().as_tuple().digits
            common = lcm(common, int("".join(map(str, digits)) or "0") or 1)
            if int(str(common).rstrip("0")) > MULTIPLE:
                raise InvalidInput(
                    f"{place}: multipleOf {number!r:.40} cannot be held to, since the common "
                    f"multiple of it and others has too many digits; {MULTIPLE} is the largest"
                )


def _numbers(schema: Any) -> Iterator[tuple[str, float]]:
    """The numbers by which a schema says what is valid, each with its keyword."""
    if isinstance(schema, list):
        for each in schema:
            yield from _numbers(each)
    if not isinstance(schema, dict):
        return
    for key, value in schema.items():
        if key in OF_SCHEMAS and isinstance(value, dict):
            yield from _numbers(list(value.values()))
        elif key in OF_NUMBERS:
            yield from ((key, number) for number in _leaves(value))
        else:
            yield from _numbers(value)


def _leaves(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _leaves(each)
    elif isinstance(value, int | float):
        yield value


def end_of_thought(end: str, special: Mapping[str, int]) -> list[str]:
    """The rules of a thought up to its end, `ended` first."""
    named = f" | FREE <[{special[end]}]>" if end in special else ""
    spelled = f"spelled_end[lazy]: FREE {json.dumps(end)}"
    return [f"ended: spelled_end{named}", spelled, r"FREE: /(.|\n)*/"]
