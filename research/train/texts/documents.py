"""Documents: templates of one language, forms, plain prose of this repository; and noise.

A document is a list of pieces, a piece a text and its label or None; joined they are the text, and
the pieces with a label are its spans. Noise changes a piece at a time, so that spans stay right.
"""

from random import Random
from unicodedata import combining, normalize

from texts.forms import HELD_OUT, TRAINED, form
from texts.lexicon import prose, reworded, sentence
from texts.templates import filled, templates
from texts.values import Piece, Values

Span = tuple[int, int, str]  # first character, the one after the last, label
HALF = ["en"] * 6 + ["de"] * 3 + ["fr"] * 2 + ["es"] * 2 + ["it", "nl", "pt"]
SCATTERED = [
    "person",
    "person",
    "person",
    "person",
    "email",
    "email",
    "phone",
    "phone",
    "url",
    "address",
    "address",
    "iban",
    "card",
    "key",
    "token",
    "site",
    "isbn",
    "uuid",
    "stamp",
    "version",
    "amount",
    "company",
    "path",
    "ip",
    "clock",
    "number",
]


def document(
    rng: Random, new_templates: bool = False, new_people: bool = False, whole: bool = False
) -> list[Piece]:
    """new_templates: only those held out; new_people: only of locales that are held out.

    whole: as somebody might have written it, without the words at random that a training needs.
    """
    language = rng.choice(HALF)
    values = Values(rng, language, new_people)
    kind = rng.random() * (0.83 if whole else 1)
    if kind < 0.3:
        return noisy(
            rng,
            form(rng, values, HELD_OUT if new_templates else TRAINED),
            None if whole else language,
        )
    if new_templates or kind < 0.74:
        own = templates(language)[new_templates]
        pieces = _letter(rng, values, own, 0 if whole else rng.choice([0, 0, 0.3, 0.6]))
        return noisy(rng, pieces, None if whole else language)
    if kind < 0.83:
        return noisy(rng, [(_passage(rng), None)], None if whole else language)
    return noisy(rng, _scattered(rng, values), language)


def _letter(rng: Random, values: Values, own: list, others: float) -> list[Piece]:
    """Templates one after another, and sentences that say nothing between them."""
    between = rng.choice([" ", " ", "\n", "\n\n"])
    pieces: list[Piece] = []
    for i in range(rng.choice([1, 1, 2, 2, 3, 4, 5])):
        pieces += [(between, None)] if i else []
        if rng.random() < others:
            pieces.append((" ".join(sentence(rng, values.language)) + between, None))
        pieces += filled(rng.choice(own), rng, values)
    if rng.random() < others:
        pieces.append((between + " ".join(sentence(rng, values.language)), None))
    return pieces


def _scattered(rng: Random, values: Values) -> list[Piece]:
    """Sentences of words at random, among which values stand that are known by their looks."""
    pieces: list[Piece] = []
    for _ in range(rng.randint(1, 4)):
        before = rng.choice([" ", " ", " ", " (", ' "', " \n", ": "])
        after = {" (": ")", ' "': '"'}.get(before, "")
        for w in sentence(rng, values.language):
            if rng.random() < 0.16:
                slot = rng.choice(SCATTERED)
                pieces += [
                    (before, None),
                    *values.fill(slot),
                    (after + rng.choice(["", "", ",", "."]), None),
                ]
            pieces.append((" " + w, None))
    return [(pieces[0][0].lstrip(), pieces[0][1]), *pieces[1:]]


def _passage(rng: Random) -> str:
    text = rng.choice(prose())
    start = rng.randrange(max(1, len(text) - 300))
    return text[start : start + rng.randint(60, 500)]


# --- noise


def noisy(rng: Random, pieces: list[Piece], language: str | None) -> list[Piece]:
    """Most documents stay as they are; some are typed in haste, or by a machine.

    language: of the words that stand for others in some; None: in none.
    """
    draw = rng.random()
    if language and draw > 0.65:
        part = rng.choice([0.1, 0.3, 0.5])
        return [(t if label else reworded(rng, t, language, part), label) for t, label in pieces]
    if draw < 0.06:
        return [(text.lower(), label) for text, label in pieces]
    if draw < 0.08:
        return [(text.upper(), label) for text, label in pieces]
    if draw < 0.12:
        return [(_bare(text), label) for text, label in pieces]
    if draw < 0.18:
        return [(text if label else _mistyped(rng, text), label) for text, label in pieces]
    if draw < 0.20:
        return [(text if label else text.replace(" ", "  "), label) for text, label in pieces]
    return pieces


def _bare(text: str) -> str:
    """Without accents."""
    return "".join(c for c in normalize("NFKD", text) if not combining(c))


def _mistyped(rng: Random, text: str) -> str:
    letters = list(text)
    for i in range(len(letters) - 1):
        if letters[i].isalpha() and rng.random() < 0.02:
            case = rng.random()
            if case < 0.4:
                letters[i], letters[i + 1] = letters[i + 1], letters[i]
            elif case < 0.7:
                letters[i] = ""
            else:
                letters[i] *= 2
    return "".join(letters)


def joined(pieces: list[Piece]) -> tuple[str, list[Span]]:
    """The text, and its spans, which have no white space at their ends."""
    spans, place = [], 0
    for text, label in pieces:
        own = text.strip()
        if label and own:
            start = place + text.index(own)
            spans.append((start, start + len(own), label))
        place += len(text)
    return "".join(text for text, _ in pieces), spans
