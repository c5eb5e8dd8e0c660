"""What looks private and is not: companies, versions, orders, hashes, public dates and pages."""

from datetime import date, timedelta
from random import Random

from texts.dates import written
from texts.lexicon import title
from texts.people import ALL, HELD_OUT, LANGUAGES, OTHERS, locale, made_up, plain
from texts.words import COMPANY_ENDS, PRODUCTS, TLDS, WORDS

HEX = "0123456789abcdef"


class Lookalikes:
    """Values of a document in one language; `held_out`: of places that no training sees."""

    def __init__(self, rng: Random, language: str, held_out: bool = False):
        self.rng, self.language, self.held_out = rng, language, held_out

    def _locale(self) -> str:
        rng = self.rng
        if self.held_out:
            return rng.choice(HELD_OUT[self.language] + HELD_OUT[""] * (rng.random() < 0.3))
        native = LANGUAGES[self.language]
        return rng.choice(native if rng.random() < 0.65 else OTHERS + ALL)

    def _domain(self) -> str:
        rng = self.rng
        word = rng.choice([rng.choice(WORDS), plain(made_up(rng)).lower() or "x"])
        second = rng.choice(["", "", rng.choice(WORDS), "-" + rng.choice(WORDS)])
        first = rng.choice(["", "", "", "", "mail.", "cs.", "post."])
        return f"{first}{word}{second}.{rng.choice(TLDS)}"

    def _digits(self, count: int) -> str:
        return "".join(self.rng.choices("0123456789", k=count))

    def company(self) -> str:
        rng = self.rng
        name = rng.choice(
            [
                made_up(rng),
                rng.choice(WORDS).title(),
                rng.choice(WORDS).title() + " " + rng.choice(WORDS).title(),
            ]
        )
        return f"{name} {rng.choice(COMPANY_ENDS)}"

    def product(self) -> str:
        rng = self.rng
        name = rng.choice([*PRODUCTS, made_up(rng)])
        series = rng.choice(["", rng.choice("XZGKT")])
        return f"{name} {series}{rng.choice([10, 20, 3, 5, 100, 350, 500, 2000, 7590])}"

    def version(self) -> str:
        rng = self.rng
        parts = [str(rng.randint(0, 24)) for _ in range(rng.choice([2, 3, 3, 3, 4]))]
        return (
            rng.choice(["", "", "v"])
            + ".".join(parts)
            + rng.choice(["", "", "", "-rc1", "-beta", "b2"])
        )

    def order(self) -> str:
        rng = self.rng
        return rng.choice(
            [
                rng.choice(["ORD", "INV", "RE", "PO", "T", "SO"])
                + "-"
                + self._digits(rng.randint(4, 8)),
                self._digits(rng.randint(5, 9)),
                f"{self._digits(3)}-{self._digits(7)}",
                f"#{self._digits(rng.randint(3, 6))}",
                f"{self._digits(5)}-{rng.choice('ABC')}",
                f"{rng.randint(2015, 2026)}/{self._digits(4)}",
                f"{rng.randint(2015, 2026)}-{self._digits(5)}",
            ]
        )

    def isbn(self) -> str:
        rng = self.rng
        return (
            rng.choice(["978-", "979-"])
            + f"{rng.randint(0, 9)}-{self._digits(3)}-{self._digits(5)}-{rng.randint(0, 9)}"
        )

    def hash(self) -> str:
        return "".join(self.rng.choices(HEX, k=self.rng.choice([7, 8, 10, 12, 32, 40, 64])))

    def uuid(self) -> str:
        return "-".join("".join(self.rng.choices(HEX, k=k)) for k in (8, 4, 4, 4, 12))

    def day(self) -> str:
        return written(
            self.rng,
            date(1750, 1, 1) + timedelta(days=int(100_000 * self.rng.random() ** 0.3)),
            self.language,
        )

    def stamp(self) -> str:
        rng = self.rng
        day = date(2012, 1, 1) + timedelta(days=rng.randint(0, 5500))
        clock = f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02}"
        return (
            day.isoformat()
            + rng.choice([" ", "T"])
            + clock
            + rng.choice(["", "Z", ".123", "+01:00"])
        )

    def site(self) -> str:
        rng = self.rng
        where = (
            rng.choice(["", "", rng.choice(["www.", "docs.", "support.", "blog."])])
            + self._domain()
        )
        path = rng.choice(
            [
                "",
                "",
                "/",
                f"/{rng.choice(WORDS)}",
                f"/{rng.choice(WORDS)}/{rng.choice(WORDS)}",
                "/help",
                "/docs/latest/install.html",
                f"/{rng.choice(WORDS)}-{rng.choice(WORDS)}-{rng.choice(WORDS)}",
                f"/news/{rng.randint(2009, 2026)}/{rng.choice(WORDS)}",
                "/about",
                "/download",
            ]
        )
        return (
            ("" if where.startswith("www.") and rng.random() < 0.5 else "https://") + where + path
        )

    def city(self) -> str:
        generator = locale(self._locale())
        generator.random = self.rng
        return generator.city()

    def amount(self) -> str:
        rng = self.rng
        value = rng.choice(
            [
                f"{rng.randint(1, 999)}",
                f"{rng.randint(1, 99)},{rng.randint(100, 999)}",
                f"{rng.randint(1, 900)}.{rng.randint(10, 99)}",
                f"{rng.randint(1, 99)}.{rng.randint(100, 999)},{rng.randint(10, 99)}",
                f"{rng.randint(1, 900)},{rng.randint(10, 99)}",
            ]
        )
        return rng.choice(
            [
                f"{value} €",
                f"€{value}",
                f"${value}",
                f"{value} EUR",
                f"£{value}",
                f"{value} euros",
                value,
            ]
        )

    def number(self) -> str:
        rng = self.rng
        return rng.choice(
            [
                str(rng.randint(1, 99)),
                str(rng.randint(1, 99)),
                str(rng.randint(100, 99999)),
                f"{rng.randint(1, 999)},{rng.randint(100, 999)}",
                f"{rng.randint(0, 99)}.{rng.randint(0, 99)}",
                f"{rng.randint(1, 99)}%",
                str(rng.randint(1800, 2030)),
            ]
        )

    def clock(self) -> str:
        rng = self.rng
        hour, minute = rng.randint(0, 23), rng.choice([0, 0, 15, 30, 45, rng.randint(0, 59)])
        return rng.choice(
            [
                f"{hour}:{minute:02}",
                f"{hour}.{minute:02}",
                f"{hour} h {minute:02}",
                f"{hour} Uhr",
                f"{hour % 12 or 12} pm",
            ]
        )

    def ip(self) -> str:
        rng = self.rng
        found = ".".join(str(rng.randint(0, 255)) for _ in range(4))
        return found + rng.choice(["", "", f":{rng.randint(80, 9999)}"])

    def path(self) -> str:
        rng = self.rng
        return (
            rng.choice(["/", "./", "~/", "src/", "C:\\"])
            + "/".join(rng.sample(WORDS, rng.randint(1, 3)))
            + rng.choice([".py", ".txt", ".log", "", ".md", ".json"])
        )

    def word(self) -> str:
        return self.rng.choice(WORDS)

    def text(self) -> str:
        return title(self.rng, self.language)

    def name(self) -> str:
        """Of a thing or a place that is called like somebody."""
        return made_up(self.rng)


#: slot -> what makes it
PUBLIC = {
    name: getattr(Lookalikes, name)
    for name in (
        "company", "product", "version", "order", "isbn", "hash", "uuid", "day", "stamp", "site",
        "city", "amount", "number", "clock", "ip", "path", "word", "name", "text",
    )
}  # fmt: skip
