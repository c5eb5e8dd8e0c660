"""The demo: a page of invented personal data, redacted by the default model."""

from pathlib import Path
import re
import runpy
import sys

import ane_book
import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "demo" / "page.txt").read_bytes().decode()


@pytest.fixture(scope="module")
def found():
    return ane_book.load("privacy-filter-small").redact(PAGE)


def own(found, label: str) -> list[str]:
    return [PAGE[s.start : s.end] for s in found.spans if s.label == label]


def test_prints_the_redacted_page_and_what_it_found(found, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["redact.py"])
    runpy.run_path(str(ROOT / "demo" / "redact.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert said.startswith(found.text)
    *rows, counts = said[len(found.text) :].split("\n")[1:-1]
    assert len(rows) == len(found.spans)
    for row, span in zip(rows, found.spans, strict=True):
        assert row.startswith(span.label) and f" {span.score:.1%} " in row
    assert f"{len(own(found, 'private_email'))} private_email" in counts


def test_every_address_of_mail_and_bank_is_found(found):
    """What a small model has to find, at least; what it misses is in its record."""
    mail, bank = re.compile(r"[\w.]+@example\.\w+"), re.compile(r"\b[A-Z]{2}\d\d(?: \w{2,4}){4,6}")
    assert len(mail.findall(PAGE)) == 5 and len(bank.findall(PAGE)) == 2
    for text in (*mail.findall(PAGE), *bank.findall(PAGE), "4539 1488 0343 6467"):
        assert text in PAGE and text not in found.text


def test_leaves_what_is_not_private(found):
    for text in (*re.findall("== .* ==", PAGE), "build 3.12.4-rc1", "512 MB", "RETRIES=3", "1984"):
        assert text in found.text
