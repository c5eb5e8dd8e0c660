"""The tables of Apple's tests say what the record says, each case once."""

import re

from ane_book_pages import conformance, records

RUN = records.read("conformance.json")


def numbers(table: str, column: int) -> list[int]:
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return [int(row[column].replace(",", "")) for row in rows]


def test_every_failed_case_has_its_reason_once():
    failed = numbers(conformance.runs(RUN), 2)
    text = conformance.failures(RUN)
    by_reason = [int(n.replace(",", "")) for n in re.findall(r"^([\d,]+) failed\.", text, re.M)]
    by_test = [int(n) for n in re.findall(r"^- (\d+) ×", text, re.M)]
    assert sum(failed) == sum(by_reason) == sum(by_test) > 0


def test_cases_with_and_without_a_prediction_are_all_that_were_collected():
    counted = numbers(conformance.runs(RUN), 1) + numbers(conformance.idle(RUN), 1)
    assert sum(counted) == RUN["collected"]


def test_a_case_that_notices_has_passed():
    passed, notice = (numbers(conformance.runs(RUN), column) for column in (3, 4))
    assert all(0 < n <= most for n, most in zip(notice, passed, strict=True))


def test_every_operation_has_a_row():
    found = re.findall(r"^\| <code>(.*?)</code> \| ", conformance.operations(RUN), re.M)
    assert sorted(name.replace("\\_<wbr>", "_") for name in found) == sorted(RUN["ops"])


def test_sizes_are_of_each_run_and_side():
    rows = conformance.sizes(RUN).splitlines()[2:]
    sides = [kind.keys() & {"expected", "single"}
             for kinds in RUN["predicted"].values() for kind in kinds.values()]  # fmt: skip
    assert len(rows) == sum(map(len, sides)) and "0 | 5e‑7 | 7e-05" in rows[0].replace("‑5", "-05")
