"""Figures that others measured on a Neural Engine: research/measurements/published.json.

Each has its source, its grade, and whether it was checked against the source. Those of decode say
too what a token asked of the engine, and, where a figure is of no use to the model, why.
"""

from dataclasses import dataclass
import json
from pathlib import Path
from typing import Any

from ane_book.claims import GRADES
from ane_book.errors import InvalidInput
from ane_book.evidence.cost.chips import chips
from ane_book.evidence.cost.model import TokenWork

__all__ = ["Figure", "decode_figures", "read_rows"]


@dataclass(frozen=True)
class Figure:
    """A published time of a token of decode.

    ms: as published, or from tokens a second. chip: its key in `chips()`, None where no bandwidth
    of it is published. path: "coreml", "coreai" or "private", the interface. work: None where the
    bytes are not published. series: of which it is a point. left_out: why the model is not held
    against it, "" where it is. cannot_be: why it is not what it claims, by its source.
    """

    id: str
    model: str
    chip: str | None
    ms: float
    work: TokenWork | None
    slots: int
    programs: int
    path: str
    series: str = ""
    left_out: str = ""
    cannot_be: str = ""


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of the file; InvalidInput where it holds none."""
    try:
        rows = json.loads(Path(path).read_text(encoding="utf-8"))["rows"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{path}: no file of published measurements ({error})") from None
    for number, row in enumerate(rows, 1):
        try:
            _check(row)
        except KeyError as error:
            raise InvalidInput(f"{path}, row {number}: it has no {error}") from None
        except (TypeError, ValueError, AttributeError, InvalidInput) as error:
            raise InvalidInput(f"{path}, row {number}: {error}") from None
    return rows


def _check(row: dict[str, Any]) -> None:
    """Raise something where a row lacks what every row has."""
    if row["grade"] not in GRADES or not row["value"] > 0:
        raise ValueError(f"grade {row['grade']!r}, value {row['value']!r}")
    if not (row["id"] and row["model"] and row["unit"] and row["source"]["path"]):
        raise ValueError("it has no id, model, unit or source")
    if not row["checked"]["done"] and not row["checked"].get("why_not"):
        raise ValueError("it was not checked, and does not say why")
    _figure(row, {})


def decode_figures(rows: list[dict[str, Any]]) -> list[Figure]:
    """Those of the rows that time a token of decode."""
    keys = {claim.chip: key for key, claim in chips().items()}
    found = (_figure(row, keys) for row in rows)
    return [figure for figure in found if figure]


def _figure(row: dict[str, Any], keys: dict[str, str]) -> Figure | None:
    """A row as a figure of decode; None where it is none. keys: by the chips' names."""
    if "decode" not in row:
        return None
    decode, value, unit = row["decode"], row["value"], row["unit"]
    if unit not in ("tok/s", "ms", "ms/token"):
        raise ValueError(f"a time of decode is in no {unit!r}")
    return Figure(
        row["id"],
        row["model"],
        keys.get(row["chip"]),
        1e3 / value if unit == "tok/s" else value,
        _work(decode),
        decode["slots"],
        decode["programs"],
        decode["path"],
        decode.get("series", ""),
        row.get("left_out", ""),
        row.get("cannot_be", ""),
    )


def _work(decode: dict[str, Any]) -> TokenWork | None:
    if decode["weight_bytes"] is None or decode["form"] == "block":
        return None
    packed = decode["packed_bytes"]
    cache = decode["slots"] * decode["slot_bytes"]
    plain = decode["weight_bytes"] - packed
    return TokenWork(plain, packed, cache, decode["programs"], slots=decode["slots"])
