"""Apple's tests of the executor, as the tables that a page shows of research/conformance.json.

A case is one program of coremltools' own test suite with inputs and expected outputs. One that
passes *notices* if it fails with the executor broken on purpose. `tests/conformance/run.py` writes
the record, whose `teeth` are those that notice and those that failed already.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from mlprogram.ops import OPS

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


def _cases(found: dict) -> int:
    return found["passed"] + found["failed"]


def _notice(found: dict) -> int:
    return found["teeth"] - found["failed"]


def runs(run: dict) -> str:
    """Of each run: cases, how many failed, how many passed, how many of those notice."""
    counts = [
        (words, _cases(f), f["failed"], f["passed"], _notice(f)) for words, f in _found(run)
    ]
    rows = [(words, *(f"{n:,}" for n in numbers)) for words, *numbers in counts]
    return markdown(["run", "cases", "failed", "passed", "of these notice"], rows)


def sizes(run: dict) -> str:
    """How far the passed cases are off, as shares of the expected values' range."""
    sides = {"expected": "Apple's", "single": "single"}
    rows = [
        (words, side, *map(_size, found[name]))
        for words, found in _found(run)
        for name, side in sides.items()
        if name in found
    ]
    return markdown(["run", "against", "half within", "99 % within", "all"], rows)


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


def idle(run: dict) -> str:
    """Why cases predict nothing, most common first."""
    causes: Counter[str] = Counter()
    for cause, count in run["without_prediction"].items():
        causes[_cause(cause)] += count
    return markdown(["why", "cases"], [(why, f"{n:,}") for why, n in causes.most_common()])


def _cause(cause: str) -> str:
    if not cause.startswith("skipped"):
        said = {"passed": "passed, nothing to predict",
                "xfailed": "expected by Apple to fail, and does"}  # fmt: skip
        return said[cause]
    text = cause.split(": ", 2)[-1]
    if text.startswith("got empty parameter set"):
        text = "a test without cases for these systems"
    if "neural" in text:
        text = "a neural network, not an ML Program"
    if text.startswith("rdar"):
        text += " (Apple's own bug number)"
    return f"skipped: {text}"


def operations(run: dict) -> str:
    """Of each operation, by the file that defines it: cases that notice, failures, its error."""
    groups = defaultdict(list)
    for op in sorted(run["ops"]):
        module = OPS[op].function.__module__ if op in OPS else "structure"
        groups[module.rsplit(".", 1)[-1].replace("_", " ")].append(op)
    rows: list[Sequence[object]] = []
    for group, ops in sorted(groups.items()):
        rows.append((f"**{group}**", *[""] * (1 + len(KINDS))))
        rows += [(_code(op), *_cells(run["ops"][op])) for op in ops]
    return markdown(["operation", "fp32", "fp16", "mixed", "error, fp16"], rows)


def _cells(kinds: dict[str, dict]) -> Iterator[str]:
    for kind in KINDS:
        if found := kinds.get(kind):
            failed = f" (**{found['failed']}**)" * bool(found["failed"])
            yield f"{_notice(found)} of {_cases(found)}{failed}"
        else:
            yield "·"
    errors = kinds.get("fp16", {}).get("single")
    yield _size(errors[0]) if errors else "·"


def _code(name: str) -> str:
    """A name in the type of code that a narrow screen may break in two."""
    for sign in "_.":
        name = name.replace(sign, f"\\{sign}<wbr>")
    return f"<code>{name}</code>"


def _size(error: float) -> str:
    """A share of the range: a power of ten, with a hyphen that no line breaks at."""
    if error == float("inf"):
        return "∞"
    return "0" if error == 0 else f"{error:.0e}".replace("e-0", "e\N{NON-BREAKING HYPHEN}")
