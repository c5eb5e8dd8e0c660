"""What a device row may hold, and how one is read, checked, written down and handed in.

    row = read_row("m4-macos-26.1.json")  # raises InvalidInput, with one line that says what
    print(text(row))

A row is one JSON object of at most 4 KB. Every text in it has a fixed form, so there is no place
for a path or for the name of a user, a machine or a model. `FIELDS` says it all.
"""

from collections.abc import Callable, Iterable, Mapping
import datetime
import json
from pathlib import Path
import re
from urllib.parse import quote

from mlprogram.errors import InvalidInput

FORMAT = "mlprogram row 1"
MAX_BYTES = 4096
ISSUES = "https://github.com/ane-book/ane-book/issues/new"  # where a row is handed in
LONGEST_LINK = 8000  # characters; GitHub's servers are said to refuse an address of over 8 KB

UNITS = ("CPU_ONLY", "CPU_AND_GPU", "CPU_AND_NE", "ALL")
DEVICES = ("cpu", "gpu", "ane", "other")
OWN = "own"  # what a package of one's own is called
NAMES = ("convolutions", "layer-host", "layer-state", "state-slice", "state-select", OWN)
#: Of anemon's fields (751K/apple-neural-engine-monitor README), those that a row keeps.
WATCHED = ("ane_busy_pct", "ane_power_w", "ane_throttle_pct", "dram_read_gbs", "dram_write_gbs")
REASONS = (
    "a virtual machine has no Neural Engine",
    "a Mac with an Intel processor has no Neural Engine",
    "anemon is not on PATH",
    "anemon gave no figure",
)
CHIP = r"Apple [A-Z]\d{1,2}( (Pro|Max|Ultra))?( \(Virtual\))?|Intel|another"
NOT_FINITE, WRONG, LATE = "not finite", "wrong outputs", "no time left"
#: How a child ended and what it was doing, both in our own words, and what the compiler failed at.
FAULT = (
    r"failed to (load for the engine|compile for the engine|build the plan)"
    r"( \(status -?\d{1,10}\))?"
)
FAILED = (
    r"(hung|out of memory|SIG[A-Z0-9]{1,9}|exit status \d{1,3}) at "
    rf"(its start|compiling|the end|((loading|predicting) on|the plan for) "
    rf"(no other|{'|'.join(UNITS)}))|{WRONG}|{LATE}"
)
LINES = re.compile(rf'(?=\{{"name":|"({"|".join(UNITS)})":)')  # a package, or units, begin one
VERSION = r"\d{1,3}(\.\d{1,5}){1,3}((a|b|rc|\.?dev|\.?post)\d{1,4}){0,2}"

Check = Callable[[object, str], None]  # raises InvalidInput of a value; the text says where it is
Row = dict


def _refuse(where: str, what: str) -> InvalidInput:
    return InvalidInput(f"{where or 'the row'}: {what}")


def _number(low: float, high: float, whole: bool = False) -> Check:
    """An int, or a float if not `whole`, from `low` to `high`."""

    def check(value: object, where: str) -> None:
        kinds = int if whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise _refuse(where, f"{_shown(value)} is no {'whole ' * whole}number")
        if not low <= value <= high:
            raise _refuse(where, f"{_shown(value)} is not from {low:,} to {high:,}")

    return check


def _text(pattern: str, what: str) -> Check:
    def check(value: object, where: str) -> None:
        if not (isinstance(value, str) and re.fullmatch(pattern, value, re.ASCII)):
            raise _refuse(where, f"{_shown(value)} is not {what}")

    return check


def _one_of(words: Iterable[str]) -> Check:
    words = [*words]
    return _text("|".join(map(re.escape, words)), "one of " + ", ".join(words))


