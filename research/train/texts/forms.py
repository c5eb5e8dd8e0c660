"""Texts that have fields: forms, tables, rows, objects, settings, logs and code."""

from random import Random
import string

from texts.lexicon import word
from texts.values import Piece, Values

#: What a field is called, and its slot.
FIELDS = {
    "person": "name full_name Name fullname contact customer Kunde Nom Nombre Nome Naam user_name "
    "patient employee Ansprechpartner recipient holder owner author reporter assignee",
    "first": "first_name firstname Vorname Prénom given_name Voornaam",
    "last": "last_name surname Nachname Apellidos Cognome family_name Achternaam",
    "turned": "name Name Surname,_given_name",
    "email": "email e-mail mail E-Mail Correo contact_email email_address user to from login",
    "phone": "phone tel mobile Telefon Téléphone Teléfono Telefoon phone_number cell fax",
    "address": "address Adresse Dirección Indirizzo Adres Endereço shipping_address "
    "billing_address",
    "street": "street Straße address_line_1 rue",
    "dob": "dob date_of_birth birthday Geburtsdatum born birth_date Geboren",
    "appointment": "appointment admitted hired_on Termin visit member_since",
    "iban": "iban IBAN account bank_account Konto",
    "card": "card card_number credit_card Kreditkarte pan",
    "national": "ssn national_id tax_id SSN NIF BSN CPF Steuer-ID",
    "account": "customer_id account_no member_number patient_no policy passport Kundennummer "
    "account_number insurance_no",
    "password": "password passwd pwd Passwort contraseña DB_PASSWORD db_pass SMTP_PASSWORD",
    "key": "api_key API_KEY secret SECRET_KEY access_key client_secret private_key auth_key",
    "token": "token access_token jwt bearer session_token",
    "pin": "pin code otp door_code PIN",
    "url": "profile homepage avatar share_link calendar portfolio reset_link",
}
PLAIN = {
    "order": "order invoice ticket id ref Bestellung sku item",
    "version": "version release build Version",
    "hash": "commit sha256 md5 etag checksum digest sha",
    "uuid": "uuid request_id trace_id id",
    "stamp": "time created_at timestamp updated date opened",
    "day": "published released valid_from Datum",
    "amount": "amount price total Betrag Preis cost",
    "number": "count qty port retries size line year items",
    "city": "city Ort Ville Ciudad Branch station",
    "company": "company vendor Firma employer",
    "product": "product model device Modell",
    "site": "website docs url support_page source",
    "word": "status type level theme category room plan",
    "ip": "ip host addr server",
    "path": "file path log_file",
    "isbn": "isbn ISBN",
    "clock": "hours starts_at",
    "text": "title note comment subject Bemerkung description text Titel Sujet message",
}
#: What is known by its looks, whatever the field is called.
CLEAR = {"email", "phone", "address", "url", "iban", "card", "key", "token", "turned", "person"}


def _fields(
    rng: Random, values: Values, low: int, high: int, private: float = 0.55
) -> list[tuple[str, str]]:
    """Names of fields and their slots, in any order."""
    found = {}
    for _ in range(rng.randint(low, high)):
        kinds = FIELDS if rng.random() < private else PLAIN
        slot = rng.choice(list(kinds))
        found[slot] = rng.choice(kinds[slot].split())
        if (kinds is PLAIN or slot in CLEAR) and rng.random() < 0.25:
            found[slot] = word(rng, values.language)
    return [(name, slot) for slot, name in found.items()]


def _words(name: str) -> str:
    return name.replace("_", " ")


def _form(rng: Random, values: Values) -> list[Piece]:
    """A field a line, its value after a colon, in a column or on the next line."""
    between = rng.choice([": ", ": ", ":\t", " : ", " - ", ":\n"])
    wide = rng.random() < 0.25
    case = rng.choice([str, str.capitalize, str.upper, str.title])
    pieces: list[Piece] = []
    for name, slot in _fields(rng, values, 2, 7):
        head = case(_words(name))
        pieces.append((f"{head + ':':24}" if wide else head + between, None))
        pieces += [*values.fill(slot), ("\n", None)]
    return pieces


