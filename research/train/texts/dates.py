"""A day as people write it, in seven languages."""

from datetime import date
from random import Random

MONTHS = {
    "en": "January February March April May June July August September October November December",
    "de": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
    "fr": "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    "es": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre "
    "diciembre",
    "it": "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre "
    "dicembre",
    "nl": "januari februari maart april mei juni juli augustus september oktober november december",
    "pt": "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro "
    "dezembro",
}
LONG = {
    "en": ["{d} {m} {y}", "{m} {d}, {y}", "{d} {m}", "{m} {d}", "{d} {s} {y}", "{s} {d}, {y}"],
    "de": ["{d}. {m} {y}", "{d}. {m}", "{d}. {s}. {y}"],
    "fr": ["{d} {m} {y}", "{d} {m}", "{d} {m} {y}"],
    "es": ["{d} de {m} de {y}", "{d} de {m}", "{d} {m} {y}"],
    "it": ["{d} {m} {y}", "{d} {m}"],
    "nl": ["{d} {m} {y}", "{d} {m}"],
    "pt": ["{d} de {m} de {y}", "{d} de {m}"],
}
SHORT = [
    "{y}-{M:02}-{d:02}",
    "{d:02}/{M:02}/{y}",
    "{d:02}.{M:02}.{y}",
    "{d}.{M}.{y}",
    "{M:02}/{d:02}/{y}",
    "{d:02}-{M:02}-{y}",
    "{d}/{M}/{Y:02}",
    "{d:02}.{M:02}.{Y:02}",
    "{y}/{M:02}/{d:02}",
]


def written(rng: Random, day: date, language: str) -> str:
    month = MONTHS[language].split()[day.month - 1]
    form = rng.choice(LONG[language] if rng.random() < 0.5 else SHORT)
    short = {"s": month[:3], "M": day.month, "Y": day.year % 100}
    return form.format(d=day.day, m=month, y=day.year, **short)
