"""What a tokenizer.bin says of characters: their kinds for the patterns, and their normalisation.

`tokenizers` is asked about every character, for its versions of Unicode are nobody else's. The
sections are described in `swift_tables.packed`.
"""

from functools import cache
import re

import numpy as np
from swift_tables.shapes import Shape, refuse
from tokenizers import Regex, normalizers, pre_tokenizers

NONE = 0xFFFFFFFF
BLOCK = 128  # code points that share an entry of a table's first level
PLANES = 0x110000

#: A part of a regular expression in `splits`: a class or a character, and how often it comes.
ATOM = re.compile(
    r"(?P<group>\(\?i:(?P<choice>[^)]*)\)(?P<maybe>\??))|(?P<ahead>\(\?!\\S\))"
    r"|(?P<what>\[(?:\\.|[^\]\\])*\]|\\p\{\w+\}|\\.|[^\\|()])"
    r"(?:\{(?P<least>\d),(?P<most>\d)\}|(?P<often>[?*+])(?P<possessive>\+?))?|(?P<bar>\|)"
)
OFTEN = {None: (1, 1), "?": (0, 1), "*": (0, NONE), "+": (1, NONE)}


def u32(values) -> bytes:
    return np.asarray(list(values), "<u4").tobytes()


def text_list(name: str, texts: list[bytes]) -> dict[str, bytes]:
    ends = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    return {f"{name}o": u32(ends), f"{name}b": b"".join(texts)}


# --- patterns


#: Planes of which the first code point stands for all but the last two, which are no characters in
#: any plane: 4 to 13 hold nothing, and 15 and 16 are for private use.
ALIKE = [plane << 16 for plane in (*range(4, 14), 15, 16)]
#: The code points that `tokenizers` is asked about, first and end, and until where the last of them
#: stands for those after it.
ASKED = sorted(
    [(0, 0xD800, 0xD800), (0xE000, 0x40000, 0x40000), (0xE0000, 0xF0000, 0xF0000)]
    + [(plane, plane + 1, plane + 0xFFFE) for plane in ALIKE]
    + [(plane + 0xFFFE, plane + 0x10000, plane + 0x10000) for plane in ALIKE]
)


@cache
def _all() -> str:
    """Every character that is asked about, in order; surrogates are none."""
    return "".join(chr(c) for first, end, _ in ASKED for c in range(first, end))


def _at(values: np.ndarray) -> np.ndarray:
    """Values for the characters of `_all` as values for all code points."""
    result, place = np.zeros(PLANES, values.dtype), 0
    for first, end, until in ASKED:
        result[first:end] = values[place : place + end - first]
        place += end - first
        result[end:until] = values[place - 1]
    return result


@cache
def _matching(pattern: str) -> np.ndarray:
    """Which code points a regular expression for one character matches, as `tokenizers` has it."""
    if pattern in ("DIGIT", "PUNCTUATION", "SPACE"):
        return _splitting(pattern)
    mark = "\uffff"
    replaced = normalizers.Replace(Regex(pattern), mark).normalize_str(_all())
    alone = normalizers.Replace(Regex(pattern), "").normalize_str(mark) == ""
    found = _scalars(replaced) != _scalars(_all())
    found[ord(mark) - 0x800] = alone
    return _at(found)