def _people(rng: Random, values: Values) -> list[Values]:
    """The values of rows: of other people in each."""
    return [Values(rng, values.language, values.held_out) for _ in range(rng.randint(1, 5))]


def _rows(rng: Random, values: Values) -> list[Piece]:
    """CSV, with a head or without."""
    fields = _fields(rng, values, 2, 6)
    sign = rng.choice([",", ",", ";", "\t", "|"])
    quote = '"' if rng.random() < 0.3 else ""
    pieces: list[Piece] = []
    if rng.random() < 0.8:
        pieces.append((sign.join(name for name, _ in fields) + "\n", None))
    for own in _people(rng, values):
        for i, (_, slot) in enumerate(fields):
            slot = "person" if slot == "turned" and sign == "," and not quote else slot
            pieces += [((sign if i else "") + quote, None), *own.fill(slot), (quote, None)]
        pieces.append(("\n", None))
    return pieces


def _objects(rng: Random, values: Values) -> list[Piece]:
    """JSON, an object a line or one over several."""
    fields, wide = _fields(rng, values, 2, 7), rng.random() < 0.3
    before, after = ("\n  ", "\n") if wide else ("", "")
    tight = rng.choice([": ", ":"])
    pieces: list[Piece] = []
    for own in _people(rng, values)[: 1 if wide else 4]:
        pieces.append(("{", None))
        for i, (name, slot) in enumerate(fields):
            quote = "" if slot == "number" and rng.random() < 0.5 else '"'
            comma = ("," if wide else ", ") if i else ""
            pieces += [(f'{comma}{before}"{name}"{tight}{quote}', None), *own.fill(slot)]
            pieces.append((quote, None))
        pieces.append((after + "}\n", None))
    return pieces


def _settings(rng: Random, values: Values) -> list[Piece]:
    """.env, ini and YAML."""
    between = rng.choice(["=", "=", ": ", " = "])
    quote = rng.choice(["", "", '"', "'"])
    upper = rng.random() < 0.5
    pieces: list[Piece] = []
    if rng.random() < 0.4:
        pieces.append((rng.choice(["# settings\n", "[server]\n", "---\n", "# .env\n"]), None))
    for name, slot in _fields(rng, values, 3, 7, private=0.45):
        lead = rng.choice(["", "", "", "export "]) if between == "=" else ""
        head = lead + (name.upper() if upper else name) + between + quote
        pieces += [(head, None), *values.fill(slot), (quote + "\n", None)]
    return pieces


def _table(rng: Random, values: Values) -> list[Piece]:
    """Markdown."""
    fields = _fields(rng, values, 2, 5)
    head = "| " + " | ".join(_words(name) for name, _ in fields) + " |\n"
    pieces: list[Piece] = [(head + "|" + "---|" * len(fields) + "\n", None)]
    for own in _people(rng, values):
        for _, slot in fields:
            pieces += [("| ", None), *own.fill(slot), (" ", None)]
        pieces.append(("|\n", None))
    return pieces


def _log(rng: Random, values: Values) -> list[Piece]:
    pieces: list[Piece] = []
    for _ in range(rng.randint(1, 5)):
        head = rng.choice(["[{}] ", "{} ", "{} - "])
        pieces += [(head.split("{}")[0], None), *values.fill("stamp"), (head.split("{}")[1], None)]
        level = rng.choice(["INFO", "WARN", "ERROR", "DEBUG", "info:", "error:"])
        what = rng.choice(
            [
                "login failed",
                "sent mail",
                "request done",
                "started",
                "cache miss",
                "user updated",
                "retrying",
                "payment refused",
                "signed in",
            ]
        )
        pieces.append(
            (f"{level} {rng.choice(['', 'app ', 'auth: ', 'api ', 'worker-3 '])}{what}", None)
        )
        for name, slot in _fields(rng, values, 1, 3, private=0.4):
            pieces += [(f" {name}{rng.choice(['=', '=', ': ', ' '])}", None), *values.fill(slot)]
        pieces.append(("\n", None))
    return pieces


