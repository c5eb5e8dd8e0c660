"""Ordinary words of many languages, in which nothing is private: faker's, and this repository's.

The templates have some thousand words. A model that knows no others takes every new one for a name,
so sentences of words drawn at random stand between the templates, and values stand among them.
"""

from functools import cache
from pathlib import Path
from random import Random
import re

from texts.people import locale

ROOT = Path(__file__).resolve().parents[3]
LOCALES = {"en": "en_US", "de": "de_DE", "fr": "fr_FR", "es": "es_ES", "it": "it_IT", "nl": "nl_NL",
           "pt": "pt_BR"}  # fmt: skip
OTHERS = ["pl_PL", "da_DK", "cs_CZ"]
WORD = re.compile(r"[^\W\d_]{3,}")


@cache
def words(name: str) -> list[str]:
    """Of a locale: the words of its texts and of its trades; in English, those of the chapters."""
    providers = {p.__class__.__module__.split(".")[2]: p for p in locale(name).get_providers()}
    found = list(providers["lorem"].word_list)
    jobs = providers["job"]
    if type(jobs).__module__.endswith(name):  # and no list of another language
        found += WORD.findall(" ".join(str(job) for job in jobs.jobs[:400]).lower())
    if name == "en_US":
        found += [w.lower() for p in prose() for w in WORD.findall(p)]
    return sorted(set(found))


@cache
def prose() -> list[str]:
    """Paragraphs of this repository's chapters and notes."""
    found = []
    for path in sorted([*ROOT.glob("book/*.md"), *ROOT.glob("research/*.md"), ROOT / "README.md"]):
        text = path.read_text(encoding="utf-8")
        found += [p for p in re.split(r"\n\n+", text) if 40 < len(p) < 3000 and "@" not in p]
    return found


def word(rng: Random, language: str) -> str:
    name = LOCALES[language] if rng.random() < 0.9 else rng.choice(OTHERS)
    return rng.choice(words(name))


def title(rng: Random, language: str) -> str:
    """One to four words, as in a heading."""
    case = rng.choice([str.title, str.capitalize, str, str.upper])
    return case(" ".join(word(rng, language) for _ in range(rng.randint(1, 4))))


def sentence(rng: Random, language: str) -> list[str]:
    """Its words; the last has the stop."""
    found = [word(rng, language) for _ in range(rng.randint(2, 12))]
    if rng.random() < 0.2:
        found[rng.randrange(len(found))] = str(rng.randint(2, 3000))
    if rng.random() < 0.3:
        found[rng.randrange(len(found))] += rng.choice([",", ",", ";", ":", " -"])
    if rng.random() < 0.15:
        found = [w.capitalize() for w in found]
    if rng.random() < 0.85:
        found[0] = found[0].capitalize()
    found[-1] += rng.choice([".", ".", ".", "?", "!", ":", ""])
    return found


def reworded(rng: Random, text: str, language: str, part: float) -> str:
    """With a part of its words replaced by others, as large or as small."""

    def other(match: re.Match) -> str:
        if rng.random() >= part:
            return match[0]
        new = word(rng, language)
        return new.capitalize() if match[0][0].isupper() else new

    return WORD.sub(other, text)
