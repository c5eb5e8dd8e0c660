"""What a device row may hold: rows that somebody sent, sound, damaged and hostile."""

import json
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from _command import mlprogram as command
from _command import refused
from mlprogram.ane.mac.row import link, read_row, read_rows, text
from mlprogram.ane.mac.row.form import (
    FORMAT,
    ISSUES,
    LONGEST_LINK,
    MAX_BYTES,
    NAMES,
    OWN,
    REASONS,
    UNITS,
    WATCHED,
)
from mlprogram.errors import InvalidInput
import pytest

ROOT = Path(__file__).parents[3]


def measured(**figures) -> dict:
    """What is said of one set of units; digits as many as clocks give."""
    times = {"first_s": 0.153, "second_s": 0.0213, "median_ms": 0.312, "min_ms": 0.301}
    return times | {"difference": 0.0012} | figures


def a_package(name: str, **more) -> dict:
    units = {each: measured(ops={"cpu": 38}) for each in UNITS}
    if "state" in name:
        units = {each: one | {"kept": True} for each, one in units.items()}
    predicted = {"chip": "m4-max", "ANE": 20, "CPU": 18}
    about = {"name": name, "sha256": "0" * 32, "predicted": predicted, "as_predicted": [18, 38]}
    return about | more | {"units": units}


def a_row(*names: str, **more) -> dict:
    about = {"format": FORMAT, "date": "2026-11-30", "chip": "Apple M4 Max", "system": "macOS 26.1"}
    about |= {"coremltools": "9.0", "mlprogram": "0.2.0", "fitted": False}
    packages = [a_package(name) for name in names or (OWN,)]
    return about | {"packages": packages, "unmeasured": {"anemon": REASONS[2]}} | more


def sent(folder: Path, content: object, name: str = "sent.json") -> Path:
    file = folder / name
    kinds = {bytes: lambda: content, str: lambda: content.encode()}
    file.write_bytes(kinds.get(type(content), lambda: json.dumps(content).encode())())
    return file


def test_a_sound_row_is_read_as_it_was_written(tmp_path):
    row = a_row(*NAMES[:-1])
    assert read_row(sent(tmp_path, text(row))) == row
    lines = text(row).splitlines()
    assert len(lines) == 1 + 5 * (1 + len(UNITS)), "one for each set of units"


def test_the_longest_row_of_the_small_packages_has_its_bytes_and_a_link():
    figures = dict.fromkeys(WATCHED, 99.1)
    row = a_row(*NAMES[:-1], chip="Apple M4 Ultra", anemon=figures, coremltools="9.1.dev1")
    row["packages"][0]["compiler"] = "failed to compile for the engine (status 11)"
    assert MAX_BYTES - 500 < len(text(row)) <= MAX_BYTES
    assert link(row) is not None


def test_the_link_opens_an_issue_of_the_books_repository_with_the_row_in_it():
    row = a_row()
    address = urlsplit(link(row))
    (repository,) = {
        line.split()[1]
        for line in (ROOT / "_config.yml").read_text().splitlines()
        if line.startswith("  url: ")
    }
    assert f"{repository}/issues/new" == ISSUES == address._replace(query="").geturl()
    fields = {name: value for name, (value,) in parse_qs(address.query).items()}
    assert fields["title"] == "Device row: Apple M4 Max, macOS 26.1, own"
    assert fields["body"] == f"```json\n{text(row)}```\n"


def test_a_row_that_is_too_long_for_a_link_has_none(monkeypatch):
    monkeypatch.setattr("mlprogram.ane.mac.row.form.LONGEST_LINK", 900)
    assert link(a_row()) is None and LONGEST_LINK <= 8192


def changed(path: str, value: object) -> dict:
    """A sound row but for one field, at a path such as "packages.0.name"; ... takes it away."""
    row = a_row(OWN)
    *way, last = path.split(".")
    at = row
    for key in way:
        at = at[int(key) if key.isdigit() else key]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return row


