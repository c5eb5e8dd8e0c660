"""Who lives where: the names, streets and numbers of a locale, from faker, and names of nobody.

faker's lists end (a few hundred names a locale), and a model learns a list by heart. So a part of
the names is made up, letter by letter, after those of all locales: what makes them names is then
the place where they stand.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import TYPE_CHECKING
from unicodedata import combining, normalize

if TYPE_CHECKING:
    from faker.generator import Generator


#: The locales of each language of the templates; those that no training sees have the second list.
LANGUAGES = {
    "en": ["en_US", "en_GB", "en_IN"],
    "de": ["de_DE"],
    "fr": ["fr_FR"],
    "es": ["es_ES", "es_AR"],
    "it": ["it_IT"],
    "nl": ["nl_NL"],
    "pt": ["pt_BR"],
}
ALL = [name for names in LANGUAGES.values() for name in names]
OTHERS = [
    "sv_SE", "pl_PL", "da_DK", "fi_FI", "cs_CZ", "hu_HU", "ro_RO", "hr_HR", "tr_TR", "id_ID",
    "vi_VN", "yo_NG", "zu_ZA", "en_PK",
]  # fmt: skip
HELD_OUT = {
    "en": ["en_AU", "en_CA", "en_IE"],
    "de": ["de_AT", "de_CH"],
    "fr": ["fr_CA", "fr_CH"],
    "es": ["es_MX", "es_CO"],
    "it": ["it_CH"],
    "nl": ["nl_BE"],
    "pt": ["pt_PT"],
    "": ["no_NO", "sk_SK", "sl_SI", "lt_LT", "et_EE", "tw_GH"],
}


@dataclass(frozen=True)
class Person:
    first: str
    last: str
    locale: str


@cache
def locale(name: str) -> "Generator":
    from faker import Factory  # a template is read without it

    generator = Factory.create(name)
    for provider in generator.get_providers():
        if hasattr(provider, "cities"):  # Italy's are in another order in every process
            provider.cities = sorted(provider.cities)
    return generator


def person(rng: Random, name: str, invented: float = 0.25) -> Person:
    """Somebody of a locale; `invented` is the part of the names that are made up."""
    generator = locale(name)
    generator.random = rng
    first, last = generator.first_name(), generator.last_name()
    if rng.random() < invented:
        first = made_up(rng)
    if rng.random() < invented:
        last = made_up(rng)
    if rng.random() < 0.06:
        last += ("-" if rng.random() < 0.7 else " ") + generator.last_name()
    if rng.random() < 0.04:
        first += ("-" if rng.random() < 0.5 else " ") + generator.first_name()
    return Person(first, last, name)


@cache
def _letters() -> dict[str, str]:
    """What follows three letters in names: all that does, as often as it does."""
    rng, follows = Random(0), defaultdict(list)
    for name in [*ALL, *OTHERS]:
        generator = locale(name)
        generator.random = rng
        for _ in range(150):
            for word in (generator.first_name(), generator.last_name()):
                padded = f"^^^{word}$"
                for i in range(3, len(padded)):
                    follows[padded[i - 3 : i]].append(padded[i])
    return {key: "".join(letters) for key, letters in follows.items()}


def plain(text: str) -> str:
    """Letters without accents, as in e-mail addresses."""
    return "".join(c for c in normalize("NFKD", text) if not combining(c) and c.isascii())


def made_up(rng: Random) -> str:
    """A name that sounds like one: 3 to 12 letters."""
    letters = _letters()
    while True:
        word = "^^^"
        while not word.endswith("$") and len(word) < 16:
            word += rng.choice(letters[word[-3:]])
        word = word[3:].rstrip("$").strip(" -'.")
        if 3 <= len(word) <= 12 and word.replace("-", "").replace("'", "").isalpha():
            return word[0].upper() + word[1:]
