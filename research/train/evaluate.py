"""How good the small Privacy Filter is, package and Viterbi and all, on what it never saw.

    python research/train/evaluate.py            measure, and write it to the model's record.json
    python research/train/evaluate.py --write    make held_out.jsonl anew, on which a test looks

Three sets are generated, from seeds that no training has: by the templates of the training, by
those held out, and by those with people of locales that are held out too. The page (page.txt,
page.json) was written by hand, before any model was asked about it.
"""

import argparse
from collections.abc import Iterator
import json
from pathlib import Path
from random import Random

import ane_book
from privacy_filter import RESULT, add_to_record
from scores import Example, score, table

HERE = Path(__file__).parent
SETS = {
    "new seeds": (False, False),
    "new templates": (True, False),
    "new templates and locales": (True, True),
}
TEXTS = 600
PRECISION = "fp16"  # what a Mac computes with


def generated(new_templates: bool, new_people: bool, count: int) -> Iterator[Example]:
    from texts.documents import document, joined

    for i in range(count):
        rng = Random(f"held out {new_templates} {new_people} {i}")
        yield Example(*joined(document(rng, new_templates, new_people, whole=True)))


def page() -> Example:
    """The page that was written by hand, with its true spans."""
    text = (HERE / "page.txt").read_text(encoding="utf-8")
    rows = json.loads((HERE / "page.json").read_text(encoding="utf-8"))
    assert all(text[row["start"] : row["end"]] == row["text"] for row in rows)
    return Example(text, [(row["start"], row["end"], row["label"]) for row in rows])


def spans_of(tagger, text: str) -> list[tuple[int, int, str]]:
    return [(span.start, span.end, span.label) for span in tagger.spans(text)]


def hidden(example: Example, found: list[tuple[int, int, str]]) -> dict[str, float]:
    """What `redact` is for: characters of true spans that any span hides, and others it hides."""
    private, marked = set(), set()
    for characters, spans in ((private, example.spans), (marked, found)):
        for start, end, _ in spans:
            characters.update(range(start, end))
    both, others = len(private & marked), len(example.text) - len(private)
    return {
        "private_hidden": round(both / len(private), 4),
        "others_hidden": round((len(marked) - both) / others, 4),
    }


def write_held_out(path: Path, count: int = 200) -> None:
    rows = [example._asdict() for example in generated(True, True, count)]
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_text("".join(lines), encoding="utf-8")
    print(f"{path}: {path.stat().st_size:,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="make held_out.jsonl anew")
    parser.add_argument("--texts", type=int, default=TEXTS, help="of each set")
    given = parser.parse_args()
    if given.write:
        return write_held_out(HERE / "held_out.jsonl")
    tagger = ane_book.load(str(RESULT), precision=PRECISION)
    quality = {"texts": given.texts, "precision": PRECISION, "by": "the executor"}
    for name, how in SETS.items():
        examples = list(generated(*how, given.texts))
        quality[name] = score((spans_of(tagger, e.text) for e in examples), examples)
        print(f"{name}\n{table(quality[name])}\n")
    example = page()
    found = spans_of(tagger, example.text)
    scores, parts = score([found], [example]), hidden(example, found)
    print(f"the page\n{table(scores)}\n{parts}")
    add_to_record(quality=quality | {"page": scores | parts})


if __name__ == "__main__":
    main()
