"""What stands in the slots of a template: values that are private, and look-alikes that are not.

A value is a list of pieces, a piece a text and its label or None. What counts as private is decided
here and in the templates, and written down in research/train/README.md.
"""

from datetime import date, timedelta
from random import Random
import string

from texts.dates import written
from texts.lookalikes import PUBLIC
from texts.numbers import ALNUM, Numbers
from texts.people import Person, locale, made_up, person, plain
from texts.words import ACTIONS, ASKED, CODES, COUNTRIES, PROFILES, SHARES, TLDS, WORDS

Piece = tuple[str, str | None]


class Values(Numbers):
    """The slots of one document: its people stay the same from one slot to the next."""

    def __init__(self, rng: Random, language: str, held_out: bool = False):
        super().__init__(rng, language, held_out)
        self._people: dict[str, Person] = {}

    def fill(self, slot: str) -> list[Piece]:
        """The pieces of a slot: its name, and a digit for another than the first person."""
        name, who = slot.rstrip("0123456789"), slot[len(slot.rstrip("0123456789")) :]
        if found := PRIVATE.get(name):
            label, make = found
            return [(make(self, self._person(who)), label)]
        return [(PUBLIC[name](self), None)]

    def _person(self, who: str) -> Person:
        if who not in self._people:
            self._people[who] = person(self.rng, self._locale())
        return self._people[who]

    def person(self, one: Person) -> str:
        rng = self.rng
        forms = [
            (80, f"{one.first} {one.last}"),
            (5, f"{one.first[0]}. {one.last}"),
            (4, f"{one.last}, {one.first}"),
            (3, f"{one.first} {rng.choice(string.ascii_uppercase)}. {one.last}"),
            (3, f"{one.first} {one.last}".upper()),
            (3, f"{one.first} {one.last.upper()}"),
            (2, f"{one.first} {one.last[0]}."),
        ]
        return rng.choices([f for _, f in forms], [w for w, _ in forms])[0]

    def first(self, one: Person) -> str:
        return one.first

    def last(self, one: Person) -> str:
        return one.last

    def turned(self, one: Person) -> str:
        return f"{one.last}, {one.first}"

    def low(self, one: Person) -> str:
        return one.first.lower()

    # --- where they are reached

    def _user(self, one: Person) -> str:
        rng = self.rng
        first, last = (plain(n).lower().replace(" ", "") or "x" for n in (one.first, one.last))
        year = str(rng.randint(1955, 2009))
        forms = [
            f"{first}.{last}", f"{first}{last}", f"{first[0]}.{last}", f"{first}_{last}",
            f"{first[0]}{last}", f"{last}.{first}", f"{first}{year[2:]}", f"{first}-{last}", first,
            f"{first}.{last}{year}", f"{last}{rng.randint(1, 999)}",
            f"{rng.choice(WORDS)}{rng.choice(['.', '_', '', '-'])}{rng.choice(WORDS)}",
            f"{rng.choice(WORDS)}{year[2:]}", f"{last}{first[0]}",
        ]  # fmt: skip
        return rng.choice(forms).replace("'", "")

    def email(self, one: Person) -> str:
        rng = self.rng
        user = self._user(one)
        if rng.random() < 0.12:
            user = rng.choice(["info", "support", "office", "kontakt", "jobs", "hello", "no-reply"])
        if rng.random() < 0.06:
            user += "+" + rng.choice(WORDS)
        free = [
            "gmail.com",
            "outlook.com",
            "web.de",
            "orange.fr",
            "yahoo.es",
            "libero.it",
            "uol.com.br",
        ]
        domain = rng.choice(free) if rng.random() < 0.2 else self._domain()
        found = f"{user}@{domain}"
        return found.title() if rng.random() < 0.02 else found

    def phone(self, one: Person) -> str:
        rng = self.rng
        if rng.random() < 0.45:
            generator = locale(one.locale)
            generator.random = rng
            return generator.phone_number()
        between = rng.choice([" ", " ", " ", "-", ".", ""])
        sizes = rng.choice(
            [
                (3, 3, 4),
                (3, 2, 2, 2),
                (2, 2, 2, 2),
                (3, 3, 3),
                (4, 6),
                (2, 4, 4),
                (3, 7),
                (4, 3, 3),
                (2, 7),
                (5, 6),
                (3, 8),
                (1, 2, 2, 2, 2),
                (2, 3, 2, 2),
            ]
        )
        groups = ["".join(rng.choices("0123456789", k=k)) for k in sizes]
        if rng.random() < 0.5:
            lead = (
                rng.choice(["+", "+", "+", "00"])
                + rng.choice(CODES)
                + rng.choice([" ", " ", "-", ""])
            )
            lead += rng.choice(["", "", "", "(0)"])
            return (lead + between.join(groups)).strip()
        start = rng.choice(["0", "0", "", "("])
        if start == "(":
            return f"({rng.choice(['0', ''])}{groups[0]}) {between.join(groups[1:])}"
        return start + rng.choice([between, between, "/", " / "]).join(
            [groups[0], between.join(groups[1:])]
        )

    def url(self, one: Person) -> str:
        rng = self.rng
        user, domain = self._user(one), self._domain()
        key = "".join(rng.choices(ALNUM + "_-", k=rng.randint(8, 24)))
        where = rng.choice(
            [
                f"{domain}/{rng.choice(PROFILES)}/{user}",
                f"{domain}/~{user}",
                f"{domain}/@{user}",
                f"{user}.{domain}",
                f"www.{user}.{rng.choice(TLDS)}",
                f"{domain}/{rng.choice(SHARES)}/{key}",
                f"{domain}/{rng.choice(ACTIONS)}?{rng.choice(ASKED)}={key}",
                f"{domain}/{rng.choice(WORDS)}/{user}/{rng.choice(WORDS)}",
                f"{user.replace('.', '')}.{rng.choice(TLDS)}/{rng.choice(WORDS)}",
                f"{domain}/profile?id={rng.randint(10**5, 10**10)}",
            ]
        )
        lead = "" if where.startswith("www.") else rng.choice(["https://", "https://", "http://"])
        return lead + where

    def street(self, one: Person) -> str:
        rng, generator = self.rng, locale(one.locale)
        generator.random = rng
        found = generator.street_address().replace("\n", ", ")
        if rng.random() < 0.2:  # a street of no list
            name, number = made_up(rng), rng.randint(1, 240)
            found = rng.choice(
                [
                    f"{name}straße {number}",
                    f"{number} {name} Street",
                    f"{number} rue {name}",
                    f"Calle {name} {number}",
                    f"Via {name} {number}",
                    f"{name}weg {number}",
                    f"Rua {name}, {number}",
                    f"{number} {name} Road",
                    f"{name}laan {number}",
                    f"{number} avenue de {name}",
                    f"Am {name} {number}",
                    f"{number} {name} Lane",
                ]
            )
        if rng.random() < 0.12:
            start = rng.choice(["Flat {}, ", "Apt. {}, ", "Unit {}, ", "c/o {} Ltd, "])
            found = start.format(rng.randint(1, 40)) + found
        elif rng.random() < 0.08:
            end = rng.choice([", Apt. {}", ", 2nd floor", " #{}", ", 3. Stock", ", bus {}"])
            found += end.format(rng.randint(1, 40))
        return found

    def address(self, one: Person) -> str:
        rng, generator = self.rng, locale(one.locale)
        street = self.street(one)
        post, city = generator.postcode(), generator.city()
        if one.locale in ("en_US", "en_GB", "en_IN", "en_AU", "en_CA", "en_IE", "en_PK"):
            end = rng.choice([f"{city} {post}", f"{city}, {post}", city])
        else:
            end = rng.choice([f"{post} {city}", f"{post} {city}", f"{post} {city}", city])
        if rng.random() < 0.08:
            end += f", {rng.choice(COUNTRIES)}"
        return f"{street}, {end}"

    def lines(self, one: Person) -> str:
        """An address on lines of its own, as on an envelope."""
        return self.address(one).replace(", ", "\n")

    # --- dates of a life

    def day_of_life(self, one: Person) -> str:
        day = date(1935, 1, 1) + timedelta(days=self.rng.randint(0, 27_000))
        return written(self.rng, day, self.language)

    def appointment(self, one: Person) -> str:
        day = date(2015, 1, 1) + timedelta(days=self.rng.randint(0, 5000))
        return written(self.rng, day, self.language)


#: slot -> label, and what makes it
PRIVATE = {
    "person": ("private_person", Values.person),
    "first": ("private_person", Values.first),
    "last": ("private_person", Values.last),
    "turned": ("private_person", Values.turned),
    "low": ("private_person", Values.low),
    "email": ("private_email", Values.email),
    "phone": ("private_phone", Values.phone),
    "url": ("private_url", Values.url),
    "street": ("private_address", Values.street),
    "address": ("private_address", Values.address),
    "lines": ("private_address", Values.lines),
    "dob": ("private_date", Values.day_of_life),
    "appointment": ("private_date", Values.appointment),
    "iban": ("account_number", Values.iban),
    "card": ("account_number", Values.card),
    "national": ("account_number", Values.national),
    "account": ("account_number", Values.account),
    "password": ("secret", Values.password),
    "key": ("secret", Values.key),
    "token": ("secret", Values.token),
    "pin": ("secret", Values.pin),
}
