"""Read what others measured on a Neural Engine, from research/measurements/published.json.

Each figure has its source, its grade, and whether it was checked against the source. Figures of
decode, and of calls that read weights once as decode does, also have the work of a token, the part
that they have in the cost model (their role) and, if they are left out of the fit, the reason.
"""

from dataclasses import dataclass
import json
from pathlib import Path
from typing import Any, Literal, get_args

from ane_book.errors import InvalidInput
from ane_book_pages import records
from mlprogram.ane.claims import GRADES
from mlprogram.ane.cost.chips import BORROWED, chips
from mlprogram.ane.cost.model import TokenWork

Role = Literal["fit", "range", "new"]


@dataclass(frozen=True)
class Figure:
    """A published time of a token in decode, or of one call that reads its weights once.

    ms: as published, or from tokens per second or bytes per second. chip: its name for `find_chip`;
    None if nobody has published its bandwidth. path: the interface, "coreml", "coreai" or
    "private". work: None if the bytes are not published. series: the one that it is a point of.
    left_out: why the three numbers are not fitted to it, or "". cannot_be: why, by its own source,
    it is not what it claims. role: "fit" if the three numbers are fitted to it, "range" if an end
    of a range rests on it, "new" if it had no part in either.
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
    role: Role = "fit"

    @property
    def name(self) -> str:
        """The model without its bits and graph, by which figures of one model are counted once."""
        return self.model.split()[0].rstrip(",")


def read_rows(path: Path | None = None) -> list[dict[str, Any]]:
    """Read the rows of a file, by default of the one above.

    Raises InvalidInput if it is not such a file.
    """
    path = path or records.find("measurements/published.json")
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
    """Raise an exception, of any kind, if a row lacks a required field."""
    if row["grade"] not in GRADES or not row["value"] > 0:
        raise ValueError(f"grade {row['grade']!r}, value {row['value']!r}")
    if not (row["id"] and row["model"] and row["unit"] and row["source"]["path"]):
        raise ValueError("it has no id, model, unit or source")
    if not row["checked"]["done"] and not row["checked"].get("why_not"):
        raise ValueError("it was not checked, and does not say why")
    _figure(row)


def figures_of(rows: list[dict[str, Any]]) -> list[Figure]:
    """The rows that are times of a token in decode."""
    found = (_figure(row) for row in rows)
    return [figure for figure in found if figure]


def _figure(row: dict[str, Any]) -> Figure | None:
    """A row as a figure of decode, or None."""
    if "decode" not in row:
        return None
    decode, chip = row["decode"], "-".join((row["chip"] or "").lower().split())
    if decode.get("role", "fit") not in get_args(Role):
        raise ValueError(f"{decode['role']!r} is no role of a figure")
    return Figure(
        row["id"],
        row["model"],
        chip if chip in chips() or chip in BORROWED else None,
        _ms(row["value"], row["unit"], decode["weight_bytes"]),
        _work(decode),
        decode["slots"],
        decode["programs"],
        decode["path"],
        decode.get("series", ""),
        row.get("left_out", ""),
        row.get("cannot_be", ""),
        decode.get("role", "fit"),
    )


def _ms(value: float, unit: str, nbytes: int | None) -> float:
    """A published value as milliseconds a token."""
    if unit == "tok/s":
        return 1e3 / value
    if unit == "GB/s" and nbytes:
        return nbytes / (value * 1e6)
    if unit not in ("ms", "ms/token"):
        raise ValueError(f"a time of decode is in no {unit!r}")
    return value


def _work(decode: dict[str, Any]) -> TokenWork | None:
    if decode["weight_bytes"] is None or decode["form"] == "block":
        return None
    packed = decode["packed_bytes"]
    cache = decode["slots"] * decode["slot_bytes"]
    plain = decode["weight_bytes"] - packed
    return TokenWork(plain, packed, cache, decode["programs"], slots=decode["slots"])