def _scalars(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le"), np.uint32)


def _splitting(name: str) -> np.ndarray:
    """Which code points a pre-tokenizer of this name cuts out of a text."""
    cut = {
        "DIGIT": pre_tokenizers.Digits(individual_digits=False),
        "PUNCTUATION": pre_tokenizers.Punctuation("contiguous"),
        "SPACE": pre_tokenizers.WhitespaceSplit(),
    }[name]
    found = np.zeros(len(_all()), bool)
    if name == "SPACE":
        found[:] = True
    for index, (_, (start, end)) in enumerate(cut.pre_tokenize_str(_all())):
        # Pieces take turns: U+0000 begins one that is neither digits nor punctuation.
        found[start:end] = name != "SPACE" and index % 2 == 1
    return _at(found)


#: Patterns that are pre-tokenizers of their own: alternatives of (class, least, most), and whether
#: what matches is dropped.
OWN: dict[str, list[tuple[list, list, bool]]] = {
    "DIGIT": [([("DIGIT", 1, 1, 0)], [], False)],
    "DIGIT+": [([("DIGIT", 1, NONE, 0)], [], False)],
    "BERT": [([("SPACE", 1, NONE, 0)], [], True), ([("PUNCTUATION", 1, 1, 0)], [], False)],
}


def _alternatives(pattern: str) -> list[tuple[list, list, bool]]:
    """A pattern as alternatives: items (class, least, most, flags), sequences of the tail."""
    if pattern in OWN:
        return OWN[pattern]
    result: list[tuple[list, list, bool]] = []
    branches: list[list] = [[]]
    tail: list[list[str]] = []
    place = 0
    while place <= len(pattern):
        match = ATOM.match(pattern, place)
        if match is None and place < len(pattern):
            raise refuse("pre_tokenizer.Split.pattern", pattern)
        if match is None or match["bar"]:
            result += [(items, tail, False) for items in branches]
            branches, tail = [[]], []
        elif match["group"]:
            words = [_word(word) for word in match["choice"].split("|")]
            if match["maybe"]:
                tail = words
            else:
                branches = [b + [(c, 1, 1, 0) for c in w] for b in branches for w in words]
        else:
            branches = [[*items, _item(match)] for items in branches]
        place = len(pattern) + 1 if match is None else match.end()
    return result


def _word(text: str) -> list[str]:
    """The classes of a group's characters, whose case does not count."""
    return [f"(?i:{one})" for one in re.findall(r"\[[^\]]*\]|.", text)]


def _item(match: re.Match) -> tuple[str, int, int, int]:
    if match["ahead"]:
        return r"\S", 1, 1, 2
    least, most = OFTEN[match["often"]]
    if match["least"]:
        least, most = int(match["least"]), int(match["most"])
    return match["what"], least, most, int(bool(match["possessive"]))


def split_tables(shape: Shape) -> dict[str, bytes]:
    stages = [(_alternatives(pattern), gaps) for pattern, gaps in shape.splits]
    classes = {"SPACE"}
    for alternatives, _ in stages:
        for items, tail, _ in alternatives:
            classes |= {item[0] for item in items} | {one for word in tail for one in word}
    names = sorted(classes)
    members = np.zeros(PLANES, np.int64)
    for bit, name in enumerate(names):
        members |= _matching(name).astype(np.int64) << bit
    kinds, kind = np.unique(members, return_inverse=True)
    if len(kinds) > 64:
        raise refuse("pre_tokenizer, kinds of characters", len(kinds))

    def mask(name: str) -> list[int]:
        bits = sum(1 << i for i, k in enumerate(kinds) if int(k) >> names.index(name) & 1)
        return [bits & NONE, bits >> 32]

    words = [len(stages)]
    for alternatives, gaps in stages:
        words += [gaps, len(alternatives)]
        for items, tail, dropped in alternatives:
            words += [dropped, len(items), len(tail)]
            for name, least, most, flags in items:
                words += [least, most, flags, *mask(name)]
            for word in tail:
                words += [len(word), *(half for name in word for half in mask(name))]
    table = _table("kin", kind.reshape(-1).astype(np.uint8))
    return table | {"spac": u32(mask("SPACE")), "spli": u32(words)}


def _table(name: str, values: np.ndarray) -> dict[str, bytes]:
    """A table of all code points, each block of 128 that is like another kept once."""
    blocks, pages = np.unique(values.reshape(-1, BLOCK), axis=0, return_inverse=True)
    kept = blocks.astype(blocks.dtype.newbyteorder("<")).tobytes()
    return {f"{name}p": pages.reshape(-1).astype("<u2").tobytes(), f"{name}b": kept}


# --- normalisation

FENCE = "qzq"  # between the characters that a normaliser is asked about; it leaves it alone


def _mapped(normalizer) -> list[str]:
    """What a normaliser makes of each character alone, in the order of `_all`."""
    return normalizer.normalize_str(FENCE.join(_all()) + FENCE).split(FENCE)[:-1]


def character_tables(shape: Shape) -> dict[str, bytes]:
    """The tables of the normaliser, if it changes more than spaces."""
    if not shape.compose and shape.bert is None:
        return {}
    first: list = []
    second: list[str] = []
    if shape.bert is not None:
        flags = shape.bert
        clean = flags | {"strip_accents": False, "lowercase": False}
        first = [normalizers.BertNormalizer(**clean)]
        folded = {"clean_text": False, "handle_chinese_chars": False}
        second = _mapped(normalizers.BertNormalizer(**flags | folded))
    ordered = shape.compose or (shape.bert is not None and shape.bert["strip_accents"])
    if ordered:
        first.append(normalizers.NFD())
    forms = _mapped(normalizers.Sequence(first))
    ranks = _ranks() if ordered else {}
    pairs = _pairs(forms) if shape.compose else []
    joins = {one for _, one, _ in pairs}
    if shape.compose:
        composed = _mapped(normalizers.NFC())
        joins |= {c for c, form in zip(_all(), composed, strict=True) if c != form}
    marks = np.zeros(len(_all()), np.uint8)
    for index, (character, form) in enumerate(zip(_all(), forms, strict=True)):
        together = not form or form[0] in ranks or character in joins
        marks[index] = 128 * together + ranks.get(character, 0)
    texts: dict[str, int] = {}
    tables = {**_changes("fir", forms, texts), **_changes("sec", second, texts)}
    rows = sorted(tuple(map(ord, row)) for row in pairs)
    return {
        **tables,
        **text_list("cha", [text.encode() for text in texts]),
        **_table("mar", _at(marks)),
        "comp": u32(number for row in rows for number in row),
    }


def _changes(name: str, forms: list[str], texts: dict[str, int]) -> dict[str, bytes]:
    numbers = np.zeros(len(_all()), np.uint16)
    for index, (character, form) in enumerate(zip(_all(), forms, strict=bool(forms))):
        if form == f" {character} ":
            numbers[index] = 1
        elif form != character:
            numbers[index] = texts.setdefault(form, len(texts)) + 2
    return _table(name, _at(numbers))


@cache
def _ranks() -> dict[str, int]:
    """The marks that are put in order, and the place of each one's class among all, from 1."""
    form = normalizers.NFD().normalize_str

    def later(marks: list[str], behind: list[str]) -> list[bool]:
        """Of a mark and one behind it: whether they change places."""
        pairs = [a + b for a, b in zip(marks, behind, strict=True)]
        texts = form(FENCE.join(pairs)).split(FENCE)
        return [text == b + a for text, a, b in zip(texts, marks, behind, strict=True)]

    kept = [c for c, text in zip(_all(), _mapped(normalizers.NFD()), strict=True) if c == text]
    low, high = ["\u0334"] * len(kept), ["\u0345"] * len(kept)  # of the first and the last class
    moved = zip(kept, later(kept, low), later(high, kept), strict=True)
    marks = [c for c, down, up in moved if down or up]
    before = {
        mark: sum(later([mark] * len(marks), marks)) for mark in marks
    }  # how many are of an earlier class
    classes = sorted(set(before.values()))
    return {mark: classes.index(count) + 1 for mark, count in before.items()}


def _pairs(forms: list[str]) -> list[tuple[str, str, str]]:
    """Two characters and what NFC composes them to."""
    form = normalizers.NFC().normalize_str
    composed = _mapped(normalizers.NFC())
    rows = zip(_all(), forms, composed, strict=True)
    whole = [(c, text) for c, text, kept in rows if c == kept != text]
    starts = form(FENCE.join(text[:-1] for _, text in whole)).split(FENCE)
    return [(start, text[-1], c) for start, (c, text) in zip(starts, whole, strict=True)]