def _code(rng: Random, values: Values) -> list[Piece]:
    """Assignments, calls and remarks."""
    pieces: list[Piece] = []
    if rng.random() < 0.5:
        sign = rng.choice(["#", "//", "--"])
        note = rng.choice(["TODO({}): ", "author: {}", "written by {}", "ask {} about this"])
        a, b = note.split("{}")
        pieces += [(f"{sign} {a}", None), *values.fill(rng.choice(["first", "person", "low"]))]
        pieces.append((f"{b}\n", None))
    for name, slot in _fields(rng, values, 1, 4, private=0.5):
        lead = rng.choice(["", "", "    ", "const ", "let ", "self."])
        quote = rng.choice(['"', '"', "'"])
        end = rng.choice(["", ";", ")", ","]) if lead in ("const ", "let ") else ""
        head = f"{lead}{name.replace('-', '_')} = {quote}"
        pieces += [(head, None), *values.fill(slot), (f"{quote}{end}\n", None)]
    if rng.random() < 0.4:
        word = values.word()
        call = rng.choice(
            [
                "def {}(self, x, n=3):\n    return x * n\n",
                "for i in range(10):\n    {}(i)\n",
                "if not {}:\n    raise ValueError(x)\n",
                "import {}\n",
            ]
        )
        pieces.append((call.format(word), None))
    return pieces


def _list(rng: Random, values: Values) -> list[Piece]:
    """HTML: a list, or the cells of a row."""
    tag = rng.choice(["li", "td", "p", "dd", "span", "b"])
    pieces: list[Piece] = []
    for name, slot in _fields(rng, values, 2, 6):
        head = f"<{tag}>" + (f"{_words(name)}: " if rng.random() < 0.6 else "")
        pieces += [(head, None), *values.fill(slot), (f"</{tag}>\n", None)]
    return pieces


def _query(rng: Random, values: Values) -> list[Piece]:
    """SQL."""
    fields = _fields(rng, values, 2, 5)
    columns = ", ".join(name.replace("-", "_") for name, _ in fields)
    head = f"INSERT INTO {values.word()} ({columns}) VALUES ("
    pieces: list[Piece] = [(head, None)]
    for i, (_, slot) in enumerate(fields):
        pieces += [("'" if i == 0 else ", '", None), *values.fill(slot), ("'", None)]
    return [*pieces, (");\n", None)]


def _markup(rng: Random, values: Values) -> list[Piece]:
    """XML."""
    pieces: list[Piece] = [("<record>\n", None)]
    for name, slot in _fields(rng, values, 2, 6):
        tag = "".join(c for c in name if c in string.ascii_letters + "_-") or "field"
        pieces += [(f"  <{tag}>", None), *values.fill(slot), (f"</{tag}>\n", None)]
    return [*pieces, ("</record>\n", None)]


def _visiting(rng: Random, values: Values) -> list[Piece]:
    """vCard."""
    pieces: list[Piece] = [("BEGIN:VCARD\nVERSION:3.0\nFN:", None), *values.fill("person")]
    for head, slot in (("TEL;TYPE=CELL:", "phone"), ("EMAIL:", "email"), ("BDAY:", "dob")):
        pieces += [(f"\n{head}", None), *values.fill(slot)]
    return [*pieces, ("\nORG:", None), *values.fill("company"), ("\nEND:VCARD\n", None)]


TRAINED = [_form, _form, _rows, _rows, _objects, _objects, _settings, _table, _log, _log, _code,
           _list]  # fmt: skip
HELD_OUT = [_query, _markup, _visiting]


def form(rng: Random, values: Values, kinds: list) -> list[Piece]:
    return rng.choice(kinds)(rng, values)