def _record(needed: Mapping[str, Check], more: Mapping[str, Check] | None = None) -> Check:
    """An object that has all of `needed`, maybe some of `more`, and nothing else."""
    known = {**needed, **(more or {})}

    def check(value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise _refuse(where, f"{_shown(value)} is no object")
        at = f"{where}." if where else ""
        for name in needed:
            if name not in value:
                raise _refuse(f"{at}{name}", "is missing")
        for name, own in value.items():
            if name not in known:
                raise _refuse(where, f"{_shown(name)} is no field of it")
            known[name](own, f"{at}{name}")

    return check


def _list(check_one: Check, low: int, high: int) -> Check:
    def check(value: object, where: str) -> None:
        if not (isinstance(value, list) and low <= len(value) <= high):
            raise _refuse(where, f"is no list of {low} to {high}")
        for number, own in enumerate(value):
            check_one(own, f"{where}[{number}]")

    return check


def _flag(value: object, where: str) -> None:
    if not isinstance(value, bool):
        raise _refuse(where, f"{_shown(value)} is neither true nor false")


def _difference(value: object, where: str) -> None:
    if value != NOT_FINITE:
        _number(0, 1e6)(value, where)


def _date(value: object, where: str) -> None:
    _text(r"\d{4}-\d\d-\d\d", "a date such as 2026-12-01")(value, where)
    latest = datetime.date.today() + datetime.timedelta(days=1)
    try:
        known = datetime.date(2026, 11, 1) <= datetime.date.fromisoformat(str(value)) <= latest
    except ValueError:
        known = False
    if not known:
        raise _refuse(where, f"{_shown(value)} is no date from 2026-11-01 to today")


def _shown(value: object) -> str:
    """A value in a message, of which a file may have put in anything."""
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


_COUNT, _SECONDS = _number(0, 100_000, whole=True), _number(0, 3600)
_OPS = _record({}, dict.fromkeys(DEVICES, _COUNT))
#: ops: planned, by device. first_s, second_s: loads. median_ms, min_ms: of 20 calls. difference:
#: the largest to the executor's outputs, as a share of the largest value of the output. kept:
#: whether the states hold after two calls what both wrote. failed: why there is nothing else.
_ON_UNITS = _record(
    {},
    {
        "ops": _OPS, "first_s": _SECONDS, "second_s": _SECONDS,
        "median_ms": _number(0, 3.6e6), "min_ms": _number(0, 3.6e6),
        "difference": _difference, "kept": _flag,
        "failed": _text(FAILED, "how a child ended"),
    },
)  # fmt: skip
#: predicted: ops by `mlprogram place`'s word, for a chip of its tables. as_predicted: how many ops
#: are planned so, of how many with a plan and a sure prediction. compiler: what it failed at.
_PACKAGE = _record(
    {
        "name": _one_of(NAMES), "sha256": _text("[0-9a-f]{32}", "32 digits of a sha256"),
        "predicted": _record(
            {"chip": _text(r"any|[am]\d{1,2}(-(pro|max|ultra))?", "a chip of `mlprogram place`")},
            {"ANE": _COUNT, "CPU": _COUNT, "depends": _COUNT},
        ),
        "units": _record({}, dict.fromkeys(UNITS, _ON_UNITS)),
    },
    {
        "as_predicted": _list(_COUNT, 2, 2),
        "compiler": _text(FAULT, "what a compiler fails at"),
    },
)  # fmt: skip
#: fitted: whether somebody fitted anything to this row; such a row judges nothing.
FIELDS = _record(
    {
        "format": _one_of([FORMAT]), "date": _date, "fitted": _flag,
        "chip": _text(CHIP, "a chip such as Apple M4 Max"),
        "system": _text(r"macOS \d{1,2}\.\d{1,2}", "a system such as macOS 26.1"),
        "coremltools": _text(VERSION, "a version"), "mlprogram": _text(VERSION, "a version"),
        "packages": _list(_PACKAGE, 1, len(NAMES)),
    },
    {
        "anemon": _record({}, dict.fromkeys(WATCHED, _number(0, 10_000))),
        "unmeasured": _record({}, dict.fromkeys((*UNITS[2:], "anemon"), _one_of(REASONS))),
    },
)  # fmt: skip


def check_row(row: object) -> None:
    """Raise InvalidInput if the row is not as `FIELDS` says, or contradicts itself."""
    if isinstance(row, dict) and row.get("format") != FORMAT:
        found = row.get("format")
        newer = re.fullmatch(r"mlprogram row \d{1,6}", found) if isinstance(found, str) else None
        why = "is of another version of mlprogram; take that one" if newer else "is no device row"
        raise _refuse("format", f"{_shown(found)} {why}")
    FIELDS(row, "")
    assert isinstance(row, dict)
    names = [package["name"] for package in row["packages"]]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise _refuse("packages", f"{twice} is there twice")
    for package in row["packages"]:
        where = f"packages.{package['name']}"
        same, of = package.get("as_predicted", (0, 1))
        if same > of or of == 0:
            raise _refuse(f"{where}.as_predicted", f"{same} of {of} cannot be")
        told = package["units"].keys() | row.get("unmeasured", {}).keys()
        if missing := next((units for units in UNITS if units not in told), None):
            raise _refuse(f"{where}.units", f"{missing} is neither measured nor unmeasured")
        for units, found in package["units"].items():
            if units in row.get("unmeasured", {}):
                raise _refuse(f"{where}.units.{units}", "is measured and unmeasured")
            if found.get("min_ms", 0) > found.get("median_ms", 0):
                raise _refuse(f"{where}.units.{units}.min_ms", "is more than the median")
            if ("failed" in found) == ("median_ms" in found):
                raise _refuse(f"{where}.units.{units}", "either failed or median_ms says how")


def text(row: Row) -> str:
    """The row as it is filed, a line for each set of units. Raises InvalidInput of an unfit one."""
    check_row(row)
    written = LINES.sub("\n", json.dumps(row, separators=(",", ":"))) + "\n"
    if len(written) > MAX_BYTES:
        raise InvalidInput(
            f"the row: {len(written):,} bytes, of at most {MAX_BYTES:,}; please tell us"
        )
    return written


def link(row: Row) -> str | None:
    """The address of an issue with the row filled in, or None if it would be too long to open."""
    names = " ".join(package["name"] for package in row["packages"])
    title = f"Device row: {row['chip']}, {row['system']}, {names}"
    body = f"```json\n{text(row)}```\n"
    address = f"{ISSUES}?title={quote(title)}&body={quote(body, safe=':,/')}"
    return address if len(address) <= LONGEST_LINK else None


def read_row(path: str | Path) -> Row:
    """The row in a file. Raises InvalidInput: no row, damaged, or more than a row may hold."""
    path = Path(path)
    try:
        if not path.is_file():  # a pipe would be waited for
            raise InvalidInput(f"{path}: no such file")
        if (size := path.stat().st_size) > MAX_BYTES:
            raise InvalidInput(f"{path}: {size:,} bytes, and a row has at most {MAX_BYTES:,}")
        row = json.loads(
            path.read_bytes().decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant
        )
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        why = " ".join(str(error).split())[:100]
        raise InvalidInput(f"{path}: not the JSON of a row ({why})") from None
    try:
        check_row(row)
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None
    return row


def read_rows(paths: Iterable[str | Path]) -> dict[Path, Row]:
    """The rows in several files. Raises InvalidInput, also where two hold the same measurement."""
    rows: dict[Path, Row] = {}
    seen: dict[str, Path] = {}
    for path in {each.resolve(): each for each in map(Path, paths)}.values():
        rows[path] = read_row(path)
        told = {k: v for k, v in rows[path].items() if k not in ("date", "fitted")}
        first = seen.setdefault(json.dumps(told, sort_keys=True), path)
        if first != path:
            raise InvalidInput(f"{path}: the same measurement as {first.name}")
    return rows


def _once(pairs: list[tuple[str, object]]) -> dict:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field is there twice")
    return fields


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
