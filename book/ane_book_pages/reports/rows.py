"""Filed device rows beside what was predicted of them, wrong ones first.

    rows = filed()                  # of research/rows/, each checked
    for line in judged(rows): ...   # those that nobody fitted anything to

A row says `fitted` where somebody fitted a model to it. Such a row is not judged here, since it
would agree by construction; and what fits models to figures reads no rows.

Shown on the page "Reports and reference models".
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ane_book_pages import records
from mlprogram.ane import claims
from mlprogram.ane.mac.row import read_rows
from mlprogram.ane.mac.row.form import NOT_FINITE

APART = 0.1  # of an output's largest value: numbers that differ by more count as wrong
ENGINE = "CPU_AND_NE"  # what placement is predicted for
SELECT = "state-select"  # the one package whose state is written whole


@dataclass(frozen=True)
class Line:
    """One prediction, and what a Mac answered. wrong: the share of it that was wrong, 0 to 1."""

    machine: str
    package: str
    predicted: str
    found: str
    wrong: float


def filed() -> list[dict]:
    """The rows of research/rows/, by the names of their files. Raises InvalidInput."""
    folder = records.find("rows/README.md").parent
    return [*read_rows(sorted(folder.glob("*.json"))).values()]


def judged(rows: Iterable[dict]) -> list[Line]:
    """Placement, numbers and states of the rows that nothing was fitted to, wrong ones first."""
    lines = [line for row in rows if not row["fitted"] for line in _lines(row)]
    return sorted(lines, key=lambda line: -line.wrong)


def _lines(row: dict) -> Iterator[Line]:
    machine = f"{row['chip']}, {row['system']}"
    for package in row["packages"]:
        for predicted, found, wrong in _answers(package, row["system"]):
            yield Line(machine, package["name"], predicted, found, wrong)


def _answers(package: dict, system: str) -> Iterator[tuple[str, str, float]]:
    """What was predicted of a package, what was found, and the share of it that was wrong."""
    units = package["units"]
    if ENGINE in units:
        yield _placed(package, units[ENGINE])
    for name, found in units.items():
        if "difference" in found:
            apart = found["difference"]
            said = f"the executor's numbers on {name}"
            if apart == NOT_FINITE:
                yield said, "values that are no numbers", 1.0
            else:
                yield said, f"{100 * apart:.2g} % apart", float(apart > APART)
        if "kept" in found:
            yield _state(package["name"], system, name, found["kept"])


def _placed(package: dict, found: dict) -> tuple[str, str, float]:
    """What was predicted of the ops, what was planned, and the share that is planned otherwise."""
    predicted = {key: count for key, count in package["predicted"].items() if key != "chip"}
    same, of = package.get("as_predicted", (0, 1))
    planned = _counted(found.get("ops", {}))
    ended = found.get("failed", f"{same} of {of} as predicted")
    return f"ops: {_counted(predicted)}", f"{planned or 'no plan'}; {ended}", 1 - same / of


def _counted(ops: dict[str, int]) -> str:
    return ", ".join(f"{count} {device.lower()}" for device, count in ops.items())


def _state(package: str, system: str, units: str, kept: bool) -> tuple[str, str, float]:
    """What claim state-slice says of the system, and what the state test found."""
    lost = package != SELECT and system.partition(".")[0] == claims.find("state-slice").os
    words = ("lost", "kept")
    said = f"a written state is {words[not lost]} on {units}"
    return said, words[kept], float(kept == lost)
