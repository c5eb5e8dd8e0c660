"""Numbers of accounts, and secrets: what is private whoever it belongs to."""

import string

from texts.lookalikes import HEX, Lookalikes
from texts.people import Person, locale
from texts.words import WORDS

ALNUM = string.ascii_letters + string.digits


class Numbers(Lookalikes):
    """Values of a document that no name goes into."""

    # --- numbers of accounts

    def iban(self, one: Person) -> str:
        rng, generator = self.rng, locale(one.locale)
        generator.random = rng
        found = generator.iban()
        if rng.random() < 0.3:
            found = rng.choice(
                ["DE", "FR", "NL", "IT", "ES", "PT", "BE", "AT", "CH"]
            ) + self._digits(2)
            found += rng.choice(["", "RABO", "X", "INGB"]) + self._digits(rng.randint(12, 22))
        if rng.random() < 0.55:
            found = " ".join(found[i : i + 4] for i in range(0, len(found), 4))
        return found

    def card(self, one: Person) -> str:
        rng = self.rng
        found = rng.choice("3456") + self._digits(15)
        between = rng.choice([" ", " ", "-", ""])
        return between.join(found[i : i + 4] for i in range(0, 16, 4))

    def national(self, one: Person) -> str:
        rng, generator = self.rng, locale(one.locale)
        generator.random = rng
        if rng.random() < 0.6:
            return str(generator.ssn())
        return rng.choice(
            [
                f"{self._digits(3)}-{self._digits(2)}-{self._digits(4)}",
                self._digits(11),
                f"{self._digits(2)} {self._digits(3)} {self._digits(3)} {self._digits(3)}",
                "".join(rng.choices(string.ascii_uppercase, k=6))
                + self._digits(2)
                + rng.choice("ABCDEHLMPRST")
                + self._digits(2)
                + "H"
                + self._digits(3)
                + "X",
                f"{self._digits(3)}.{self._digits(3)}.{self._digits(3)}-{self._digits(2)}",
                rng.choice("XYZ") + self._digits(7) + rng.choice(string.ascii_uppercase),
            ]
        )

    def account(self, one: Person) -> str:
        """Of a customer, a patient, a passport, a contract: whoever knows it knows who."""
        rng = self.rng
        letters = "".join(rng.choices(string.ascii_uppercase, k=rng.randint(1, 3)))
        between = rng.choice(["-", "", "", " ", "/"])
        return rng.choice(
            [
                self._digits(rng.randint(6, 12)),
                letters + between + self._digits(rng.randint(5, 9)),
                self._digits(rng.randint(3, 5))
                + (between or "-")
                + self._digits(rng.randint(3, 6)),
                f"{self._digits(4)}-{self._digits(4)}-{self._digits(2)}",
                letters + self._digits(7),
                f"{self._digits(3)} {self._digits(3)} {self._digits(3)}",
                "".join(rng.choices(string.ascii_uppercase + string.digits, k=9)),
            ]
        )

    # --- secrets

    def password(self, one: Person) -> str:
        rng = self.rng
        signs = "!?#$%&*+-_@^~=.:;/"
        if rng.random() < 0.5:
            return "".join(rng.choices(ALNUM + signs, k=rng.randint(7, 18))).strip(
                ".:;"
            ) + rng.choice("!x7")
        words = [
            rng.choice([w, w.title(), w.upper()]) for w in rng.sample(WORDS, rng.randint(1, 3))
        ]
        words[0] = words[0].replace(
            *rng.choice([("a", "4"), ("e", "3"), ("o", "0"), ("i", "1"), ("s", "$")])
        )
        return (
            rng.choice(["", "-", "_", "."]).join(words)
            + self._digits(rng.randint(1, 4))
            + rng.choice(["", "!", "#", "?"])
        )

    def key(self, one: Person) -> str:
        rng = self.rng
        body = "".join(
            rng.choices(
                rng.choice([ALNUM, ALNUM, HEX, string.ascii_uppercase + "234567"]),
                k=rng.randint(16, 44),
            )
        )
        lead = rng.choice(
            [
                "",
                "sk-",
                "pk_",
                "ghp_",
                "key-",
                "tok_",
                "AKIA",
                "api_",
                "glpat-",
                f"{rng.choice(WORDS)[:4]}_",
            ]
        )
        return lead + body

    def token(self, one: Person) -> str:
        rng = self.rng
        parts = ["".join(rng.choices(ALNUM + "_-", k=rng.randint(10, 30))) for _ in range(3)]
        return (
            rng.choice(["eyJhbGciOiJIUzI1NiJ9.", "eyJ0eXAiOiJKV1Qi", "eyJ"])
            + ".".join(parts)[: rng.randint(24, 80)].rstrip(".-_")
            + "Q"
        )

    def pin(self, one: Person) -> str:
        rng = self.rng
        return rng.choice(
            [
                self._digits(4),
                self._digits(6),
                self._digits(5),
                f"{self._digits(4)}#",
                f"{self._digits(3)}-{self._digits(3)}",
            ]
        )