NE = "packages.0.units.CPU_AND_NE"
HOSTILE = {
    "empty": (b"", "not the JSON of a row"),
    "cut": (b'{"format": "mlprog', "not the JSON of a row"),
    "no UTF-8": (b'{"format": "\xff"}', "not the JSON of a row"),
    "deep": (b"[" * 4000, "not the JSON of a row"),
    "twice": (b'{"format": 1, "format": 2}', "a field is there twice"),
    "NaN": (b'{"format": NaN}', "NaN is no JSON"),
    "large": (b'"' + b"x" * 5000 + b'"', "5,002 bytes, and a row has at most 4,096"),
    "list": ([], "the row: [] is no object"),
    "another's": ({"format": "bench 1"}, 'format: "bench 1" is no device row'),
    "newer": (changed("format", "mlprogram row 2"), "of another version of mlprogram"),
    "a user's name": (changed("user", "ada"), 'the row: "user" is no field of it'),
    "a path for a name": (changed("packages.0.name", "/Users/ada/x"), "is not one of"),
    "a host for a chip": (changed("chip", "adas-mac.local"), "chip:"),
    "a control character": (changed("system", "macOS 26.1\x1b[2J"), r"\u001b[2J"),
    "a line more": (changed("system", "macOS 26.1\n"), "system:"),
    "other digits": (changed("system", "macOS ٢٦.١"), "system:"),
    "a page for a reason": (changed("unmeasured.anemon", "<script>"), "unmeasured.anemon:"),
    "words of its own": (changed(NE, {"failed": "see /tmp/x"}), "failed:"),
    "words of its own after ours": (changed(NE, {"failed": "hung at ada writes"}), "failed:"),
    "a name for a version": (changed("coremltools", "9.ada"), '"9.ada" is not a version'),
    "a host for a version": (changed("mlprogram", "0.2.0+adas.local"), "is not a version"),
    "off a Mac": (changed("system", "Linux"), "is not a system such as macOS 26.1"),
    "tomorrow's": (changed("date", "2126-01-01"), "is no date from 2026-11-01 to today"),
    "no date": (changed("date", "2026-13-41"), "is no date"),
    "missing": (changed("coremltools", ...), "coremltools: is missing"),
    "too fast": (changed(f"{NE}.min_ms", -1), "min_ms: -1 is not from 0 to"),
    "infinite": (changed(f"{NE}.median_ms", 1e999), "not the JSON of a row (Infinity"),
    "huge": (b'{"format": 1e999}', "format: Infinity is no device row"),
    "no number": (changed(f"{NE}.median_ms", True), "true is no number"),
    "half an op": (changed(f"{NE}.ops.cpu", 1.5), "1.5 is no whole number"),
    "a device of its own": (changed(f"{NE}.ops.tpu", 1), '"tpu" is no field of it'),
    "a median below the least": (changed(f"{NE}.median_ms", 0.1), "is more than the median"),
    "neither": (changed(NE, {}), "either failed or median_ms"),
    "units left out": (changed(NE, ...), "CPU_AND_NE is neither measured nor unmeasured"),
    "twice and not at all": (changed("unmeasured.ALL", REASONS[0]), "measured and unmeasured"),
    "more than all": (changed("packages.0.as_predicted", [9, 8]), "9 of 8 cannot be"),
    "of none": (changed("packages.0.as_predicted", [0, 0]), "0 of 0 cannot be"),
    "none": (changed("packages", []), "is no list of 1 to 6"),
    "one twice": (a_row(OWN, OWN), "own is there twice"),
    "fitted or not": (changed("fitted", "no"), '"no" is neither true nor false'),
}


@pytest.mark.parametrize(("content", "said"), HOSTILE.values(), ids=HOSTILE)
def test_a_damaged_or_hostile_row_is_one_line(tmp_path, content, said):
    with pytest.raises(InvalidInput) as raised:
        read_row(sent(tmp_path, content))
    line = str(raised.value)
    assert said in line and line.startswith(f"{tmp_path / 'sent.json'}: ")
    assert len(line) < len(str(tmp_path)) + 250 and line.isprintable()


def test_what_is_no_file_is_told(tmp_path):
    for path in (tmp_path, tmp_path / "none.json"):
        with pytest.raises(InvalidInput, match="no such file"):
            read_row(path)


def test_the_same_measurement_is_taken_once(tmp_path):
    first, again = sent(tmp_path, a_row()), a_row(date="2026-11-29", fitted=True)
    other = a_row()
    other["packages"][0]["units"]["ALL"]["median_ms"] = 0.4
    assert len(read_rows([first, first, sent(tmp_path, other, "other.json")])) == 2
    with pytest.raises(InvalidInput, match=r"again.json: the same measurement as sent.json"):
        read_rows([first, sent(tmp_path, again, "again.json")])


def test_the_command_checks_rows(tmp_path):
    file = sent(tmp_path, a_row())
    done = command("row", file)
    assert (done.returncode, done.stdout) == (0, "1 row checked: nothing is wrong\n")
    assert "is no field" in refused("row", sent(tmp_path, changed("a", 1)), by=command)


def test_rows_that_are_filed_are_sound():
    filed = sorted((ROOT / "research" / "rows").glob("*.json"))
    assert len(read_rows(filed)) == len(filed)
