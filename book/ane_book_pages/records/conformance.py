"""Apple's tests of the executor, as the tables that a page shows of research/conformance.json.

A case is one program of coremltools' own test suite with inputs and expected outputs. One that
passes *notices* if it fails with the executor broken on purpose. `tests/conformance/run.py` writes
the record, whose `teeth` are those that notice and those that failed already.
"""

from collections.abc import Iterator, Sequence
from typing import Any

KINDS = {
    "fp32": "single precision",
    "fp16": "as Apple ships them",
    "fp32, fp16 tensors": "mixed",
}
SUITES = {"ops": "operations", "torch": "from PyTorch"}


def markdown(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """A table; every column but the first holds numbers."""
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in (head, rule, *rows))


def _found(run: dict) -> Iterator[tuple[str, dict[str, Any]]]:
    """(the run in words, its counts) of each run that the record has."""
    for suite, text in SUITES.items():
        for kind, words in KINDS.items():
            if found := run["predicted"].get(suite, {}).get(kind):
                yield f"{text}, {words}", found


def runs(run: dict) -> str:
    """Of each run: cases, how many failed, how many passed, how many of those notice."""
    rows = [
        (words, *(f"{n:,}" for n in (passed + failed, failed, passed, found["teeth"] - failed)))
        for words, found in _found(run)
        for passed, failed in [(found["passed"], found["failed"])]
    ]
    return markdown(["run", "cases", "failed", "passed", "of these notice"], rows)


def failures(run: dict) -> str:
    """Every failed test under its reason, with the number of its cases."""
    return "\n\n".join(_explained(reason, tests) for reason, tests in run["failures"].items())


def _explained(reason: str, tests: dict[str, list]) -> str:
    text = reason if reason != "None" else "Nobody has explained these yet."
    lines = [f"{sum(map(len, tests.values())):,} failed. {text}", ""]
    for test, cases in sorted(tests.items(), key=lambda item: -len(item[1])):
        name = test.replace("/test_", ".").replace(".py::", ".").replace("::", ".")
        lines.append(f"- {len(cases)} × {_code(name)}")
    return "\n".join(lines)


def _code(name: str) -> str:
    """A name in the type of code that a narrow screen may break in two."""
    for sign in "_.":
        name = name.replace(sign, f"\\{sign}<wbr>")
    return f"<code>{name}</code>"
