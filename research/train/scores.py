"""Spans found against true spans: precision, recall and F1 of each label.

A span counts as found where label, first and last character are all right, and no otherwise.
"""

from collections import Counter
from collections.abc import Iterable
import json
from pathlib import Path
from typing import NamedTuple

Span = tuple[int, int, str]  # first character, the one after the last, label


class Example(NamedTuple):
    text: str
    spans: list[Span]


def read_examples(path: Path) -> list[Example]:
    """Of a file with an object a line: text and spans."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [Example(row["text"], [tuple(span) for span in row["spans"]]) for row in rows]


def score(found: Iterable[list[Span]], examples: Iterable[Example]) -> dict[str, dict]:
    """By label, and "all": precision, recall, f1 (None where there is none), true, found."""
    right, true, said = Counter(), Counter(), Counter()
    for own, example in zip(found, examples, strict=True):
        for counter, spans in ((true, example.spans), (said, own)):
            counter.update(label for *_, label in spans)
        right.update(label for *_, label in set(own) & set(example.spans))
    counters = {label: (right[label], said[label], true[label]) for label in sorted(true | said)}
    counters["all"] = tuple(counter.total() for counter in (right, said, true))
    return {label: _rates(*counts) for label, counts in counters.items()}


def _rates(right: int, said: int, true: int) -> dict:
    precision = round(right / said, 4) if said else None
    recall = round(right / true, 4) if true else None
    f1 = round(2 * right / (said + true), 4)
    return {"precision": precision, "recall": recall, "f1": f1, "true": true, "found": said}


def table(scores: dict[str, dict]) -> str:
    lines = [f"{'':18} precision recall     F1   true  found"]
    for label, row in scores.items():
        rates = [row[name] for name in ("precision", "recall", "f1")]
        cells = " ".join(f"{'':>8}" if rate is None else f"{rate:8.3f}" for rate in rates)
        lines.append(f"{label:18} {cells} {row['true']:6} {row['found']:6}")
    return "\n".join(lines)
