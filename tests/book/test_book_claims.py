"""Numbers about the Neural Engine on the pages are the registry's, or a cell has computed them.

A sentence of prose that names the engine or an Apple chip, and has a number with a unit of speed,
time, size, energy or rate, must have that number by `{glue:text}`, or typed as `claims.toml` has it
somewhere: as a value, in a statement, or in what a source says. A rate, of bytes, arithmetic or
tokens, must be one of a claim on the chip that the sentence names.
"""

from functools import cache
from pathlib import Path
import re

from ane_book_pages import records, sources
from mlprogram.ane import claims
from mlprogram.ane.cost import chips, parameter
import pytest

BOOK = Path(__file__).parents[2] / "book"
PAGES = sorted(BOOK.glob("*.md"))

ABOUT = re.compile(
    r"\bANE\b|Neural Engine|\bengine(?:'s)?\b|iPhone"
    r"|\bM[1-6](?: Pro| Max| Ultra)?\b|\bA1[0-9](?: Pro)?\b"
)
UNIT = (
    r"(?:[GT]B/s|T?FLOP/s|TOPS|ms|[µu]s|microseconds?|milliseconds?"
    r"|tokens? (?:a|per) second|tokens/s|tok/s|W|J|mJ|MB|GB|MiB|GiB|times|%)(?!\w)"
)
NUMBER = r"\d[\d,]*(?:\.\d+)?"
#: "59 to 122 GB/s", "23.5, 21 and 15 ms": every number of a row that ends in one unit.
MEASURED = re.compile(
    rf"(?<![\w.#/-])({NUMBER}(?:(?:,| to| and| or|,? instead of)? {NUMBER})*) {UNIT}"
)
SENTENCE = re.compile(r"(?<=[.:;?!|])\s+(?=[A-Z*`|\[{(\d])")


def prose(text: str):
    """(line number, line) of what is neither front matter, code, nor a directive's option."""
    fence = None
    lines = text.splitlines()
    start = lines.index("---", 1) + 1 if lines[0] == "---" else 0
    for number, line in enumerate(lines[start:], start + 1):
        mark = re.match(r"\s*(`{3,})", line)
        if mark and fence is None and not re.match(r"\s*`{3,}\{(?:exercise|solution)", line):
            fence = mark[1]
        elif mark and fence is not None and line.strip() == fence:
            fence = None
        elif fence is None and not line.startswith((":", "```")):
            yield number, line


def numbers_of(text: str) -> set[float]:
    return {float(found.replace(",", "")) for found in re.findall(NUMBER, text)}


def known() -> set[float]:
    """Every number that the registry has, as it stands there."""
    found = set()
    for claim in claims.load().values():
        said = [claim.statement, *(e.says for e in (*claim.support, *claim.against))]
        found |= numbers_of(" ".join(said))
        values = claim.value if isinstance(claim.value, tuple) else (claim.value,)
        found |= {float(value) for value in values if isinstance(value, int | float)}
    return found


def strangers(text: str, where: str) -> list[str]:
    """Numbers about the engine that are not the registry's, each with its place."""
    registered, found = known(), []
    for number, line in prose(text):
        line = re.sub(r"\{glue:text\}`[^`]*`", "glued", line)
        line = re.sub(r"\]\([^)]*\)|`[^`]*`", "]", line)
        for sentence in SENTENCE.split(line):
            if not ABOUT.search(sentence):
                continue
            for row in MEASURED.finditer(sentence):
                for value in sorted(numbers_of(row[1]) - registered):
                    found.append(f"{where}:{number}: {value:g} in {row[0]!r}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_numbers_about_the_engine_are_the_registrys(page):
    found = strangers(page.read_text(encoding="utf-8"), f"book/{page.name}")
    assert not found, (
        "a number about the Neural Engine that claims.toml of mlprogram.ane does not have: put it "
        "there with its source, or glue what a cell computes\n" + "\n".join(found)
    )


RATE = re.compile(
    rf"(?<![\w.,])({NUMBER})(?:(?: to | and | or )({NUMBER}))?"
    r" (GB/s|TFLOP/s|tokens/s|tokens (?:a|per) second)"
)
TERMS = ("packed", "cache", "program", "segment", "rows")
PUBLISHED = ("published.json", "speculation_published.json")
#: Rates that are in no claim, by page, and whose they are.
OTHERWISE = {
    "is-it-worth-it": {"1": "supposed", "0.65": "by hand, from others' seconds"},
    "the-cache": {"18": "by hand, a slot's bytes over 8.1 µs"},
    "what-a-token-costs": {"398": "the sum of its table"},
}


def unit_of(text: str) -> str:
    return "tokens/s" if text.startswith("tokens") else text


@cache
def rates(unit: str, chip: str | None) -> set[float]:
    """The numbers of claims that tell of this unit, on this chip if one is named."""
    terms = {name: parameter(name) for name in TERMS}
    found = set()
    for claim in {**sources.everything(), **chips(), **terms}.values():
        behind = (*claim.support, *claim.against)
        said = [claim.statement, str(claim.value), *(one.says for one in behind)]
        text = re.sub(r"tokens (?:a|per) second", "tokens/s", "; ".join(said))
        of_unit = unit in text or claim.unit == unit
        if of_unit and (chip is None or chip in f"{claim.chip} {text}"):
            found |= numbers_of(text) | {each for one in behind for each in one.values}
    if unit == "tokens/s":
        for name in PUBLISHED:
            found |= numbers_of(records.find(f"measurements/{name}").read_text("utf-8"))
    return found


def another_chips(text: str) -> list[str]:
    """The rates in a page's prose that no claim has of a chip in their sentence."""
    found = []
    for number, line in prose(text):
        for sentence in re.split(r"(?<=[.;:?])\s+|\|", line):
            named = set(sources.CHIP.findall(sentence)) or {None}
            for first, second, unit in RATE.findall(sentence):
                of_these = [rates(unit_of(unit), chip) for chip in named]
                for each in filter(None, (first, second)):
                    value, digits = float(each.replace(",", "")), len(each.partition(".")[2])
                    if not any(round(x, digits) == value for known in of_these for x in known):
                        found.append(f"{number}: {each} {unit_of(unit)}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_rate_is_one_of_the_chip_that_is_named(page):
    passed = OTHERWISE.get(page.stem, {})
    found = another_chips(page.read_text(encoding="utf-8"))
    assert not [rate for rate in found if rate.split()[1] not in passed]


def test_a_rate_of_another_chip_is_told():
    page = "# Title\n\nAn M5 Pro reads up to 122 GB/s. An M1 reads up to 122 GB/s.\n"
    assert another_chips("---\n---\n" + page) == ["5: 122 GB/s"]


PLANTED = """# Title

An M5 Pro's ANE reads 987 GB/s, {glue:text}`low` to {glue:text}`high` GB/s by another.

```python
print("the ANE reads 988 GB/s")
```

:::{note}
The engine takes 989 ms. A CPU takes 990 ms.
:::
"""


def test_a_number_that_is_typed_in_is_told_with_its_place():
    assert strangers(PLANTED, "book/x.md") == [
        "book/x.md:3: 987 in '987 GB/s'",
        "book/x.md:10: 989 in '989 ms'",
    ]
