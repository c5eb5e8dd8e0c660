"""Redact a page of invented personal data, and print what was found.

    python demo/redact.py [FILE] [--model privacy-filter]

At first the redacted text, then a line for each span: its kind, how sure the model is, and what
stood there.
"""

import argparse
from collections import Counter
from pathlib import Path

import ane_book

PAGE = Path(__file__).with_name("page.txt")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path, default=PAGE)
    parser.add_argument("--model", default="privacy-filter-small")
    options = parser.parse_args()
    text = options.file.read_bytes().decode()  # as it is, line ends too
    found = ane_book.load(options.model).redact(text)
    print(found.text)
    for span in found.spans:
        own = " ".join(text[span.start : span.end].split())
        print(f"{span.label:16}{span.score:6.1%}  {own}")
    counts = Counter(span.label for span in found.spans)
    print(", ".join(f"{count} {label}" for label, count in counts.most_common()))


if __name__ == "__main__":
    main()
