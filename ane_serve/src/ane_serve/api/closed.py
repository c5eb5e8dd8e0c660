"""`Closed`: a part of a request with known fields alone."""

from collections.abc import Collection, Mapping
from typing import Any

from ane_book.text.chat import DEEPEST, too_deep
from ane_serve.api.refusal import Refusal
from pydantic import BaseModel, ConfigDict, model_validator


def check_depth(given: dict) -> None:
    """Raise Refusal for a body whose lists and objects lie too deep in each other."""
    if too_deep(given):
        message = f"the body is nested more than {DEEPEST} deep"
        raise Refusal(400, message, code="invalid_value")


def asking(given: dict, unserved: Mapping[str, Collection], heedless: Collection[str]) -> dict:
    """The fields of a request that ask for something; raises Refusal for what is not served.

    unserved: fields that are not, with the values that ask for nothing, as None does everywhere.
    heedless: fields that change no answer.
    """
    check_depth(given)
    for name, neutral in unserved.items():
        if given.get(name) is not None and not any(_same(given[name], own) for own in neutral):
            message = f"{name} is not served here; leave it out"
            raise Refusal(400, message, code="unsupported_parameter", param=name)
    aside = {*unserved, *heedless}
    return {name: own for name, own in given.items() if name not in aside and own is not None}


def _same(a: Any, b: Any) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)


class Closed(BaseModel):
    """Fields that are known, and no others."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _fields(cls, given: Any) -> Any:
        """Keep known fields and the first unknown one, so that a single fault is reported."""
        if not isinstance(given, dict):
            return given
        given = cls._asked(given)
        known = [field.alias or name for name, field in cls.model_fields.items()]
        unknown = next(([name] for name in given if name not in known), [])
        return {name: given[name] for name in [*known, *unknown] if name in given}

    @classmethod
    def _asked(cls, given: dict) -> dict:
        """Drop fields that ask for nothing; a subclass says which."""
        return given
